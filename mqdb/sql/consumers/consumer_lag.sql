-- The progress of each group in each queue, for people and monitoring. The ends of the queues are therefore found once,
-- not once for each group. A queue with a lag costs one look-up of its entries for oldest_pos, and one in the log for
-- lag_seconds. A column that a query does not select costs nothing: the planner removes its sub-selects, and the joins
-- of `folding`, `popped` and `retry`. The view has no CTE, which would prevent the planner from planning it together
-- with the outer query: conditions on groups, and GROUP BY. OFFSET 0 prevents one evaluation for each mention. With
-- queue_ends, which checks each queue, the planner would read the offsets of a group queue by queue.
CREATE VIEW mqdb.consumer_lag WITH (security_barrier) AS
SELECT g.group_name,
       t.topic,
       e.queue_id,
       reached.next_offset,
       e.max_offset,
       unread.lag,
       CASE
           WHEN unread.lag = 0 THEN 0
           ELSE greatest(extract(epoch FROM clock.now - (
               SELECT cl.store_time FROM mqdb.commit_log cl WHERE cl.log_pos = oldest.log_pos)), 0)::double precision
       END AS lag_seconds,
       oldest.log_pos AS oldest_pos,
       coalesce(retry.messages, 0) AS waiting,
       coalesce(popped.messages, 0) AS in_flight,
       g.consume_mode,
       o.owner,
       o.epoch,
       o.updated_at
FROM mqdb.consumer_offset o
JOIN (  -- as in mqdb.named_topic
    SELECT g.group_id, g.group_name, g.consume_mode FROM mqdb.subscription_group g WHERE NOT EXISTS (SELECT FROM mqdb.own_namespace)
    UNION ALL
    SELECT g.group_id, mqdb.without_namespace(g.group_name, n.namespace), g.consume_mode
    FROM mqdb.own_namespace n JOIN mqdb.subscription_group g ON g.group_id > 0
) AS g USING (group_id)
JOIN (WITH ends AS MATERIALIZED (TABLE mqdb.every_queue_end) TABLE ends) AS e USING (queue_key)
JOIN (
    SELECT t.topic_id, t.topic FROM mqdb.topic t WHERE NOT EXISTS (SELECT FROM mqdb.own_namespace)
    UNION ALL
    SELECT t.topic_id, mqdb.without_namespace(t.topic, n.namespace) FROM mqdb.own_namespace n JOIN mqdb.topic t ON t.topic_id > 0
) AS t USING (topic_id)
LEFT JOIN (  -- what exactly-once consumers have committed, and the owner of the queue has yet to fold into its row
    SELECT c.group_id, c.queue_key, max(c.next_offset) AS next_offset
    FROM mqdb.offset_commit c JOIN mqdb.consumer_offset o USING (group_id, queue_key)
    WHERE c.from_offset >= o.next_offset
    GROUP BY c.group_id, c.queue_key
) AS folding USING (group_id, queue_key)
LEFT JOIN (
    SELECT b.group_id, b.queue_key, sum(bit_count(b.in_flight::bit(64)))::bigint AS messages FROM mqdb.pop_batch b
    GROUP BY b.group_id, b.queue_key
) AS popped USING (group_id, queue_key)
LEFT JOIN (  -- a retry counts for the queue where the message failed first: one that the group reads
    SELECT g.group_id, q.queue_key, count(*) AS messages
    FROM mqdb.every_scheduled s
    JOIN mqdb.subscription_group g ON s.topic = mqdb.retry_prefix() || g.group_name AND s.log_pos > g.created_pos
    JOIN mqdb.topic t ON t.topic = coalesce(s.origin_topic, s.topic)
    JOIN mqdb.queue q ON q.topic_id = t.topic_id AND q.queue_id = coalesce(s.origin_queue_id, s.queue_id)
    WHERE starts_with(s.topic, mqdb.retry_prefix())  -- the condition of timer_retry
    GROUP BY g.group_id, q.queue_key
) AS retry USING (group_id, queue_key)
CROSS JOIN LATERAL (SELECT greatest(o.next_offset, folding.next_offset) AS next_offset) AS reached
CROSS JOIN LATERAL (SELECT greatest(reached.next_offset, e.min_offset) AS first_offset) AS kept
CROSS JOIN LATERAL (SELECT greatest(e.max_offset - kept.first_offset, 0) AS lag) AS unread
CROSS JOIN LATERAL (
    SELECT CASE WHEN unread.lag > 0 THEN (
        SELECT coalesce(r.positions[cardinality(r.positions) - (r.last_offset - kept.first_offset)], r.log_pos)
        FROM mqdb.queue_run r
        WHERE r.queue_key = o.queue_key AND r.segment >= o.segment AND r.last_offset >= kept.first_offset
        ORDER BY r.last_offset
        LIMIT 1) END AS log_pos
    OFFSET 0
) AS oldest
CROSS JOIN (SELECT mqdb.now() AS now OFFSET 0) AS clock
WHERE (SELECT mqdb.is_owner(session_user)) OR EXISTS (SELECT FROM mqdb.seen_group seen WHERE seen.group_id = o.group_id);
COMMENT ON VIEW mqdb.consumer_lag IS 'Progress of each group in each queue that it reads, with the number of messages that it has yet to read. RocketMQ: consumerProgress';
COMMENT ON COLUMN mqdb.consumer_lag.next_offset IS 'Committed offset: the offset of the next message to consume';
COMMENT ON COLUMN mqdb.consumer_lag.max_offset IS 'The offset that the next message to arrive will get';
COMMENT ON COLUMN mqdb.consumer_lag.lag IS 'Number of messages yet to be consumed, without those that retention dropped unread';
COMMENT ON COLUMN mqdb.consumer_lag.lag_seconds IS 'Age of the oldest message yet to be consumed, based on its store_time; 0 if all messages are consumed';
COMMENT ON COLUMN mqdb.consumer_lag.oldest_pos IS 'Position of the oldest unconsumed message in the log; NULL if all messages are consumed';
COMMENT ON COLUMN mqdb.consumer_lag.waiting IS 'Number of messages of the queue that the group failed to consume and that wait for their retry; once the retry is due, they are part of the lag of the retry topic. Reading this column reads all messages in delay levels and all retries among the timers';
COMMENT ON COLUMN mqdb.consumer_lag.in_flight IS 'Number of messages that members have popped but not acknowledged, including those that wait for another delivery';
COMMENT ON COLUMN mqdb.consumer_lag.consume_mode IS 'PULL: each queue has an owner. POP: queues have no owners, and all members read all queues';
COMMENT ON COLUMN mqdb.consumer_lag.owner IS 'Client id of the member that owns the queue; NULL if the queue has no owner, and in a group that pops';
COMMENT ON COLUMN mqdb.consumer_lag.epoch IS 'Increases with each new owner and each reset';
COMMENT ON COLUMN mqdb.consumer_lag.updated_at IS 'Time of the last write of the offset or the owner; commits of exactly-once consumers are added later';
