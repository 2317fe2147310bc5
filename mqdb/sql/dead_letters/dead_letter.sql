-- A dead letter for people: the columns of mqdb.dlq for the message at a position, which has this offset in the
-- group's DLQ. The columns are in order of interest; long values come last. Columns that no query selects are
-- therefore not computed.
CREATE FUNCTION mqdb.dead_letter(dlq_topic text, at_offset bigint, at_pos bigint) RETURNS TABLE (
    group_name text, topic text, msg_id text, tags text, keys text, attempts integer, failed_at timestamptz, exception text,
    error text, redriven_at timestamptz, host text, origin_queue_id bigint, origin_queue_offset bigint, origin_log_pos bigint,
    queue_offset bigint, log_pos bigint, store_time mqdb.message_time, born_time mqdb.message_time, born_host text, flag integer,
    sys_flag integer, compression text, properties jsonb, text text, traceback text, body bytea
)
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT substr(dlq_topic, length(mqdb.dlq_prefix()) + 1) AS group_name,
           coalesce(mqdb.without_namespace(cl.properties ->> 'RETRY_TOPIC', (SELECT n.namespace FROM mqdb.own_namespace n)),
                    cl.properties ->> 'RETRY_TOPIC') AS topic,
           mqdb.unique_id_text(cl.msg_id) AS msg_id,
           cl.tags,
           cl.keys,
           cl.reconsume_times AS attempts,
           mqdb.property_time(cl.properties, 'MQDB_FAILURE_TIME') AS failed_at,
           nullif(cl.properties ->> 'MQDB_FAILURE_EXCEPTION', '') AS exception,
           nullif(cl.properties ->> 'MQDB_FAILURE_MESSAGE', '') AS error,
           (SELECT max(r.redriven_at) FROM mqdb.redrive_result r
            WHERE r.log_pos = cl.log_pos AND r.status = 'REDRIVEN') AS redriven_at,
           nullif(cl.properties ->> 'MQDB_FAILURE_HOST', '') AS host,
           mqdb.property_number(cl.properties, 'MQDB_ORIGIN_QUEUE_ID') AS origin_queue_id,
           mqdb.property_number(cl.properties, 'MQDB_ORIGIN_QUEUE_OFFSET') AS origin_queue_offset,
           mqdb.property_number(cl.properties, 'ORIGIN_MESSAGE_ID') AS origin_log_pos,
           at_offset,
           cl.log_pos,
           cl.store_time,
           cl.born_time,
           cl.born_host,
           cl.flag,
           cl.sys_flag,
           mqdb.compression(cl.sys_flag) AS compression,
           mqdb.all_properties(cl.properties, cl.tags, cl.keys, cl.msg_id)
               - ARRAY['MQDB_FAILURE_EXCEPTION', 'MQDB_FAILURE_MESSAGE', 'MQDB_FAILURE_TRACEBACK',
                       'MQDB_FAILURE_HOST', 'MQDB_FAILURE_TIME'] AS properties,
           CASE WHEN cl.sys_flag & 1 = 0 THEN mqdb.body_text(cl.body) END AS text,
           nullif(cl.properties ->> 'MQDB_FAILURE_TRACEBACK', '') AS traceback,
           cl.body
    FROM (
        SELECT * FROM mqdb.commit_log c WHERE c.log_pos >= at_pos AND c.log_pos <= at_pos ORDER BY c.log_pos LIMIT 1
    ) AS cl;
END;
COMMENT ON FUNCTION mqdb.dead_letter(text, bigint, bigint) IS 'A message that a group gave up, with the columns of mqdb.dlq';
