-- Topics are created by their first send, with the settings of the template for automatic topics; by the members of a
-- group, if they are topics of this group; and by administrators. They are created here and not with INSERTs by these
-- sessions, because each refused row would use up one of the 2^31 numbers. A topic created by a role with the right to
-- administer it is recorded, because it is unknown which of its rights the role used.
CREATE FUNCTION mqdb.make_topic(
    topic text, read_queue_nums integer, write_queue_nums integer, perm integer, ordered boolean, message_type text,
    is_noted boolean DEFAULT false, actor text DEFAULT NULL
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    queue_nums integer := greatest(make_topic.read_queue_nums, make_topic.write_queue_nums);
    most integer;
    made integer;
BEGIN
    make_topic.topic := mqdb.full_topic(make_topic.topic);
    most := mqdb.max_queues(make_topic.topic);
    IF NOT mqdb.is_owner(session_user) THEN
        IF mqdb.is_allowed(session_user, 'ADMIN', 'TOPIC', coalesce(make_topic.topic, '')) THEN
            is_noted := true;
        ELSIF NOT EXISTS (
            SELECT FROM mqdb.own_right a
            WHERE a.access = 'READ' AND a.resource_type = 'GROUP' AND mqdb.is_covered(make_topic.topic, 'GROUP', a.resource))
        THEN
            PERFORM mqdb.check_right('SEND', 'TOPIC', make_topic.topic);
            most := (SELECT CASE WHEN t.perm & 1 = 1 THEN t.write_queue_nums END FROM mqdb.topic t WHERE t.topic = 'TBW102');
        END IF;
        IF make_topic.perm & 1 = 1 THEN
            PERFORM mqdb.refuse_parameter('perm', make_topic.perm::text, 'only the owner of the broker may make a template');
        END IF;
    END IF;
    IF (make_topic.topic ~ '^[%|a-zA-Z0-9_-]{1,127}$') IS NOT TRUE THEN
        PERFORM mqdb.refuse_parameter('topic', make_topic.topic, 'a name has 1 to 127 of the characters % | a-z A-Z 0-9 _ -');
    ELSIF (least(make_topic.read_queue_nums, make_topic.write_queue_nums) > 0 AND queue_nums <= most
           AND make_topic.read_queue_nums IS NOT NULL AND make_topic.write_queue_nums IS NOT NULL) IS NOT TRUE THEN
        PERFORM mqdb.refuse_parameter('write_queue_nums', make_topic.write_queue_nums::text,
            format('a topic can have 1 to %s queues for writing here, and the same for reading', coalesce(most, 0)));
    ELSIF (make_topic.perm BETWEEN 0 AND 7 AND make_topic.ordered IS NOT NULL
           AND make_topic.message_type IN ('NORMAL', 'FIFO', 'DELAY', 'TRANSACTION', 'UNSPECIFIED', 'MIXED')) IS NOT TRUE THEN
        PERFORM mqdb.refuse_parameter('perm', make_topic.perm::text, 'give a sum of 4, 2 and 1, whether it is ordered, and a type of messages');
    END IF;
    IF EXISTS (SELECT FROM mqdb.topic t WHERE t.topic = make_topic.topic) THEN
        RETURN NULL;
    END IF;
    INSERT INTO mqdb.topic (topic, read_queue_nums, write_queue_nums, perm, ordered, message_type)
    VALUES (make_topic.topic, make_topic.read_queue_nums, make_topic.write_queue_nums, make_topic.perm, make_topic.ordered,
            make_topic.message_type)
    ON CONFLICT DO NOTHING RETURNING topic_id INTO made;
    IF made IS NOT NULL THEN
        INSERT INTO mqdb.queue (topic_id, queue_id)
        SELECT made, number FROM generate_series(0, queue_nums - 1) AS number;
        IF is_noted THEN
            PERFORM mqdb.record_operation(
                'topic.create', ARRAY[make_topic.topic], NULL, NULL, NULL, mqdb.topic_settings(make_topic.topic), 1, NULL, actor);
        END IF;
    END IF;
    RETURN made;
END
$$;
COMMENT ON FUNCTION mqdb.make_topic(text, integer, integer, integer, boolean, text, boolean, text) IS 'Creates a topic with its queues; returns its id, or NULL if the name is taken';

CREATE FUNCTION mqdb.make_group(group_name text, consume_mode text DEFAULT 'PULL') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    make_group.group_name := mqdb.full_group(make_group.group_name);
    IF mqdb.check_member(make_group.group_name) IS NULL THEN
        IF (make_group.group_name ~ '^[%|a-zA-Z0-9_-]{1,120}$') IS NOT TRUE THEN
            PERFORM mqdb.refuse_parameter('group_name', make_group.group_name, 'a name has 1 to 120 of the characters % | a-z A-Z 0-9 _ -');
        END IF;
        IF consume_mode NOT IN ('PULL', 'POP') OR consume_mode IS NULL THEN
            PERFORM mqdb.refuse_parameter('consume_mode', consume_mode, 'is neither PULL nor POP');
        END IF;
        INSERT INTO mqdb.subscription_group (group_name, consume_mode) VALUES (make_group.group_name, make_group.consume_mode)
        ON CONFLICT DO NOTHING;
        IF FOUND AND NOT mqdb.is_owner(session_user) AND mqdb.is_allowed(session_user, 'ADMIN', 'GROUP', make_group.group_name) THEN
            PERFORM mqdb.record_operation(
                'group.update', NULL, ARRAY[make_group.group_name], NULL, NULL, mqdb.group_settings(make_group.group_name), 1, NULL, NULL);
        END IF;
    END IF;
END
$$;
COMMENT ON FUNCTION mqdb.make_group(text, text) IS 'Creates a group if it does not exist';
