-- In a transaction of its own a role sees what it has stored there, also without the right to read it, as an INSERT that returns
-- positions has to (mqdb/sql/acl/row_security.sql). A copy that a function makes for an operator must not be seen so: its time of
-- storing lies before the transaction. Only a little, because searches by time rely on the order of the log.
CREATE FUNCTION mqdb.unseen_time() RETURNS timestamptz
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF clock_timestamp() - transaction_timestamp() > interval '1 minute' THEN
        PERFORM mqdb.refuse_parameter('transaction', transaction_timestamp()::text,
            'began over a minute ago; copies that the role may not read need a younger one');
    END IF;
    RETURN mqdb.transaction_began() - interval '2 seconds';
END
$$;
COMMENT ON FUNCTION mqdb.unseen_time() IS 'A time of storing that hides a copy from the role that is logged in, until its transaction ends and after';
