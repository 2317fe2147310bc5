-- Pop from psql, triggers and any language, inside the caller's transaction: if that is rolled back, nothing was
-- popped. Messages are acknowledged with mqdb.ack. The rules are those of `mqdb/broker/consumers/pop.py`. The function
-- runs with the rights of the owner: READ on the topic and on the group is enough.

CREATE FUNCTION mqdb.messages_of(receipt_handle text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ('x' || substr(receipt_handle, 65, 16))::bit(64)::bigint;
COMMENT ON FUNCTION mqdb.messages_of(text) IS 'A bit for each message to which a receipt handle refers';

CREATE FUNCTION mqdb.count_popped(batches mqdb.popped[]) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (SELECT coalesce(sum(bit_count(mqdb.messages_of(b.receipt_handle)::bit(64))), 0)::integer FROM unnest(batches) AS b);
COMMENT ON FUNCTION mqdb.count_popped(mqdb.popped[]) IS 'Number of messages in these batches';

-- Sets the starting point of a group in queues that are new to it. As `begin` in
-- mqdb/store/consumers/consumer_offsets.py.
CREATE FUNCTION mqdb.begin_queues(id integer, is_at_first boolean, of_topic integer) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    knows_topic boolean := EXISTS (
        SELECT FROM mqdb.consumer_offset o JOIN mqdb.queue q USING (queue_key)
        WHERE o.group_id = id AND o.begun AND q.topic_id = of_topic);
BEGIN
    INSERT INTO mqdb.consumer_offset (group_id, queue_key, next_offset)
    SELECT id, q.queue_key,
           CASE WHEN knows_topic OR is_at_first THEN q.base_offset
                ELSE coalesce((SELECT r.last_offset + 1 FROM mqdb.queue_run r WHERE r.queue_key = q.queue_key
                               ORDER BY r.last_offset DESC LIMIT 1), q.end_offset) END
    FROM mqdb.queue q
    WHERE q.topic_id = of_topic AND NOT EXISTS (
        SELECT FROM mqdb.consumer_offset o WHERE o.group_id = id AND o.queue_key = q.queue_key)
    ORDER BY q.queue_key ON CONFLICT DO NOTHING;
END
$$;
COMMENT ON FUNCTION mqdb.begin_queues(integer, boolean, integer) IS 'Sets the starting point of a group in those queues of a topic that are new to it';
REVOKE EXECUTE ON FUNCTION mqdb.begin_queues(integer, boolean, integer) FROM PUBLIC;

-- Marks new messages as in flight: locks queues, reads from each, and takes what was read. At first it reads two
-- segments, because a group without a lag needs no more, and each partition costs time.
CREATE FUNCTION mqdb.pop_new(group_name text, client_id text, invisible interval, wanted integer, queue_keys integer[], tags text[])
RETURNS SETOF mqdb.popped
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    scan_limit CONSTANT bigint := CASE WHEN tags IS NULL THEN wanted ELSE 1024 END;
    codes bigint[] := (SELECT array_agg(mqdb.tag_code(tag)) FROM unnest(tags) AS tag);
    newest integer := (SELECT c.segment FROM mqdb.checkpoint c WHERE c.service = 'dispatch' ORDER BY c.seq DESC LIMIT 1);
    missing integer := wanted;
    place record;
    seen record;
    read record;
    batch mqdb.popped;
    is_done boolean;
BEGIN
    FOR look IN 1..16 LOOP
        is_done := true;
        FOR place IN
            SELECT l.queue_key, l.next_offset, l.next_offset + scan_limit AS past_offset, l.segment,
                   CASE WHEN look = 1 AND l.segment > 0 THEN l.segment + 1 ELSE 2147483647 END AS last_segment,
                   coalesce((SELECT r.last_offset + 1 FROM mqdb.queue_run r WHERE r.queue_key = l.queue_key AND r.segment >= newest
                             ORDER BY r.last_offset DESC LIMIT 1), q.end_offset) AS max_offset
            FROM mqdb.pop_queues(group_name, queue_keys, missing) l LEFT JOIN mqdb.queue q USING (queue_key)
        LOOP
            is_done := false;
            EXIT WHEN missing <= 0;
            CONTINUE WHEN place.queue_key IS NULL;  -- others hold all queues
            SELECT least(r.last_offset, place.past_offset - 1) AS queue_offset, r.segment INTO seen
            FROM mqdb.queue_run r
            WHERE r.queue_key = place.queue_key AND r.segment BETWEEN place.segment AND place.last_segment
              AND r.last_offset >= place.next_offset AND r.last_offset < place.past_offset + 99
              AND r.last_offset - coalesce(cardinality(r.positions), 1) + 1 < place.past_offset
            ORDER BY r.last_offset DESC LIMIT 1;
            CONTINUE WHEN NOT FOUND;
            SELECT array_agg(e.queue_offset ORDER BY e.queue_offset) AS offsets, array_agg(e.segment ORDER BY e.queue_offset) AS segments,
                   array_agg(e.size ORDER BY e.queue_offset) AS sizes, greatest(count(*), 1)::integer AS number
            INTO read
            FROM (SELECT e.queue_offset, e.segment, octet_length(c.body) AS size
                  FROM mqdb.entries(place.queue_key, place.next_offset, place.past_offset, place.segment, place.last_segment, codes) e
                  CROSS JOIN LATERAL (
                      SELECT c.body, c.tags FROM mqdb.commit_log c
                      WHERE c.log_pos >= e.log_pos AND c.log_pos <= e.log_pos ORDER BY c.log_pos LIMIT 1) c
                  WHERE pop_new.tags IS NULL OR c.tags = ANY (pop_new.tags)
                  ORDER BY e.last_offset LIMIT missing) e;
            FOR batch IN SELECT * FROM mqdb.pop_take(
                group_name, client_id, invisible, missing, 9223372036854775807, true,
                array_fill(place.queue_key, ARRAY[read.number]), array_fill(place.max_offset, ARRAY[read.number]),
                array_fill(newest, ARRAY[read.number]), coalesce(read.offsets, '{NULL}'), coalesce(read.segments, '{NULL}'),
                coalesce(read.sizes, '{NULL}'), array_fill(seen.queue_offset, ARRAY[read.number]),
                array_fill(seen.segment, ARRAY[read.number]))
            LOOP
                missing := missing - mqdb.count_popped(ARRAY[batch]);
                RETURN NEXT batch;
            END LOOP;
        END LOOP;
        EXIT WHEN is_done OR missing < wanted;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mqdb.pop_new(text, text, interval, integer, integer[], text[]) IS 'Marks new messages as in flight';
REVOKE EXECUTE ON FUNCTION mqdb.pop_new(text, text, interval, integer, integer[], text[]) FROM PUBLIC;

-- Appends a message that was delivered too often to the dead letter queue. As `send_back` in
-- mqdb/broker/consumers/send_back.py.
CREATE FUNCTION mqdb.bury(group_name text, client_id text, queue_key integer, queue_offset bigint, log_pos bigint, deliveries integer)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    letters text := mqdb.dlq_prefix() || group_name;
    id integer := (SELECT t.topic_id FROM mqdb.topic t WHERE t.topic = letters);
BEGIN
    id := coalesce(id, mqdb.make_topic(letters, 1, 1, 6, false, 'NORMAL'), (SELECT t.topic_id FROM mqdb.topic t WHERE t.topic = letters));
    INSERT INTO mqdb.commit_log (queue_key, store_time, born_time, tags_code, msg_id, sys_flag, flag, reconsume_times, born_host, tags, keys,
                                 properties, body)
    SELECT (SELECT l.queue_key FROM mqdb.queue l WHERE l.topic_id = id AND l.queue_id = 0),
           mqdb.now(), c.born_time, mqdb.copied_code(c.tags_code, c.tags, c.properties), c.msg_id, c.sys_flag, c.flag, deliveries,
           c.born_host, c.tags, c.keys,
           jsonb_build_object('RETRY_TOPIC', t.topic, 'ORIGIN_MESSAGE_ID', c.log_pos::text, 'MQDB_ORIGIN_QUEUE_ID', q.queue_id::text,
                              'MQDB_ORIGIN_QUEUE_OFFSET', queue_offset::text)
           || (c.properties - 'DELAY'::text)
           || jsonb_build_object(
               'MQDB_FAILURE_EXCEPTION', 'TIMEOUT', 'MQDB_FAILURE_TRACEBACK', '', 'MQDB_FAILURE_HOST', client_id,
               'MQDB_FAILURE_MESSAGE', format('not acknowledged after %s deliveries', deliveries),
               'MQDB_FAILURE_ATTEMPT', deliveries::text,
               'MQDB_FAILURE_TIME', to_char(mqdb.now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"+00:00"')),
           c.body
    FROM mqdb.commit_log c CROSS JOIN mqdb.queue q JOIN mqdb.topic t USING (topic_id)
    WHERE c.log_pos = bury.log_pos AND q.queue_key = bury.queue_key;
END
$$;
COMMENT ON FUNCTION mqdb.bury(text, text, integer, bigint, bigint, integer) IS 'Appends a message that was popped too often to the dead letter queue of the group';
REVOKE EXECUTE ON FUNCTION mqdb.bury(text, text, integer, bigint, bigint, integer) FROM PUBLIC;

CREATE TYPE mqdb.popped_message AS (
    topic text, queue_id integer, queue_offset bigint, delivery_attempt integer, receipt_handle text, msg_id text, tags text, keys text,
    properties jsonb, text text, body bytea, compression text, born_time timestamptz, store_time timestamptz);
COMMENT ON TYPE mqdb.popped_message IS 'A message returned by mqdb.pop: the columns of mqdb.message, and the receipt handle to acknowledge it';

-- Returns messages of the topic, and messages of all topics that the group has sent back. A new group pops, and starts
-- where its settings say.
CREATE FUNCTION mqdb.pop(
    group_name text, topic text, wanted integer DEFAULT 1, invisible interval DEFAULT '1 min', tags text[] DEFAULT NULL
) RETURNS SETOF mqdb.popped_message
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET jit = off
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    client_id text := format('%s@%s', session_user, pg_backend_pid());
    popping record;
    of_group mqdb.subscription_group;
    from_topic mqdb.topic;
    of_topic integer[];
    of_retries integer[];
    is_due_first boolean := random() < 0.2;
    popped mqdb.popped[] := '{}';
    each record;
    row mqdb.popped_message;
    gone text[] := '{}';
BEGIN
    PERFORM mqdb.check_topic_given(pop.topic);
    PERFORM mqdb.check_pop(client_id, invisible, wanted);
    IF cardinality(tags) = 0 OR cardinality(tags) > 100 OR array_position(tags, NULL) IS NOT NULL THEN
        PERFORM mqdb.refuse_parameter('tags', left(tags::text, 255), 'give from 1 to 100 tags, or NULL for all messages');
    END IF;
    PERFORM mqdb.check_right('READ', 'TOPIC', mqdb.full_topic(pop.topic));
    SELECT * INTO from_topic FROM mqdb.topic t WHERE t.topic = mqdb.full_topic(pop.topic);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'topic "%" does not exist; create it with: mqdb topic create %', pop.topic, pop.topic
            USING ERRCODE = 'MQ301', DETAIL = jsonb_build_object('topic', pop.topic);
    END IF;
    IF NOT EXISTS (SELECT FROM mqdb.subscription_group g WHERE g.group_name = mqdb.full_group(pop.group_name)) THEN
        PERFORM mqdb.make_group(pop.group_name, 'POP');
    END IF;
    popping := mqdb.popping_group(pop.group_name);
    of_group := popping.of_group;
    PERFORM mqdb.begin_queues(of_group.group_id, of_group.consume_from_where = 'FIRST_OFFSET', t.topic_id)
    FROM mqdb.topic t WHERE t.topic_id = from_topic.topic_id OR t.topic = mqdb.retry_prefix() || of_group.group_name;
    SELECT array_agg(q.queue_key) FILTER (WHERE t.topic_id = from_topic.topic_id),
           array_agg(q.queue_key) FILTER (WHERE t.topic_id <> from_topic.topic_id)
    INTO of_topic, of_retries
    FROM mqdb.topic t JOIN mqdb.queue q USING (topic_id)
    WHERE (t.topic_id = from_topic.topic_id OR t.topic = mqdb.retry_prefix() || of_group.group_name)
      AND t.perm & 4 <> 0 AND q.queue_id < t.read_queue_nums;
    IF is_due_first THEN
        popped := ARRAY(SELECT d FROM mqdb.pop_due(pop.group_name, client_id, invisible, of_topic || of_retries, wanted) d);
    END IF;
    IF of_retries IS NOT NULL AND mqdb.count_popped(popped) < wanted THEN
        popped := popped || ARRAY(
            SELECT n FROM mqdb.pop_new(pop.group_name, client_id, invisible, wanted - mqdb.count_popped(popped), of_retries, NULL) n);
    END IF;
    IF of_topic IS NOT NULL AND mqdb.count_popped(popped) < wanted THEN
        popped := popped || ARRAY(
            SELECT n FROM mqdb.pop_new(pop.group_name, client_id, invisible, wanted - mqdb.count_popped(popped), of_topic, tags) n);
    END IF;
    IF NOT is_due_first AND mqdb.count_popped(popped) < wanted THEN
        popped := popped || ARRAY(
            SELECT d FROM mqdb.pop_due(pop.group_name, client_id, invisible, of_topic || of_retries, wanted - mqdb.count_popped(popped)) d);
    END IF;
    FOR each IN
        SELECT b.queue_key, b.queue_offset, b.receipt_handle, c.log_pos, c.reconsume_times + b.attempt AS deliveries,
               ROW (coalesce(mqdb.own_name(c.properties ->> 'RETRY_TOPIC'), mqdb.own_name(t.topic)), q.queue_id, b.queue_offset,
                    c.reconsume_times + b.attempt, b.receipt_handle, mqdb.unique_id_text(c.msg_id), c.tags, c.keys,
                    mqdb.all_properties(c.properties, c.tags, c.keys, c.msg_id),
                    CASE WHEN c.sys_flag & 1 = 0 THEN mqdb.body_text(c.body) END, c.body, mqdb.compression(c.sys_flag), c.born_time,
                    c.store_time)::mqdb.popped_message AS message
        FROM (SELECT p.queue_key, p.first_offset + coalesce(p.steps[place + 1], place) AS queue_offset, p.segment, p.attempt,
                     left(p.receipt_handle, 64) || lpad(to_hex(1::bigint << place), 16, '0') AS receipt_handle, p.ordinality AS ordinal
              FROM unnest(popped) WITH ORDINALITY p
              CROSS JOIN LATERAL unnest(mqdb.places_of(mqdb.messages_of(p.receipt_handle))) AS place) b
        JOIN mqdb.queue q USING (queue_key) JOIN mqdb.topic t USING (topic_id)
        LEFT JOIN LATERAL (
            SELECT r.* FROM mqdb.entries(b.queue_key, b.queue_offset, b.queue_offset + 1, b.segment) e
            CROSS JOIN LATERAL (SELECT * FROM mqdb.commit_log l WHERE l.log_pos >= e.log_pos AND l.log_pos <= e.log_pos
                                ORDER BY l.log_pos LIMIT 1) r) c ON true
        ORDER BY b.ordinal, b.queue_offset
    LOOP
        IF each.log_pos IS NULL THEN  -- retention has dropped it
            gone := gone || each.receipt_handle;
        ELSIF each.deliveries > of_group.retry_max_times + 1 THEN
            PERFORM mqdb.bury(of_group.group_name, client_id, each.queue_key, each.queue_offset, each.log_pos, each.deliveries - 1);
            gone := gone || each.receipt_handle;
        ELSE
            row := each.message;
            RETURN NEXT row;
        END IF;
    END LOOP;
    IF gone <> '{}' THEN
        PERFORM mqdb.ack(pop.group_name, gone);
    END IF;
END
$$;
COMMENT ON FUNCTION mqdb.pop(text, text, integer, interval, text[]) IS 'Returns messages of a topic that no other member of the group receives while they are invisible; mqdb.ack acknowledges them. RocketMQ: PopMessageProcessor';
