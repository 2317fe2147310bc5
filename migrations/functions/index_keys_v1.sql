-- One batch of the key index: like dispatch, but with its own checkpoint and lock, so that it runs beside it
-- on another core and delivery does not wait for it. Sorted: neighbours of one page are inserted together.
CREATE FUNCTION mqdb.index_keys(max_rows integer DEFAULT 50000, OUT outcome text, OUT messages integer, OUT more boolean)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
    batch mqdb.batch := mqdb.begin_batch('index');
    walked integer;
    walked_to bigint;
BEGIN
    outcome := batch.outcome;
    messages := 0;
    more := false;
    IF outcome <> 'BATCH' THEN
        RETURN;
    END IF;

    WITH visible AS MATERIALIZED (
        (SELECT cl.log_pos, cl.queue_key, cl.msg_id, cl.keys, false AS walked
         FROM mqdb.commit_log cl
         WHERE batch.is_first
           AND cl.xid >= pg_snapshot_xmax(batch.prev) AND cl.xid < pg_snapshot_xmax(batch.cur)
           AND cl.log_pos > batch.scan_floor AND cl.log_pos <= batch.done_pos
           AND pg_visible_in_snapshot(cl.xid, batch.cur)
         ORDER BY cl.xid)
        UNION ALL
        SELECT cl.log_pos, cl.queue_key, cl.msg_id, cl.keys, false
        FROM unnest(batch.late) AS late(xid) CROSS JOIN LATERAL (
            SELECT c.log_pos, c.queue_key, c.msg_id, c.keys FROM mqdb.commit_log c
            WHERE c.xid >= late.xid AND c.xid <= late.xid
              AND c.log_pos > batch.scan_floor AND c.log_pos <= batch.done_pos
            ORDER BY c.xid) cl
        UNION ALL
        (SELECT cl.log_pos, cl.queue_key, cl.msg_id, cl.keys, true
         FROM mqdb.commit_log cl
         WHERE cl.log_pos > batch.done_pos AND cl.log_pos <= batch.until_pos
           AND pg_visible_in_snapshot(cl.xid, batch.cur)
         ORDER BY cl.log_pos LIMIT max_rows)
    ), hashes AS (
        SELECT uuid_hash_extended(v.msg_id, 0) AS key_hash, v.log_pos FROM visible v
        UNION ALL
        SELECT hashtextextended(word, q.topic_id), v.log_pos
        FROM visible v JOIN mqdb.queue q USING (queue_key), string_to_table(v.keys, ' ') AS word
    ), entries AS (
        INSERT INTO mqdb.message_index (key_hash, log_pos, segment)
        SELECT h.key_hash, h.log_pos, batch.segment FROM hashes h ORDER BY h.key_hash
    )
    SELECT count(*), count(*) FILTER (WHERE v.walked), max(v.log_pos) FILTER (WHERE v.walked)
    INTO messages, walked, walked_to
    FROM visible v;

    IF walked < max_rows THEN
        walked_to := batch.until_pos;
    END IF;
    more := walked_to < batch.tail_pos;
    PERFORM mqdb.end_batch('index', batch, walked_to, messages);
    outcome := CASE WHEN messages = 0 AND batch.is_first AND NOT more THEN 'IDLE' ELSE 'INDEXED' END;
END
$$;
COMMENT ON FUNCTION mqdb.index_keys(integer) IS 'One batch: makes visible records findable by key and unique id';
