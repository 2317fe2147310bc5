-- Changes of topics and groups by people: for the owner, and for roles that may ADMIN them. Each call records its
-- operation.
CREATE FUNCTION mqdb.topic_settings(topic text) RETURNS jsonb
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT jsonb_build_object('read_queue_nums', t.read_queue_nums, 'write_queue_nums', t.write_queue_nums, 'perm', t.perm,
                              'order', t.ordered, 'message_type', t.message_type)
    FROM mqdb.topic t WHERE t.topic = topic_settings.topic;
END;
COMMENT ON FUNCTION mqdb.topic_settings(text) IS 'The settings of a topic that are recorded in mqdb.operation';

CREATE FUNCTION mqdb.create_topic(
    topic text, read_queue_nums integer, write_queue_nums integer, perm integer, ordered boolean, message_type text, actor text
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    create_topic.topic := mqdb.full_topic(create_topic.topic);
    PERFORM mqdb.check_right('ADMIN', 'TOPIC', topic);
    RETURN mqdb.make_topic(topic, read_queue_nums, write_queue_nums, perm, ordered, message_type, true, actor) IS NOT NULL;
END
$$;
COMMENT ON FUNCTION mqdb.create_topic(text, integer, integer, integer, boolean, text, text) IS 'Creates a topic with its queues; returns false if the name is taken';

-- Queues are added if the topic is to have more than ever before, and are never removed. Senders and consumers do not
-- have to wait.
CREATE FUNCTION mqdb.change_topic(
    topic text, read_queue_nums integer, write_queue_nums integer, perm integer, ordered boolean, message_type text, actor text
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    most integer := mqdb.max_queues(change_topic.topic);
    kept mqdb.topic;
    queues integer;
    before jsonb;
BEGIN
    change_topic.topic := mqdb.full_topic(change_topic.topic);
    PERFORM mqdb.check_right('ADMIN', 'TOPIC', change_topic.topic);
    IF least(change_topic.read_queue_nums, change_topic.write_queue_nums) < 1
       OR greatest(change_topic.read_queue_nums, change_topic.write_queue_nums) > most
    THEN
        PERFORM mqdb.refuse_parameter('write_queue_nums', greatest(change_topic.read_queue_nums, change_topic.write_queue_nums)::text,
            format('a topic can have 1 to %s queues for writing here, and the same for reading', most));
    ELSIF change_topic.perm NOT BETWEEN 0 AND 7 OR change_topic.perm & 1 = 1 AND NOT mqdb.is_owner(session_user)
       OR change_topic.message_type NOT IN ('NORMAL', 'FIFO', 'DELAY', 'TRANSACTION', 'UNSPECIFIED', 'MIXED')
    THEN
        PERFORM mqdb.refuse_parameter('perm', change_topic.perm::text, 'give a sum of 4 and 2, only the owner of 1, and a type of messages');
    END IF;
    SELECT * INTO kept FROM mqdb.topic t WHERE t.topic = change_topic.topic FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    before := mqdb.topic_settings(kept.topic);
    UPDATE mqdb.topic t
    SET read_queue_nums = coalesce(change_topic.read_queue_nums, t.read_queue_nums),
        write_queue_nums = coalesce(change_topic.write_queue_nums, t.write_queue_nums),
        perm = coalesce(change_topic.perm, t.perm), ordered = coalesce(change_topic.ordered, t.ordered),
        message_type = coalesce(change_topic.message_type, t.message_type)
    WHERE t.topic_id = kept.topic_id RETURNING * INTO kept;
    queues := (SELECT count(*) FROM mqdb.queue q WHERE q.topic_id = kept.topic_id);
    -- Not by a statement that may add none: its trigger holds up grants until the transaction ends.
    IF queues < greatest(kept.read_queue_nums, kept.write_queue_nums) THEN
        INSERT INTO mqdb.queue (topic_id, queue_id)
        SELECT kept.topic_id, number
        FROM generate_series(queues, greatest(kept.read_queue_nums, kept.write_queue_nums) - 1) AS number;
    END IF;
    PERFORM mqdb.record_operation(
        'topic.update', ARRAY[kept.topic], NULL, NULL, before, mqdb.topic_settings(kept.topic), 1, NULL, actor);
    RETURN true;
END
$$;
COMMENT ON FUNCTION mqdb.change_topic(text, integer, integer, integer, boolean, text, text) IS 'Changes those settings of a topic that are not NULL; returns false if the topic does not exist';

-- Counts only dispatched messages. Reads all waiting messages of all topics.
CREATE FUNCTION mqdb.topic_uses(topic text, OUT crons text[], OUT scheduled bigint, OUT half_messages bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    topic_uses.topic := mqdb.full_topic(topic_uses.topic);
    PERFORM mqdb.check_right('ADMIN', 'TOPIC', topic_uses.topic);
    crons := ARRAY(SELECT mqdb.own_name(c.name) FROM mqdb.cron c WHERE c.topic = topic_uses.topic ORDER BY c.name);
    scheduled := (SELECT count(*) FROM mqdb.every_scheduled s WHERE s.topic = topic_uses.topic);
    half_messages := (SELECT count(*) FROM mqdb.half_messages h WHERE h.topic = topic_uses.topic AND h.state = 'PREPARED');
END
$$;
COMMENT ON FUNCTION mqdb.topic_uses(text) IS 'The crons, waiting messages and unresolved half messages that use a topic and are not deleted with its row';

-- An open transaction that deletes queues blocks dispatch at the end of a segment, where dispatch stores the ends of
-- all queues. If the role does not own the schema, the topic therefore only loses its name, which can be reused
-- immediately. Its queues accept no messages from then on, and the segment keeper of `mqdb serve` removes the rest.
CREATE FUNCTION mqdb.drop_topics(topics text[]) RETURNS text[]
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    gone text[];
BEGIN
    IF mqdb.is_owner(session_user) THEN
        WITH dropped AS (DELETE FROM mqdb.topic t WHERE t.topic = ANY (drop_topics.topics) RETURNING t.topic)
        SELECT array_agg(d.topic) INTO gone FROM dropped d;
    ELSE
        gone := ARRAY(SELECT t.topic FROM mqdb.topic t WHERE t.topic = ANY (drop_topics.topics) ORDER BY t.topic_id FOR NO KEY UPDATE);
        DELETE FROM mqdb.live_queue l USING mqdb.queue q JOIN mqdb.topic t USING (topic_id)
        WHERE l.queue_key = q.queue_key AND t.topic = ANY (gone);
        DELETE FROM mqdb.acl_queue a USING mqdb.queue q JOIN mqdb.topic t USING (topic_id)
        WHERE a.queue_key = q.queue_key AND t.topic = ANY (gone);
        UPDATE mqdb.topic t SET topic = mqdb.deleted_prefix() || t.topic_id, perm = 0 WHERE t.topic = ANY (gone);
    END IF;
    RETURN coalesce(gone, '{}');
END
$$;
COMMENT ON FUNCTION mqdb.drop_topics(text[]) IS 'Deletes the existing topics among these, or lets the segment keeper delete them; returns their names';
REVOKE EXECUTE ON FUNCTION mqdb.drop_topics(text[]) FROM PUBLIC;

-- With `force`, everything that uses the topic is removed with it. Half messages that the checker has not seen yet stay
-- if the role does not own the schema, because the checker would otherwise wait for rows of an open transaction. Their
-- ENDs fail because the topic is gone.
CREATE FUNCTION mqdb.delete_topic(
    topic text, force boolean, actor text, OUT was_deleted boolean, OUT crons text[], OUT scheduled bigint, OUT half_messages bigint
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    is_guest boolean := NOT mqdb.is_owner(session_user);
    before jsonb;
BEGIN
    delete_topic.topic := mqdb.full_topic(delete_topic.topic);
    PERFORM mqdb.check_right('ADMIN', 'TOPIC', delete_topic.topic);
    IF delete_topic.topic = ANY (mqdb.topics_not_allowed()) OR delete_topic.topic = 'TBW102' THEN
        PERFORM mqdb.refuse_parameter('topic', delete_topic.topic, 'belongs to the broker');
    END IF;
    PERFORM FROM mqdb.topic t WHERE t.topic = delete_topic.topic FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    -- As in delete_group.
    ELSIF is_guest AND EXISTS (
        SELECT FROM mqdb.subscription_group g CROSS JOIN mqdb.live_members(g.group_name)
        WHERE delete_topic.topic IN (mqdb.retry_prefix() || g.group_name, mqdb.dlq_prefix() || g.group_name))
    THEN
        PERFORM mqdb.refuse_parameter('topic', delete_topic.topic, 'belongs to a group that has live members');
    END IF;
    SELECT u.crons, u.scheduled, u.half_messages INTO crons, scheduled, half_messages FROM mqdb.topic_uses(delete_topic.topic) u;
    was_deleted := force IS TRUE OR cardinality(crons) = 0 AND scheduled = 0 AND half_messages = 0;
    IF NOT was_deleted THEN
        RETURN;
    ELSIF cardinality(crons) > 0 OR scheduled > 0 OR half_messages > 0 THEN
        DELETE FROM mqdb.cron c WHERE c.topic = delete_topic.topic;
        IF is_guest THEN
            UPDATE mqdb.half_message h
            SET state = 'ROLLED_BACK', ended_at = mqdb.now(), check_at = NULL, check_client = NULL, copy_pos = NULL
            WHERE h.topic = delete_topic.topic AND h.state = 'PREPARED';
        ELSE
            INSERT INTO mqdb.half_message (log_pos, queue_offset, msg_id, producer_group, topic, state, stored_at, ended_at)
            SELECT h.log_pos, h.queue_offset, h.msg_id, coalesce(h.producer_group, ''), h.topic, 'ROLLED_BACK', h.stored_at, mqdb.now()
            FROM mqdb.half_messages h WHERE h.topic = delete_topic.topic AND h.state = 'PREPARED' ORDER BY h.log_pos
            ON CONFLICT (log_pos) DO UPDATE
            SET state = excluded.state, ended_at = excluded.ended_at, check_at = NULL, check_client = NULL, copy_pos = NULL
            WHERE half_message.state = 'PREPARED';
        END IF;
        INSERT INTO mqdb.deleted_topic (topic) VALUES (delete_topic.topic)
        ON CONFLICT (topic) DO UPDATE SET last_pos = excluded.last_pos, deleted_at = excluded.deleted_at;
    END IF;
    before := mqdb.topic_settings(delete_topic.topic) || jsonb_build_object('taken_along', jsonb_build_object(
        'crons', crons, 'scheduled', scheduled, 'half_messages', half_messages));
    PERFORM mqdb.drop_topics(ARRAY[delete_topic.topic]);
    PERFORM mqdb.record_operation('topic.delete', ARRAY[delete_topic.topic], NULL, NULL, before, NULL, 1, NULL, actor);
END
$$;
COMMENT ON FUNCTION mqdb.delete_topic(text, boolean, text) IS 'Deletes a topic with its queues and the offsets of all groups in it; NULL if the topic does not exist, false if it is used and force is not set';

-- -- groups ----------------------------------------------------------------------------------------

CREATE FUNCTION mqdb.group_settings(group_name text) RETURNS jsonb
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT jsonb_build_object('consume_enable', g.consume_enable, 'consume_broadcast_enable', g.consume_broadcast_enable,
                              'retry_queue_nums', g.retry_queue_nums, 'retry_max_times', g.retry_max_times,
                              'consume_mode', g.consume_mode, 'consume_message_orderly', g.consume_message_orderly,
                              'retry_delays', g.retry_delays, 'consume_from_where', g.consume_from_where)
    FROM mqdb.subscription_group g WHERE g.group_name = group_settings.group_name;
END;
COMMENT ON FUNCTION mqdb.group_settings(text) IS 'The settings of a group that are recorded in mqdb.operation';

-- A queue is never read in both ways at once. A change waits for pops and for members that are taking queues: a pop
-- locks rows of consumer_offset without an owner and then checks the mode again, and `take` in
-- mqdb/store/consumers/consumer_offsets.py locks the row of the group. A group that pops skips queues that a member
-- still owns. A group that pulls continues after the messages in flight, which are acknowledged as before or
-- redelivered through the retry topic (mqdb/broker/consumers/leftovers.py). In an ordered group that would be too late,
-- so the group goes back to them.
CREATE FUNCTION mqdb.change_consume_mode(group_name text, consume_mode text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    stored mqdb.subscription_group;
BEGIN
    SELECT * INTO stored FROM mqdb.subscription_group g WHERE g.group_name = change_consume_mode.group_name FOR UPDATE;
    IF change_consume_mode.consume_mode = stored.consume_mode THEN
        RETURN;
    END IF;
    PERFORM FROM mqdb.consumer_offset o WHERE o.group_id = stored.group_id AND o.owner IS NULL FOR NO KEY UPDATE;
    IF change_consume_mode.consume_mode = 'PULL' AND stored.consume_message_orderly THEN
        WITH gone AS (
            DELETE FROM mqdb.pop_batch b WHERE b.group_id = stored.group_id
            RETURNING b.queue_key, mqdb.first_in_flight(b) AS first_offset
        ), forgotten AS (
            DELETE FROM mqdb.offset_commit c WHERE c.group_id = stored.group_id AND c.queue_key IN (SELECT g.queue_key FROM gone g)
        )
        UPDATE mqdb.consumer_offset o SET next_offset = first.first_offset, segment = 0, updated_at = mqdb.now()
        FROM (SELECT g.queue_key, min(g.first_offset) AS first_offset FROM gone g GROUP BY g.queue_key) AS first
        WHERE o.group_id = stored.group_id AND o.queue_key = first.queue_key;
    END IF;
    UPDATE mqdb.subscription_group g SET consume_mode = change_consume_mode.consume_mode WHERE g.group_id = stored.group_id;
END
$$;
COMMENT ON FUNCTION mqdb.change_consume_mode(text, text) IS 'Makes the members of a group own queues, or pop';
REVOKE EXECUTE ON FUNCTION mqdb.change_consume_mode(text, text) FROM PUBLIC;

CREATE FUNCTION mqdb.set_group(
    group_name text, consume_enable boolean, consume_broadcast_enable boolean, retry_queue_nums integer, retry_max_times integer,
    consume_mode text, consume_message_orderly boolean, retry_delays interval[], consume_from_where text, actor text
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    most integer := mqdb.max_queues(mqdb.retry_prefix() || set_group.group_name);
    before jsonb;
BEGIN
    set_group.group_name := mqdb.full_group(set_group.group_name);
    PERFORM mqdb.check_right('ADMIN', 'GROUP', set_group.group_name);
    IF (set_group.group_name ~ '^[%|a-zA-Z0-9_-]{1,120}$') IS NOT TRUE THEN
        PERFORM mqdb.refuse_parameter('group_name', set_group.group_name, 'a name has 1 to 120 of the characters % | a-z A-Z 0-9 _ -');
    ELSIF set_group.retry_queue_nums NOT BETWEEN 1 AND most OR set_group.retry_max_times < 0 THEN
        PERFORM mqdb.refuse_parameter('retry_queue_nums', set_group.retry_queue_nums::text,
            format('a group can have 1 to %s retry queues here, and 0 or more retries', most));
    ELSIF set_group.consume_mode NOT IN ('PULL', 'POP') THEN
        PERFORM mqdb.refuse_parameter('consume_mode', set_group.consume_mode, 'is neither PULL nor POP');
    ELSIF set_group.consume_from_where NOT IN ('LAST_OFFSET', 'FIRST_OFFSET') THEN
        PERFORM mqdb.refuse_parameter('consume_from_where', set_group.consume_from_where, 'is neither LAST_OFFSET nor FIRST_OFFSET');
    ELSIF cardinality(set_group.retry_delays) > 100 OR array_ndims(set_group.retry_delays) > 1
        OR EXISTS (SELECT FROM unnest(set_group.retry_delays) AS d WHERE d IS NULL OR d NOT BETWEEN '0' AND '12 hours')
    THEN
        PERFORM mqdb.refuse_parameter('retry_delays', left(set_group.retry_delays::text, 255), 'give up to 100 delays of up to 12:00:00');
    END IF;
    before := mqdb.group_settings(set_group.group_name);
    IF before IS NULL THEN
        INSERT INTO mqdb.subscription_group (group_name) VALUES (set_group.group_name) ON CONFLICT DO NOTHING;
    END IF;
    IF set_group.consume_mode IS NOT NULL THEN
        PERFORM mqdb.change_consume_mode(set_group.group_name, set_group.consume_mode);
    END IF;
    UPDATE mqdb.subscription_group g
    SET consume_enable = coalesce(set_group.consume_enable, g.consume_enable),
        consume_broadcast_enable = coalesce(set_group.consume_broadcast_enable, g.consume_broadcast_enable),
        retry_queue_nums = coalesce(set_group.retry_queue_nums, g.retry_queue_nums),
        retry_max_times = coalesce(set_group.retry_max_times, g.retry_max_times),
        consume_message_orderly = coalesce(set_group.consume_message_orderly, g.consume_message_orderly),
        retry_delays = nullif(coalesce(set_group.retry_delays, g.retry_delays), '{}'),
        consume_from_where = coalesce(set_group.consume_from_where, g.consume_from_where)
    WHERE g.group_name = set_group.group_name;
    PERFORM mqdb.record_operation(
        'group.update', NULL, ARRAY[set_group.group_name], NULL, before, mqdb.group_settings(set_group.group_name), 1, NULL, actor);
END
$$;
COMMENT ON FUNCTION mqdb.set_group(text, boolean, boolean, integer, integer, text, boolean, interval[], text, text) IS 'Changes those settings of a group that are not NULL; creates the group if it does not exist. An empty retry_delays stands for the delays of the delay levels';

CREATE FUNCTION mqdb.delete_group(
    group_name text, with_topics boolean, actor text, OUT was_deleted boolean, OUT members text[], OUT topics text[]
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    before jsonb;
BEGIN
    delete_group.group_name := mqdb.full_group(delete_group.group_name);
    PERFORM mqdb.check_right('ADMIN', 'GROUP', delete_group.group_name);
    PERFORM FROM mqdb.subscription_group g WHERE g.group_name = delete_group.group_name FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    members := ARRAY(SELECT m.client_id FROM mqdb.live_members(delete_group.group_name) m ORDER BY 1);
    was_deleted := cardinality(members) = 0;
    IF NOT was_deleted THEN
        RETURN;
    END IF;
    before := mqdb.group_settings(delete_group.group_name);
    DELETE FROM mqdb.subscription_group g WHERE g.group_name = delete_group.group_name;
    topics := '{}';
    IF with_topics THEN
        topics := ARRAY(SELECT name FROM unnest(mqdb.drop_topics(ARRAY[
            mqdb.retry_prefix() || delete_group.group_name, mqdb.dlq_prefix() || delete_group.group_name])) AS name ORDER BY 1 DESC);
    END IF;
    PERFORM mqdb.record_operation('group.delete', topics, ARRAY[delete_group.group_name], NULL, before, NULL, 1, NULL, actor);
    topics := ARRAY(SELECT mqdb.own_name(t.name) FROM unnest(topics) WITH ORDINALITY AS t (name, number) ORDER BY t.number);
END
$$;
COMMENT ON FUNCTION mqdb.delete_group(text, boolean, text) IS 'Deletes a group with its offsets and subscriptions, and its two topics if requested; NULL if the group does not exist, false if it has live members';
