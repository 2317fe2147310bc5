-- Half messages for a role that may OPERATE their topics: those that the checker has seen and that are unresolved.
-- Others are hidden: if the role ended one that the checker has not seen, in an open transaction, the checker would
-- have to wait.
CREATE FUNCTION mqdb.operated_halves(states text[], producer_group text, most bigint) RETURNS SETOF mqdb.half_messages
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT h.* FROM mqdb.half_messages h
    WHERE (h.state <> 'PREPARED' OR h.check_at IS NOT NULL)
      AND (operated_halves.states IS NULL OR h.state = ANY (operated_halves.states))
      AND (operated_halves.producer_group IS NULL OR h.producer_group = operated_halves.producer_group)
      AND EXISTS (SELECT FROM mqdb.own_right a WHERE a.access = 'OPERATE' AND mqdb.is_covered(h.topic, a.resource_type, a.resource))
    ORDER BY h.log_pos LIMIT greatest(operated_halves.most, 0);
END
$$;
COMMENT ON FUNCTION mqdb.operated_halves(text[], text, bigint) IS 'The half messages for topics that the logged-in role may operate, oldest first';

-- As in mqdb.broker.transactions.transactions.resolve, for a role other than the owner. The role cannot see the copy
-- made by a commit.
CREATE FUNCTION mqdb.resolve_half(
    transaction_id text, resolution text, actor text, OUT has_changed boolean, OUT half mqdb.half_message
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    id uuid;
    original mqdb.commit_log;
    before text;
    target integer;
    copied bigint;
BEGIN
    IF NOT EXISTS (SELECT FROM mqdb.own_right a WHERE a.access = 'OPERATE' AND a.resource_type = 'TOPIC') THEN
        PERFORM mqdb.check_right('OPERATE', 'TOPIC', '*');
    END IF;
    IF (transaction_id ~ '^[0-9A-Fa-f]{32}$') IS NOT TRUE THEN
        PERFORM mqdb.refuse_parameter('transaction_id', transaction_id, 'give the 32 hexadecimal digits of an id');
    ELSIF (resolution IN ('commit', 'rollback', 'resume')) IS NOT TRUE THEN
        PERFORM mqdb.refuse_parameter('resolution', resolution, 'give commit, rollback or resume');
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM mqdb.refuse_isolation('mqdb.resolve_half');
    END IF;
    id := transaction_id::uuid;
    -- Uses the partial indexes of open half messages, because an index by id would make each END more expensive.
    SELECT h.* INTO half FROM mqdb.half_message h
    WHERE h.msg_id = id AND h.state IN ('PREPARED', 'DISCARDED')
      AND h.log_pos IN (SELECT o.log_pos FROM mqdb.half_message o WHERE o.state = 'PREPARED' AND o.msg_id = id
                        UNION ALL SELECT o.log_pos FROM mqdb.half_message o WHERE o.state = 'DISCARDED' AND o.msg_id = id)
      AND EXISTS (SELECT FROM mqdb.own_right a
                  WHERE a.access = 'OPERATE' AND a.resource_type = 'TOPIC' AND mqdb.is_covered(h.topic, 'TOPIC', a.resource))
    ORDER BY h.log_pos DESC LIMIT 1;
    IF FOUND THEN
        -- The half message stays in the log until this transaction ends, because a session that has read a segment
        -- blocks its removal.
        SELECT * INTO original FROM mqdb.commit_log cl
        WHERE cl.log_pos >= half.log_pos AND cl.log_pos <= half.log_pos ORDER BY cl.log_pos LIMIT 1;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no open half message with id %', upper(transaction_id)
            USING ERRCODE = 'MQ320', DETAIL = jsonb_build_object('where', upper(transaction_id));
    END IF;
    SELECT h.* INTO half FROM mqdb.half_message h WHERE h.log_pos = half.log_pos FOR UPDATE;
    before := half.state;
    has_changed := before = 'DISCARDED' OR before = 'PREPARED' AND resolution <> 'resume';
    IF NOT has_changed THEN
        RETURN;
    ELSIF resolution = 'resume' THEN
        UPDATE mqdb.half_message h
        SET state = 'PREPARED', check_times = 0, stored_at = mqdb.now(), ended_at = NULL, check_at = mqdb.now(), check_wait = '0'
        WHERE h.log_pos = half.log_pos RETURNING h.* INTO half;
    ELSE
        IF before = 'DISCARDED' THEN
            half.check_times := 0;
        END IF;
        IF resolution = 'commit' THEN
            SELECT q.queue_key INTO target
            FROM mqdb.topic t JOIN mqdb.queue q USING (topic_id)
            WHERE t.topic = half.topic AND t.topic <> ALL (mqdb.topics_not_allowed())
              AND q.queue_id = mqdb.property_number(original.properties, 'REAL_QID') % t.read_queue_nums
              AND NOT EXISTS (SELECT FROM mqdb.deleted_topic d WHERE d.topic = half.topic AND d.last_pos >= half.log_pos);
            IF target IS NULL THEN
                RAISE EXCEPTION 'topic "%" does not exist; create it with: mqdb topic create %', half.topic, half.topic
                    USING ERRCODE = 'MQ301', DETAIL = jsonb_build_object('topic', half.topic);
            END IF;
            INSERT INTO mqdb.commit_log (queue_key, store_time, born_time, tags_code, msg_id, sys_flag, flag, born_host, tags, keys,
                                         properties, body)
            VALUES (target, mqdb.unseen_time(), original.born_time,
                    mqdb.copied_code(original.tags_code, original.tags, original.properties), original.msg_id,
                    original.sys_flag | 8, original.flag, original.born_host, original.tags, original.keys,
                    CASE WHEN half.check_times > 0
                         THEN original.properties || jsonb_build_object('TRANSACTION_CHECK_TIMES', half.check_times::text)
                         ELSE original.properties END,
                    original.body)
            RETURNING log_pos INTO copied;
        END IF;
        UPDATE mqdb.half_message h
        SET state = CASE resolution WHEN 'commit' THEN 'COMMITTED' ELSE 'ROLLED_BACK' END, check_times = half.check_times,
            stored_at = original.store_time, check_at = NULL, check_client = NULL, ended_at = mqdb.now(), copy_pos = copied
        WHERE h.log_pos = half.log_pos RETURNING h.* INTO half;
    END IF;
    PERFORM mqdb.record_operation(
        'transaction.resolve', ARRAY[half.topic], NULL, mqdb.unique_id_text(id), jsonb_build_object('state', before),
        jsonb_build_object('state', half.state), 1, NULL, actor);
END
$$;
COMMENT ON FUNCTION mqdb.resolve_half(text, text, text) IS 'Ends an open half message by hand, or resumes the checks of a discarded one, for a role that may operate its topic';
