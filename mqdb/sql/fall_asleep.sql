-- Asks whether the dispatcher may sleep in place of dispatching every few milliseconds. The caller dispatches once more
-- before it sleeps. From true on, until dispatcher_state is 2, each transaction with new records wakes it: by a
-- notification on mqdb_wake when it commits, or by state 3 on a server with prepared transactions.
--
-- No record is missed. A transaction holds a ROW EXCLUSIVE lock on commit_log from before it reads the state until after
-- its records are visible. The state is set first, and then the locks are looked at. A transaction that has read the old
-- state either holds its lock still: then the answer is false. Or it has ended: then the next dispatch finds its records.
CREATE FUNCTION mqdb.fall_asleep() RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM setval('mqdb.dispatcher_state', 1);
    IF EXISTS (
        SELECT FROM pg_locks l
        WHERE l.relation = 'mqdb.commit_log'::regclass AND l.mode = 'RowExclusiveLock'
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
    THEN
        PERFORM setval('mqdb.dispatcher_state', 2);
        RETURN false;
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION mqdb.fall_asleep() IS 'Whether the dispatcher may sleep: from then on senders wake it. False while a transaction with records is open';
