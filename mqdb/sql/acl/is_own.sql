-- For functions that run with the rights of the owner: which records they may disclose to the logged-in role.
CREATE FUNCTION mqdb.is_own(log_pos bigint, queue_key integer) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF session_user <> current_user THEN  -- called by a role it could not even look
        IF EXISTS (SELECT FROM mqdb.half_message h WHERE h.log_pos = is_own.log_pos AND h.principal = session_user::text) THEN
            RETURN true;
        END IF;
    END IF;
    RETURN EXISTS (SELECT FROM mqdb.own_queue r WHERE r.queue_key = is_own.queue_key)
        OR EXISTS (
            SELECT FROM mqdb.queue q JOIN mqdb.topic t USING (topic_id)
            WHERE q.queue_key = is_own.queue_key AND t.topic IN (mqdb.schedule_topic(), mqdb.timer_topic()))
        AND EXISTS (
            SELECT FROM mqdb.commit_log cl JOIN mqdb.own_right a
                ON mqdb.is_covered(cl.properties ->> 'REAL_TOPIC', a.resource_type, a.resource)
            WHERE cl.log_pos = is_own.log_pos);
END
$$;
COMMENT ON FUNCTION mqdb.is_own(bigint, integer) IS 'Whether the logged-in role may send to or read the topic for which a record is meant, even while the record waits; for a half message, whether the role sent it';

-- The ORDER BY ties the plan to the primary key, because the plan may be made while a segment is empty.
CREATE FUNCTION mqdb.find_queue_offset(queue_key integer, log_pos bigint, msg_id uuid, history bigint) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF NOT (session_user = current_user OR mqdb.is_own(find_queue_offset.log_pos, find_queue_offset.queue_key)
            OR mqdb.is_owner(session_user)) THEN
        RETURN NULL;
    END IF;
    RETURN (
        SELECT r.last_offset - coalesce(cardinality(r.positions) - array_position(r.positions, find_queue_offset.log_pos), 0)
        FROM mqdb.queue_run r
        WHERE r.queue_key = find_queue_offset.queue_key
          AND (r.log_pos = find_queue_offset.log_pos OR find_queue_offset.log_pos = ANY (r.positions))
          AND r.segment >= (SELECT max(s.segment) FROM mqdb.segment s WHERE s.start_pos <= find_queue_offset.log_pos)
          AND (find_queue_offset.msg_id IS NULL OR mqdb.history() = find_queue_offset.history OR find_queue_offset.msg_id = (
              SELECT cl.msg_id FROM mqdb.commit_log cl
              WHERE cl.log_pos >= find_queue_offset.log_pos AND cl.log_pos <= find_queue_offset.log_pos
              ORDER BY cl.log_pos LIMIT 1))
        ORDER BY r.last_offset DESC LIMIT 1);
END
$$;
COMMENT ON FUNCTION mqdb.find_queue_offset(integer, bigint, uuid, bigint) IS 'The offset that dispatch gave to a record; NULL if the record is not dispatched, or if the position belongs to another history and now holds another message';

CREATE FUNCTION mqdb.find_aim(log_pos bigint, OUT queue_key integer, OUT topic text, OUT queue_id bigint, OUT tags_code bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    found record;
BEGIN
    SELECT cl.queue_key, cl.properties ->> 'REAL_TOPIC' AS topic, mqdb.property_number(cl.properties, 'REAL_QID') AS queue_id, cl.tags_code
    INTO found FROM mqdb.commit_log cl WHERE cl.log_pos = find_aim.log_pos;
    IF session_user = current_user OR mqdb.is_own(find_aim.log_pos, found.queue_key) OR mqdb.is_owner(session_user) THEN
        queue_key := found.queue_key;
        topic := mqdb.own_name(found.topic);
        queue_id := found.queue_id;
        tags_code := found.tags_code;
    END IF;
END
$$;
COMMENT ON FUNCTION mqdb.find_aim(bigint) IS 'The queue in which a record is stored, and the target queue named in the record; NULLs if the log has no record at this position';
