-- The ends of all queues, with one look-up for each at the end of queue_run_offset, in the segment to which dispatch
-- writes. A queue without an entry in that segment ends at end_offset, which dispatch stores for all queues when it
-- enters a segment.
CREATE VIEW mqdb.every_queue_end AS
SELECT q.queue_key,
       q.topic_id,
       q.queue_id,
       q.base_offset AS min_offset,
       coalesce((
           SELECT r.last_offset + 1 FROM mqdb.queue_run r
           WHERE r.queue_key = q.queue_key
             AND r.segment >= (
                 SELECT c.segment FROM mqdb.checkpoint c WHERE c.service = 'dispatch' ORDER BY c.seq DESC LIMIT 1)
           ORDER BY r.last_offset DESC LIMIT 1), q.end_offset) AS max_offset
FROM mqdb.queue q;
COMMENT ON VIEW mqdb.every_queue_end IS 'Min and max offset of each queue, for views that run with the rights of their owner';

CREATE VIEW mqdb.queue_ends WITH (security_barrier) AS
SELECT e.* FROM mqdb.every_queue_end e
WHERE (SELECT mqdb.is_owner(session_user)) OR EXISTS (SELECT FROM mqdb.own_queue q WHERE q.queue_key = e.queue_key);
COMMENT ON VIEW mqdb.queue_ends IS 'Min and max offset of each queue. RocketMQ: topicStatus';
COMMENT ON COLUMN mqdb.queue_ends.min_offset IS 'The lowest offset that retention has kept';
COMMENT ON COLUMN mqdb.queue_ends.max_offset IS 'The offset that the next message to arrive will get';
