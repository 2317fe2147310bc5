-- The dead letters at these positions, with the columns of mqdb.dlq. The view goes from queues to records, so it would
-- read all dead letters to find one of them. Here the record names its queue, and one look-up in the queue finds its
-- offset. The joins are nested loops over indexes, whatever the statistics say, as in dlq_redrive_plan.
CREATE FUNCTION mqdb.dlq_at(positions bigint[]) RETURNS SETOF mqdb.dlq
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
    SELECT l.*
    FROM (SELECT DISTINCT given.log_pos FROM unnest(positions) AS given (log_pos)) AS asked
    CROSS JOIN LATERAL (
        SELECT c.queue_key FROM mqdb.commit_log c WHERE c.log_pos >= asked.log_pos AND c.log_pos <= asked.log_pos ORDER BY c.log_pos LIMIT 1
    ) AS cl
    JOIN mqdb.queue q USING (queue_key)
    JOIN mqdb.named_topic t USING (topic_id)
    CROSS JOIN LATERAL (
        SELECT mqdb.find_queue_offset(cl.queue_key, asked.log_pos, NULL, NULL) AS queue_offset OFFSET 0
    ) AS place
    CROSS JOIN LATERAL mqdb.dead_letter(t.topic, place.queue_offset, asked.log_pos) AS l
    WHERE starts_with(t.topic, mqdb.dlq_prefix()) AND place.queue_offset >= q.base_offset
$$;
COMMENT ON FUNCTION mqdb.dlq_at(bigint[]) IS 'The rows of mqdb.dlq at these positions, found through indexes; positions without a dead letter are skipped';
