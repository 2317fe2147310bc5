-- The next batch of a service that reads the commit log: the heart of dispatch, shared with the key index.
--
-- Positions are not commit order, so "log_pos > last" would lose messages. Instead a round has two frozen
-- snapshots, prev and cur, and takes the records that are visible in cur and were not in prev:
--   1. its first batches take stragglers, positions up to where the round before ended, by the xid index, in its order:
--      transactions that prev saw in progress (late) and cur sees done, then those that are newer than prev;
--   2. its batches then walk upward to tail_pos, in order of position, and never across a segment's end.
-- A batch takes at most so many records of both kinds. If there are more stragglers, a checkpoint stores the last one
-- that was processed, and the next batch continues after it. This checkpoint keeps cur and done_pos of the previous
-- round, so they have their usual meaning for readers: all records up to done_pos that are visible in cur are
-- processed. A record below it that is not visible yet is a straggler of a later round. A transaction in progress
-- therefore delays only its own records, which are not examined again until it ends. The key index, which has to take
-- them, goes as far as dispatch has come, with the same snapshots: they were taken under the lock of dispatch, so no
-- append was placing records then, and none of these comes late.
--
-- The lock comes first, then the checkpoint, then cur: three statements, each with a newer snapshot. A
-- snapshot older than the lock would write a checkpoint that runs backwards; hence READ COMMITTED only. And
-- records of the caller's own transaction are not visible in any pg_current_snapshot() it takes, but would be
-- behind it for the next: hence no transaction that has written.
CREATE FUNCTION mqdb.begin_batch(service_name text) RETURNS mqdb.batch
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off  -- the order asked for is that of the index
AS $$
DECLARE
    last mqdb.checkpoint;
    cur pg_snapshot;
    tail bigint;
    batch mqdb.batch;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM mqdb.refuse_isolation('mqdb.' || service_name);
    ELSIF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION 'mqdb.% must not run in a transaction that has written: use an autocommit connection', service_name
            USING ERRCODE = 'MQ109', DETAIL = jsonb_build_object('function', 'mqdb.' || service_name,
                'reason', 'must not run in a transaction that has written: use an autocommit connection');
    ELSIF NOT mqdb.try_lock(service_name) THEN
        batch.outcome := 'LOCKED';
        RETURN batch;
    END IF;

    -- Once a session: pg_control_system() reads a file. A role other than the owner could have set it.
    IF current_setting('mqdb.identity', true) IS DISTINCT FROM 'known' OR session_user <> current_user THEN
        IF NOT EXISTS (SELECT FROM mqdb.broker JOIN mqdb.identity() USING (system_identifier, database_oid)) THEN
            batch.outcome := 'FOREIGN';
            RETURN batch;
        END IF;
        PERFORM set_config('mqdb.identity', 'known', false);
    END IF;

    SELECT * INTO STRICT last FROM mqdb.checkpoint WHERE service = service_name ORDER BY seq DESC LIMIT 1;
    IF service_name = 'dispatch' THEN
        cur := pg_current_snapshot();
        tail := greatest(last.tail_pos, pg_sequence_last_value('mqdb.log_pos'));
    ELSE
        SELECT coalesce(c.stragglers_cur, c.cur), coalesce(c.stragglers_tail, c.tail_pos) INTO STRICT cur, tail
        FROM mqdb.checkpoint c WHERE c.service = 'dispatch' ORDER BY c.seq DESC LIMIT 1;
    END IF;
    batch := mqdb.next_batch(last, cur, tail);
    IF batch.is_first AND batch.prev::text = batch.cur::text THEN
        batch.outcome := 'IDLE';
        RETURN batch;
    END IF;
    batch.is_stale := last.written_at < mqdb.now() - interval '1 second';
    IF batch.is_stale THEN
        batch.is_stale := batch.tail_pos > last.tail_pos OR cardinality(batch.stragglers) > 1
            OR EXISTS (SELECT FROM pg_snapshot_xip(batch.cur) AS x WHERE x >= pg_snapshot_xmax(batch.prev));
    END IF;
    -- Mostly nothing was written: a look for one record costs half of a batch that finds no record.
    IF batch.is_first AND batch.tail_pos = batch.done_pos AND cardinality(batch.stragglers) = 1 AND NOT batch.is_stale THEN
        PERFORM FROM mqdb.commit_log cl
        WHERE cl.xid >= pg_snapshot_xmax(batch.prev) AND cl.log_pos > batch.scan_floor AND cl.log_pos <= batch.done_pos
        ORDER BY cl.xid, cl.queue_key, cl.log_pos LIMIT 1;
        IF NOT FOUND THEN
            batch.outcome := 'IDLE';
            RETURN batch;
        END IF;
    END IF;

    SELECT s.segment, least(batch.tail_pos, s.end_pos - 1), s.lowest_log_pos
    INTO batch.segment, batch.until_pos, batch.lowest_log_pos
    FROM mqdb.segment s WHERE s.start_pos <= batch.done_pos + 1 ORDER BY s.start_pos DESC LIMIT 1;
    batch.outcome := 'BATCH';
    RETURN batch;
END
$$;
COMMENT ON FUNCTION mqdb.begin_batch(text) IS 'Takes the lock of a service and returns its next records; outcome is LOCKED, IDLE, FOREIGN or BATCH';
