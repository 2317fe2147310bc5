-- The place of a record that has to wait before it goes to its queue: it is stored in a system topic, with its queue
-- among its properties. Its tags_code is then its delivery time in ms since 1970, rounded up so that no message is
-- early, and the code of its tag is also among its properties, for its copy. The tags_code of a half message is not a
-- time. If the queue does not exist, placed_key is NULL. A time too far ahead is refused (MQ107). RocketMQ: HookUtils,
-- TransactionalMessageBridge.parseHalfMessageInner.
CREATE FUNCTION mqdb.place(
    queue_key integer, tags_code bigint, properties jsonb, stored_at timestamptz,
    delay_level integer, delay_ms bigint, deliver_ms bigint, is_half boolean,
    OUT placed_key integer, OUT placed_code bigint, OUT placed_properties jsonb
)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    stored_ms numeric := extract(epoch FROM stored_at) * 1000;
    due_ms bigint;
    real_topic text;
    real_queue integer;
    system_topic text;
    system_queue integer := 0;
    level integer;
    max_ms bigint;
BEGIN
    IF NOT isfinite(stored_at) THEN
        PERFORM mqdb.refuse_parameter('stored_at', stored_at::text, 'must be finite');
    END IF;
    due_ms := CASE WHEN delay_ms > 0 THEN least(ceil(stored_ms + delay_ms), 9223372036854775807) ELSE deliver_ms END;
    SELECT t.topic, q.queue_id INTO real_topic, real_queue
    FROM mqdb.live_queue l JOIN mqdb.queue q ON q.queue_key = l.queue_key JOIN mqdb.topic t ON t.topic_id = q.topic_id
    WHERE l.queue_key = place.queue_key;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    placed_key := queue_key;
    placed_code := tags_code;
    placed_properties := properties;
    IF is_half THEN
        IF (SELECT b.reject_transaction_message FROM mqdb.broker b) THEN
            RAISE EXCEPTION 'broker "%" refuses half messages: its setting reject_transaction_message is on',
                (SELECT b.broker_name FROM mqdb.broker b)
                USING ERRCODE = 'MQ203',
                      DETAIL = jsonb_build_object('broker_name', (SELECT b.broker_name FROM mqdb.broker b));
        END IF;
        system_topic := mqdb.half_topic();
    ELSIF delay_level > 0 THEN
        SELECT l.level, ceil(stored_ms + extract(epoch FROM l.delay) * 1000) INTO level, due_ms
        FROM mqdb.delay_level l WHERE l.level <= delay_level ORDER BY l.level DESC LIMIT 1;
        system_topic := mqdb.schedule_topic();
        system_queue := level - 1;
        placed_code := due_ms;
        placed_properties := properties - '{TIMER_DELAY_SEC,TIMER_DELAY_MS,TIMER_DELIVER_MS}'::text[]
            || jsonb_build_object('DELAY', level::text, 'MQDB_TAGS_CODE', tags_code::text);
    ELSIF due_ms > stored_ms THEN
        max_ms := (SELECT b.timer_max_delay_ms FROM mqdb.broker b);
        IF due_ms > ceil(stored_ms) + max_ms THEN
            RAISE EXCEPTION 'a message to topic "%" would wait % ms, but the limit of the broker is % ms (its setting timer_max_delay)',
                real_topic, due_ms - ceil(stored_ms), max_ms
                USING ERRCODE = 'MQ107', DETAIL = jsonb_build_object(
                    'topic', real_topic, 'delay_ms', due_ms - ceil(stored_ms), 'limit_ms', max_ms);
        END IF;
        system_topic := mqdb.timer_topic();
        placed_code := due_ms;
        placed_properties := properties || jsonb_build_object('MQDB_TAGS_CODE', tags_code::text);
    ELSE
        RETURN;
    END IF;
    placed_properties := placed_properties
        || jsonb_build_object('REAL_TOPIC', real_topic, 'REAL_QID', real_queue::text);
    SELECT q.queue_key INTO STRICT placed_key
    FROM mqdb.queue q
    WHERE q.topic_id = (SELECT t.topic_id FROM mqdb.topic t WHERE t.topic = system_topic) AND q.queue_id = system_queue;
END
$$;
COMMENT ON FUNCTION mqdb.place(integer, bigint, jsonb, timestamptz, integer, bigint, bigint, boolean) IS 'The place of a record that has to wait: its queue, tags_code and properties';
