-- Reads and sets the offsets of a group: for the owner, and for roles that may OPERATE the group. Such a role also
-- needs a right on the topic of each queue, because offsets reveal how many messages were sent.
CREATE FUNCTION mqdb.group_offsets(group_name text) RETURNS TABLE (queue_key integer, next_offset bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    group_offsets.group_name := mqdb.full_group(group_offsets.group_name);
    IF NOT mqdb.is_allowed(session_user, 'READ', 'GROUP', coalesce(group_offsets.group_name, '')) THEN
        PERFORM mqdb.check_right('OPERATE', 'GROUP', group_offsets.group_name);
    END IF;
    RETURN QUERY
    -- Includes commits that are not folded yet (mqdb/store/consumers/offset_commits.py).
    SELECT o.queue_key, greatest(o.next_offset, (
        SELECT c.next_offset FROM mqdb.offset_commit c
        WHERE c.group_id = o.group_id AND c.queue_key = o.queue_key AND c.from_offset >= o.next_offset
        ORDER BY c.from_offset DESC LIMIT 1))
    FROM mqdb.consumer_offset o JOIN mqdb.subscription_group g USING (group_id)
    WHERE g.group_name = group_offsets.group_name ORDER BY o.queue_key;
END
$$;
COMMENT ON FUNCTION mqdb.group_offsets(text) IS 'The next offset of a group in each queue that it has read; no rows if the group does not exist';

CREATE FUNCTION mqdb.live_members(group_name text) RETURNS TABLE (client_id text, message_model text)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    live_members.group_name := mqdb.full_group(live_members.group_name);
    IF NOT (mqdb.is_owner(session_user) OR EXISTS (
        SELECT FROM mqdb.own_right a WHERE a.resource_type = 'GROUP' AND mqdb.is_named(live_members.group_name, a.resource)))
    THEN
        PERFORM mqdb.check_right('OPERATE', 'GROUP', live_members.group_name);
    END IF;
    RETURN QUERY
    SELECT c.client_id, c.message_model FROM mqdb.client c JOIN mqdb.presence p USING (client_id, principal)
    WHERE c.group_name = live_members.group_name AND c.kind = 'CONSUMER' AND mqdb.is_present(p.lock_key, p.principal);
END
$$;
COMMENT ON FUNCTION mqdb.live_members(text) IS 'Consumers of a group with an open connection, from all roles';

-- Rows are locked in key order. A member that commits several queues may use another order, so the caller limits its
-- wait.
CREATE FUNCTION mqdb.set_offsets(
    verb text, group_name text, source text, queue_keys integer[], offsets bigint[], object text, reason text, actor text
) RETURNS TABLE (queue_key integer, old_offset bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    id integer;
    fresh integer[];
    old_keys integer[];
    old_offsets bigint[];
BEGIN
    set_offsets.group_name := mqdb.full_group(set_offsets.group_name);
    set_offsets.source := mqdb.full_group(set_offsets.source);
    PERFORM mqdb.check_right('OPERATE', 'GROUP', set_offsets.group_name);
    IF NOT mqdb.is_owner(session_user) THEN
        IF source IS NOT NULL AND NOT mqdb.is_allowed(session_user, 'READ', 'GROUP', source) THEN
            PERFORM mqdb.check_right('OPERATE', 'GROUP', source);
        END IF;
        -- A queue without rights is skipped, like one that does not exist.
        SELECT array_agg(g.queue_key), array_agg(g.next_offset) INTO queue_keys, offsets
        FROM unnest(queue_keys, offsets) AS g (queue_key, next_offset)
        WHERE EXISTS (SELECT FROM mqdb.queue q JOIN mqdb.topic t USING (topic_id)
                      JOIN mqdb.own_right a ON mqdb.is_covered(t.topic, a.resource_type, a.resource)
                      WHERE q.queue_key = g.queue_key AND a.access IN ('READ', 'OPERATE'));
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM mqdb.refuse_isolation('mqdb.set_offsets');
    ELSIF verb IS NULL OR verb NOT IN ('offset.reset', 'offset.clone') THEN
        PERFORM mqdb.refuse_parameter('verb', verb, 'is neither offset.reset nor offset.clone');
    ELSIF EXISTS (SELECT FROM unnest(queue_keys, offsets) AS g (queue_key, next_offset)
                  WHERE g.queue_key IS NULL OR g.next_offset IS NULL OR g.next_offset < 0) THEN
        PERFORM mqdb.refuse_parameter('offsets', left(offsets::text, 255), 'give an offset from 0 on for each queue');
    ELSIF length(reason) > 4000 OR length(object) > 4000 THEN
        PERFORM mqdb.refuse_parameter('reason', left(reason, 255), 'has more than 4,000 characters');
    ELSIF coalesce(cardinality(queue_keys), 0) = 0 THEN
        RETURN;
    END IF;
    PERFORM FROM mqdb.subscription_group g WHERE g.group_name = set_offsets.group_name;
    IF NOT FOUND THEN
        IF NOT mqdb.is_allowed(session_user, 'READ', 'GROUP', set_offsets.group_name) THEN
            PERFORM mqdb.check_right('ADMIN', 'GROUP', set_offsets.group_name);
        END IF;
        INSERT INTO mqdb.subscription_group (group_name) VALUES (set_offsets.group_name) ON CONFLICT DO NOTHING;
    END IF;
    SELECT g.group_id INTO id FROM mqdb.subscription_group g WHERE g.group_name = set_offsets.group_name;

    WITH added AS (
        INSERT INTO mqdb.consumer_offset (group_id, queue_key, next_offset)
        SELECT id, g.queue_key, g.next_offset FROM unnest(queue_keys, offsets) AS g (queue_key, next_offset) ORDER BY g.queue_key
        ON CONFLICT DO NOTHING RETURNING consumer_offset.queue_key)
    SELECT array_agg(a.queue_key) INTO fresh FROM added a;
    PERFORM FROM mqdb.consumer_offset o WHERE o.group_id = id AND o.queue_key = ANY (queue_keys) ORDER BY o.queue_key FOR UPDATE;
    -- A separate statement, because the one that waited for the locks does not see commits made during its wait.
    SELECT array_agg(b.queue_key), array_agg(CASE WHEN b.queue_key = ANY (fresh) THEN NULL ELSE b.next_offset END)
    INTO old_keys, old_offsets
    FROM mqdb.group_offsets(set_offsets.group_name) b WHERE b.queue_key = ANY (queue_keys);
    UPDATE mqdb.consumer_offset o
    SET next_offset = g.next_offset, segment = 0, owner = NULL, epoch = mqdb.next_epoch(o.epoch), reset_at = mqdb.now(), updated_at = mqdb.now()
    FROM unnest(queue_keys, offsets) AS g (queue_key, next_offset)
    WHERE o.group_id = id AND o.queue_key = g.queue_key;
    DELETE FROM mqdb.offset_commit c WHERE c.group_id = id AND c.queue_key = ANY (queue_keys);
    DELETE FROM mqdb.queue_lock l WHERE l.group_id = id AND l.queue_key = ANY (queue_keys);
    DELETE FROM mqdb.pop_batch b WHERE b.group_id = id AND b.queue_key = ANY (queue_keys);

    PERFORM mqdb.record_operation(
        verb, array_agg(c.topic), ARRAY[source, set_offsets.group_name], object, jsonb_object_agg(c.topic, c.old),
        jsonb_object_agg(c.topic, c.new), sum(c.queues)::bigint, reason, actor)
    FROM (SELECT t.topic, jsonb_object_agg(q.queue_id, b.old_offset) AS old, jsonb_object_agg(q.queue_id, g.next_offset) AS new,
                 count(*) AS queues
          FROM unnest(old_keys, old_offsets) AS b (queue_key, old_offset)
          JOIN unnest(queue_keys, offsets) AS g (queue_key, next_offset) USING (queue_key)
          JOIN mqdb.queue q USING (queue_key) JOIN mqdb.topic t USING (topic_id)
          GROUP BY t.topic ORDER BY t.topic) c;
    RETURN QUERY SELECT * FROM unnest(old_keys, old_offsets);
END
$$;
COMMENT ON FUNCTION mqdb.set_offsets(text, text, text, integer[], bigint[], text, text, text) IS 'Sets the offsets of a group and frees its queues, for a reset or a clone from another group, and records the operation; returns the previous offset of each queue, NULL for a queue without an offset';
