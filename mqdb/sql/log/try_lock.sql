-- Makes this session the only one that processes a batch of a service until its transaction ends; false if another
-- session does. A table lock needs rights on the table. An advisory lock needs none: any role that may connect could
-- take it, and stop the service.
CREATE FUNCTION mqdb.try_lock(service text) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    CASE service
        WHEN 'dispatch' THEN LOCK TABLE mqdb.lock_dispatch IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
        WHEN 'index' THEN LOCK TABLE mqdb.lock_index IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
        WHEN 'delay' THEN LOCK TABLE mqdb.lock_delay IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
        WHEN 'timer' THEN LOCK TABLE mqdb.lock_timer IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
        WHEN 'transaction' THEN LOCK TABLE mqdb.lock_transaction IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
        ELSE PERFORM mqdb.refuse_parameter('service', service, 'is not a service with a lock');
    END CASE;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;
COMMENT ON FUNCTION mqdb.try_lock(text) IS 'Takes the lock of a service for this transaction: dispatch, index, delay, timer or transaction; false if another session has it';
