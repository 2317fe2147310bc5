-- For functions that take a lock and then read: a snapshot older than the lock would lack what its last holder has left.
CREATE FUNCTION mqdb.refuse_isolation(function text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    reason text := 'needs READ COMMITTED, not ' || current_setting('transaction_isolation');
BEGIN
    RAISE EXCEPTION '% %', function, reason
        USING ERRCODE = 'MQ109', DETAIL = jsonb_build_object('function', function, 'reason', reason);
END
$$;
COMMENT ON FUNCTION mqdb.refuse_isolation(text) IS 'Raises the error of a function that needs READ COMMITTED';
