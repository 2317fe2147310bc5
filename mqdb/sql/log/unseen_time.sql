-- In its own transaction, a role sees records that it has stored there even without the right to read them, because an
-- INSERT that returns positions needs this (mqdb/sql/acl/row_security.sql). A copy that a function makes for an
-- operator must not be visible in this way, so its store time is before the transaction. The difference is small,
-- because searches by time rely on the order of the log.
CREATE FUNCTION mqdb.unseen_time() RETURNS timestamptz
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF clock_timestamp() - transaction_timestamp() > interval '1 minute' THEN
        PERFORM mqdb.refuse_parameter('transaction', transaction_timestamp()::text,
            'started over a minute ago; copies that the role may not read need a newer transaction');
    END IF;
    RETURN mqdb.transaction_began() - interval '2 seconds';
END
$$;
COMMENT ON FUNCTION mqdb.unseen_time() IS 'A store time that hides a copy from the logged-in role, both during its transaction and afterwards';
