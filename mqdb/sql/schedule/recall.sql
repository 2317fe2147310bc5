-- Recalls a message that waits for its delivery time, in the caller's transaction. The deliverer holds the same lock
-- when it works and when it reads timer_recall: a recalled message is therefore never delivered, and a delivered
-- message is never reported as recalled. A recall waits for at most one batch of the deliverer, which waits for the end
-- of the caller's transaction. Its position and its offset no longer change. Then, under the lock, it is checked with
-- statements whose snapshots are newer than the lock, which requires READ COMMITTED.
CREATE FUNCTION mqdb.recall(topic text, message_id text, actor text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    id uuid;
    timer_key integer;
    pos bigint;
    due_ms bigint;
    seen_past bigint;
    entry_offset bigint;
    step mqdb.timer_step;
    row_slot integer;
    is_timer boolean;
    real_topic text;
    waits boolean;
    lock_timeout text;
BEGIN
    IF recall.topic IS NOT NULL THEN
        PERFORM mqdb.check_topic_given(recall.topic);
    END IF;
    recall.topic := mqdb.full_topic(recall.topic);
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM mqdb.refuse_isolation('mqdb.recall');
    ELSIF message_id IS NULL OR message_id !~ '^[0-9A-Fa-f]{32}$' THEN
        PERFORM mqdb.refuse_parameter('message_id', message_id, 'give the 32 hexadecimal digits of an id');
    ELSIF recall.topic IS NOT NULL AND NOT EXISTS (SELECT FROM mqdb.topic t WHERE t.topic = recall.topic) THEN
        RAISE EXCEPTION 'topic "%" does not exist; create it with: mqdb topic create %', recall.topic, recall.topic
            USING ERRCODE = 'MQ301', DETAIL = jsonb_build_object('topic', recall.topic);
    END IF;
    id := message_id::uuid;
    SELECT q.queue_key INTO STRICT timer_key
    FROM mqdb.queue q WHERE q.queue_id = 0
        AND q.topic_id = (SELECT t.topic_id FROM mqdb.topic t WHERE t.topic = mqdb.timer_topic());

    WITH indexed AS MATERIALIZED (
        SELECT c.cur, c.done_pos, greatest(c.floor_pos, (SELECT min(s.start_pos) - 1 FROM mqdb.segment s
                                                         WHERE s.state IN ('open', 'closed'))) AS straggler_floor
        FROM mqdb.checkpoint c WHERE c.service = 'index' ORDER BY c.seq DESC LIMIT 1
    ), record AS (
        SELECT r.log_pos, r.tags_code, r.properties, r.queue_key
        FROM (SELECT i.log_pos FROM mqdb.message_index i
              WHERE i.key_hash = uuid_hash_extended(id, 0) OFFSET 0) entry,
             LATERAL (SELECT cl.log_pos, cl.tags_code, cl.properties, cl.queue_key FROM mqdb.commit_log cl
                      WHERE cl.log_pos >= entry.log_pos AND cl.log_pos <= entry.log_pos AND cl.msg_id = id
                      ORDER BY cl.log_pos LIMIT 1) r
        UNION ALL
        SELECT r.log_pos, r.tags_code, r.properties, r.queue_key
        FROM (SELECT s.first_pos, s.last_pos FROM mqdb.id_span s WHERE s.made_ms @> mqdb.unique_id_ms(id) OFFSET 0) span,
             LATERAL (SELECT cl.log_pos, cl.tags_code, cl.properties, cl.queue_key FROM mqdb.commit_log cl
                      WHERE cl.log_pos >= span.first_pos AND cl.log_pos <= span.last_pos AND cl.msg_id = id
                      ORDER BY cl.log_pos) r
        UNION ALL
        SELECT r.log_pos, r.tags_code, r.properties, r.queue_key
        FROM (SELECT cl.log_pos, cl.tags_code, cl.properties, cl.queue_key FROM mqdb.commit_log cl
              WHERE cl.log_pos > (SELECT done_pos FROM indexed) AND cl.msg_id = id ORDER BY cl.log_pos) r
        UNION ALL
        SELECT r.log_pos, r.tags_code, r.properties, r.queue_key
        FROM (SELECT cl.log_pos, cl.tags_code, cl.properties, cl.queue_key FROM mqdb.commit_log cl
              WHERE cl.xid >= (SELECT pg_snapshot_xmin(cur) FROM indexed)
                AND cl.log_pos > (SELECT straggler_floor FROM indexed) AND cl.log_pos <= (SELECT done_pos FROM indexed)
                AND cl.msg_id = id ORDER BY cl.xid, cl.queue_key, cl.log_pos) r
    ), found AS (
        SELECT t.log_pos, t.deliver_ms, t.properties ->> 'REAL_TOPIC' AS topic,
               NOT starts_with(t.properties ->> 'REAL_TOPIC', mqdb.retry_prefix()) AS is_timer
        FROM mqdb.timer t WHERE t.msg_id = id
        UNION ALL
        SELECT r.log_pos, r.tags_code, CASE WHEN r.queue_key = timer_key THEN r.properties ->> 'REAL_TOPIC' ELSE t.topic END,
               r.queue_key = timer_key AND NOT starts_with(r.properties ->> 'REAL_TOPIC', mqdb.retry_prefix())
        FROM record r JOIN mqdb.queue q USING (queue_key) JOIN mqdb.topic t USING (topic_id)
    )
    SELECT f.log_pos, f.deliver_ms, f.is_timer, f.topic INTO pos, due_ms, is_timer, real_topic
    FROM found f
    WHERE f.topic = recall.topic
       OR recall.topic IS NULL AND f.topic NOT IN (mqdb.schedule_topic(), mqdb.half_topic())
    ORDER BY f.is_timer DESC LIMIT 1;
    IF NOT FOUND THEN
        RETURN 'UNKNOWN';
    ELSIF NOT is_timer THEN  -- a copy, also one for a retry, or a message whose time had passed when it was sent
        RETURN 'ALREADY_DELIVERED';
    END IF;

    -- A single statement, so that entries that it has not seen have offsets from seen_past on. Without an entry, the
    -- message is collected, or not dispatched yet.
    WITH pointing AS MATERIALIZED (
        SELECT min(s.segment) AS first, max(s.segment) AS last FROM mqdb.segment s
        WHERE s.lowest_log_pos <= pos AND s.end_pos > pos
    )
    SELECT coalesce((SELECT r.last_offset + 1 FROM mqdb.queue_run r
                     WHERE r.queue_key = timer_key ORDER BY r.last_offset DESC LIMIT 1), 0),
           (SELECT cq.queue_offset
            FROM (SELECT s.next_offset FROM mqdb.timer_step s ORDER BY s.seq DESC LIMIT 1) reached, pointing,
                 LATERAL mqdb.entries(timer_key, reached.next_offset, first_segment => pointing.first, last_segment => pointing.last) cq
            WHERE cq.log_pos = pos LIMIT 1)
    INTO seen_past, entry_offset;

    LOCK TABLE mqdb.lock_timer IN SHARE UPDATE EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM mqdb.timer_recall r WHERE r.log_pos = pos) THEN
        RETURN 'UNKNOWN';
    END IF;
    SELECT * INTO STRICT step FROM mqdb.timer_step s ORDER BY s.seq DESC LIMIT 1;
    SELECT t.slot INTO row_slot FROM mqdb.timer t WHERE t.msg_id = id AND t.log_pos = pos;
    IF FOUND THEN
        -- Slot 0 has no delivered messages.
        waits := row_slot = 0 OR (due_ms, pos) > (step.delivered_ms, step.delivered_pos);
    ELSIF entry_offset IS NOT NULL THEN  -- not collected; whatever else is not in a slot has been delivered
        waits := entry_offset >= step.next_offset;
    ELSE  -- not dispatched yet, or dispatched since and not collected
        SELECT EXISTS (SELECT FROM mqdb.commit_log cl WHERE cl.log_pos = pos AND pos > c.floor_pos
                       AND NOT (pos <= c.done_pos AND pg_visible_in_snapshot(cl.xid, c.cur))
                       -- Also excludes a straggler that is already processed in a round that has more of them. NULL for
                       -- other rounds.
                       AND (pos <= c.done_pos AND pg_visible_in_snapshot(cl.xid, c.stragglers_cur)
                            AND (cl.xid, cl.queue_key, pos) <= (c.straggler_xid, c.straggler_key, c.straggler_pos)) IS NOT TRUE)
               OR EXISTS (SELECT FROM mqdb.entries(timer_key, greatest(step.next_offset, seen_past)) cq
                          WHERE cq.log_pos = pos)
        INTO waits FROM mqdb.checkpoint c
        WHERE c.service = coalesce(
            (SELECT l.service FROM mqdb.dispatch_lane l WHERE timer_key = ANY (l.queue_keys)), 'dispatch')
        ORDER BY c.seq DESC LIMIT 1;
    END IF;
    IF NOT waits THEN
        RETURN 'ALREADY_DELIVERED';
    END IF;
    -- A sender that recalls the message in an open transaction blocks only this recall.
    lock_timeout := current_setting('lock_timeout');
    PERFORM set_config('lock_timeout', '1s', true);
    INSERT INTO mqdb.timer_recall (log_pos, deliver_ms) VALUES (pos, due_ms) ON CONFLICT DO NOTHING;
    waits := FOUND;
    PERFORM set_config('lock_timeout', lock_timeout, true);
    IF NOT waits THEN
        RETURN 'UNKNOWN';
    END IF;
    DELETE FROM mqdb.timer t WHERE t.slot = 0 AND t.msg_id = id AND t.log_pos = pos;
    IF FOUND THEN
        UPDATE mqdb.timer_step s SET waiting = s.waiting - 1 WHERE s.seq = step.seq;
    END IF;
    PERFORM mqdb.record_operation(
        'timer.recall', ARRAY[real_topic], NULL, mqdb.unique_id_text(id), jsonb_build_object('deliver_ms', due_ms), NULL, 1, NULL, actor);
    RETURN 'RECALLED';
END
$$;
COMMENT ON FUNCTION mqdb.recall(text, text, text) IS 'Recalls a message that waits for its delivery time, in the caller''s transaction; until this transaction ends, no such message is delivered: RECALLED, ALREADY_DELIVERED, or UNKNOWN if there is no message with this id, or it was already recalled. A topic of NULL stands for any topic';
