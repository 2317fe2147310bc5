-- For functions that take a lock and then read: a snapshot older than the lock would miss the changes of its last
-- holder.
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
COMMENT ON FUNCTION mqdb.refuse_isolation(text) IS 'Raises the error for a function that needs READ COMMITTED';
