-- Appends the checkpoint of a batch. A round that found nothing appends no checkpoint: prev stays the same, and the next round
-- looks again. There are two exceptions. While others write, it appends one at most once a second, so that records in progress or
-- rolled back are not looked at for ever; and it appends one if it has passed over many records that were placed. A batch with
-- messages waits for the disk, but not for a standby: the history of the log tells of an offset that a fail-over takes back.
-- Without walked_to the stragglers are not all taken yet: the last one was last_xid, last_key, last_pos.
CREATE FUNCTION mqdb.end_batch(
    service_name text, batch mqdb.batch, walked_to bigint, messages integer, last_xid xid8, last_key integer, last_pos bigint
) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF messages = 0 AND batch.is_first AND walked_to = batch.tail_pos AND NOT batch.is_stale
        AND walked_to - batch.done_pos < 200
    THEN
        RETURN;
    END IF;
    IF walked_to IS NULL THEN
        INSERT INTO mqdb.checkpoint (service, seq, prev, cur, done_pos, tail_pos, floor_pos, segment, messages,
                                     stragglers_cur, stragglers_tail, straggler_xid, straggler_key, straggler_pos)
        VALUES (service_name, batch.seq, batch.prev, batch.prev, batch.done_pos, batch.done_pos, batch.floor_pos,
                batch.segment, messages, batch.cur, batch.tail_pos, last_xid, last_key, last_pos);
    ELSE
        INSERT INTO mqdb.checkpoint (service, seq, prev, cur, done_pos, tail_pos, floor_pos, segment, messages)
        VALUES (service_name, batch.seq, batch.prev, batch.cur, walked_to, batch.tail_pos, batch.floor_pos,
                batch.segment, messages);
    END IF;
    -- To the end of the transaction, whatever the session has chosen for its sends.
    PERFORM set_config('synchronous_commit', CASE WHEN messages = 0 THEN 'off' ELSE 'local' END, true);
END
$$;
COMMENT ON FUNCTION mqdb.end_batch(text, mqdb.batch, bigint, integer, xid8, integer, bigint) IS 'Appends the checkpoint of a batch, if needed';
