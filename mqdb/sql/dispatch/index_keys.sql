-- One batch of the key index: like dispatch, but with its own checkpoint and lock, so that it runs beside it
-- on another core and delivery does not wait for it. Sorted: neighbours of one page are inserted together.
--
-- Most unique ids need no entry: an id of our own generator says when it was made, which is shortly before the record was
-- stored. One row of id_span tells the positions of up to 1,024 such records, and from when to when their ids were made.
-- A record goes without an entry only if a span of its own batch covers its position and its id. So a look-up that reads
-- all spans which cover an id misses nothing, whatever the clocks did; a wrong clock only costs an entry. The times decide
-- how wide spans are: an id counts if it was made at most 1 s before its record was stored, or 250 ms after, by a clock
-- that is ahead. Stragglers are rare, and have entries. Eight entries cost more than a span.
CREATE FUNCTION mqdb.index_keys(max_rows integer DEFAULT 50000, OUT outcome text, OUT messages integer, OUT more boolean)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
    batch mqdb.batch;
    walked integer;
    walked_to bigint;
    last_xid xid8;
    last_key integer;
    last_pos bigint;
BEGIN
    IF max_rows IS NULL OR max_rows < 1 THEN
        PERFORM mqdb.refuse_parameter('max_rows', max_rows::text, 'must be at least 1');
    END IF;
    IF session_user <> current_user AND NOT mqdb.is_owner(session_user) AND mqdb.is_attended() THEN
        outcome := 'LOCKED';
        messages := 0;
        more := false;
        RETURN;
    END IF;
    batch := mqdb.begin_batch('index');
    outcome := batch.outcome;
    messages := 0;
    more := false;
    IF outcome <> 'BATCH' THEN
        RETURN;
    END IF;

    batch.until_pos := least(batch.until_pos, batch.done_pos + 20 * max_rows::bigint);  -- as in dispatch
    WITH straggler AS MATERIALIZED (  -- in the order of the index
        SELECT cl.xid, cl.log_pos, cl.queue_key, cl.msg_id, cl.keys, cl.store_time
        FROM unnest(batch.stragglers) AS late CROSS JOIN LATERAL (
            SELECT c.xid, c.log_pos, c.queue_key, c.msg_id, c.keys, c.store_time FROM mqdb.commit_log c
            WHERE (c.xid, c.queue_key, c.log_pos) > (late.after_xid, late.after_key, late.after_pos)
              AND c.xid <= late.to_xid AND pg_visible_in_snapshot(c.xid, batch.cur)
              AND c.log_pos > batch.scan_floor AND c.log_pos <= batch.done_pos
            ORDER BY c.xid, c.queue_key, c.log_pos) cl
        LIMIT max_rows
    ), last AS MATERIALIZED (
        SELECT s.xid, s.queue_key, s.log_pos FROM straggler s ORDER BY s.xid DESC, s.queue_key DESC, s.log_pos DESC LIMIT 1
    ), visible AS MATERIALIZED (
        SELECT s.log_pos, s.queue_key, s.msg_id, s.keys, s.store_time, mqdb.unique_id_ms(s.msg_id) AS made_ms, false AS walked
        FROM straggler s
        UNION ALL
        (SELECT cl.log_pos, cl.queue_key, cl.msg_id, cl.keys, cl.store_time, mqdb.unique_id_ms(cl.msg_id), true
         FROM mqdb.commit_log cl
         WHERE cl.log_pos > batch.done_pos AND cl.log_pos <= batch.until_pos
           AND (cl.xid IS NULL OR pg_visible_in_snapshot(cl.xid, batch.cur))  -- placed: visible to each snapshot of dispatch
         ORDER BY cl.log_pos LIMIT max_rows - (SELECT count(*) FROM straggler))
    ), span AS MATERIALIZED (
        SELECT min(v.log_pos) AS first_pos, max(v.log_pos) AS last_pos, int8range(min(v.made_ms), max(v.made_ms), '[]') AS made_ms
        FROM visible v
        WHERE v.walked AND (SELECT date_trunc('month', mqdb.now(), 'UTC')) + v.made_ms * interval '1 ms'
                           BETWEEN v.store_time - interval '1 s' AND v.store_time + interval '250 ms'
        GROUP BY v.log_pos >> 10 HAVING count(*) >= 8
    ), spans AS (
        INSERT INTO mqdb.id_span (first_pos, last_pos, made_ms) SELECT s.first_pos, s.last_pos, s.made_ms FROM span s
    ), hashes AS (
        SELECT uuid_hash_extended(v.msg_id, 0) AS key_hash, v.log_pos FROM visible v
        WHERE NOT EXISTS (SELECT FROM span s WHERE s.first_pos >> 10 = v.log_pos >> 10 AND v.walked
                          AND v.log_pos BETWEEN s.first_pos AND s.last_pos AND v.made_ms <@ s.made_ms)
        UNION ALL
        SELECT hashtextextended(word, q.topic_id), v.log_pos
        FROM visible v JOIN mqdb.queue q USING (queue_key), string_to_table(v.keys, ' ') AS word
    ), entries AS (
        INSERT INTO mqdb.message_index (key_hash, log_pos, segment)
        SELECT h.key_hash, h.log_pos, batch.segment FROM hashes h ORDER BY h.key_hash
    )
    SELECT count(*), count(*) FILTER (WHERE v.walked), max(v.log_pos) FILTER (WHERE v.walked),
           (SELECT l.xid FROM last l), (SELECT l.queue_key FROM last l), (SELECT l.log_pos FROM last l)
    INTO messages, walked, walked_to, last_xid, last_key, last_pos
    FROM visible v;

    IF messages - walked = max_rows THEN  -- there may be more stragglers
        walked_to := NULL;
    ELSIF messages < max_rows THEN
        walked_to := batch.until_pos;
    END IF;
    more := coalesce(walked_to < batch.tail_pos, true);
    PERFORM mqdb.end_batch('index', batch, walked_to, messages, last_xid, last_key, last_pos);
    outcome := CASE WHEN messages = 0 AND batch.is_first AND NOT more THEN 'IDLE' ELSE 'INDEXED' END;
END
$$;
COMMENT ON FUNCTION mqdb.index_keys(integer) IS 'Makes one batch of visible records findable by key and unique id';
