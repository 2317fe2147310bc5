-- Stores the ends of all queues, for the transaction that enters a new segment: from then on, the last offset of a
-- queue is found in the new segment or in this column. Until then, entries are in `last_segment` and older ones.
CREATE FUNCTION mqdb.leave_segment(last_segment integer) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
BEGIN
    UPDATE mqdb.queue q SET end_offset = e.end_offset
    FROM (SELECT queue_key, (SELECT r.last_offset + 1 FROM mqdb.queue_run r
                             WHERE r.segment = last_segment AND r.queue_key = q.queue_key
                             ORDER BY r.last_offset DESC LIMIT 1) AS end_offset
          FROM mqdb.queue q) e
    WHERE e.queue_key = q.queue_key AND e.end_offset > q.end_offset;
END
$$;
COMMENT ON FUNCTION mqdb.leave_segment(integer) IS 'Stores the ends of the queues when dispatch leaves a segment; part of mqdb.dispatch';
