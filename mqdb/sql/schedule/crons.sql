-- Recurring sends, as people add and change them; each call records its operation. A role that does not own the schema
-- manages the crons for topics that it may OPERATE. Adding and resuming a cron also need SEND, because the message and
-- its times come from the role; each firing checks both rights again. The owner may name a principal, such as a user of
-- the dashboard, whose rights each firing checks.
CREATE FUNCTION mqdb.cron_settings(name text) RETURNS jsonb
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT jsonb_build_object('cron', c.cron, 'timezone', c.timezone, 'catch_up', c.catch_up, 'is_paused', c.is_paused,
                              'next_at', c.next_at)
    FROM mqdb.cron c WHERE c.name = cron_settings.name;
END;
COMMENT ON FUNCTION mqdb.cron_settings(text) IS 'The parts of a cron that are recorded in mqdb.operation, without its message';

CREATE FUNCTION mqdb.add_cron(
    name text, cron text, timezone text, topic text, body bytea, tag text, keys text, properties jsonb, sharding_key text,
    catch_up text, next_at timestamptz, actor text, principal text DEFAULT NULL, application text DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    is_guest boolean := NOT mqdb.is_owner(session_user);
    keeper text := CASE WHEN is_guest THEN session_user ELSE add_cron.principal END;
    free_slot smallint;
    added text;
    one mqdb.cron;
    before jsonb;
BEGIN
    IF is_guest AND add_cron.principal IS NOT NULL THEN
        PERFORM mqdb.refuse_parameter('principal', add_cron.principal, 'only the owner of the broker may add a cron for another role');
    END IF;
    PERFORM mqdb.check_topic_given(add_cron.topic);
    add_cron.name := mqdb.full_group(add_cron.name);
    add_cron.topic := mqdb.full_topic(add_cron.topic);
    add_cron.application := mqdb.full_group(add_cron.application);
    PERFORM mqdb.check_right('OPERATE', 'TOPIC', add_cron.topic);
    PERFORM mqdb.check_right('SEND', 'TOPIC', add_cron.topic);
    PERFORM mqdb.check_send(add_cron.topic, coalesce(add_cron.body, ''));
    IF (add_cron.name ~ '^[%|a-zA-Z0-9_-]{1,127}$') IS NOT TRUE THEN
        PERFORM mqdb.refuse_parameter('name', add_cron.name, 'a name has 1 to 127 of the characters % | a-z A-Z 0-9 _ -');
    ELSIF (octet_length(add_cron.cron) <= 255 AND octet_length(add_cron.timezone) <= 255 AND octet_length(add_cron.topic) <= 127
           AND octet_length(concat(add_cron.tag, add_cron.keys, add_cron.sharding_key, add_cron.application)) <= 2 * mqdb.max_properties_bytes()
           AND pg_column_size(add_cron.properties) <= 262144 AND jsonb_typeof(add_cron.properties) = 'object'
           AND add_cron.catch_up IN ('once', 'all', 'none')) IS NOT TRUE
    THEN
        PERFORM mqdb.refuse_parameter('cron', add_cron.cron, 'text, zone, message or catch-up is not one that a client makes');
    END IF;
    add_cron.properties := mqdb.text_properties(add_cron.properties);
    PERFORM mqdb.check_next_at(add_cron.next_at);
    LOOP
        IF add_cron.application IS NOT NULL THEN
            SELECT * INTO one FROM mqdb.cron c WHERE c.name = add_cron.name FOR UPDATE;
            IF FOUND THEN
                IF one.application IS DISTINCT FROM add_cron.application
                   OR one.principal IS DISTINCT FROM keeper THEN
                    RETURN false;
                END IF;
                before := mqdb.cron_settings(one.name);
                -- If the times are unchanged, the next time stays, so that times missed since then are caught up.
                UPDATE mqdb.cron c
                SET cron = add_cron.cron, timezone = add_cron.timezone, topic = add_cron.topic, body = add_cron.body,
                    tag = add_cron.tag, keys = add_cron.keys, properties = add_cron.properties,
                    sharding_key = add_cron.sharding_key, catch_up = add_cron.catch_up,
                    next_at = CASE WHEN (c.cron, c.timezone) = (add_cron.cron, add_cron.timezone) THEN c.next_at
                                   ELSE add_cron.next_at END
                WHERE c.name = one.name
                    AND (c.cron, c.timezone, c.topic, c.body, c.tag, c.keys, c.properties, c.sharding_key, c.catch_up)
                        IS DISTINCT FROM (add_cron.cron, add_cron.timezone, add_cron.topic, add_cron.body, add_cron.tag,
                                          add_cron.keys, add_cron.properties, add_cron.sharding_key, add_cron.catch_up);
                IF FOUND THEN
                    PERFORM mqdb.record_operation('cron.change', ARRAY[one.topic, add_cron.topic], NULL, one.name, before,
                                                  mqdb.cron_settings(one.name), 1, NULL, actor);
                END IF;
                RETURN true;
            END IF;
        END IF;
        -- Many crons of one principal that fire in the same minute would delay the crons of others.
        IF keeper IS NOT NULL THEN
            free_slot := (SELECT min(number) FROM generate_series(1, 100) AS number WHERE NOT EXISTS (
                SELECT FROM mqdb.cron c WHERE c.principal = keeper AND c.slot = number));
            IF free_slot IS NULL THEN
                PERFORM mqdb.refuse_parameter('name', add_cron.name, format('%s "%s" has 100 crons; the limit is 100', CASE WHEN is_guest THEN 'role' ELSE 'principal' END, keeper));
            END IF;
        END IF;
        -- Waits for any other transaction that takes the same slot.
        INSERT INTO mqdb.cron (name, cron, timezone, topic, body, tag, keys, properties, sharding_key, catch_up, next_at, created_by,
                               principal, slot, application)
        VALUES (add_cron.name, add_cron.cron, add_cron.timezone, add_cron.topic, add_cron.body, add_cron.tag, add_cron.keys,
                add_cron.properties, add_cron.sharding_key, add_cron.catch_up, add_cron.next_at, coalesce(keeper, session_user),
                keeper, free_slot, add_cron.application)
        ON CONFLICT DO NOTHING RETURNING name INTO added;
        EXIT WHEN FOUND OR add_cron.application IS NULL AND EXISTS (SELECT FROM mqdb.cron c WHERE c.name = add_cron.name);
    END LOOP;
    IF added IS NOT NULL THEN
        PERFORM mqdb.record_operation(
            'cron.add', ARRAY[add_cron.topic], NULL, added, NULL, mqdb.cron_settings(added), 1, NULL, actor);
    END IF;
    RETURN added IS NOT NULL;
END
$$;
COMMENT ON FUNCTION mqdb.add_cron(text, text, text, text, bytea, text, text, jsonb, text, text, timestamptz, text, text, text) IS 'Stores a recurring send whose first time is next_at, or changes the existing one if its application is the given one; false if the name is taken otherwise';

-- With past times, a cron would catch up on times that it never missed, ahead of all other crons.
CREATE FUNCTION mqdb.check_next_at(next_at timestamptz) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF (check_next_at.next_at >= '1970-01-01 00:00+00' AND check_next_at.next_at < '9999-01-01 00:00+00'
        AND (mqdb.is_owner(session_user) OR check_next_at.next_at > mqdb.now() - interval '1 minute')) IS NOT TRUE
    THEN
        PERFORM mqdb.refuse_parameter('next_at', check_next_at.next_at::text, 'must be in the future, and before the year 9999');
    END IF;
END
$$;
COMMENT ON FUNCTION mqdb.check_next_at(timestamptz) IS 'Raises an error for a time before 1970 or from 9999 on, and for a past time unless the caller owns the schema';

CREATE FUNCTION mqdb.change_cron(name text, change text, next_at timestamptz, actor text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    is_guest boolean := NOT mqdb.is_owner(session_user);
    one mqdb.cron;
    before jsonb;
BEGIN
    change_cron.name := mqdb.full_group(change_cron.name);
    IF is_guest AND NOT EXISTS (SELECT FROM mqdb.own_right a WHERE a.access = 'OPERATE' AND a.resource_type = 'TOPIC') THEN
        PERFORM mqdb.check_right('OPERATE', 'TOPIC', '*');
    ELSIF (change_cron.change IN ('pause', 'resume', 'remove')) IS NOT TRUE THEN
        PERFORM mqdb.refuse_parameter('change', change_cron.change, 'give pause, resume or remove');
    END IF;
    SELECT * INTO one FROM mqdb.cron c
    WHERE c.name = change_cron.name AND (NOT is_guest OR mqdb.is_allowed(session_user, 'OPERATE', 'TOPIC', c.topic)) FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    before := mqdb.cron_settings(one.name);
    CASE change_cron.change
        WHEN 'pause' THEN
            UPDATE mqdb.cron c SET is_paused = true WHERE c.name = one.name;
        WHEN 'resume' THEN
            PERFORM mqdb.check_right('SEND', 'TOPIC', one.topic);
            PERFORM mqdb.check_next_at(change_cron.next_at);
            UPDATE mqdb.cron c SET is_paused = false, next_at = change_cron.next_at WHERE c.name = one.name AND c.is_paused;
        ELSE
            DELETE FROM mqdb.cron c WHERE c.name = one.name;
    END CASE;
    PERFORM mqdb.record_operation(
        'cron.' || change_cron.change, ARRAY[one.topic], NULL, one.name, before, mqdb.cron_settings(one.name), 1, NULL, actor);
    RETURN true;
END
$$;
COMMENT ON FUNCTION mqdb.change_cron(text, text, timestamptz, text) IS 'Pauses, resumes or removes a recurring send; false if it does not exist';
