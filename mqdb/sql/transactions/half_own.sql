-- Half messages of roles that do not own the schema: such a role sends, ends and checks its own half messages with
-- these functions, which run with the rights of the owner. No such role has direct access to the queue of half messages
-- and their rows. Another role that uses the same group name is not checked, and finds no half message there. If the
-- row were created by its END or by the checker, whichever comes first, an uncommitted END would block the checker, and
-- with it all other half messages. The row therefore exists from the start, and the checker skips locked rows.
CREATE FUNCTION mqdb.send_half(
    queue_key integer, history bigint, tags_code bigint, born_time timestamptz, msg_id uuid, born_host text,
    tags text, keys text, properties jsonb, body bytea, flag integer, sys_flag integer
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    stored_at timestamptz := mqdb.now();
    wait interval;
    real_topic text;
    placed record;
    pos bigint;
BEGIN
    SELECT t.topic INTO real_topic
    FROM mqdb.own_queue o JOIN mqdb.live_queue USING (queue_key) JOIN mqdb.queue q USING (queue_key) JOIN mqdb.topic t USING (topic_id)
    WHERE o.queue_key = send_half.queue_key AND (send_half.history IS NULL OR send_half.history = mqdb.history());
    IF NOT FOUND THEN  -- it belongs to another role, or does not exist: the client knows its name
        RAISE EXCEPTION 'the topic of queue % does not exist', queue_key USING ERRCODE = 'MQ301', DETAIL = jsonb_build_object('topic', '');
    END IF;
    PERFORM mqdb.check_right('SEND', 'TOPIC', real_topic);
    PERFORM mqdb.check_send(real_topic, coalesce(send_half.body, ''));
    IF ((send_half.properties ->> 'PGROUP') ~ '^[%|a-zA-Z0-9_-]{1,120}$') IS NOT TRUE THEN
        PERFORM mqdb.refuse_parameter('properties', send_half.properties ->> 'PGROUP',
            'PGROUP names the group of the producer by 1 to 120 of the characters % | a-z A-Z 0-9 _ -');
    ELSIF (pg_column_size(send_half.properties) <= 262144 AND jsonb_typeof(send_half.properties) = 'object'
           AND octet_length(concat(send_half.tags, send_half.keys)) <= mqdb.max_properties_bytes()
           AND octet_length(send_half.born_host) <= 255 AND send_half.sys_flag >= 0
           AND send_half.tags_code BETWEEN -2147483648 AND 2147483647
           AND send_half.born_time >= '1970-01-01 00:00+00' AND send_half.born_time < '9999-01-01 00:00+00'
           AND num_nulls(send_half.msg_id, send_half.flag) = 0
           AND (NOT send_half.properties ? 'REPLY_TO_CLIENT'
                OR starts_with(send_half.properties ->> 'REPLY_TO_CLIENT', mqdb.reply_address('')))) IS NOT TRUE
    THEN
        PERFORM mqdb.refuse_parameter('properties', NULL, 'the record is not one that a producer makes');
    END IF;
    SELECT * INTO placed FROM mqdb.place(
        send_half.queue_key, send_half.tags_code, mqdb.text_properties(send_half.properties), stored_at, NULL, NULL, NULL, true);
    IF placed.placed_key IS NULL THEN  -- deleted in this moment
        RAISE EXCEPTION 'the topic of queue % does not exist', queue_key USING ERRCODE = 'MQ301', DETAIL = jsonb_build_object('topic', '');
    END IF;
    INSERT INTO mqdb.commit_log (queue_key, store_time, born_time, tags_code, msg_id, sys_flag, flag, born_host, tags, keys,
                                 properties, body)
    VALUES (placed.placed_key, stored_at, send_half.born_time, placed.placed_code, send_half.msg_id, send_half.sys_flag,
            send_half.flag, send_half.born_host, send_half.tags, send_half.keys, placed.placed_properties, send_half.body)
    RETURNING log_pos INTO pos;
    -- The immunity of the half message, within two bounds: the default timeout of transactions (CheckRules; the checker
    -- waits longer if the timeout of the broker is longer), and the time for which the log is kept.
    wait := least(greatest(coalesce(mqdb.property_number(placed.placed_properties, 'CHECK_IMMUNITY_TIME_IN_SECONDS'), 0), 6),
                  259200) * interval '1 second';
    INSERT INTO mqdb.half_message (log_pos, msg_id, producer_group, topic, stored_at, check_at, check_wait, principal)
    VALUES (pos, send_half.msg_id, placed.placed_properties ->> 'PGROUP', real_topic, stored_at, stored_at + wait, wait,
            session_user);
    RETURN pos;
END
$$;
COMMENT ON FUNCTION mqdb.send_half(integer, bigint, bigint, timestamptz, uuid, text, text, text, jsonb, bytea, integer, integer) IS 'Stores a half message of the logged-in role, for a topic to which the role may send; returns its position';

-- As in mqdb.broker.transactions.transactions.end. Half messages of other roles are not found. A role that may no
-- longer send cannot commit; a rollback needs no right.
CREATE FUNCTION mqdb.end_half(
    log_pos bigint, producer_group text, unique_id uuid, outcome text, asked_client text,
    OUT has_changed boolean, OUT state text, OUT copy_pos bigint
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    half mqdb.half_message;
    original mqdb.commit_log;
    target integer;
    immunity bigint;
    age double precision;
BEGIN
    IF (outcome IN ('COMMIT', 'ROLLBACK', 'UNKNOWN')) IS NOT TRUE THEN
        PERFORM mqdb.refuse_parameter('outcome', outcome, 'give COMMIT, ROLLBACK or UNKNOWN');
    END IF;
    SELECT * INTO half FROM mqdb.half_message h WHERE h.log_pos = end_half.log_pos AND h.principal = session_user::text;
    IF FOUND THEN
        SELECT * INTO original FROM mqdb.commit_log cl
        WHERE cl.log_pos >= end_half.log_pos AND cl.log_pos <= end_half.log_pos ORDER BY cl.log_pos LIMIT 1;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no half message at position % of the log', log_pos
            USING ERRCODE = 'MQ320', DETAIL = jsonb_build_object('where', coalesce(end_half.log_pos, 0));
    ELSIF half.producer_group IS DISTINCT FROM end_half.producer_group OR half.msg_id IS DISTINCT FROM end_half.unique_id THEN
        RAISE EXCEPTION 'the half message at position % of the log has another group or id', log_pos
            USING ERRCODE = 'MQ120', DETAIL = jsonb_build_object(
                'log_pos', end_half.log_pos,
                'what', CASE WHEN half.producer_group = end_half.producer_group THEN 'transaction id' ELSE 'producer group' END,
                'given', CASE WHEN half.producer_group = end_half.producer_group THEN coalesce(mqdb.unique_id_text(end_half.unique_id), '')
                              ELSE coalesce(end_half.producer_group, '') END);
    END IF;
    immunity := CASE WHEN (original.properties ->> 'CHECK_IMMUNITY_TIME_IN_SECONDS') ~ '^[0-9]+$' THEN least(coalesce(
        mqdb.property_number(original.properties, 'CHECK_IMMUNITY_TIME_IN_SECONDS'), 259200), 259200) END;
    age := extract(epoch FROM mqdb.now() - original.store_time);
    has_changed := false;
    IF outcome = 'UNKNOWN' THEN
        UPDATE mqdb.half_message h SET check_client = NULL
        WHERE h.log_pos = end_half.log_pos AND h.check_client = end_half.asked_client;
    ELSIF asked_client IS NULL AND age > immunity THEN
        RAISE EXCEPTION 'the half message at position % of the log is % s old, but its immunity was % s', log_pos, age, immunity
            USING ERRCODE = 'MQ220', DETAIL = jsonb_build_object(
                'log_pos', end_half.log_pos, 'age_seconds', age, 'immunity_seconds', immunity);
    ELSE
        IF outcome = 'COMMIT' THEN
            PERFORM mqdb.check_right('SEND', 'TOPIC', half.topic);
        END IF;
        -- A session that ends the half message at the same time either comes first, or finds it ended.
        SELECT * INTO half FROM mqdb.half_message h WHERE h.log_pos = end_half.log_pos FOR UPDATE;
        has_changed := half.state = 'PREPARED';
        IF has_changed AND outcome = 'COMMIT' THEN
            target := (SELECT q.queue_key FROM mqdb.topic t JOIN mqdb.queue q USING (topic_id)
                       WHERE t.topic = half.topic
                         AND q.queue_id = mqdb.property_number(original.properties, 'REAL_QID') % t.read_queue_nums
                         AND NOT EXISTS (SELECT FROM mqdb.deleted_topic d WHERE d.topic = half.topic AND d.last_pos >= half.log_pos));
            IF target IS NULL THEN
                RAISE EXCEPTION 'topic "%" does not exist; create it with: mqdb topic create %', half.topic, half.topic
                    USING ERRCODE = 'MQ301', DETAIL = jsonb_build_object('topic', half.topic);
            END IF;
            INSERT INTO mqdb.commit_log (queue_key, born_time, tags_code, msg_id, sys_flag, flag, born_host, tags, keys, properties, body)
            VALUES (target, original.born_time, mqdb.copied_code(original.tags_code, original.tags, original.properties),
                    original.msg_id, original.sys_flag | 8, original.flag, original.born_host, original.tags, original.keys,
                    CASE WHEN half.check_times > 0
                        THEN original.properties || jsonb_build_object('TRANSACTION_CHECK_TIMES', half.check_times::text)
                        ELSE original.properties END,
                    original.body)
            RETURNING log_pos INTO copy_pos;
        END IF;
        IF has_changed THEN
            UPDATE mqdb.half_message h
            SET state = CASE outcome WHEN 'COMMIT' THEN 'COMMITTED' ELSE 'ROLLED_BACK' END, stored_at = original.store_time,
                check_at = NULL, check_client = NULL, ended_at = mqdb.now(), copy_pos = end_half.copy_pos
            WHERE h.log_pos = end_half.log_pos;
        END IF;
    END IF;
    state := (SELECT h.state FROM mqdb.half_message h WHERE h.log_pos = end_half.log_pos);
END
$$;
COMMENT ON FUNCTION mqdb.end_half(bigint, text, uuid, text, text) IS 'Commits or rolls back a half message sent by the logged-in role; UNKNOWN answers a check without ending the half message';

-- As in mqdb.store.transactions.half_checks.open_checks.
CREATE FUNCTION mqdb.own_checks(client_id text, producer_group text, most integer) RETURNS TABLE (
    real_topic text, real_queue_id bigint, log_pos bigint, check_times integer, queue_offset bigint, msg_id uuid, tags text, keys text,
    properties jsonb, body bytea, born_host text, flag integer, sys_flag integer, born_time timestamptz, store_time timestamptz
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT mqdb.own_name(h.topic), mqdb.property_number(cl.properties, 'REAL_QID'), h.log_pos, h.check_times,
           coalesce(h.queue_offset, mqdb.find_queue_offset(cl.queue_key, h.log_pos, NULL, NULL), 0),
           cl.msg_id, cl.tags, cl.keys, cl.properties, cl.body, cl.born_host, cl.flag, cl.sys_flag, cl.born_time, cl.store_time
    FROM mqdb.half_message h CROSS JOIN LATERAL (
        SELECT * FROM mqdb.commit_log cl
        WHERE cl.log_pos >= h.log_pos AND cl.log_pos <= h.log_pos ORDER BY cl.log_pos LIMIT 1) cl
    WHERE h.check_client = own_checks.client_id AND h.producer_group = own_checks.producer_group AND h.principal = session_user::text
      AND EXISTS (SELECT FROM mqdb.own_right a WHERE a.access = 'SEND' AND mqdb.is_covered(h.topic, a.resource_type, a.resource))
    ORDER BY h.check_at LIMIT least(greatest(own_checks.most, 0), 100);
END;
COMMENT ON FUNCTION mqdb.own_checks(text, text, integer) IS 'The open checks of half messages sent by the logged-in role, for one of its clients';
