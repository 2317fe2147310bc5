-- The ends of all queues, at one look at the end of consume_queue_offset each: in the segment that dispatch writes to. A
-- queue without an entry there ends at end_offset, which dispatch writes for all queues when it enters a segment.
CREATE VIEW mqdb.queue_ends AS
SELECT q.queue_key,
       q.topic_id,
       q.queue_id,
       q.base_offset AS min_offset,
       coalesce((
           SELECT cq.queue_offset + 1 FROM mqdb.consume_queue cq
           WHERE cq.queue_key = q.queue_key
             AND cq.segment >= (
                 SELECT c.segment FROM mqdb.checkpoint c WHERE c.service = 'dispatch' ORDER BY c.seq DESC LIMIT 1)
           ORDER BY cq.queue_offset DESC LIMIT 1), q.end_offset) AS max_offset
FROM mqdb.queue q;
COMMENT ON VIEW mqdb.queue_ends IS 'Where each queue begins and ends. RocketMQ: topicStatus';
COMMENT ON COLUMN mqdb.queue_ends.min_offset IS 'The first offset that retention has left';
COMMENT ON COLUMN mqdb.queue_ends.max_offset IS 'The offset that the next message to arrive will get';
