-- Records a change of the caller's transaction in mqdb.operation: the transaction commits both, or neither. The
-- function runs with the rights of the owner, so a role need not be able to write the table: the caller can name the
-- author of a change, but not another role.
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
COMMENT ON FUNCTION mqdb.record_operation(text, text[], text[], text, jsonb, jsonb, bigint, text, text) IS 'Records a change in mqdb.operation under the logged-in role; returns its number';
-- A principal cannot record operations directly: only the functions that make changes do.
REVOKE EXECUTE ON FUNCTION mqdb.record_operation(text, text[], text[], text, jsonb, jsonb, bigint, text, text) FROM PUBLIC;
