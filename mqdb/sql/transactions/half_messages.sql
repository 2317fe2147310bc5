-- The state of each half message, for people: half messages that the checker has not seen yet come from the log. The
-- orders and limits tie the plan to the indexes, as in mqdb.scheduled.
CREATE VIEW mqdb.half_messages WITH (security_invoker) AS
WITH half AS (
    SELECT h.log_pos, h.queue_offset, h.msg_id, h.producer_group, h.topic, h.state, h.check_times, h.stored_at,
           h.check_at, h.check_client, h.ended_at, h.copy_pos
    FROM mqdb.half_message h
    UNION ALL
    SELECT cl.log_pos, cq.queue_offset, cl.msg_id, cl.properties ->> 'PGROUP', cl.properties ->> 'REAL_TOPIC', 'PREPARED', 0,
           cl.store_time, NULL, NULL, NULL, NULL
    FROM mqdb.topic t
    JOIN mqdb.every_queue_end e USING (topic_id)
    CROSS JOIN LATERAL (
        SELECT greatest(e.min_offset, (SELECT s.next_offset FROM mqdb.half_step s ORDER BY s.seq DESC LIMIT 1)) AS next_offset
    ) AS met
    CROSS JOIN LATERAL (
        SELECT entry.queue_offset, entry.log_pos FROM mqdb.entries(e.queue_key, met.next_offset, e.max_offset) AS entry
        LIMIT greatest(e.max_offset - met.next_offset, 0)
    ) AS cq
    CROSS JOIN LATERAL (
        SELECT * FROM mqdb.commit_log cl
        WHERE cl.log_pos >= cq.log_pos AND cl.log_pos <= cq.log_pos ORDER BY cl.log_pos LIMIT 1
    ) AS cl
    WHERE t.topic = mqdb.half_topic()
      AND NOT EXISTS (SELECT FROM mqdb.half_message h WHERE h.log_pos = cq.log_pos)
)
SELECT mqdb.unique_id_text(half.msg_id) AS transaction_id, half.* FROM half;
COMMENT ON VIEW mqdb.half_messages IS 'All half messages in the log, with their outcomes; check_at is NULL for those that are too new for a check';
