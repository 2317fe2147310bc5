-- The rows that a role other than the owner of the schema may see and change. The role needs USAGE on the schema, which
-- `mqdb acl grant` grants, and rights in mqdb.acl, which decide about each row. PostgreSQL skips these checks for the
-- owner of the tables. The grants cover everything that a producer and a consumer need: Rows are therefore deleted by
-- functions that run with the rights of the owner. The positions of the log come from its identity column, which needs
-- no grant.

-- These tables reveal nothing about roles: the identity of the broker, the progress of the log and the services, and
-- the numbers of its queues.
GRANT SELECT ON mqdb.alembic_version, mqdb.broker, mqdb.leader, mqdb.segment, mqdb.checkpoint, mqdb.dispatch_lane, mqdb.id_span,
    mqdb.delay_level, mqdb.live_queue TO PUBLIC;
GRANT SELECT ON SEQUENCE mqdb.log_pos TO PUBLIC;

-- The role's own rows, which the policies below look up. Policies read this table instead of a view with the
-- condition, because such a view would be a separate node in the plan of each append and pull.
GRANT SELECT ON mqdb.acl_queue TO PUBLIC;
ALTER TABLE mqdb.acl_queue ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON mqdb.acl_queue FOR SELECT USING (principal = session_user::text COLLATE "default");

-- -- topics ----------------------------------------------------------------------------------------

GRANT SELECT ON mqdb.topic, mqdb.queue TO PUBLIC;
ALTER TABLE mqdb.topic ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON mqdb.topic FOR SELECT USING (
    topic = ANY (mqdb.topics_not_allowed()) OR topic = 'TBW102' OR topic = (SELECT mqdb.reply_topic())
    OR EXISTS (SELECT FROM mqdb.own_right a WHERE mqdb.is_covered(topic.topic, a.resource_type, a.resource)));

ALTER TABLE mqdb.queue ENABLE ROW LEVEL SECURITY;
-- A function, because its query would otherwise have to be initialised in the plan of each append and pull.
CREATE FUNCTION mqdb.is_of_the_broker(topic_id integer) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT EXISTS (SELECT FROM mqdb.topic t WHERE t.topic_id = is_of_the_broker.topic_id
                   AND (t.topic = ANY (mqdb.topics_not_allowed()) OR t.topic = 'TBW102' OR t.topic = mqdb.reply_topic()));
END;
COMMENT ON FUNCTION mqdb.is_of_the_broker(integer) IS 'Whether a topic is one of the internal topics that every broker has';
CREATE POLICY own ON mqdb.queue FOR SELECT USING (
    EXISTS (SELECT FROM mqdb.acl_queue r WHERE r.queue_key = queue.queue_key) OR mqdb.is_of_the_broker(topic_id));

-- -- the log ---------------------------------------------------------------------------------------

-- Without log_pos and xid. The store time is that of the statement or later.
GRANT SELECT, INSERT (queue_key, store_time, born_time, tags_code, msg_id, sys_flag, flag, reconsume_times, born_host, tags, keys,
    properties, body) ON mqdb.commit_log TO PUBLIC;
ALTER TABLE mqdb.commit_log ENABLE ROW LEVEL SECURITY;
-- For records that are not sent directly to a queue on which the role has a right. A waiting record goes to a queue of
-- the broker, and later to the topic named in its properties. A function, because its query would otherwise have to be
-- initialised in the plan of each append.
CREATE FUNCTION mqdb.admits(queue_key integer, tags_code bigint, properties jsonb) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    name text;
    perm integer;
BEGIN
    SELECT t.topic, t.perm INTO name, perm FROM mqdb.queue q JOIN mqdb.topic t USING (topic_id) WHERE q.queue_key = admits.queue_key;
    IF NOT FOUND THEN  -- not to be seen, as if it were gone
        RAISE EXCEPTION 'the topic of queue % does not exist', admits.queue_key
            USING ERRCODE = 'MQ301', DETAIL = jsonb_build_object('topic', '');
    ELSIF name IN (mqdb.schedule_topic(), mqdb.timer_topic()) THEN
        IF name = mqdb.timer_topic() AND admits.tags_code > (
            SELECT ceil(extract(epoch FROM mqdb.now()) * 1000) + b.timer_max_delay_ms FROM mqdb.broker b)
        THEN
            RETURN false;
        END IF;
        name := admits.properties ->> 'REAL_TOPIC';
        IF NOT EXISTS (SELECT FROM mqdb.own_right a
                       WHERE a.access = 'READ' AND a.resource_type = 'GROUP' AND mqdb.is_covered(name, 'GROUP', a.resource)) THEN
            PERFORM mqdb.check_right('SEND', 'TOPIC', name);
        END IF;
        RETURN true;
    END IF;
    PERFORM mqdb.check_right('SEND', 'TOPIC', name);
    IF perm & 2 = 0 THEN
        RAISE EXCEPTION 'topic "%" takes no messages: its permission is %, without the 2 of W', name, perm
            USING ERRCODE = 'MQ202', DETAIL = jsonb_build_object('topic', name, 'perm', perm);
    END IF;
    RETURN false;
