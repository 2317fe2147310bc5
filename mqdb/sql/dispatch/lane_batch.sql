-- One batch of a lane, which has the queues to which a large transaction has written. A lane has its own checkpoint,
-- and its rounds end where those of dispatch have ended. When the lane has reached the position of dispatch, it is
-- removed. Its entries go to the segment to which dispatch writes, like those of late commits.
CREATE FUNCTION mqdb.lane_batch(lane mqdb.dispatch_lane, max_rows integer, OUT messages integer, OUT arrivals text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    main mqdb.checkpoint;
    last mqdb.checkpoint;
    batch mqdb.batch;
    done record;
BEGIN
    SELECT * INTO STRICT main FROM mqdb.checkpoint WHERE service = 'dispatch' ORDER BY seq DESC LIMIT 1;
    SELECT * INTO STRICT last FROM mqdb.checkpoint WHERE service = lane.service ORDER BY seq DESC LIMIT 1;
    messages := 0;
    batch := mqdb.next_batch(last, main.cur, main.tail_pos);
    IF batch.is_first AND (main.done_pos < main.tail_pos OR main.stragglers_cur IS NOT NULL) THEN
        RETURN;  -- what is visible in its snapshot is not all done yet
    END IF;
    batch.is_first := false;  -- its checkpoint is always written
    batch.segment := main.segment;
    SELECT s.lowest_log_pos INTO batch.lowest_log_pos FROM mqdb.segment s WHERE s.segment = main.segment;
    -- Not ahead of dispatch, whose segment would be too old for the entries. Most of the records that it passes over may belong to
    -- other queues.
    batch.until_pos := least(batch.tail_pos, main.done_pos, batch.done_pos + 20 * max_rows::bigint);
    IF batch.stragglers = '{}' AND batch.until_pos = batch.done_pos THEN
        RETURN;
    END IF;
    SELECT * INTO done FROM mqdb.dispatch_records(batch, lane.queue_keys, true, max_rows);
    PERFORM mqdb.end_batch(lane.service, batch, done.walked_to, done.messages, done.last_xid, done.last_key, done.last_pos);
    messages := done.messages;
    arrivals := done.arrivals;
    -- It has caught up. With the next call dispatch would be ahead again.
    IF done.walked_to = main.tail_pos AND main.stragglers_cur IS NULL AND batch.cur::text = main.cur::text THEN
        DELETE FROM mqdb.dispatch_lane l WHERE l.service = lane.service;
        DELETE FROM mqdb.checkpoint c WHERE c.service = lane.service;
    END IF;
END
$$;
COMMENT ON FUNCTION mqdb.lane_batch(mqdb.dispatch_lane, integer) IS 'Processes one batch of a lane''s queues; part of mqdb.dispatch';
