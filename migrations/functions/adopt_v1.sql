-- After a restore the stored xids mean nothing: old records carry xids that this server has yet to reach. So
-- what is not dispatched is found by comparing, under a lock that keeps writers out, and floor_pos tells later
-- rounds never to look below it again.
CREATE FUNCTION mqdb.adopt() RETURNS integer
LANGUAGE plpgsql
SET lock_timeout = '2s'
AS $$
DECLARE
    tail bigint;
    newest integer;
    unsealed bigint;
    dispatched integer;
    indexed integer;
BEGIN
    LOCK TABLE mqdb.commit_log IN SHARE MODE;
    tail := greatest((SELECT last_value FROM mqdb.log_pos), (SELECT max(tail_pos) FROM mqdb.checkpoint));
    PERFORM mqdb.ensure_segments(2);
    -- The one that begin_batch would choose: a late committer may have put an entry into it already.
    SELECT max(s.segment) INTO newest FROM mqdb.segment s WHERE s.start_pos <= tail + 1;
    -- All that lies below is dispatched, and its consume queue may have been dropped since.
    SELECT min(s.start_pos) INTO unsealed FROM mqdb.segment s WHERE s.state IN ('open', 'closed');

    UPDATE mqdb.queue q SET end_offset = e.end_offset
    FROM (SELECT queue_key, max(queue_offset) + 1 AS end_offset FROM mqdb.consume_queue
          WHERE segment < newest GROUP BY queue_key) e
    WHERE e.queue_key = q.queue_key AND e.end_offset > q.end_offset;

    WITH missing AS MATERIALIZED (
        SELECT cl.log_pos, cl.queue_key, cl.tags_code FROM mqdb.commit_log cl
        WHERE cl.log_pos >= unsealed
          AND NOT EXISTS (SELECT FROM mqdb.consume_queue cq WHERE cq.log_pos = cl.log_pos)
    ), queue_end AS MATERIALIZED (
        SELECT q.queue_key, coalesce(
            (SELECT max(cq.queue_offset) + 1 FROM mqdb.consume_queue cq
             WHERE cq.segment = newest AND cq.queue_key = q.queue_key), q.end_offset) AS end_offset
        FROM mqdb.queue q
    ), entries AS (
        INSERT INTO mqdb.consume_queue (queue_offset, log_pos, tags_code, queue_key, segment)
        SELECT e.end_offset + row_number() OVER (PARTITION BY m.queue_key ORDER BY m.log_pos) - 1,
               m.log_pos, m.tags_code, m.queue_key, newest
        FROM missing m JOIN queue_end e USING (queue_key)
        RETURNING log_pos
    ), lowered AS (
        UPDATE mqdb.segment s SET lowest_log_pos = least(s.lowest_log_pos, (SELECT min(log_pos) FROM entries))
        WHERE s.segment = newest
    )
    SELECT count(*) INTO dispatched FROM entries;

    WITH missing AS MATERIALIZED (
        SELECT cl.log_pos, cl.queue_key, cl.msg_id, cl.keys FROM mqdb.commit_log cl
        WHERE cl.log_pos >= unsealed
          AND NOT EXISTS (SELECT FROM mqdb.message_index i WHERE i.log_pos = cl.log_pos)
    ), entries AS (
        INSERT INTO mqdb.message_index (key_hash, log_pos, segment)
        SELECT uuid_hash_extended(m.msg_id, 0), m.log_pos, newest FROM missing m
        UNION ALL
        SELECT hashtextextended(word, q.topic_id), m.log_pos, newest
        FROM missing m JOIN mqdb.queue q USING (queue_key), string_to_table(m.keys, ' ') AS word
    )
    SELECT count(*) INTO indexed FROM missing;

    INSERT INTO mqdb.checkpoint (service, seq, prev, cur, done_pos, tail_pos, floor_pos, segment, messages)
    SELECT c.service, max(c.seq) + 1, pg_current_snapshot(), pg_current_snapshot(), tail, tail, tail, newest,
           CASE c.service WHEN 'dispatch' THEN dispatched ELSE indexed END
    FROM mqdb.checkpoint c GROUP BY c.service;
    UPDATE mqdb.broker SET (system_identifier, database_oid) = (SELECT i.system_identifier, i.database_oid FROM mqdb.identity() i);
    RETURN dispatched;
END
$$;
COMMENT ON FUNCTION mqdb.adopt() IS 'Dispatches a restored database anew by comparing log and consume queue; returns how many messages';
