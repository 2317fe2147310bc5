CREATE FUNCTION mqdb.replace_subscriptions(group_name text, version bigint, topics text[], expression_types text[], expressions text[])
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    id integer := mqdb.check_member(replace_subscriptions.group_name);
BEGIN
    IF id IS NULL THEN
        PERFORM mqdb.refuse_parameter('group_name', group_name, 'is not a group');
    ELSIF version IS NULL OR (topics || expression_types || expressions) IS NULL OR array_ndims(topics || expression_types || expressions) > 1
        OR array_position(topics || expression_types || expressions, NULL) IS NOT NULL
        OR cardinality(topics) <> ALL (ARRAY[cardinality(expression_types), cardinality(expressions)])
        OR cardinality(topics) <> (SELECT count(DISTINCT topic) FROM unnest(topics) AS topic)
    THEN
        PERFORM mqdb.refuse_parameter('topics', topics::text, 'give a version, and each topic once with a type and an expression');
    END IF;
    PERFORM mqdb.check_right('READ', 'TOPIC', topic) FROM unnest(topics) AS topic;
    topics := ARRAY(SELECT mqdb.full_topic(t.name) FROM unnest(topics) WITH ORDINALITY AS t (name, number) ORDER BY t.number);
    DELETE FROM mqdb.subscription s WHERE s.group_id = id;
    INSERT INTO mqdb.subscription (group_id, version, topic, expression_type, expression)
    SELECT id, replace_subscriptions.version, given.* FROM unnest(topics, expression_types, expressions) AS given;
    UPDATE mqdb.subscription_group g SET subscription_version = replace_subscriptions.version WHERE g.group_id = id;
END
$$;
COMMENT ON FUNCTION mqdb.replace_subscriptions(text, bigint, text[], text[], text[]) IS 'Replaces the subscriptions of a group';