END
$$;
COMMENT ON FUNCTION mqdb.admits(integer, bigint, jsonb) IS 'Whether the logged-in role may send a waiting record to its target. Raises an error that names the missing right, or says that the topic is not writable; if the role may not see the topic, the error says that the topic does not exist';

-- A reply goes to the requester named in the request (replies.sql). A copy that a consumer sends back names the
-- original requester.
CREATE FUNCTION mqdb.is_own_request(queue_key integer, properties jsonb) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    name text;
BEGIN
    IF starts_with(is_own_request.properties ->> 'REPLY_TO_CLIENT', mqdb.reply_address('')) THEN
        RETURN true;
    END IF;
    SELECT t.topic INTO name FROM mqdb.queue q JOIN mqdb.topic t USING (topic_id) WHERE q.queue_key = is_own_request.queue_key;
    IF name IN (mqdb.schedule_topic(), mqdb.timer_topic()) THEN
        name := is_own_request.properties ->> 'REAL_TOPIC';
    END IF;
    RETURN starts_with(name, mqdb.retry_prefix()) OR starts_with(name, mqdb.dlq_prefix());
END
$$;
COMMENT ON FUNCTION mqdb.is_own_request(integer, jsonb) IS 'Whether a record that names a requester names a client of the logged-in role, or is sent back to a group';

-- An INSERT that returns positions has to see its own rows. (The transaction ids of a restored log may occur again.
-- Their records were stored earlier.)
CREATE POLICY readable ON mqdb.commit_log FOR SELECT USING (
    xid = pg_current_xact_id_if_assigned() AND store_time >= mqdb.transaction_began()
    OR EXISTS (SELECT FROM mqdb.acl_queue r WHERE r.queue_key = commit_log.queue_key AND r.may_read));
CREATE POLICY sendable ON mqdb.commit_log FOR INSERT WITH CHECK (
    queue_key IS NULL
    OR body <> '' AND octet_length(body) <= mqdb.max_body_bytes()
    AND pg_column_size(properties) <= 262144
    AND octet_length(concat(tags, keys, born_host)) <= mqdb.max_properties_bytes()
    AND sys_flag >= 0
    AND reconsume_times BETWEEN 0 AND 1000000
    AND store_time <= mqdb.now()
    AND store_time >= mqdb.statement_began()
    AND (EXISTS (SELECT FROM mqdb.acl_queue r WHERE r.queue_key = commit_log.queue_key AND r.may_send)
         OR mqdb.admits(queue_key, tags_code, properties))
    AND (NOT properties ? 'REPLY_TO_CLIENT' OR mqdb.is_own_request(queue_key, properties)));

GRANT SELECT ON mqdb.queue_run, mqdb.consume_queue TO PUBLIC;
ALTER TABLE mqdb.queue_run ENABLE ROW LEVEL SECURITY;
CREATE POLICY readable ON mqdb.queue_run FOR SELECT USING (
    EXISTS (SELECT FROM mqdb.acl_queue r WHERE r.queue_key = queue_run.queue_key AND r.may_read));

GRANT SELECT ON mqdb.message_index TO PUBLIC;
ALTER TABLE mqdb.message_index ENABLE ROW LEVEL SECURITY;
CREATE POLICY readable ON mqdb.message_index FOR SELECT USING (
    EXISTS (SELECT FROM mqdb.commit_log cl WHERE cl.log_pos = message_index.log_pos));

-- -- groups and their members ----------------------------------------------------------------------

-- The right to update is needed to lock a row. Only members lock rows; roles with other rights on the group only read.
GRANT SELECT, UPDATE (subscription_version) ON mqdb.subscription_group TO PUBLIC;
ALTER TABLE mqdb.subscription_group ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON mqdb.subscription_group USING (
    EXISTS (SELECT FROM mqdb.own_right a
            WHERE a.access = 'READ' AND a.resource_type = 'GROUP' AND a.resource = subscription_group.group_name));
