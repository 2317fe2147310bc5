-- Recall for roles that may SEND to the topic or OPERATE it, but do not own the schema. mqdb.recall blocks the
-- deliverer, and so all timers of all roles, until the caller's transaction ends. These functions take no such lock,
-- and therefore need two steps: A batch that started before the first transaction committed may not have seen the
-- recall, so the second step waits for the end of that batch. After that, the copy is in the log, or will never be. (A
-- copy is newer than its record. As long as the log has the record, it therefore has the copy, too.)
CREATE FUNCTION mqdb.find_timer(topic text, id uuid, OUT pos bigint, OUT due_ms bigint, OUT is_past boolean, OUT has_copy boolean)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    step mqdb.timer_step;
BEGIN
    SELECT * INTO STRICT step FROM mqdb.timer_step s ORDER BY s.seq DESC LIMIT 1;
    SELECT t.log_pos, t.deliver_ms, t.slot <> 0 AND (t.deliver_ms, t.log_pos) <= (step.delivered_ms, step.delivered_pos)
    INTO pos, due_ms, is_past
    FROM mqdb.timer t WHERE t.msg_id = find_timer.id AND t.properties ->> 'REAL_TOPIC' = find_timer.topic
    ORDER BY t.log_pos DESC LIMIT 1;
    SELECT coalesce(pos, max(r.log_pos) FILTER (WHERE r.waits)), coalesce(due_ms, max(r.tags_code) FILTER (WHERE r.waits)),
           coalesce(is_past, false), coalesce(bool_or(NOT r.waits), false)
    INTO pos, due_ms, is_past, has_copy
    FROM (
        SELECT cl.log_pos, cl.tags_code, t.topic = mqdb.timer_topic() AS waits
        FROM mqdb.find_records(ARRAY[find_timer.id], 0) f
        CROSS JOIN LATERAL (
            SELECT * FROM mqdb.commit_log cl WHERE cl.log_pos >= f.log_pos AND cl.log_pos <= f.log_pos ORDER BY cl.log_pos LIMIT 1) cl
        JOIN mqdb.queue q ON q.queue_key = cl.queue_key JOIN mqdb.topic t USING (topic_id)
        WHERE t.topic = find_timer.topic OR t.topic = mqdb.timer_topic() AND cl.properties ->> 'REAL_TOPIC' = find_timer.topic
    ) AS r;
END
$$;
COMMENT ON FUNCTION mqdb.find_timer(text, uuid) IS 'A message with a delivery time for a topic: its record, its delivery time, whether delivery has passed that time, and whether the topic has a copy';
REVOKE EXECUTE ON FUNCTION mqdb.find_timer(text, uuid) FROM PUBLIC;

CREATE FUNCTION mqdb.check_recall(topic text, message_id text, function text) RETURNS uuid
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM mqdb.check_topic_given(check_recall.topic);
    check_recall.topic := mqdb.full_topic(check_recall.topic);
    -- Checked first, so that no role can find out which topics exist.
    IF NOT mqdb.is_allowed(session_user, 'OPERATE', 'TOPIC', coalesce(check_recall.topic, '')) THEN
        PERFORM mqdb.check_right('SEND', 'TOPIC', check_recall.topic);
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM mqdb.refuse_isolation(function);
    ELSIF (message_id ~ '^[0-9A-Fa-f]{32}$') IS NOT TRUE THEN
        PERFORM mqdb.refuse_parameter('message_id', message_id, 'give the 32 hexadecimal digits of an id');
    ELSIF NOT EXISTS (SELECT FROM mqdb.topic t WHERE t.topic = check_recall.topic) THEN
        RAISE EXCEPTION 'topic "%" does not exist; create it with: mqdb topic create %', topic, topic
            USING ERRCODE = 'MQ301', DETAIL = jsonb_build_object('topic', coalesce(topic, ''));
    END IF;
    RETURN message_id::uuid;
END
$$;
COMMENT ON FUNCTION mqdb.check_recall(text, text, text) IS 'The id of a message that a sender to the topic or an operator of the topic wants to recall; raises an error for any other role';

CREATE FUNCTION mqdb.recall_own(topic text, message_id text, actor text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    id uuid := mqdb.check_recall(topic, message_id, 'mqdb.recall_own');
    timer record;
BEGIN
    recall_own.topic := mqdb.full_topic(recall_own.topic);
    SELECT * INTO timer FROM mqdb.find_timer(topic, id);
    IF timer.has_copy OR timer.is_past OR timer.pos IS NOT NULL AND starts_with(topic, mqdb.retry_prefix()) THEN
        RETURN 'ALREADY_DELIVERED';
    ELSIF timer.pos IS NULL THEN
        RETURN 'UNKNOWN';
    END IF;
    INSERT INTO mqdb.timer_recall (log_pos, deliver_ms) VALUES (timer.pos, timer.due_ms) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN  -- recalled before
        RETURN 'UNKNOWN';
    END IF;
    PERFORM mqdb.record_operation('timer.recall', ARRAY[topic], NULL, mqdb.unique_id_text(id),
                                  jsonb_build_object('deliver_ms', timer.due_ms), NULL, 1, NULL, actor);
    RETURN 'PENDING';
END
$$;
COMMENT ON FUNCTION mqdb.recall_own(text, text, text) IS 'Recalls a message to a topic to which the logged-in role may send: PENDING, in which case recall_outcome has to be called after this transaction has committed; ALREADY_DELIVERED; or UNKNOWN as in recall';

CREATE FUNCTION mqdb.recall_outcome(topic text, message_id text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    id uuid := mqdb.check_recall(topic, message_id, 'mqdb.recall_outcome');
    delivering text[];
    timer record;
    writer xid;
BEGIN
    recall_outcome.topic := mqdb.full_topic(recall_outcome.topic);
    -- The transactions that are delivering now. Later transactions see everything that is committed.
    delivering := ARRAY(SELECT l.virtualtransaction FROM pg_locks l
                        WHERE l.relation = 'mqdb.lock_timer'::regclass AND l.granted AND l.mode = 'ShareUpdateExclusiveLock'
                          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()));
    WHILE EXISTS (SELECT FROM pg_locks l WHERE l.relation = 'mqdb.lock_timer'::regclass AND l.virtualtransaction = ANY (delivering)) LOOP
        PERFORM pg_sleep(0.002);
    END LOOP;
    SELECT * INTO timer FROM mqdb.find_timer(topic, id);
    SELECT r.xmin INTO writer FROM mqdb.timer_recall r WHERE r.log_pos = timer.pos;
    IF NOT FOUND THEN
        RETURN CASE WHEN timer.has_copy OR timer.is_past THEN 'ALREADY_DELIVERED' ELSE 'UNKNOWN' END;
    ELSIF writer = pg_current_xact_id_if_assigned()::xid THEN
        RAISE EXCEPTION 'mqdb.recall_outcome needs a transaction after that of mqdb.recall_own'
            USING ERRCODE = 'MQ109', DETAIL = jsonb_build_object(
                'function', 'mqdb.recall_outcome', 'reason', 'needs a transaction after that of mqdb.recall_own');
    END IF;
    RETURN CASE WHEN timer.has_copy THEN 'ALREADY_DELIVERED' ELSE 'RECALLED' END;
END
$$;
COMMENT ON FUNCTION mqdb.recall_outcome(text, text) IS 'Whether a recall by recall_own was in time: RECALLED means that the message will never be delivered, otherwise ALREADY_DELIVERED; waits for the batch that is being delivered';
