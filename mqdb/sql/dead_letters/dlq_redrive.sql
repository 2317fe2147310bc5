-- Redrives messages from dead letter queues in the caller's transaction, and inserts the result of each: the
-- transaction commits both, or neither. The copy loses the properties about failures and waiting, and counts its
-- deliveries from 0, so all its retries are available again. If the copy goes to its group, it keeps its original topic
-- and the place of its first failure; if it goes to another topic (target_topic), it is sent like a new message. A call
-- that attempts anything is one operation in mqdb.operation, and redrive_result has a row for each of its messages. To
-- send them to another topic, where others read them, or to change their bodies, the role has to be able to read the
-- group and to send to the topic: the target topic, or the one from which the dead letter came.
CREATE FUNCTION mqdb.dlq_redrive(
    positions bigint[], target_topic text DEFAULT NULL, body bytea DEFAULT NULL, again boolean DEFAULT false,
    dry_run boolean DEFAULT false, condition text DEFAULT NULL, actor text DEFAULT NULL
) RETURNS TABLE (status text, msg_id text, group_name text, topic text, error text, log_pos bigint,
                 new_log_pos bigint, operation_id bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off  -- as in dlq_redrive_plan
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    is_guest boolean := NOT mqdb.is_owner(session_user);
    message_count integer := coalesce(cardinality(positions), 0);
    left_behind text[] := ARRAY['MQDB_FAILURE_EXCEPTION', 'MQDB_FAILURE_MESSAGE', 'MQDB_FAILURE_TRACEBACK', 'MQDB_FAILURE_HOST',
                                'MQDB_FAILURE_ATTEMPT', 'MQDB_FAILURE_TIME', 'DELAY', 'REAL_TOPIC', 'REAL_QID',
                                'RECONSUME_TIME', 'MAX_RECONSUME_TIMES'];
    needed record;
    made integer;
BEGIN
    dlq_redrive.target_topic := mqdb.full_topic(dlq_redrive.target_topic);
    IF is_guest THEN
        IF NOT EXISTS (SELECT FROM mqdb.own_right a WHERE a.access = 'OPERATE' AND a.resource_type = 'GROUP') THEN
            PERFORM mqdb.check_right('OPERATE', 'GROUP', '*');
        ELSIF target_topic IS NOT NULL THEN
            PERFORM mqdb.check_right('SEND', 'TOPIC', target_topic);
        END IF;
    END IF;
    IF body IS NOT NULL AND message_count > 1 THEN
        PERFORM mqdb.refuse_parameter('body', format('%s bytes', octet_length(body)),
            format('one body is given for %s messages; redrive messages with a new body one at a time', message_count));
    END IF;
    PERFORM mqdb.check_send(target_topic, body);
    IF message_count = 0 THEN
        RETURN;
    END IF;
    IF is_guest AND (target_topic IS NOT NULL OR body IS NOT NULL) THEN
        PERFORM mqdb.check_right('READ', 'GROUP', p.group_name)
        FROM mqdb.dlq_redrive_plan(positions, target_topic, again) p WHERE p.group_name IS NOT NULL;
        PERFORM mqdb.check_right('SEND', 'TOPIC', coalesce(target_topic, p.topic))
        FROM mqdb.dlq_redrive_plan(positions, target_topic, again) p WHERE p.group_name IS NOT NULL;
    END IF;
    IF dry_run THEN
        RETURN QUERY
        SELECT p.status, mqdb.unique_id_text(p.msg_id), mqdb.own_name(p.group_name), mqdb.own_name(p.topic), p.error, p.log_pos, NULL::bigint, NULL::bigint
        FROM mqdb.dlq_redrive_plan(positions, target_topic, again) p ORDER BY p.log_pos;
        RETURN;
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM mqdb.refuse_isolation('mqdb.dlq_redrive');
    END IF;

    -- A group has one redrive at a time, so that a message is never redriven by two people at once.
    PERFORM FROM mqdb.topic t
    WHERE t.topic_id IN (SELECT q.topic_id FROM unnest(positions) AS given (log_pos) JOIN mqdb.commit_log cl USING (log_pos)
                         JOIN mqdb.queue q USING (queue_key))
      AND starts_with(t.topic, mqdb.dlq_prefix()) AND (NOT is_guest OR mqdb.is_allowed(session_user, 'OPERATE', 'TOPIC', t.topic))
    ORDER BY t.topic_id FOR NO KEY UPDATE;
    -- The statement, unless it contains a body.
    condition := left(coalesce(condition, CASE WHEN body IS NULL THEN current_query() ELSE 'a message, with a new body' END), 4000);
    IF target_topic IS NULL THEN
        -- Skipped if there is nothing to add: the triggers of the statement would block grants, and would refuse it
        -- when the numbers for roles are used up.
        FOR needed IN
            SELECT DISTINCT g.group_name, g.retry_queue_nums
            FROM mqdb.dlq_redrive_plan(positions, NULL, again) p
            JOIN mqdb.subscription_group g ON g.group_name = p.group_name
            WHERE p.status = 'READY' AND p.queue_key IS NULL ORDER BY 1
        LOOP
            INSERT INTO mqdb.topic (topic, read_queue_nums, write_queue_nums, perm)
            VALUES (mqdb.retry_prefix() || needed.group_name, needed.retry_queue_nums, needed.retry_queue_nums, 6)
            ON CONFLICT DO NOTHING RETURNING topic.topic_id INTO made;
            IF FOUND THEN
                INSERT INTO mqdb.queue (topic_id, queue_id) SELECT made, generate_series(0, needed.retry_queue_nums - 1);
            END IF;
        END LOOP;
    ELSE
        left_behind := left_behind || ARRAY['RETRY_TOPIC', 'ORIGIN_MESSAGE_ID', 'MQDB_ORIGIN_QUEUE_ID', 'MQDB_ORIGIN_QUEUE_OFFSET'];
    END IF;

    RETURN QUERY
    WITH planned AS MATERIALIZED (
        SELECT p.*, CASE WHEN p.status = 'READY' AND pg_current_xact_id() IS NOT NULL  -- before the position: take_places says why
                         THEN nextval('mqdb.log_pos') END AS new_log_pos
        FROM (SELECT * FROM mqdb.dlq_redrive_plan(positions, target_topic, again) ORDER BY log_pos) p
    ), copies AS (
        INSERT INTO mqdb.commit_log (log_pos, queue_key, store_time, born_time, tags_code, msg_id, sys_flag, flag, born_host,
                                     tags, keys, properties, body)
        SELECT p.new_log_pos, p.queue_key, CASE WHEN is_guest THEN mqdb.unseen_time() ELSE mqdb.now() END, cl.born_time,
               mqdb.copied_code(cl.tags_code, cl.tags, cl.properties), cl.msg_id,
               -- An edited body is not compressed, whatever the sender did.
               CASE WHEN dlq_redrive.body IS NULL THEN cl.sys_flag ELSE cl.sys_flag & ~(1 | (7 << 8)) END,
               cl.flag, cl.born_host, cl.tags, cl.keys, cl.properties - left_behind, coalesce(dlq_redrive.body, cl.body)
        FROM planned p JOIN mqdb.commit_log cl USING (log_pos)
        WHERE p.status = 'READY'
    ), operation AS MATERIALIZED (
        SELECT mqdb.record_operation(
            'dlq.redrive', array_agg(DISTINCT p.topic) || target_topic, array_agg(DISTINCT p.group_name), NULL, NULL,
            jsonb_build_object('target_topic', target_topic, 'body_edited', dlq_redrive.body IS NOT NULL, 'condition', condition),
            count(p.new_log_pos), NULL, actor) AS operation_id
        FROM planned p WHERE p.status <> 'SKIPPED' AND (NOT is_guest OR p.group_name IS NOT NULL) HAVING count(*) > 0
    ), results AS (
        INSERT INTO mqdb.redrive_result (operation_id, log_pos, group_name, msg_id, status, error, new_log_pos)
        SELECT (SELECT o.operation_id FROM operation o), p.log_pos, p.group_name, p.msg_id, CASE p.status WHEN 'READY' THEN 'REDRIVEN' ELSE p.status END,
               p.error, p.new_log_pos
        FROM planned p WHERE p.status <> 'SKIPPED' AND (NOT is_guest OR p.group_name IS NOT NULL)
    )
    SELECT CASE p.status WHEN 'READY' THEN 'REDRIVEN' ELSE p.status END, mqdb.unique_id_text(p.msg_id), mqdb.own_name(p.group_name),
           mqdb.own_name(p.topic), p.error, p.log_pos, p.new_log_pos, (SELECT o.operation_id FROM operation o)
    FROM planned p ORDER BY p.log_pos;
END
$$;
COMMENT ON FUNCTION mqdb.dlq_redrive(bigint[], text, bytea, boolean, boolean, text, text) IS 'Redrives the dead letters at these positions, to the group that failed them or to target_topic; returns the outcome of each message';
