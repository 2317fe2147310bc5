-- Gives the records of an append their places immediately, without dispatch: consecutive positions, and the next
-- offsets in their queues. The function writes the entries and announces the arrivals; the append writes the records,
-- without an xid. Returns the first position and the offsets; for a single record, its offset is also in the setting
-- mqdb.placed_offset until the transaction ends. If the result is NULL, nothing is placed: the append writes its
-- records normally, and dispatch places them. The lock of dispatch is held. It is released when the commit is visible,
-- so its next holder sees all entries. No session waits for it. No record that was committed before is waiting.
-- `placed` is a position up to which each record has its entry, or was rolled back.
--      All other appends draw their positions from log_pos too, so they have drawn none since if the one drawn here is the next.
--      If they have, dispatch runs first, in this transaction, but only if no append is under way: such a one holds a
--      lock on commit_log from before it draws a position.
-- 3. A placed record has no xid, so dispatch does not find it. The mark is only true if what dispatch has done here is
-- committed. So the newest checkpoint has the seq `placed_from` or a later one, and ends a round: after a rollback the
-- dispatcher gives the seq to the first batch of its own. The mark is XOR the history, because a dump brings the values
-- of sequences along. A position that is drawn and not used is nobody's, as after a rollback.
--
-- The commit keeps the lock until it is on disk, and must not wait for a standby. Nor may a crash take back offsets that others
-- have stored, as with synchronous_commit = off.
CREATE FUNCTION mqdb.take_places(queue_keys integer[], codes bigint[]) RETURNS bigint[]
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    history bigint;
    records integer := cardinality(queue_keys);
    reached record;
    settled_pos bigint;
    settled_from bigint;
    taken_pos bigint;
    last_pos bigint;
    offsets bigint[];
    arrivals text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed'  -- else its snapshot is older than the lock
        OR current_setting('synchronous_commit') = 'off'
        OR current_setting('synchronous_commit') <> 'local' AND current_setting('synchronous_standby_names') <> ''
    THEN
        RETURN NULL;
    END IF;
    BEGIN
        LOCK TABLE mqdb.lock_dispatch IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    EXCEPTION WHEN lock_not_available THEN
        RETURN NULL;
    END;
    history := mqdb.history();
    settled_pos := coalesce(pg_sequence_last_value('mqdb.log_pos'), 0);
    SELECT c.seq, c.is_over, s.segment, s.end_pos INTO STRICT reached
    FROM (SELECT k.seq, k.segment, k.done_pos = k.tail_pos AND k.stragglers_cur IS NULL AS is_over
          FROM mqdb.checkpoint k WHERE k.service = 'dispatch' ORDER BY k.seq DESC LIMIT 1) c
    JOIN mqdb.segment s USING (segment);
    -- A round that has begun does not know what has been committed since. Into the next segment goes dispatch, which makes
    -- partitions then: that cannot be done beneath an INSERT.
    IF NOT reached.is_over OR settled_pos + records >= reached.end_pos THEN
        RETURN NULL;
    END IF;
    IF settled_pos # history IS DISTINCT FROM pg_sequence_last_value('mqdb.placed')
        OR reached.seq < pg_sequence_last_value('mqdb.placed_from')
    THEN
        settled_from := mqdb.place_waiting();
        IF settled_from IS NULL THEN
            RETURN NULL;
        END IF;
    END IF;
    taken_pos := nextval('mqdb.log_pos');
    last_pos := taken_pos;
    IF records > 1 THEN
        SELECT max(nextval('mqdb.log_pos')) INTO last_pos FROM generate_series(2, records);
    END IF;
    IF last_pos <> settled_pos + records THEN  -- another session has drawn one
        RETURN NULL;
    END IF;

    IF records = 1 THEN
        INSERT INTO mqdb.queue_run AS new (last_offset, log_pos, tags_code, queue_key, segment)
        SELECT coalesce((SELECT r.last_offset + 1 FROM mqdb.queue_run r
                         WHERE r.segment = reached.segment AND r.queue_key = queue_keys[1]
                         ORDER BY r.last_offset DESC LIMIT 1), q.end_offset),
               taken_pos, codes[1], q.queue_key, reached.segment
        FROM mqdb.queue q WHERE q.queue_key = queue_keys[1]
        RETURNING ARRAY[new.last_offset] INTO offsets;
        arrivals := queue_keys[1];
    ELSE
        WITH record AS MATERIALIZED (
            SELECT g.queue_key, g.tags_code, taken_pos + g.place - 1 AS log_pos,
                   row_number() OVER (PARTITION BY g.queue_key ORDER BY g.place) - 1 AS step
            FROM unnest(queue_keys, codes) WITH ORDINALITY AS g (queue_key, tags_code, place)
        ), queue_end AS MATERIALIZED (
            SELECT q.queue_key, coalesce(
                (SELECT r.last_offset + 1 FROM mqdb.queue_run r
                 WHERE r.segment = reached.segment AND r.queue_key = q.queue_key
                 ORDER BY r.last_offset DESC LIMIT 1), q.end_offset) AS end_offset
            FROM (SELECT DISTINCT g.queue_key FROM record g) d JOIN mqdb.queue q USING (queue_key)
        ), entry AS MATERIALIZED (  -- none if a queue is gone, so that each has a record
            SELECT g.queue_key, g.tags_code, g.log_pos, e.end_offset + g.step AS queue_offset, g.step / 100 AS run
            FROM record g JOIN queue_end e USING (queue_key)
            WHERE (SELECT count(*) FROM queue_end) = (SELECT count(DISTINCT g.queue_key) FROM record g)
        ), runs AS (
            INSERT INTO mqdb.queue_run (last_offset, log_pos, tags_code, queue_key, segment, positions, codes)
            SELECT r.last_offset, CASE WHEN r.entries = 1 THEN r.positions[1] END, CASE WHEN r.entries = 1 THEN r.codes[1] END,
                   r.queue_key, reached.segment,
                   CASE WHEN r.entries > 1 THEN r.positions END, CASE WHEN r.entries > 1 THEN r.codes END
            FROM (SELECT e.queue_key, max(e.queue_offset) AS last_offset, count(*) AS entries,
                         array_agg(e.log_pos ORDER BY e.log_pos) AS positions, array_agg(e.tags_code ORDER BY e.log_pos) AS codes
                  FROM entry e GROUP BY e.queue_key, e.run) r
        )
        SELECT array_agg(e.queue_offset ORDER BY e.log_pos), (SELECT string_agg(e.queue_key::text, ',') FROM queue_end e)
        INTO offsets, arrivals FROM entry e;
    END IF;
    IF offsets IS NULL THEN
        RETURN NULL;
    END IF;
    IF settled_from IS NOT NULL THEN
        PERFORM setval('mqdb.placed_from', settled_from);
    END IF;
    PERFORM setval('mqdb.placed', last_pos # history);
    PERFORM pg_notify('mqdb_arrivals', mqdb.arrivals(arrivals));
    IF records = 1 THEN
        PERFORM set_config('mqdb.placed_offset', offsets[1]::text, true);
    END IF;
    RETURN array_prepend(taken_pos, offsets);
END
$$;
COMMENT ON FUNCTION mqdb.take_places(integer[], bigint[]) IS 'Gives the records of an append their positions and queue offsets, unless other appends are in progress or many records wait; part of each append by the owner';
REVOKE EXECUTE ON FUNCTION mqdb.take_places(integer[], bigint[]) FROM PUBLIC;

-- Places the few waiting records, so that the records after them can be placed. Returns the seq of the checkpoint that
-- records this, which commits with the append; 0 if nothing was waiting. NULL if an append whose records may have to
-- wait is in progress, if too many records wait, or if the database was restored here and is not adopted yet.
CREATE FUNCTION mqdb.place_waiting() RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    done record;
BEGIN
    IF EXISTS (
            SELECT FROM pg_locks l
            WHERE l.relation = 'mqdb.commit_log'::regclass AND l.mode = 'RowExclusiveLock' AND l.pid IS DISTINCT FROM pg_backend_pid()
              AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
        OR NOT EXISTS (SELECT FROM mqdb.broker JOIN mqdb.identity() USING (system_identifier, database_oid))
    THEN
        RETURN NULL;
    END IF;
    SELECT * INTO done FROM mqdb.dispatch(100);
    IF done.outcome = 'LOCKED' OR done.more THEN
        RETURN NULL;
    END IF;
    RETURN CASE done.outcome WHEN 'IDLE' THEN 0 ELSE (
        SELECT c.seq FROM mqdb.checkpoint c WHERE c.service = 'dispatch' ORDER BY c.seq DESC LIMIT 1) END;
END
$$;
COMMENT ON FUNCTION mqdb.place_waiting() IS 'Places the few waiting records; part of mqdb.take_places';
REVOKE EXECUTE ON FUNCTION mqdb.place_waiting() FROM PUBLIC;
