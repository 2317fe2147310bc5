-- The dead letters for people: each message with the reason of its failure, its origin, and whether it was redriven.
CREATE VIEW mqdb.dlq WITH (security_invoker) AS
SELECT l.*
FROM mqdb.named_topic t
JOIN mqdb.queue q USING (topic_id)
-- Joins one queue and one record at a time through indexes: based on statistics, a small topic or a LIMIT would cause a
-- scan of the whole log.
CROSS JOIN LATERAL (
    SELECT e.queue_offset, e.log_pos FROM mqdb.consume_queue e
    WHERE e.queue_key = q.queue_key AND e.last_offset >= q.base_offset AND e.queue_offset >= q.base_offset OFFSET 0
) AS cq
CROSS JOIN LATERAL mqdb.dead_letter(t.topic, cq.queue_offset, cq.log_pos) AS l
WHERE starts_with(t.topic, mqdb.dlq_prefix());
COMMENT ON VIEW mqdb.dlq IS 'All messages that consumer groups gave up, with the reasons. Redrive them with mqdb.dlq_redrive';
COMMENT ON COLUMN mqdb.dlq.group_name IS 'The group that gave up the message';
COMMENT ON COLUMN mqdb.dlq.topic IS 'Topic to which the message was sent; NULL if the message does not name the topic';
COMMENT ON COLUMN mqdb.dlq.msg_id IS 'Unique id set by the producer; all copies of a message have the same id';
COMMENT ON COLUMN mqdb.dlq.tags IS 'Its tag';
COMMENT ON COLUMN mqdb.dlq.keys IS 'Keys of the message, separated by blanks';
COMMENT ON COLUMN mqdb.dlq.attempts IS 'Number of deliveries, as counted in the DLQ''s copy';
COMMENT ON COLUMN mqdb.dlq.failed_at IS 'Time of the last failure, by the clock of the consumer';
COMMENT ON COLUMN mqdb.dlq.exception IS 'Class of the last exception, or RECONSUME_LATER, TIMEOUT, or an answer of the listener that is not a status';
COMMENT ON COLUMN mqdb.dlq.error IS 'Text of the last exception';
COMMENT ON COLUMN mqdb.dlq.redriven_at IS 'Time of the last redrive; NULL if the message was never redriven';
COMMENT ON COLUMN mqdb.dlq.host IS 'Client id of the consumer in which the message last failed';
COMMENT ON COLUMN mqdb.dlq.origin_queue_id IS 'Queue of the topic in which the message first failed';
COMMENT ON COLUMN mqdb.dlq.origin_queue_offset IS 'Offset of the message in that queue';
COMMENT ON COLUMN mqdb.dlq.origin_log_pos IS 'Position of the original message; its record may no longer exist';
COMMENT ON COLUMN mqdb.dlq.queue_offset IS 'Offset of the message in the DLQ';
COMMENT ON COLUMN mqdb.dlq.log_pos IS 'Position of the DLQ''s copy, for mqdb.dlq_redrive';
COMMENT ON COLUMN mqdb.dlq.store_time IS 'Store time of the DLQ''s copy, by the clock of the broker: when the message was given up';
COMMENT ON COLUMN mqdb.dlq.born_time IS 'Time at which the producer created the message, by the clock of the producer';
COMMENT ON COLUMN mqdb.dlq.born_host IS 'Address of the producer that created the message';
COMMENT ON COLUMN mqdb.dlq.flag IS 'A number that the producer may choose freely';
COMMENT ON COLUMN mqdb.dlq.sys_flag IS 'Bit 0: the body is compressed; bits 8 to 10: its compression';
COMMENT ON COLUMN mqdb.dlq.compression IS 'Compression of the body by the sender: ZLIB, LZ4 or ZSTD; NULL if it is not compressed';
COMMENT ON COLUMN mqdb.dlq.properties IS 'All properties, including those of the broker, except those about the failure that have columns';
COMMENT ON COLUMN mqdb.dlq.text IS 'The body as text; NULL if it is compressed or not UTF-8';
COMMENT ON COLUMN mqdb.dlq.traceback IS 'Traceback of the last exception; if it is long, its beginning is cut off';
COMMENT ON COLUMN mqdb.dlq.body IS 'The body as it is stored; compressed if compression is not NULL';
