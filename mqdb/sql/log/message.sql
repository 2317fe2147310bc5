-- All messages that a consumer can read, for people.
CREATE VIEW mqdb.message WITH (security_invoker) AS
SELECT t.topic, q.queue_id, cq.queue_offset, mqdb.unique_id_text(cl.msg_id) AS msg_id, cl.tags, cl.keys,
       mqdb.all_properties(cl.properties, cl.tags, cl.keys, cl.msg_id) AS properties,
       CASE WHEN cl.sys_flag & 1 = 0 THEN mqdb.body_text(cl.body) END AS text, cl.body, cl.born_time, cl.store_time,
       cl.born_host, cl.reconsume_times, cl.flag, cl.sys_flag, cl.log_pos, q.queue_key,
       mqdb.compression(cl.sys_flag) AS compression
FROM mqdb.named_topic t
JOIN mqdb.queue q USING (topic_id)
-- Joins one queue and one record at a time through indexes: based on statistics, a small topic or a LIMIT would cause a
-- scan of the whole log.
CROSS JOIN LATERAL (
    SELECT e.queue_offset, e.log_pos FROM mqdb.consume_queue e
    WHERE e.queue_key = q.queue_key AND e.last_offset >= q.base_offset AND e.queue_offset >= q.base_offset OFFSET 0
) AS cq
CROSS JOIN LATERAL (
    SELECT * FROM mqdb.commit_log c WHERE c.log_pos >= cq.log_pos AND c.log_pos <= cq.log_pos ORDER BY c.log_pos LIMIT 1
) AS cl;
COMMENT ON VIEW mqdb.message IS 'All messages that consumers can read';
COMMENT ON COLUMN mqdb.message.text IS 'The body as text; NULL if it is compressed or not UTF-8';
COMMENT ON COLUMN mqdb.message.body IS 'The body as it is stored; compressed if compression is not NULL';
COMMENT ON COLUMN mqdb.message.compression IS 'Compression of the body by the sender: ZLIB, LZ4 or ZSTD; NULL if it is not compressed';
