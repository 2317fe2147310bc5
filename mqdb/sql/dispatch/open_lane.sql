-- Opens the lane of a large transaction, for the queues to which it has written and that are not in a lane yet. The
-- lane starts at the position of dispatch, and dispatch continues after the stragglers of the transaction. The index
-- yields the queues, with one descent for each.
CREATE FUNCTION mqdb.open_lane(large_xid xid8, scan_floor bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
    lane text := 'lane ' || large_xid;
    last mqdb.checkpoint;
BEGIN
    INSERT INTO mqdb.dispatch_lane (service, queue_keys)
    WITH RECURSIVE written AS (
        SELECT 0 AS queue_key
        UNION ALL
        SELECT (SELECT cl.queue_key FROM mqdb.commit_log cl
                WHERE (cl.xid, cl.queue_key) > (large_xid, w.queue_key) AND cl.xid <= large_xid AND cl.log_pos > scan_floor
                ORDER BY cl.xid, cl.queue_key, cl.log_pos LIMIT 1)
        FROM written w WHERE w.queue_key IS NOT NULL
    )
    SELECT lane, array_agg(w.queue_key) FROM written w
    WHERE w.queue_key > 0 AND NOT EXISTS (SELECT FROM mqdb.dispatch_lane l WHERE w.queue_key = ANY (l.queue_keys));

    SELECT * INTO STRICT last FROM mqdb.checkpoint WHERE service = 'dispatch' ORDER BY seq DESC LIMIT 1;
    INSERT INTO mqdb.checkpoint (service, seq, prev, cur, done_pos, tail_pos, floor_pos, segment, messages,
                                 stragglers_cur, stragglers_tail, straggler_xid, straggler_key, straggler_pos)
    VALUES (lane, 0, last.prev, last.cur, last.done_pos, last.tail_pos, last.floor_pos, last.segment, 0,
            last.stragglers_cur, last.stragglers_tail, last.straggler_xid, last.straggler_key, last.straggler_pos);
    IF last.straggler_xid = large_xid THEN
        INSERT INTO mqdb.checkpoint (service, seq, prev, cur, done_pos, tail_pos, floor_pos, segment, messages,
                                     stragglers_cur, stragglers_tail, straggler_xid, straggler_key, straggler_pos)
        VALUES ('dispatch', last.seq + 1, last.prev, last.cur, last.done_pos, last.tail_pos, last.floor_pos, last.segment, 0,
                last.stragglers_cur, last.stragglers_tail, last.straggler_xid, 2147483647, 9223372036854775807);
    END IF;
END
$$;
COMMENT ON FUNCTION mqdb.open_lane(xid8, bigint) IS 'Opens the lane of a large transaction; part of mqdb.dispatch';
