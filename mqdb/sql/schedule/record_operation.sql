-- Notes in mqdb.operation what the caller's transaction changes: both are there when it commits, or neither. With the rights
-- of the owner, so that a role need not be able to write the table: it can say who is behind a change, but not that
-- another role has made it.
CREATE FUNCTION mqdb.record_operation(
    verb text, topics text[], groups text[], object text, before jsonb, after jsonb, records bigint, reason text, actor text
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    noted bigint;
BEGIN
    IF length(actor) > 255 THEN
        PERFORM mqdb.refuse_parameter('actor', actor, format('has %s characters, the limit is 255', length(actor)));
    ELSIF verb IS NULL OR records IS NULL THEN
        PERFORM mqdb.refuse_parameter(CASE WHEN verb IS NULL THEN 'verb' ELSE 'records' END, NULL, 'is missing');
    END IF;
    INSERT INTO mqdb.operation (principal, actor, verb, topics, groups, object, before, after, records, reason)
    VALUES (session_user, nullif(record_operation.actor, ''), record_operation.verb,
            ARRAY(SELECT name FROM unnest(record_operation.topics) AS name WHERE name IS NOT NULL),
            ARRAY(SELECT name FROM unnest(record_operation.groups) AS name WHERE name IS NOT NULL),
            record_operation.object, record_operation.before, record_operation.after, record_operation.records,
            nullif(record_operation.reason, ''))
    RETURNING operation_id INTO noted;
    RETURN noted;
END
$$;
COMMENT ON FUNCTION mqdb.record_operation(text, text[], text[], text, jsonb, jsonb, bigint, text, text) IS 'Notes a change in mqdb.operation, under the role that is logged in; returns its number';
-- A principal cannot note operations by itself: only the functions that change something do.
REVOKE EXECUTE ON FUNCTION mqdb.record_operation(text, text[], text[], text, jsonb, jsonb, bigint, text, text) FROM PUBLIC;
