-- Which records come after a checkpoint: the rest of its round, or those of a new one with this snapshot and tail. The
-- rules are those of begin_batch; how far the walk goes in this batch, and where its entries go, says the caller.
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
    batch.takes_stragglers := last.done_pos = last.tail_pos;
    batch.is_first := batch.takes_stragglers AND last.stragglers_cur IS NULL;
    -- Nothing is written into a sealed segment any more.
    batch.scan_floor := greatest(
        last.floor_pos,
        (SELECT min(s.start_pos) - 1 FROM mqdb.segment s WHERE s.state IN ('open', 'closed')));
    IF NOT batch.takes_stragglers THEN
        batch.prev := last.prev;
        batch.cur := last.cur;
        batch.tail_pos := last.tail_pos;
        RETURN batch;
    END IF;

    batch.prev := last.cur;
    IF batch.is_first THEN
        batch.cur := new_cur;
        batch.tail_pos := new_tail;
    ELSE
        batch.cur := last.stragglers_cur;
        batch.tail_pos := last.stragglers_tail;
        batch.late_xid := last.straggler_xid;
        batch.late_key := last.straggler_key;
        batch.late_pos := last.straggler_pos;
    END IF;
    -- Not those that were rolled back: their records are dead, and no LIMIT counts the dead.
    batch.late := ARRAY(SELECT x FROM pg_snapshot_xip(batch.prev) AS x
                        WHERE pg_visible_in_snapshot(x, batch.cur) AND x >= coalesce(batch.late_xid, '0')
                          AND pg_xact_status(x) IS DISTINCT FROM 'aborted'
                        ORDER BY x);
    IF batch.late_xid >= pg_snapshot_xmax(batch.prev) THEN
        batch.after_xid := batch.late_xid;
        batch.after_key := batch.late_key;
        batch.after_pos := batch.late_pos;
    ELSE
        batch.after_xid := pg_snapshot_xmax(batch.prev);
        batch.after_key := 0;
        batch.after_pos := 0;
    END IF;
    RETURN batch;
END
$$;
COMMENT ON FUNCTION mqdb.next_batch(mqdb.checkpoint, pg_snapshot, bigint) IS 'Which records come after a checkpoint; without until_pos and segment';
