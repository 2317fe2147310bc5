-- Dispatches a restored database again, one segment in each call. The stored xids are meaningless here: old records
-- have xids that this server has yet to reach. Each call therefore compares the log with the consume queues to find
-- records that are not dispatched or indexed, under a lock that excludes writers, and appends checkpoints whose
-- floor_pos marks all positions up to it as processed, so that neither the next call nor a later round looks below it.
-- The last call processes the rest of the log, and stores the identity. These values refer to the old xids, which
-- readers compare with old records. Anti-joins use hashes, as in seal_segment. The ends and runs of queues are found as
-- in dispatch_records. A function for both would take the records as arrays: to collect and unfold 50,000 took 30 to 65
-- ms, a whole batch of them 160 to 190.
CREATE FUNCTION mqdb.adopt(OUT messages integer, OUT more boolean)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
SET plan_cache_mode = force_custom_plan
SET jit = off
SET enable_seqscan = on  -- dispatch, which calls it, does without
SET enable_bitmapscan = on
SET enable_nestloop = off
AS $$
DECLARE
    last mqdb.checkpoint;
    tail bigint;
    newest integer;
    number integer;
    first_pos bigint;
    past_pos bigint;
    indexed integer;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM mqdb.refuse_isolation('mqdb.adopt');
    END IF;
    LOCK TABLE mqdb.commit_log IN SHARE MODE;
    PERFORM mqdb.catch_up_sequences();
    SELECT * INTO STRICT last FROM mqdb.checkpoint WHERE service = 'dispatch' ORDER BY seq DESC LIMIT 1;
    tail := greatest((SELECT last_value FROM mqdb.log_pos), (SELECT max(tail_pos) FROM mqdb.checkpoint));
    PERFORM mqdb.ensure_segments(2);
    -- The segment that begin_batch would choose: a late commit may already have added an entry to it.
    SELECT max(s.segment) INTO newest FROM mqdb.segment s WHERE s.start_pos <= tail + 1;
    IF newest > last.segment THEN
        PERFORM mqdb.leave_segment(last.segment);
    END IF;

    -- All records of a sealed segment are dispatched, and its consume queue may have been dropped since.
    SELECT s.segment, greatest(s.start_pos, last.floor_pos + 1), least(s.end_pos, tail + 1)
    INTO STRICT number, first_pos, past_pos
    FROM mqdb.segment s WHERE s.state IN ('open', 'closed') AND s.end_pos > last.floor_pos + 1 ORDER BY s.segment LIMIT 1;
    more := past_pos <= tail;

    WITH missing AS MATERIALIZED (
        SELECT cl.log_pos, cl.queue_key, cl.tags_code FROM mqdb.commit_log cl
        WHERE cl.log_pos >= first_pos AND cl.log_pos < past_pos
          AND NOT EXISTS (SELECT FROM (SELECT unnest(coalesce(r.positions, ARRAY[r.log_pos])) AS log_pos
                                   FROM mqdb.queue_run r WHERE r.segment >= number) cq WHERE cq.log_pos = cl.log_pos)
    ), queue_end AS MATERIALIZED (
        SELECT q.queue_key, coalesce(
            (SELECT r.last_offset + 1 FROM mqdb.queue_run r
             WHERE r.segment = newest AND r.queue_key = q.queue_key
             ORDER BY r.last_offset DESC LIMIT 1), q.end_offset) AS end_offset
        FROM (SELECT DISTINCT m.queue_key FROM missing m) d JOIN mqdb.queue q USING (queue_key)
    ), runs AS (
        INSERT INTO mqdb.queue_run (last_offset, log_pos, tags_code, queue_key, segment, positions, codes)
        SELECT r.last_offset, CASE WHEN r.entries = 1 THEN r.positions[1] END, CASE WHEN r.entries = 1 THEN r.codes[1] END,
               r.queue_key, newest, CASE WHEN r.entries > 1 THEN r.positions END, CASE WHEN r.entries > 1 THEN r.codes END
        FROM (
            SELECT n.queue_key, max(n.queue_offset) AS last_offset, count(*) AS entries,
                   array_agg(n.log_pos ORDER BY n.log_pos) AS positions, array_agg(n.tags_code ORDER BY n.log_pos) AS codes
            FROM (
                SELECT s.queue_key, s.log_pos, s.tags_code, e.end_offset + row_number() OVER of_queue - 1 AS queue_offset,
                       (row_number() OVER of_queue - 1) / 100 AS run
                FROM missing s JOIN queue_end e USING (queue_key)
                WINDOW of_queue AS (PARTITION BY s.queue_key ORDER BY s.log_pos)
            ) n GROUP BY n.queue_key, n.run
        ) r
    ), dispatched AS (
        SELECT m.log_pos FROM missing m JOIN queue_end USING (queue_key)
    ), lowered AS (
        UPDATE mqdb.segment s SET lowest_log_pos = least(s.lowest_log_pos, (SELECT min(log_pos) FROM dispatched))
        WHERE s.segment = newest
    )
    SELECT count(*) INTO messages FROM dispatched;

    WITH missing AS MATERIALIZED (
        SELECT cl.log_pos, cl.queue_key, cl.msg_id, cl.keys FROM mqdb.commit_log cl
        WHERE cl.log_pos >= first_pos AND cl.log_pos < past_pos
          AND NOT EXISTS (SELECT FROM mqdb.message_index i WHERE i.segment >= number AND i.log_pos = cl.log_pos)
          AND NOT EXISTS (SELECT FROM mqdb.id_span s WHERE s.first_pos >> 10 = cl.log_pos >> 10 AND cl.keys IS NULL
                          AND cl.log_pos BETWEEN s.first_pos AND s.last_pos AND s.made_ms @> mqdb.unique_id_ms(cl.msg_id))
    ), entries AS (
        INSERT INTO mqdb.message_index (key_hash, log_pos, segment)
        SELECT uuid_hash_extended(m.msg_id, 0), m.log_pos, newest FROM missing m
        UNION ALL
        SELECT hashtextextended(word, q.topic_id), m.log_pos, newest
        FROM missing m JOIN mqdb.queue q USING (queue_key), string_to_table(m.keys, ' ') AS word
    )
    SELECT count(*) INTO indexed FROM missing;

    IF more THEN
        INSERT INTO mqdb.checkpoint (service, seq, prev, cur, done_pos, tail_pos, floor_pos, segment, messages,
                                     stragglers_cur, stragglers_tail, straggler_xid, straggler_key, straggler_pos)
        SELECT DISTINCT ON (c.service) c.service, c.seq + 1, c.prev, c.cur, c.done_pos, c.tail_pos, past_pos - 1, newest,
               CASE c.service WHEN 'dispatch' THEN adopt.messages WHEN 'index' THEN indexed ELSE 0 END,
               c.stragglers_cur, c.stragglers_tail, c.straggler_xid, c.straggler_key, c.straggler_pos
        FROM mqdb.checkpoint c ORDER BY c.service, c.seq DESC;
        RETURN;
    END IF;
    DELETE FROM mqdb.dispatch_lane;
    DELETE FROM mqdb.checkpoint WHERE service LIKE 'lane %';
    INSERT INTO mqdb.checkpoint (service, seq, prev, cur, done_pos, tail_pos, floor_pos, segment, messages)
    SELECT c.service, max(c.seq) + 1, pg_current_snapshot(), pg_current_snapshot(), tail, tail, tail, newest,
           CASE c.service WHEN 'dispatch' THEN adopt.messages ELSE indexed END
    FROM mqdb.checkpoint c GROUP BY c.service;
    UPDATE mqdb.broker SET (system_identifier, database_oid) = (SELECT i.system_identifier, i.database_oid FROM mqdb.identity() i);
END
$$;
COMMENT ON FUNCTION mqdb.adopt() IS 'Dispatches one segment of a restored database again, by comparing the log with the consume queues; returns the number of messages, and whether there are more segments';
