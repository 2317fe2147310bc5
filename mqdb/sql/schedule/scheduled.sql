-- The messages that wait for delivery: delayed messages in the queues of their levels, and messages with a delivery
-- time, collected or not. Recalled messages, and messages deleted with their topic, are not shown. Entries and records
-- are read in order and up to a limit, which ties the plan to their indexes: based on statistics, PostgreSQL would take
-- delivered messages for waiting ones, and read the whole log.
CREATE VIEW mqdb.every_scheduled AS
WITH step AS (
    SELECT next_offset, delivered_ms, delivered_pos FROM mqdb.timer_step ORDER BY seq DESC LIMIT 1
), entry AS (
    SELECT reached.delay_level, cq.tags_code AS deliver_ms, cq.log_pos
    FROM (
        SELECT e.queue_key, e.max_offset, (e.queue_id + 1)::smallint AS delay_level,
               greatest(e.min_offset, (SELECT d.next_offset FROM mqdb.delay_offset d
                                       WHERE d.level = e.queue_id + 1 ORDER BY d.seq DESC LIMIT 1)) AS next_offset
        FROM mqdb.topic t JOIN mqdb.every_queue_end e USING (topic_id)
        WHERE t.topic = mqdb.schedule_topic()
        UNION ALL
        SELECT e.queue_key, e.max_offset, NULL, greatest(e.min_offset, (SELECT next_offset FROM step))
        FROM mqdb.topic t JOIN mqdb.every_queue_end e USING (topic_id)
        WHERE t.topic = mqdb.timer_topic()
    ) AS reached
    CROSS JOIN LATERAL (
        SELECT e.tags_code, e.log_pos FROM mqdb.every_entry e
        WHERE e.queue_key = reached.queue_key AND e.last_offset >= reached.next_offset AND e.queue_offset >= reached.next_offset
        ORDER BY e.last_offset, e.queue_offset LIMIT greatest(reached.max_offset - reached.next_offset, 0)
    ) AS cq
    WHERE reached.delay_level IS NOT NULL
       OR NOT EXISTS (SELECT FROM mqdb.timer_recall r WHERE r.log_pos = cq.log_pos)
), waiting AS (
    SELECT e.delay_level, e.deliver_ms, r.*
    FROM entry e
    CROSS JOIN LATERAL (
        SELECT cl.log_pos, cl.msg_id, cl.tags, cl.keys, cl.store_time,
               cl.properties::jsonb AS properties  -- no domain: conditions on it reach both sides
        FROM mqdb.commit_log cl
        WHERE cl.log_pos >= e.log_pos AND cl.log_pos <= e.log_pos ORDER BY cl.log_pos LIMIT 1
    ) AS r
    UNION ALL
    SELECT NULL, m.deliver_ms, m.log_pos, m.msg_id, m.tags, m.keys, m.store_time, m.properties
    FROM mqdb.timer m
    WHERE (m.slot = 0 OR (m.deliver_ms, m.log_pos) > ((SELECT delivered_ms FROM step), (SELECT delivered_pos FROM step)))
      AND NOT EXISTS (SELECT FROM mqdb.timer_recall r WHERE r.log_pos = m.log_pos)
)
SELECT w.properties ->> 'REAL_TOPIC' AS topic,
       mqdb.property_number(w.properties, 'REAL_QID') AS queue_id,
       to_timestamp(least(w.deliver_ms, 253402300799999) / 1000.0) AS due_at,
       w.delay_level,
       mqdb.unique_id_text(w.msg_id) AS msg_id,
       w.tags,
       w.keys,
       w.store_time,
       w.log_pos,
       w.properties ->> 'RETRY_TOPIC' AS origin_topic,
       mqdb.property_number(w.properties, 'MQDB_ORIGIN_QUEUE_ID') AS origin_queue_id
FROM waiting w
WHERE NOT EXISTS (
    SELECT FROM mqdb.deleted_topic d WHERE d.topic = w.properties ->> 'REAL_TOPIC' AND d.last_pos >= w.log_pos);
COMMENT ON VIEW mqdb.every_scheduled IS 'All messages that wait for delivery, with full names, for views that run with the rights of their owner';

CREATE VIEW mqdb.scheduled WITH (security_barrier) AS
SELECT coalesce(mqdb.without_namespace(s.topic, (SELECT n.namespace FROM mqdb.own_namespace n)), s.topic) AS topic, s.queue_id, s.due_at,
       s.delay_level, s.msg_id, s.tags, s.keys, s.store_time, s.log_pos,
       coalesce(mqdb.without_namespace(s.origin_topic, (SELECT n.namespace FROM mqdb.own_namespace n)), s.origin_topic) AS origin_topic,
       s.origin_queue_id
FROM mqdb.every_scheduled s
WHERE (SELECT mqdb.is_owner(session_user)) OR EXISTS (
    SELECT FROM mqdb.own_right a WHERE a.access <> 'SEND' AND mqdb.is_covered(s.topic, a.resource_type, a.resource));
COMMENT ON VIEW mqdb.scheduled IS 'All messages that wait for delivery, by a delay level or with their own delivery time';
COMMENT ON COLUMN mqdb.scheduled.topic IS 'Topic to which the message will be delivered; for a retry, %RETRY% and the name of the group';
COMMENT ON COLUMN mqdb.scheduled.queue_id IS 'Queue in that topic';
COMMENT ON COLUMN mqdb.scheduled.due_at IS 'Delivery time, by the clock of the broker';
COMMENT ON COLUMN mqdb.scheduled.delay_level IS 'Delay level of the message; NULL for a message with a delivery time, which mqdb.recall can recall';
COMMENT ON COLUMN mqdb.scheduled.msg_id IS 'Unique id set by the producer';
COMMENT ON COLUMN mqdb.scheduled.tags IS 'Its tag';
COMMENT ON COLUMN mqdb.scheduled.keys IS 'Keys of the message, separated by blanks';
COMMENT ON COLUMN mqdb.scheduled.store_time IS 'Time of the send, by the clock of the broker';
COMMENT ON COLUMN mqdb.scheduled.log_pos IS 'Position of the original record';
COMMENT ON COLUMN mqdb.scheduled.origin_topic IS 'Topic in which the message first failed, if it is a retry; NULL otherwise';
COMMENT ON COLUMN mqdb.scheduled.origin_queue_id IS 'Queue in which the message first failed';
