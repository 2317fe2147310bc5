-- Makes the sequence of the dispatcher's state anew if PostgreSQL cannot read it; true if that was needed. Then each send
-- fails, as a trigger of the log reads it. An unlogged sequence is in that state on a standby that was promoted before its
-- first restart point after the sequence was created: "bad magic number in sequence", seen in 15.18 and 18.4 and not in
-- 15.20.
CREATE FUNCTION mqdb.mend_dispatcher_state() RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    its_comment text := obj_description('mqdb.dispatcher_state'::regclass, 'pg_class');
    its_trigger text;
BEGIN
    PERFORM pg_sequence_last_value('mqdb.dispatcher_state');
    RETURN false;
EXCEPTION
    WHEN internal_error OR data_corrupted THEN
        SELECT pg_get_triggerdef(t.oid) INTO STRICT its_trigger
        FROM pg_trigger t WHERE t.tgrelid = 'mqdb.commit_log'::regclass AND t.tgname = 'commit_log_wake';
        DROP TRIGGER commit_log_wake ON mqdb.commit_log;
        DROP SEQUENCE mqdb.dispatcher_state;
        CREATE UNLOGGED SEQUENCE mqdb.dispatcher_state;
        EXECUTE format('COMMENT ON SEQUENCE mqdb.dispatcher_state IS %L', its_comment);
        GRANT SELECT ON SEQUENCE mqdb.dispatcher_state TO PUBLIC;
        EXECUTE its_trigger;
        RETURN true;
END
$$;
COMMENT ON FUNCTION mqdb.mend_dispatcher_state() IS 'Makes the sequence of the dispatcher''s state anew if PostgreSQL cannot read it';
REVOKE EXECUTE ON FUNCTION mqdb.mend_dispatcher_state() FROM PUBLIC;
