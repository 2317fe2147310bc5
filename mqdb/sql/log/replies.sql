-- Requests and replies of roles that do not own the schema. All replies of a cluster are in one topic, which no right
-- covers: a role that waits for replies reads its own with mqdb.own_replies, and a role that received a request answers
-- it with mqdb.reply. The address of such a role contains the name of the role, and only this role reads the replies
-- sent to it. Client ids are not enough: a role may choose any ids for its clients. Client ids start with a network
-- address, which cannot be confused with the length of a role name.
CREATE FUNCTION mqdb.reply_address(client_id text) RETURNS text
LANGUAGE sql STABLE
RETURN length(session_user) || ':' || session_user || ':' || client_id;
COMMENT ON FUNCTION mqdb.reply_address(text) IS 'Address for replies to a client of the logged-in role, if the role does not own the schema';

CREATE FUNCTION mqdb.reply_topic() RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT replace(b.cluster_name, '.', '_') || '_REPLY_TOPIC' FROM mqdb.broker b;
END;
COMMENT ON FUNCTION mqdb.reply_topic() IS 'The topic for replies in the cluster of this broker';

CREATE FUNCTION mqdb.make_reply_topic() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    made integer;
BEGIN
    -- Otherwise a role that neither requests nor replies could create the topic in an open transaction, and block all
    -- others.
    IF NOT mqdb.is_owner(session_user) AND NOT EXISTS (
        SELECT FROM mqdb.own_right a WHERE a.access = 'SEND' OR a.access = 'READ' AND a.resource_type = 'GROUP')
    THEN
        PERFORM mqdb.check_right('SEND', 'TOPIC', mqdb.reply_topic());
    ELSIF EXISTS (SELECT FROM mqdb.topic t WHERE t.topic = mqdb.reply_topic()) THEN
        RETURN;
    ELSIF mqdb.reply_topic() !~ '^[%|a-zA-Z0-9_-]{1,127}$' THEN
        PERFORM mqdb.refuse_parameter('cluster_name', mqdb.reply_topic(), 'does not result in a valid topic name; give the cluster another name');
    END IF;
    INSERT INTO mqdb.topic (topic, read_queue_nums, write_queue_nums, perm) VALUES (mqdb.reply_topic(), 1, 1, 6)
    ON CONFLICT DO NOTHING RETURNING topic_id INTO made;
    IF made IS NOT NULL THEN
        INSERT INTO mqdb.queue (topic_id, queue_id) VALUES (made, 0);
    END IF;
END
$$;
COMMENT ON FUNCTION mqdb.make_reply_topic() IS 'Creates the topic for replies if it does not exist';