CREATE POLICY seen ON mqdb.subscription_group FOR SELECT USING (
    EXISTS (SELECT FROM mqdb.own_right a
            WHERE a.resource_type = 'GROUP' AND mqdb.is_named(subscription_group.group_name, a.resource)));

GRANT SELECT ON mqdb.subscription TO PUBLIC;
ALTER TABLE mqdb.subscription ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON mqdb.subscription FOR SELECT USING (
    EXISTS (SELECT FROM mqdb.seen_group g WHERE g.group_id = subscription.group_id));

-- The role also needs a right on the queue, because the foreign key would otherwise reveal which queues exist, and
-- prevent their deletion.
GRANT SELECT, INSERT (group_id, queue_key, next_offset, segment, begun), UPDATE (next_offset, segment, owner, epoch, updated_at, begun)
    ON mqdb.consumer_offset TO PUBLIC;
ALTER TABLE mqdb.consumer_offset ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON mqdb.consumer_offset USING (
    EXISTS (SELECT FROM mqdb.own_group g WHERE g.group_id = consumer_offset.group_id)
) WITH CHECK (
    isfinite(updated_at) AND (owner IS NULL OR octet_length(owner) <= 1024)
    AND EXISTS (SELECT FROM mqdb.own_group g WHERE g.group_id = consumer_offset.group_id)
    AND EXISTS (SELECT FROM mqdb.acl_queue q WHERE q.queue_key = consumer_offset.queue_key AND q.may_read));

GRANT SELECT, INSERT (group_id, queue_key, owner, epoch, expires_at, expiry), UPDATE (owner, epoch, expires_at, expiry)
    ON mqdb.queue_lock TO PUBLIC;
ALTER TABLE mqdb.queue_lock ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON mqdb.queue_lock USING (
    EXISTS (SELECT FROM mqdb.own_group g WHERE g.group_id = queue_lock.group_id)
) WITH CHECK (
    isfinite(expires_at) AND octet_length(owner) <= 1024
    AND EXISTS (SELECT FROM mqdb.own_group g WHERE g.group_id = queue_lock.group_id)
    AND EXISTS (SELECT FROM mqdb.acl_queue q WHERE q.queue_key = queue_lock.queue_key AND q.may_read));

GRANT SELECT, INSERT (group_id, queue_key, from_offset, next_offset, segment, epoch) ON mqdb.offset_commit TO PUBLIC;
ALTER TABLE mqdb.offset_commit ENABLE ROW LEVEL SECURITY;
-- A commit of mqdb never uses NULL for the group (refuse_commit); the table refuses it anyway.
CREATE POLICY own ON mqdb.offset_commit USING (
    group_id IS NULL OR EXISTS (SELECT FROM mqdb.own_group g WHERE g.group_id = offset_commit.group_id));

-- Members pop and acknowledge through functions with the rights of the owner.
GRANT SELECT ON mqdb.pop_batch TO PUBLIC;
ALTER TABLE mqdb.pop_batch ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON mqdb.pop_batch FOR SELECT USING (
    EXISTS (SELECT FROM mqdb.own_group g WHERE g.group_id = pop_batch.group_id));

-- A client belongs to its role: the same id used by another role is a different client. Members see the consumers of
-- their groups, and lock and change only their own: a process renews its rows in all groups with one statement. A
-- producer is asked only about half messages of its own role, so it may choose any name for its group.
GRANT SELECT, INSERT (client_id, kind, group_name, message_model, language, version, checks_transactions),
    UPDATE (heartbeat_at, version, checks_transactions) ON mqdb.client TO PUBLIC;
ALTER TABLE mqdb.client ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON mqdb.client USING (principal = session_user) WITH CHECK (
    principal = session_user AND isfinite(heartbeat_at)
    AND octet_length(client_id) <= 1024 AND octet_length(concat(group_name, language, version)) <= 512
    AND (kind <> 'CONSUMER' OR EXISTS (SELECT FROM mqdb.own_group g WHERE g.group_name = client.group_name)));
CREATE POLICY seen ON mqdb.client FOR SELECT USING (
    kind = 'CONSUMER' AND EXISTS (SELECT FROM mqdb.seen_group g WHERE g.group_name = client.group_name));

GRANT SELECT, INSERT (client_id, lock_key), UPDATE (lock_key) ON mqdb.presence TO PUBLIC;
ALTER TABLE mqdb.presence ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON mqdb.presence USING (principal = session_user)
    WITH CHECK (principal = session_user AND octet_length(client_id) <= 1024);

