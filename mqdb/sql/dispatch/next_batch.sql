-- The records after a checkpoint: the rest of its round, or those of a new round with this snapshot and tail. The rules are
-- those of begin_batch. The caller decides how far the walk goes in this batch, and where its entries go.
CREATE FUNCTION mqdb.next_batch(last mqdb.checkpoint, new_cur pg_snapshot, new_tail bigint) RETURNS mqdb.batch
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    batch mqdb.batch;
BEGIN
    batch.seq := last.seq + 1;
    batch.floor_pos := last.floor_pos;
    batch.done_pos := last.done_pos;
    batch.last_segment := last.segment;
    batch.is_first := last.done_pos = last.tail_pos AND last.stragglers_cur IS NULL;
    -- A sealed segment no longer changes.
    batch.scan_floor := greatest(
        last.floor_pos,
        (SELECT min(s.start_pos) - 1 FROM mqdb.segment s WHERE s.state IN ('open', 'closed')));
    batch.stragglers := '{}';
    IF last.done_pos < last.tail_pos THEN
        batch.prev := last.prev;
        batch.cur := last.cur;
        batch.tail_pos := last.tail_pos;
        RETURN batch;
    END IF;

    batch.prev := last.cur;
    batch.cur := coalesce(last.stragglers_cur, new_cur);
    batch.tail_pos := coalesce(last.stragglers_tail, new_tail);
    batch.stragglers := ARRAY[ROW (
        greatest(pg_snapshot_xmax(batch.prev), last.straggler_xid),
        CASE WHEN last.straggler_xid >= pg_snapshot_xmax(batch.prev) THEN last.straggler_key ELSE 0 END,
        CASE WHEN last.straggler_xid >= pg_snapshot_xmax(batch.prev) THEN last.straggler_pos ELSE 0 END,
        pg_snapshot_xmax(batch.cur))::mqdb.straggler_range];
    IF pg_snapshot_xmin(batch.prev) < pg_snapshot_xmax(batch.prev) THEN
        -- Before them those that were in progress. Not those that were rolled back: their records are dead, and no LIMIT
        -- counts the dead.
        batch.stragglers := ARRAY(
            SELECT ROW (x, CASE WHEN x = last.straggler_xid THEN last.straggler_key ELSE 0 END,
                        CASE WHEN x = last.straggler_xid THEN last.straggler_pos ELSE 0 END, x)::mqdb.straggler_range
            FROM pg_snapshot_xip(batch.prev) AS x
            WHERE pg_visible_in_snapshot(x, batch.cur) AND x >= coalesce(last.straggler_xid, '0')
              AND pg_xact_status(x) IS DISTINCT FROM 'aborted'
            ORDER BY x) || batch.stragglers;
    END IF;
    RETURN batch;
END
$$;
COMMENT ON FUNCTION mqdb.next_batch(mqdb.checkpoint, pg_snapshot, bigint) IS 'The records after a checkpoint; until_pos and segment are not set';