CREATE FUNCTION mqdb.reply(
    request_pos bigint, request_id uuid, msg_id uuid, born_time timestamptz, born_host text, keys text, properties jsonb, body bytea,
    flag integer, OUT log_pos bigint, OUT queue_id integer
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    request mqdb.commit_log;
    client text;
    reason text;
    reserved text;
    target integer;
BEGIN
    SELECT * INTO request FROM mqdb.commit_log cl
    WHERE cl.log_pos >= reply.request_pos AND cl.log_pos <= reply.request_pos AND cl.msg_id = reply.request_id
      AND EXISTS (SELECT FROM mqdb.own_queue o WHERE o.queue_key = cl.queue_key AND o.may_read)
    ORDER BY cl.log_pos LIMIT 1;
    client := request.properties ->> 'REPLY_TO_CLIENT';
    IF NOT EXISTS (SELECT FROM mqdb.own_right a WHERE a.access = 'READ' AND a.resource_type = 'GROUP') THEN
        reason := 'the role may be a member of no group';
    ELSIF request.log_pos IS NULL THEN
        reason := 'there is no request of this id at this position that the role may read';
    ELSIF (octet_length(client) BETWEEN 1 AND 2048 AND octet_length(request.properties ->> 'CORRELATION_ID') BETWEEN 1 AND 255) IS NOT TRUE
        OR request.properties ->> 'CLUSTER' IS DISTINCT FROM (SELECT b.cluster_name FROM mqdb.broker b)
    THEN
        reason := 'the message is not a request to this cluster';
    END IF;
    IF reason IS NOT NULL THEN
        RAISE EXCEPTION 'cannot reply: %', reason USING ERRCODE = 'MQ121', DETAIL = jsonb_build_object('reason', reason);
    END IF;
    PERFORM mqdb.check_send(NULL, coalesce(reply.body, ''));
    IF (jsonb_typeof(coalesce(reply.properties, '{}')) = 'object'
        AND octet_length(concat(reply.properties::text, reply.keys)) <= mqdb.max_properties_bytes()
        AND octet_length(reply.born_host) <= 255
        AND reply.born_time >= '1970-01-01 00:00+00' AND reply.born_time < '9999-01-01 00:00+00'
        AND num_nulls(reply.msg_id, reply.flag) = 0) IS NOT TRUE
    THEN
        PERFORM mqdb.refuse_parameter('properties', NULL, 'the reply is not one that a producer makes');
    END IF;
    SELECT min(p.key) INTO reserved FROM jsonb_each(reply.properties) p WHERE p.key = ANY (mqdb.reserved_properties());
    IF reserved IS NOT NULL THEN
        RAISE EXCEPTION 'property "%" is reserved for the broker; choose another name', reserved
            USING ERRCODE = 'MQ104', DETAIL = jsonb_build_object('name', reserved);
    END IF;
    PERFORM mqdb.make_reply_topic();
    SELECT q.queue_key, q.queue_id INTO target, queue_id
    FROM mqdb.topic t JOIN mqdb.queue q USING (topic_id)
    WHERE t.topic = mqdb.reply_topic() AND q.queue_id < t.write_queue_nums
    ORDER BY random() LIMIT 1;
    INSERT INTO mqdb.commit_log (queue_key, born_time, tags_code, msg_id, flag, born_host, tags, keys, properties, body)
    VALUES (target, reply.born_time, mqdb.tag_code(client), reply.msg_id, reply.flag, reply.born_host, client, nullif(reply.keys, ''),
            mqdb.text_properties(reply.properties) || jsonb_strip_nulls(jsonb_build_object(
                'MSG_TYPE', 'reply', 'REPLY_TO_CLIENT', client, 'CORRELATION_ID', request.properties ->> 'CORRELATION_ID',
                'TTL', request.properties ->> 'TTL')),
            reply.body)
    RETURNING log_pos INTO log_pos;
END
$$;
COMMENT ON FUNCTION mqdb.reply(bigint, uuid, uuid, timestamptz, text, text, jsonb, bytea, integer) IS 'Replies to a request that the logged-in role may read as a member of a group; the reply goes only to the requester';

-- Returns at least one row: if there is no reply, its columns are NULL. Returns no row if the queue is not a reply
-- queue, or if the history has changed. At most 10,000 entries are read. A first_offset of NULL stands for the end of
-- the queue.
CREATE FUNCTION mqdb.own_replies(client_id text, queue_key integer, first_offset bigint, history bigint) RETURNS TABLE (
    min_offset bigint, max_offset bigint, next_offset bigint, queue_offset bigint, log_pos bigint, msg_id uuid, tags text, keys text,
    properties jsonb, body bytea, born_time timestamptz, store_time timestamptz, born_host text, reconsume_times integer, flag integer,
    sys_flag integer
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    most integer := 32;
    address text := mqdb.reply_address(own_replies.client_id);
    ends mqdb.every_queue_end;
    past bigint;
    reply record;
    seen integer := 0;
BEGIN
    SELECT e.* INTO ends FROM mqdb.every_queue_end e
    WHERE e.queue_key = own_replies.queue_key
      AND e.topic_id = (SELECT t.topic_id FROM mqdb.topic t WHERE t.topic = mqdb.reply_topic())
      AND (own_replies.history IS NULL OR own_replies.history = mqdb.history());
    IF NOT FOUND OR NOT EXISTS (SELECT FROM mqdb.own_right) THEN
        RETURN;
    END IF;
    min_offset := ends.min_offset;
    max_offset := ends.max_offset;
    next_offset := coalesce(own_replies.first_offset, max_offset);
    IF next_offset >= min_offset AND next_offset < max_offset THEN
        past := least(next_offset + 10000, max_offset);
        FOR reply IN
            SELECT e.queue_offset, cl.*
            FROM mqdb.entries(own_replies.queue_key, own_replies.first_offset, past, codes => ARRAY[mqdb.tag_code(address)]) e
            CROSS JOIN LATERAL (
                SELECT * FROM mqdb.commit_log cl
                WHERE cl.log_pos >= e.log_pos AND cl.log_pos <= e.log_pos AND cl.tags = address ORDER BY cl.log_pos LIMIT 1) cl
            ORDER BY e.last_offset LIMIT most
        LOOP
            seen := seen + 1;
            next_offset := CASE seen WHEN most THEN reply.queue_offset + 1 ELSE past END;
            queue_offset := reply.queue_offset;
            log_pos := reply.log_pos;
            msg_id := reply.msg_id;
            tags := reply.tags;
            keys := reply.keys;
            properties := reply.properties;
            body := reply.body;
            born_time := reply.born_time;
            store_time := reply.store_time;
            born_host := reply.born_host;
            reconsume_times := reply.reconsume_times;
            flag := reply.flag;
            sys_flag := reply.sys_flag;
            RETURN NEXT;
        END LOOP;
        next_offset := past;
    END IF;
    IF seen = 0 THEN
        RETURN NEXT;
    END IF;
END
$$;
COMMENT ON FUNCTION mqdb.own_replies(text, integer, bigint, bigint) IS 'Replies from an offset on for a client of the logged-in role; the last row contains the next offset';
