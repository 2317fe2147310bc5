-- How far each group has come on each queue, for people and for monitors.
--
-- A monitor asks for all queues every few seconds, so a row costs four looks at the end of an index, and one record
-- where the group lags. OFFSET 0 is a fence: pulled up, the sub-selects would run once for each mention of their
-- columns. mqdb.now() stands in FROM for the like reason: a volatile column would have lag_seconds worked out also for
-- those who only ask for lag.
CREATE VIEW mqdb.consumer_lag AS
SELECT g.group_name,
       t.topic,
       q.queue_id,
       reached.next_offset,
       reached.max_offset,
       greatest(reached.max_offset - greatest(reached.next_offset, q.base_offset), 0) AS lag,
       CASE
           WHEN reached.max_offset <= greatest(reached.next_offset, q.base_offset) THEN 0
           ELSE greatest(extract(epoch FROM clock.now - (
               SELECT cl.store_time FROM mqdb.commit_log cl
               WHERE cl.log_pos = (
                   SELECT cq.log_pos FROM mqdb.consume_queue cq
                   WHERE cq.queue_key = q.queue_key AND cq.segment >= o.segment
                     AND cq.queue_offset = greatest(reached.next_offset, q.base_offset)
                   LIMIT 1)
           )), 0)::double precision
       END AS lag_seconds,
       o.owner,
       o.epoch,
       o.updated_at
FROM mqdb.consumer_offset o
JOIN mqdb.subscription_group g USING (group_id)
JOIN mqdb.queue q USING (queue_key)
JOIN mqdb.topic t USING (topic_id)
CROSS JOIN LATERAL (
    SELECT greatest(o.next_offset, (
               SELECT c.next_offset FROM mqdb.offset_commit c
               WHERE c.group_id = o.group_id AND c.queue_key = o.queue_key AND c.from_offset >= o.next_offset
               ORDER BY c.from_offset DESC LIMIT 1)) AS next_offset,
           coalesce((
               SELECT cq.queue_offset + 1 FROM mqdb.consume_queue cq
               WHERE cq.queue_key = q.queue_key
                 AND cq.segment >= (
                     SELECT c.segment FROM mqdb.checkpoint c WHERE c.service = 'dispatch' ORDER BY c.seq DESC LIMIT 1)
               ORDER BY cq.queue_offset DESC LIMIT 1), q.end_offset) AS max_offset
    OFFSET 0
) AS reached
CROSS JOIN (SELECT mqdb.now() AS now OFFSET 0) AS clock;
COMMENT ON VIEW mqdb.consumer_lag IS 'How far each group has come on each queue that it reads, and what it has yet to read. RocketMQ: consumerProgress';
COMMENT ON COLUMN mqdb.consumer_lag.next_offset IS 'Committed: the offset of the next message to consume';
COMMENT ON COLUMN mqdb.consumer_lag.max_offset IS 'The offset that the next message to arrive will get';
COMMENT ON COLUMN mqdb.consumer_lag.lag IS 'Messages yet to be consumed; those that retention has dropped unread do not count';
COMMENT ON COLUMN mqdb.consumer_lag.lag_seconds IS 'Age of the oldest message yet to be consumed, by its store_time; 0 where there is none';
COMMENT ON COLUMN mqdb.consumer_lag.owner IS 'Client id of the member that reads the queue; NULL while nobody does';
COMMENT ON COLUMN mqdb.consumer_lag.epoch IS 'Rises with each new owner and each reset';
COMMENT ON COLUMN mqdb.consumer_lag.updated_at IS 'When offset or owner were last written; commits of exactly-once consumers are folded in later';
