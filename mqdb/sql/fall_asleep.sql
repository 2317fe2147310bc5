-- Asks whether the dispatcher may sleep in place of dispatching every few milliseconds, and dispatches once more if so.
-- From true on, until dispatcher_state is 2, each transaction with new records wakes it: by a notification on mqdb_wake
-- when it commits, or by state 3 on a server with prepared transactions.
--
-- No record is missed. A transaction holds a ROW EXCLUSIVE lock on commit_log from before it reads the state until after
-- its records are visible. The state is set first, and then the locks are looked at. A transaction that has read the old
-- state either holds its lock still: then the answer is false. Or it has ended: then the next dispatch finds its records.
CREATE FUNCTION mqdb.fall_asleep(
    max_rows integer, OUT is_asleep boolean, OUT outcome text, OUT messages integer, OUT more boolean
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    done pg_snapshot;
    seen pg_snapshot;
BEGIN
    PERFORM setval('mqdb.dispatcher_state', 1);
    -- Mostly nobody else has written since the last batch. Then there is no need to look at all locks of the server, nor to
    -- dispatch: no transaction was in progress in the snapshot of the last batch, none is now, and in between there has been
    -- one, which is that batch.
    IF current_setting('mqdb.identity', true) = 'known' THEN
        SELECT c.cur INTO done
        FROM (SELECT * FROM mqdb.checkpoint WHERE service = 'dispatch' ORDER BY seq DESC LIMIT 1) c
        WHERE c.done_pos = c.tail_pos AND c.stragglers_cur IS NULL AND NOT EXISTS (SELECT FROM mqdb.dispatch_lane);
        seen := pg_current_snapshot();
        IF pg_snapshot_xmin(done) = pg_snapshot_xmax(done)
            AND pg_snapshot_xmin(seen)::text::bigint = pg_snapshot_xmax(done)::text::bigint + 1
            AND age(pg_snapshot_xmin(seen)::xid) = 0  -- it is the next one to be given
        THEN
            is_asleep := true;
            outcome := 'IDLE';
            messages := 0;
            more := false;
            RETURN;
        END IF;
    END IF;
    IF EXISTS (
        SELECT FROM pg_locks l
        WHERE l.relation = 'mqdb.commit_log'::regclass AND l.mode = 'RowExclusiveLock'
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
    THEN
        PERFORM setval('mqdb.dispatcher_state', 2);
        is_asleep := false;
        RETURN;
    END IF;
    is_asleep := true;
    SELECT d.outcome, d.messages, d.more INTO outcome, messages, more FROM mqdb.dispatch(max_rows) d;
END
$$;
COMMENT ON FUNCTION mqdb.fall_asleep(integer) IS 'Whether the dispatcher may sleep: from then on senders wake it. Dispatches if so; false while a transaction with records is open';
