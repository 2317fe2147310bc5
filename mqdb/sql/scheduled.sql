-- What waits for its delivery: delayed messages in the queues of their levels, and messages with a time of delivery,
-- collected or not. What was recalled is not shown.
CREATE VIEW mqdb.scheduled AS
WITH step AS (
    SELECT next_offset, delivered_ms, delivered_pos FROM mqdb.timer_step ORDER BY seq DESC LIMIT 1
), entry AS (
    SELECT (q.queue_id + 1)::smallint AS delay_level, cq.tags_code AS deliver_ms, cq.log_pos
    FROM mqdb.topic t
    JOIN mqdb.queue q USING (topic_id)
    JOIN mqdb.consume_queue cq USING (queue_key)
    WHERE t.topic = 'SCHEDULE_TOPIC_XXXX'
      AND cq.queue_offset >= greatest(q.base_offset, (SELECT d.next_offset FROM mqdb.delay_offset d
                                                      WHERE d.level = q.queue_id + 1 ORDER BY d.seq DESC LIMIT 1))
    UNION ALL
    SELECT NULL, cq.tags_code, cq.log_pos
    FROM mqdb.topic t
    JOIN mqdb.queue q USING (topic_id)
    JOIN mqdb.consume_queue cq USING (queue_key)
    WHERE t.topic = 'rmq_sys_wheel_timer'
      AND cq.queue_offset >= greatest(q.base_offset, (SELECT next_offset FROM step))
      AND NOT EXISTS (SELECT FROM mqdb.timer_recall r WHERE r.log_pos = cq.log_pos)
), waiting AS (
    SELECT e.delay_level, e.deliver_ms, cl.log_pos, cl.msg_id, cl.tags, cl.keys, cl.store_time, cl.properties
    FROM entry e JOIN mqdb.commit_log cl USING (log_pos)
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
       w.log_pos
FROM waiting w;
COMMENT ON VIEW mqdb.scheduled IS 'All messages that wait for their delivery, by a delay level or at a time of their own';
COMMENT ON COLUMN mqdb.scheduled.topic IS 'Topic to which it will be delivered; %RETRY% and a group for what is to be consumed again';
COMMENT ON COLUMN mqdb.scheduled.queue_id IS 'Queue of that topic';
COMMENT ON COLUMN mqdb.scheduled.due_at IS 'When it will be delivered, by the clock of the broker';
COMMENT ON COLUMN mqdb.scheduled.delay_level IS 'NULL for a message with a time of delivery, which mqdb.recall takes back';
COMMENT ON COLUMN mqdb.scheduled.msg_id IS 'Unique id given by the producer';
COMMENT ON COLUMN mqdb.scheduled.tags IS 'Its tag';
COMMENT ON COLUMN mqdb.scheduled.keys IS 'Its keys, separated by blanks';
COMMENT ON COLUMN mqdb.scheduled.store_time IS 'When it was sent, by the clock of the broker';
COMMENT ON COLUMN mqdb.scheduled.log_pos IS 'Position of the record that was sent';
