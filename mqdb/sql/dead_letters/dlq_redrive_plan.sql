-- The plan for a redrive of dead letters, with the queue to which each message would go. It changes nothing. A role
-- that does not own the schema sees only dead letters of groups that it operates. The joins are nested loops over
-- indexes, whatever the statistics say: there are few positions, and the log is long.
CREATE FUNCTION mqdb.dlq_redrive_plan(positions bigint[], target_topic text DEFAULT NULL, again boolean DEFAULT false)
RETURNS TABLE (log_pos bigint, msg_id uuid, group_name text, topic text, status text, error text, queue_key integer)
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
    WITH asked AS (
        SELECT DISTINCT given.log_pos FROM unnest(positions) AS given (log_pos) WHERE given.log_pos IS NOT NULL
    ), letter AS MATERIALIZED (
        SELECT asked.log_pos, dead.*, g.group_id, target.topic_id, target.perm, target.write_queue_nums
        FROM asked
        LEFT JOIN LATERAL (
            SELECT cl.msg_id, substr(t.topic, length(mqdb.dlq_prefix()) + 1) AS group_name,
                   cl.properties ->> 'RETRY_TOPIC' AS topic,
                   mqdb.property_number(cl.properties, 'MQDB_ORIGIN_QUEUE_ID') AS origin_queue_id,
                   (SELECT max(r.redriven_at) FROM mqdb.redrive_result r
                    WHERE NOT again AND r.log_pos = cl.log_pos AND r.status = 'REDRIVEN') AS redriven_at
            FROM mqdb.commit_log cl JOIN mqdb.queue q USING (queue_key) JOIN mqdb.topic t USING (topic_id)
            WHERE cl.log_pos = asked.log_pos AND starts_with(t.topic, mqdb.dlq_prefix())
              AND ((SELECT mqdb.is_owner(session_user)) OR mqdb.is_allowed(session_user, 'OPERATE', 'TOPIC', t.topic))
        ) dead ON true
        LEFT JOIN mqdb.subscription_group g ON g.group_name = dead.group_name
        LEFT JOIN mqdb.topic target ON target.topic = coalesce(target_topic, mqdb.retry_prefix() || dead.group_name)
    ), judged AS (
        SELECT l.*,
               CASE WHEN target_topic = l.topic AND l.origin_queue_id < l.write_queue_nums THEN l.origin_queue_id
                    ELSE floor(random() * l.write_queue_nums) END AS queue_id,
               CASE
                   WHEN l.msg_id IS NULL THEN 'no dead letter queue holds the message; it may have been dropped'
                   WHEN l.redriven_at IS NOT NULL THEN
                       format('was already redriven at %s', date_trunc('second', l.redriven_at))
                   WHEN target_topic IS NULL AND l.group_id IS NULL THEN
                       format('group "%s" does not exist; its first consumer creates it, or use: mqdb group set', l.group_name)
                   WHEN target_topic IS NOT NULL AND l.topic_id IS NULL THEN
                       format('topic "%s" does not exist; create it with: mqdb topic create', target_topic)
                   WHEN l.perm & 2 = 0 THEN
                       format('topic "%s" takes no messages: its permission is %s, without the 2 of W',
                              coalesce(target_topic, mqdb.retry_prefix() || l.group_name), l.perm)
               END AS error
        FROM letter l
    )
    SELECT j.log_pos, j.msg_id, j.group_name, j.topic,
           CASE WHEN j.error IS NULL THEN 'READY'
                WHEN j.redriven_at IS NOT NULL THEN 'SKIPPED'
                ELSE 'FAILED' END,
           j.error, q.queue_key
    FROM judged j LEFT JOIN mqdb.queue q ON q.topic_id = j.topic_id AND q.queue_id = j.queue_id
$$;
COMMENT ON FUNCTION mqdb.dlq_redrive_plan(bigint[], text, boolean) IS 'The outcome that mqdb.dlq_redrive would have for the messages at these positions: READY, SKIPPED or FAILED, with the reason';
