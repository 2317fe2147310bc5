-- Refuses a body or a topic that cannot be sent. NULL stands for a value that the caller does not choose.
CREATE FUNCTION mqdb.check_send(topic text, body bytea) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF octet_length(body) = 0 THEN
        RAISE EXCEPTION 'the body is empty; send at least 1 byte' USING ERRCODE = 'MQ101', DETAIL = '{}';
    ELSIF octet_length(body) > mqdb.max_body_bytes() THEN
        RAISE EXCEPTION 'the body has % bytes, the limit is %', octet_length(body), mqdb.max_body_bytes()
            USING ERRCODE = 'MQ102', DETAIL = jsonb_build_object('size', octet_length(body), 'limit', mqdb.max_body_bytes());
    ELSIF topic = ANY (mqdb.topics_not_allowed()) THEN
        RAISE EXCEPTION 'topic "%" belongs to the broker, and takes no messages from outside', topic
            USING ERRCODE = 'MQ201', DETAIL = jsonb_build_object('topic', topic);
    END IF;
END
$$;
COMMENT ON FUNCTION mqdb.check_send(text, bytea) IS 'Raises an error if a body is empty or too large, or if a topic belongs to the broker';

-- Called before rights are checked and the topic is looked up, whose errors would be about a topic without a name.
CREATE FUNCTION mqdb.check_topic_given(topic text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF topic IS NULL THEN
        PERFORM mqdb.refuse_parameter('topic', topic, 'the topic is NULL; give its name');
    ELSIF topic ~ E'^\\s*$' THEN
        PERFORM mqdb.refuse_parameter('topic', topic, 'the topic is empty; give its name');
    END IF;
END
$$;
COMMENT ON FUNCTION mqdb.check_topic_given(text) IS 'Raises an error for a topic that is NULL or empty';
