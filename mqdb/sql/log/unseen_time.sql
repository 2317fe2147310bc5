-- In a transaction of its own a role sees what it has stored there, also without the right to read it, as an INSERT that returns
-- positions has to (mqdb/sql/acl/row_security.sql). What a function copies for an operator is not to be seen so: it is stored before
-- the transaction. A little only, for searches by time go by the order of the log.
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
