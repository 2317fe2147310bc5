-- Gives each record that has become visible the next offset of its queue, in order of position, and announces
-- the arrivals: the only place that orders, and the only transaction with messages that calls NOTIFY.
-- begin_batch says which records and why. Each of the three branches is bound to one index whatever the
-- statistics say: by the order it asks for, as sorts are off. Costs alone do not decide: to the planner all
-- bounds are parameters, and in a small partition all indexes look alike, until it has grown under the same plan.
-- (xid, log_pos) holds both conditions of the stragglers, so the records of a backlog that the walk will take
-- are passed over inside the index (filtered on the heap, 800,000 of them took 2.8 s). An ORDER BY is a fence,
-- too: without it the planner may read the log first and look for its xids in `late` then.
--
-- outcome: DISPATCHED | IDLE (nothing is left) | LOCKED (another session is at it) | ADOPTED (the database was restored here)
CREATE FUNCTION mqdb.dispatch(max_rows integer DEFAULT 50000, OUT outcome text, OUT messages integer, OUT more boolean)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan  -- hundreds of partitions: planning costs more than running
SET enable_seqscan = off  -- and the plan is made while partitions are empty
SET enable_bitmapscan = off
SET enable_sort = off  -- the order asked for is the order of the index
AS $$
DECLARE
    batch mqdb.batch := mqdb.begin_batch('dispatch');
    walked integer;
    walked_to bigint;
    lowest bigint;
    arrivals text;
BEGIN
    outcome := batch.outcome;
    messages := 0;
    more := false;
    IF outcome = 'FOREIGN' THEN
        messages := mqdb.adopt();
        outcome := 'ADOPTED';
        RETURN;
    ELSIF outcome <> 'BATCH' THEN
        RETURN;
    END IF;

    IF batch.segment > batch.last_segment THEN
        -- From here on a queue's last offset is found in the new segment, or else here.
        UPDATE mqdb.queue q SET end_offset = e.end_offset
        FROM (SELECT queue_key, (SELECT cq.queue_offset + 1 FROM mqdb.consume_queue cq
                                 WHERE cq.segment = batch.last_segment AND cq.queue_key = q.queue_key
                                 ORDER BY cq.queue_offset DESC LIMIT 1) AS end_offset
              FROM mqdb.queue q) e
        WHERE e.queue_key = q.queue_key AND e.end_offset > q.end_offset;
        PERFORM mqdb.ensure_segments(2);
    END IF;

    WITH visible AS MATERIALIZED (
        (SELECT cl.log_pos, cl.queue_key, cl.tags_code, false AS walked
         FROM mqdb.commit_log cl
         WHERE batch.is_first
           AND cl.xid >= pg_snapshot_xmax(batch.prev) AND cl.xid < pg_snapshot_xmax(batch.cur)
           AND cl.log_pos > batch.scan_floor AND cl.log_pos <= batch.done_pos
           AND pg_visible_in_snapshot(cl.xid, batch.cur)
         ORDER BY cl.xid)
        UNION ALL
        SELECT cl.log_pos, cl.queue_key, cl.tags_code, false
        FROM unnest(batch.late) AS late(xid) CROSS JOIN LATERAL (
            SELECT c.log_pos, c.queue_key, c.tags_code FROM mqdb.commit_log c
            WHERE c.xid >= late.xid AND c.xid <= late.xid
              AND c.log_pos > batch.scan_floor AND c.log_pos <= batch.done_pos
            ORDER BY c.xid) cl
        UNION ALL
        (SELECT cl.log_pos, cl.queue_key, cl.tags_code, true
         FROM mqdb.commit_log cl
         WHERE cl.log_pos > batch.done_pos AND cl.log_pos <= batch.until_pos
           AND pg_visible_in_snapshot(cl.xid, batch.cur)
         ORDER BY cl.log_pos LIMIT max_rows)
    ), queue_end AS MATERIALIZED (  -- once per distinct queue; records of a deleted topic fall out here
        SELECT q.queue_key, coalesce(
            (SELECT cq.queue_offset + 1 FROM mqdb.consume_queue cq
             WHERE cq.segment = batch.segment AND cq.queue_key = q.queue_key
             ORDER BY cq.queue_offset DESC LIMIT 1), q.end_offset) AS end_offset
        FROM (SELECT DISTINCT v.queue_key FROM visible v) d JOIN mqdb.queue q USING (queue_key)
    ), entries AS (
        INSERT INTO mqdb.consume_queue (queue_offset, log_pos, tags_code, queue_key, segment)
        SELECT e.end_offset + row_number() OVER (PARTITION BY v.queue_key ORDER BY v.log_pos) - 1,
               v.log_pos, v.tags_code, v.queue_key, batch.segment
        FROM visible v JOIN queue_end e USING (queue_key)
    )
    SELECT count(*), count(*) FILTER (WHERE v.walked), max(v.log_pos) FILTER (WHERE v.walked), min(v.log_pos),
           (SELECT string_agg(e.queue_key::text, ',') FROM queue_end e)
    INTO messages, walked, walked_to, lowest, arrivals
    FROM visible v;

    IF walked < max_rows THEN
        walked_to := batch.until_pos;
    END IF;
    more := walked_to < batch.tail_pos;
    IF lowest < batch.lowest_log_pos THEN
        UPDATE mqdb.segment s SET lowest_log_pos = lowest WHERE s.segment = batch.segment;
    END IF;
    PERFORM mqdb.end_batch('dispatch', batch, walked_to, messages);
    IF arrivals IS NOT NULL THEN
        PERFORM pg_notify('mqdb', 'a:' || CASE WHEN length(arrivals) < 7000 THEN arrivals ELSE '*' END);
    END IF;
    -- The end of a round says nothing about what has become visible since the round began.
    outcome := CASE WHEN messages = 0 AND batch.is_first AND NOT more THEN 'IDLE' ELSE 'DISPATCHED' END;
END
$$;
COMMENT ON FUNCTION mqdb.dispatch(integer) IS 'One batch: gives visible records their queue offsets. Anyone may call it, on an autocommit connection';
