-- Sends from psql, triggers and any language, inside the caller's transaction: the record exists if the transaction
-- commits, and otherwise never did. The rules are those of the Python client (mqdb/common/message.py). The function
-- runs with the rights of the owner, so a role needs no rights on tables: the right SEND on the topic is enough. A
-- message with a delay level or a delivery time waits where mqdb.place puts it, by the clock of the database.
CREATE FUNCTION mqdb.send(
    topic text, body bytea, tag text DEFAULT NULL, keys text DEFAULT NULL, properties jsonb DEFAULT '{}',
    sharding_key text DEFAULT NULL, delay_level integer DEFAULT NULL, deliver_at timestamptz DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    id uuid := gen_random_uuid();
    words text;
    stored jsonb;  -- without those that have columns
    all_properties jsonb;
    target mqdb.topic;
    wanted_queue integer;
    name text;
    value jsonb;
    size bigint;
    unstorable text;
    deliver_ms bigint;
    stored_at timestamptz;
    has_others boolean := false;
BEGIN
    PERFORM mqdb.check_topic_given(send.topic);
    send.topic := mqdb.full_topic(send.topic);
    -- Checked first, so that a role without rights cannot find out which topics exist.
    PERFORM mqdb.check_right('SEND', 'TOPIC', send.topic);
    IF delay_level <> 0 AND deliver_at IS NOT NULL THEN
        RAISE EXCEPTION 'deliver_at: delay_level already determines the delivery time; give only one of them'
            USING ERRCODE = 'MQ106', DETAIL = jsonb_build_object(
                'name', 'deliver_at', 'reason', 'delay_level already determines the delivery time; give only one of them');
    ELSIF deliver_at NOT BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999+00' THEN
        RAISE EXCEPTION 'deliver_at: % is not a time of delivery; give one of the years 1 to 9999', deliver_at
            USING ERRCODE = 'MQ106', DETAIL = jsonb_build_object(
                'name', 'deliver_at', 'reason', deliver_at || ' is not a time of delivery; give one of the years 1 to 9999');
    ELSIF octet_length(sharding_key) > mqdb.max_properties_bytes() THEN
        PERFORM mqdb.refuse_parameter('sharding_key', sharding_key,
            format('has %s bytes, the limit is %s', octet_length(sharding_key), mqdb.max_properties_bytes()));
    ELSIF jsonb_typeof(send.properties) <> 'object' THEN
        PERFORM mqdb.refuse_parameter('properties', send.properties::text,
            format('a JSON %s, not an object', jsonb_typeof(send.properties)));
    END IF;
    PERFORM mqdb.check_send(send.topic, coalesce(send.body, ''));
    deliver_ms := ceil(extract(epoch FROM deliver_at) * 1000);
    size := octet_length(send.keys);
    IF size IS NULL OR size <= mqdb.max_properties_bytes() THEN  -- longer ones are not even taken apart
        words := nullif(array_to_string(array_remove(string_to_array(send.keys, ' '), ''), ' '), '');
        stored := coalesce(send.properties, '{}') || jsonb_strip_nulls(jsonb_build_object(
            'DELAY', nullif(delay_level, 0)::text, 'TIMER_DELIVER_MS', deliver_ms::text));
        all_properties := mqdb.all_properties(stored, nullif(send.tag, ''), words, id);
        SELECT sum(octet_length(p.key) + octet_length(p.value) + 2), min(p.key) FILTER (WHERE p.key || p.value ~ E'[\u0001\u0002]')
        INTO size, unstorable FROM jsonb_each_text(all_properties) p;
    END IF;
    IF size > mqdb.max_properties_bytes() THEN
        RAISE EXCEPTION 'the properties have % bytes encoded, the limit is %', size, mqdb.max_properties_bytes()
            USING ERRCODE = 'MQ103', DETAIL = jsonb_build_object('size', size, 'limit', mqdb.max_properties_bytes());
    END IF;
    FOR name, value IN SELECT * FROM jsonb_each(coalesce(send.properties, '{}')) LOOP
        IF name = ANY (mqdb.reserved_properties()) THEN
            RAISE EXCEPTION 'property "%" is reserved for the broker; choose another name', name
                USING ERRCODE = 'MQ104', DETAIL = jsonb_build_object('name', name);
        ELSIF name ~ E'^[\u0001-\u0020]*$' OR value #>> '{}' ~ E'^[\u0001-\u0020]*$' THEN
            RAISE EXCEPTION 'property "%": name and value must not be blank', name
                USING ERRCODE = 'MQ105', DETAIL = jsonb_build_object('name', name, 'reason', 'name and value must not be blank');
        END IF;
        has_others := has_others OR jsonb_typeof(value) <> 'string';
    END LOOP;
    IF has_others THEN
        stored := stored || mqdb.text_properties(send.properties);
    END IF;
    IF unstorable IS NOT NULL THEN
        RAISE EXCEPTION 'property "%" holds U+0001 or U+0002, which cannot be stored', unstorable
            USING ERRCODE = 'MQ105',
                  DETAIL = jsonb_build_object('name', unstorable, 'reason', 'holds U+0001 or U+0002, which cannot be stored');
    END IF;

    SELECT * INTO target FROM mqdb.topic t WHERE t.topic = send.topic;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'topic "%" does not exist; create it with: mqdb topic create %', send.topic, send.topic
            USING ERRCODE = 'MQ301', DETAIL = jsonb_build_object('topic', coalesce(send.topic, ''));
    ELSIF target.perm & 2 = 0 THEN
        RAISE EXCEPTION 'topic "%" takes no messages: its permission is %, without the 2 of W', send.topic, target.perm
            USING ERRCODE = 'MQ202', DETAIL = jsonb_build_object('topic', send.topic, 'perm', target.perm);
    END IF;
    wanted_queue := CASE WHEN send.sharding_key IS NULL THEN floor(random() * target.write_queue_nums)
                         ELSE abs(mqdb.java_hash(send.sharding_key) % target.write_queue_nums) END;
    stored_at := mqdb.now();
    INSERT INTO mqdb.commit_log (queue_key, store_time, born_time, tags_code, msg_id, born_host, tags, keys, properties, body)
    SELECT p.placed_key, stored_at, stored_at, p.placed_code, id,
           coalesce(host(inet_client_addr()), 'local'), nullif(send.tag, ''), words, p.placed_properties, send.body
    FROM mqdb.queue q
    CROSS JOIN mqdb.place(q.queue_key, mqdb.tag_code(nullif(send.tag, '')), stored, stored_at,
                          delay_level, NULL, CASE WHEN deliver_at > stored_at THEN deliver_ms END, NULL) p
    WHERE q.topic_id = target.topic_id AND q.queue_id = wanted_queue AND p.placed_key IS NOT NULL;
    IF NOT FOUND THEN  -- deleted in this moment
        RAISE EXCEPTION 'topic "%" does not exist; create it with: mqdb topic create %', send.topic, send.topic
            USING ERRCODE = 'MQ301', DETAIL = jsonb_build_object('topic', send.topic);
    END IF;
    RETURN mqdb.unique_id_text(id);
END
$$;
COMMENT ON FUNCTION mqdb.send(text, bytea, text, text, jsonb, text, integer, timestamptz) IS 'Sends a message in the caller''s transaction; returns its unique id';

CREATE FUNCTION mqdb.send(
    topic text, body text, tag text DEFAULT NULL, keys text DEFAULT NULL, properties jsonb DEFAULT '{}',
    sharding_key text DEFAULT NULL, delay_level integer DEFAULT NULL, deliver_at timestamptz DEFAULT NULL
) RETURNS text
LANGUAGE sql
RETURN mqdb.send(topic, convert_to(body, 'UTF8'), tag, keys, properties, sharding_key, delay_level, deliver_at);
COMMENT ON FUNCTION mqdb.send(text, text, text, text, jsonb, text, integer, timestamptz) IS 'Sends a text in the caller''s transaction; returns its unique id';

CREATE FUNCTION mqdb.send(
    topic text, body jsonb, tag text DEFAULT NULL, keys text DEFAULT NULL, properties jsonb DEFAULT '{}',
    sharding_key text DEFAULT NULL, delay_level integer DEFAULT NULL, deliver_at timestamptz DEFAULT NULL
) RETURNS text
LANGUAGE sql
RETURN mqdb.send(topic, body::text, tag, keys, properties, sharding_key, delay_level, deliver_at);
COMMENT ON FUNCTION mqdb.send(text, jsonb, text, text, jsonb, text, integer, timestamptz) IS 'Sends the text of a JSON value in the caller''s transaction; returns its unique id';

CREATE FUNCTION mqdb.send(
    topic text, body json, tag text DEFAULT NULL, keys text DEFAULT NULL, properties jsonb DEFAULT '{}',
    sharding_key text DEFAULT NULL, delay_level integer DEFAULT NULL, deliver_at timestamptz DEFAULT NULL
) RETURNS text
LANGUAGE sql
RETURN mqdb.send(topic, body::text, tag, keys, properties, sharding_key, delay_level, deliver_at);
COMMENT ON FUNCTION mqdb.send(text, json, text, text, jsonb, text, integer, timestamptz) IS 'Sends the text of a JSON value in the caller''s transaction; returns its unique id';