GRANT SELECT, UPDATE (answer, answered_at) ON mqdb.client_request TO PUBLIC;
ALTER TABLE mqdb.client_request ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON mqdb.client_request USING (
    principal = session_user
    AND EXISTS (SELECT FROM mqdb.own_group g WHERE g.group_name = client_request.arguments ->> 'group')
) WITH CHECK (octet_length(answer::text) <= 16777216);

-- -- Spark's sink ----------------------------------------------------------------------------------

-- Each role has its own ledger and stage. The log checks the rights again when the messages are appended.
GRANT SELECT, INSERT (sink_id, batch_id, query_id, messages, checksum, brokers) ON mqdb.sink_batch TO PUBLIC;
ALTER TABLE mqdb.sink_batch ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON mqdb.sink_batch USING (principal = session_user::text COLLATE "default")
    WITH CHECK (principal = session_user AND octet_length(concat(sink_id, query_id)) <= 1024
                AND octet_length(concat(brokers)) <= 8192
                AND EXISTS (SELECT FROM mqdb.own_right a WHERE a.access = 'SEND'));

GRANT SELECT, INSERT (write_id, sink_id, batch_id) ON mqdb.sink_write TO PUBLIC;
ALTER TABLE mqdb.sink_write ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON mqdb.sink_write USING (principal = session_user::text COLLATE "default")
    WITH CHECK (principal = session_user AND octet_length(sink_id) <= 1024
                AND EXISTS (SELECT FROM mqdb.own_right a WHERE a.access = 'SEND'));

GRANT SELECT, INSERT (write_id, born_time, tags_code, deliver_ms, msg_id, seq, queue_key, delay_level, born_host, tags, keys, properties,
    body) ON mqdb.sink_stage TO PUBLIC;
ALTER TABLE mqdb.sink_stage ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON mqdb.sink_stage USING (EXISTS (SELECT FROM mqdb.sink_write w WHERE w.write_id = sink_stage.write_id))
    WITH CHECK (octet_length(body) <= mqdb.max_body_bytes() AND pg_column_size(properties) <= 262144
                AND EXISTS (SELECT FROM mqdb.sink_write w WHERE w.write_id = sink_stage.write_id));

GRANT SELECT ON mqdb.sink_part TO PUBLIC;
ALTER TABLE mqdb.sink_part ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON mqdb.sink_part USING (principal = session_user::text COLLATE "default");

-- -- operations ------------------------------------------------------------------------------------

-- Operations of the role itself, and operations on topics and groups on which the role has rights. Changes of rights
-- are not included.
GRANT SELECT ON mqdb.operation TO PUBLIC;
ALTER TABLE mqdb.operation ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON mqdb.operation FOR SELECT USING (
    principal = session_user
    OR NOT starts_with(verb, 'acl.') AND cardinality(topics || groups) > 0
    AND NOT EXISTS (
        SELECT FROM unnest(topics) AS name
        WHERE NOT EXISTS (SELECT FROM mqdb.own_right a WHERE mqdb.is_covered(name, a.resource_type, a.resource)))
    AND NOT EXISTS (
        SELECT FROM unnest(groups) AS name
        WHERE NOT EXISTS (SELECT FROM mqdb.own_right a WHERE a.resource_type = 'GROUP' AND mqdb.is_named(name, a.resource))));

-- An operator sees the times of crons for its topics, but not their messages.
GRANT SELECT (name, cron, timezone, topic, catch_up, is_paused, next_at, last_fired_at, sent, skipped, created_at, created_by,
    principal, application) ON mqdb.cron TO PUBLIC;
ALTER TABLE mqdb.cron ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON mqdb.cron FOR SELECT USING (
    EXISTS (SELECT FROM mqdb.own_right a
            WHERE a.access IN ('OPERATE', 'ADMIN') AND mqdb.is_covered(cron.topic, a.resource_type, a.resource)));

-- -- views -----------------------------------------------------------------------------------------

GRANT SELECT ON mqdb.message, mqdb.queue_ends, mqdb.scheduled, mqdb.consumer_lag, mqdb.dlq TO PUBLIC;
GRANT SELECT ON mqdb.redrive_result TO PUBLIC;
ALTER TABLE mqdb.redrive_result ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON mqdb.redrive_result FOR SELECT USING (
    EXISTS (SELECT FROM mqdb.own_right a WHERE a.resource_type = 'GROUP' AND mqdb.is_named(redrive_result.group_name, a.resource)));
