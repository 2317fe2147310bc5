-- Determines whether the dispatcher may sleep instead of dispatching every few milliseconds. If so, all that is visible
-- by then has been dispatched, unless `more` is true or another session dispatches. From then on, until
-- dispatcher_state is 2, each transaction with new records wakes the dispatcher: by a notification on mqdb_wake when it
-- commits, or by state 3 on a server with prepared transactions. A transaction that has placed its records
-- (take_places) does not wake it; appends may do so during this sleep if `places` is true.
--
-- No record is missed. The state is set first. A transaction reads it after it has written its records, so one that has
-- read the old state has a transaction id by then, and a ROW EXCLUSIVE lock on commit_log until its records are visible.
-- There are two ways to find it:
--   1. The quick way compares transaction ids. If the last batch of dispatch was the last transaction of the server that
--      has got an id, and none was in progress in the snapshot of that batch, then the batch has left nothing.
--   2. Otherwise the function looks at the locks. If one is held, and still is 3 ms later, the answer is false. If none is,
--      each such transaction has ended, and the function dispatches once more, which finds its records.
CREATE FUNCTION mqdb.fall_asleep(
    max_rows integer, places boolean, OUT is_asleep boolean, OUT outcome text, OUT messages integer, OUT more boolean
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    done pg_snapshot;
    seen pg_snapshot;
    writers text[];
    begins_round boolean;
BEGIN
    PERFORM setval('mqdb.dispatcher_state', CASE WHEN places THEN 1 ELSE 4 END);
    -- Mostly no other session has written since the last batch. All transactions that were given an id before its snapshot had
    -- ended then. Only one id has been given since, which is that of the batch.
    IF current_setting('mqdb.identity', true) = 'known' THEN
        SELECT c.cur INTO done
        FROM (SELECT * FROM mqdb.checkpoint WHERE service = 'dispatch' ORDER BY seq DESC LIMIT 1) c
        -- A batch that leaves stragglers keeps the snapshot of the round before. At least two ids have been given since
        -- that snapshot: those of a straggler and of the batch.
        WHERE c.done_pos = c.tail_pos AND NOT EXISTS (SELECT FROM mqdb.dispatch_lane);
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
    -- Most are about to end. A transaction that begins later reads the new state.
    FOR look IN 1..4 LOOP
        writers := ARRAY(
            SELECT l.virtualtransaction FROM pg_locks l
            WHERE l.relation = 'mqdb.commit_log'::regclass AND l.mode = 'RowExclusiveLock'
              AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
              AND (look = 1 OR l.virtualtransaction = ANY (writers)));
        EXIT WHEN writers = '{}';
        PERFORM pg_sleep(0.001);
    END LOOP;
    IF writers <> '{}' THEN
        PERFORM setval('mqdb.dispatcher_state', 2);
        is_asleep := false;
        RETURN;
    END IF;
    is_asleep := true;
    -- A round that has begun before, perhaps by another session, does not know what has become visible since.
    begins_round := mqdb.try_lock('dispatch') AND EXISTS (
        SELECT FROM (SELECT * FROM mqdb.checkpoint WHERE service = 'dispatch' ORDER BY seq DESC LIMIT 1) c
        WHERE c.done_pos = c.tail_pos AND c.stragglers_cur IS NULL);
    SELECT d.outcome, d.messages, d.more OR d.outcome = 'DISPATCHED' AND NOT begins_round
    INTO outcome, messages, more FROM mqdb.dispatch(max_rows) d;
END
$$;
COMMENT ON FUNCTION mqdb.fall_asleep(integer, boolean) IS 'Whether the dispatcher may sleep, in which case senders wake it from then on. If so, it first dispatches; the result is false while a transaction with records is open';
