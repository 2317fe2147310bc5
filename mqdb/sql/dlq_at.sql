-- The dead letters at these positions, by the columns of mqdb.dlq. The view goes from queues to records, so it would look at
-- all letters to find one of them. Here a record says its queue, and one look at the queue says its offset there. The joins are
-- nested loops over indexes whatever the statistics say, as in dlq_redrive_plan.
CREATE FUNCTION mqdb.dlq_at(positions bigint[]) RETURNS SETOF mqdb.dlq
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
    SELECT substr(t.topic, length(mqdb.dlq_prefix()) + 1) AS consumer_group,
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
           place.queue_offset,
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
    FROM (SELECT DISTINCT given.log_pos FROM unnest(positions) AS given (log_pos)) AS asked
    CROSS JOIN LATERAL (
        SELECT * FROM mqdb.commit_log c WHERE c.log_pos >= asked.log_pos AND c.log_pos <= asked.log_pos ORDER BY c.log_pos LIMIT 1
    ) AS cl
    JOIN mqdb.queue q USING (queue_key)
    JOIN mqdb.named_topic t USING (topic_id)
    CROSS JOIN LATERAL (
        SELECT mqdb.find_queue_offset(cl.queue_key, cl.log_pos, NULL, NULL) AS queue_offset OFFSET 0
    ) AS place
    WHERE starts_with(t.topic, mqdb.dlq_prefix()) AND place.queue_offset >= q.base_offset
$$;
COMMENT ON FUNCTION mqdb.dlq_at(bigint[]) IS 'The rows of mqdb.dlq at these positions, by their indexes; positions without a dead letter are left out';
