-- The dead letters for people: each message with the reason of its failure, its origin, and whether it was redriven.
-- dead_letter describes the columns.
CREATE VIEW mqdb.dlq WITH (security_invoker) AS
SELECT l.*
FROM mqdb.named_topic t
JOIN mqdb.queue q USING (topic_id)
-- A queue and a record at a time, by their indexes: planned by statistics, a small topic or a LIMIT would cost a look at all of
-- the log.
CROSS JOIN LATERAL (
    SELECT e.queue_offset, e.log_pos FROM mqdb.consume_queue e
    WHERE e.queue_key = q.queue_key AND e.last_offset >= q.base_offset AND e.queue_offset >= q.base_offset OFFSET 0
) AS cq
CROSS JOIN LATERAL mqdb.dead_letter(t.topic, cq.queue_offset, cq.log_pos) AS l
WHERE starts_with(t.topic, mqdb.dlq_prefix());
COMMENT ON VIEW mqdb.dlq IS 'All messages that consumer groups have given up, and why. Send them back to work with mqdb.dlq_redrive';
COMMENT ON COLUMN mqdb.dlq.group_name IS 'The group that gave it up';
COMMENT ON COLUMN mqdb.dlq.topic IS 'Topic to which it was sent; NULL if the message does not name it';
COMMENT ON COLUMN mqdb.dlq.msg_id IS 'Unique id given by the producer; the same over all copies of a message';
COMMENT ON COLUMN mqdb.dlq.tags IS 'Its tag';
COMMENT ON COLUMN mqdb.dlq.keys IS 'Its keys, separated by blanks';
COMMENT ON COLUMN mqdb.dlq.attempts IS 'Number of deliveries, by the count in the DLQ''s copy';
COMMENT ON COLUMN mqdb.dlq.failed_at IS 'Time of the last failure, by the clock of the consumer';
COMMENT ON COLUMN mqdb.dlq.exception IS 'Class of the last exception, or RECONSUME_LATER, TIMEOUT, or an answer of the listener that is not a status';
COMMENT ON COLUMN mqdb.dlq.error IS 'Message of the last exception';
COMMENT ON COLUMN mqdb.dlq.redriven_at IS 'Time of the last redrive; NULL without a redrive';
COMMENT ON COLUMN mqdb.dlq.host IS 'Client id of the consumer that failed last';
COMMENT ON COLUMN mqdb.dlq.origin_queue_id IS 'Queue of the topic in which it failed first';
COMMENT ON COLUMN mqdb.dlq.origin_queue_offset IS 'Offset in that queue';
COMMENT ON COLUMN mqdb.dlq.origin_log_pos IS 'Position of the copy that was sent; the record may be gone by now';
COMMENT ON COLUMN mqdb.dlq.queue_offset IS 'Offset in the DLQ';
COMMENT ON COLUMN mqdb.dlq.log_pos IS 'Position of the DLQ''s copy, for mqdb.dlq_redrive';
COMMENT ON COLUMN mqdb.dlq.store_time IS 'Time of death: the time at which the DLQ''s copy was stored, by the clock of the broker';
COMMENT ON COLUMN mqdb.dlq.born_time IS 'Time at which the producer made it, by its clock';
COMMENT ON COLUMN mqdb.dlq.born_host IS 'Address at which the producer made it';
COMMENT ON COLUMN mqdb.dlq.flag IS 'The producer''s own number';
COMMENT ON COLUMN mqdb.dlq.sys_flag IS 'Bit 0: the body is compressed; bits 8 to 10: how';
COMMENT ON COLUMN mqdb.dlq.compression IS 'Compression of the body by the sender: ZLIB, LZ4 or ZSTD; NULL if it is not compressed';
COMMENT ON COLUMN mqdb.dlq.properties IS 'All properties, those of the broker included, but what of the failure has a column here';
COMMENT ON COLUMN mqdb.dlq.text IS 'The body as text; NULL if it is compressed or not UTF-8';
COMMENT ON COLUMN mqdb.dlq.traceback IS 'Traceback of the last exception; a long one has lost its beginning';
COMMENT ON COLUMN mqdb.dlq.body IS 'The body as it is stored; compressed if compression is not NULL';
