-- Recreates the sequences that appends read without MVCC, if PostgreSQL cannot read one of them; true if that was needed. In this
-- state each send fails, because a trigger of the log reads them. An unlogged sequence is in that state on a standby that was promoted before
-- its first restart point after the sequence was created: "bad magic number in sequence", seen in 15.18 and 18.4 and not in
-- 15.20.
CREATE FUNCTION mqdb.mend_dispatcher_state() RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    comments text;
    its_trigger text;
BEGIN
    PERFORM pg_sequence_last_value(c.oid) FROM pg_class c
    WHERE c.relnamespace = 'mqdb'::regnamespace AND c.relkind = 'S' AND c.relpersistence = 'u';
    RETURN false;
EXCEPTION
    WHEN internal_error OR data_corrupted THEN
        SELECT string_agg(format('COMMENT ON SEQUENCE %s IS %L;', c.oid::regclass, obj_description(c.oid, 'pg_class')), '') INTO comments
        FROM pg_class c WHERE c.relnamespace = 'mqdb'::regnamespace AND c.relkind = 'S' AND c.relpersistence = 'u';
        SELECT pg_get_triggerdef(t.oid) INTO STRICT its_trigger
        FROM pg_trigger t WHERE t.tgrelid = 'mqdb.commit_log'::regclass AND t.tgname = 'commit_log_wake';
        DROP TRIGGER commit_log_wake ON mqdb.commit_log;
        DROP SEQUENCE mqdb.dispatcher_state, mqdb.placed, mqdb.placed_from;
        CREATE UNLOGGED SEQUENCE mqdb.dispatcher_state;
        CREATE UNLOGGED SEQUENCE mqdb.placed MINVALUE -9223372036854775808;
        CREATE UNLOGGED SEQUENCE mqdb.placed_from MINVALUE 0;
        GRANT SELECT ON SEQUENCE mqdb.dispatcher_state, mqdb.placed TO PUBLIC;
        EXECUTE comments;
        EXECUTE its_trigger;
        RETURN true;
END
$$;
COMMENT ON FUNCTION mqdb.mend_dispatcher_state() IS 'Repairs the sequences that appends read, if PostgreSQL cannot read them';
REVOKE EXECUTE ON FUNCTION mqdb.mend_dispatcher_state() FROM PUBLIC;
