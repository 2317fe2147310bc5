-- Opens the lane of a large transaction whose queues are known: it begins where dispatch stands, and dispatch goes on
-- behind the stragglers of the transaction.
CREATE FUNCTION mqdb.open_lane(large_xid xid8) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    last mqdb.checkpoint;
BEGIN
    SELECT * INTO STRICT last FROM mqdb.checkpoint WHERE service = 'dispatch' ORDER BY seq DESC LIMIT 1;
    INSERT INTO mqdb.checkpoint (service, seq, prev, cur, done_pos, tail_pos, floor_pos, segment, messages,
                                 stragglers_cur, stragglers_tail, straggler_xid, straggler_pos)
    VALUES ('lane', 0, last.prev, last.cur, last.done_pos, last.tail_pos, last.floor_pos, last.segment, 0,
            last.stragglers_cur, last.stragglers_tail, last.straggler_xid, last.straggler_pos);
    IF last.straggler_xid = large_xid THEN
        INSERT INTO mqdb.checkpoint (service, seq, prev, cur, done_pos, tail_pos, floor_pos, segment, messages,
                                     stragglers_cur, stragglers_tail, straggler_xid, straggler_pos)
        VALUES ('dispatch', last.seq + 1, last.prev, last.cur, last.done_pos, last.tail_pos, last.floor_pos, last.segment, 0,
                last.stragglers_cur, last.stragglers_tail, last.straggler_xid, 9223372036854775807);
    END IF;
END
$$;
COMMENT ON FUNCTION mqdb.open_lane(xid8) IS 'Opens the lane of a large transaction; a part of mqdb.dispatch';
