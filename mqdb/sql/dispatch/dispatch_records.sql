-- Gives the records of a batch the next offsets of their queues, in order of position: the only place that orders. Takes
-- at most max_rows, of the queues among `lane_keys` if in_lane, else of all others. It looks at 20 times as many
-- stragglers at most; if all of these are of other queues, the next batch goes on behind them.
-- Each of the two branches is bound to one index whatever the statistics say: by the order it asks for, as sorts are
-- off. Costs alone do not decide: to the planner all bounds are parameters, and in a small partition all indexes look
-- alike, until it has grown under the same plan.
-- (xid, queue_key, log_pos) holds all conditions of the stragglers, so the records of a backlog that the walk will take
-- are passed over inside the index (filtered on the heap, 800,000 of them took 2.8 s). An ORDER BY is a fence,
-- too: without it the planner may read the log first and look for its xids in the ranges then.
--
-- walked_to: NULL if there may be more stragglers. only_xid: the transaction of a full batch, if it had but one.
CREATE FUNCTION mqdb.dispatch_records(
    batch mqdb.batch, lane_keys integer[], in_lane boolean, max_rows integer,
    OUT messages integer, OUT walked_to bigint, OUT last_xid xid8, OUT last_key integer, OUT last_pos bigint, OUT arrivals text,
    OUT only_xid xid8
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan  -- hundreds of partitions: planning costs more than running
SET jit = off
SET enable_seqscan = off  -- and the plan is made while partitions are empty
SET enable_bitmapscan = off
SET enable_sort = off  -- the order asked for is the order of the index
AS $$
DECLARE
    most_looked_at bigint := 20 * max_rows::bigint;  -- and no more, though all of them are of other queues
    has_more boolean;  -- stragglers, perhaps
    lowest bigint;
BEGIN
    WITH straggler AS MATERIALIZED (  -- in the order of that index; the last one looked at is there also if it is not wanted
        SELECT s.xid, s.log_pos, s.queue_key, s.tags_code, s.is_wanted, s.place FROM (
            SELECT cl.xid, cl.log_pos, cl.queue_key, cl.tags_code, (cl.queue_key = ANY (lane_keys)) = in_lane AS is_wanted,
                   row_number() OVER () AS place
            FROM unnest(batch.stragglers) AS late CROSS JOIN LATERAL (
                SELECT c.xid, c.log_pos, c.queue_key, c.tags_code FROM mqdb.commit_log c
                WHERE (c.xid, c.queue_key, c.log_pos) > (late.after_xid, late.after_key, late.after_pos)
                  AND c.xid <= late.to_xid AND pg_visible_in_snapshot(c.xid, batch.cur)
                  AND c.log_pos > batch.scan_floor AND c.log_pos <= batch.done_pos
                ORDER BY c.xid, c.queue_key, c.log_pos) cl
        ) s WHERE s.place <= most_looked_at AND (s.is_wanted OR s.place = most_looked_at) LIMIT max_rows
    ), visible AS MATERIALIZED (
        SELECT s.log_pos, s.queue_key, s.tags_code, false AS is_walked FROM straggler s WHERE s.is_wanted
        UNION ALL
        (SELECT cl.log_pos, cl.queue_key, cl.tags_code, true
         FROM mqdb.commit_log cl
         WHERE cl.log_pos > batch.done_pos AND cl.log_pos <= batch.until_pos
           AND pg_visible_in_snapshot(cl.xid, batch.cur) AND (cl.queue_key = ANY (lane_keys)) = in_lane
         ORDER BY cl.log_pos
         LIMIT (SELECT CASE WHEN max(s.place) = most_looked_at THEN 0 ELSE max_rows - count(*) END FROM straggler s))
    ), queue_end AS MATERIALIZED (  -- once per distinct queue; records of a deleted topic fall out here
        SELECT q.queue_key, coalesce(
            (SELECT r.last_offset + 1 FROM mqdb.queue_run r
             WHERE r.segment = batch.segment AND r.queue_key = q.queue_key
             ORDER BY r.last_offset DESC LIMIT 1), q.end_offset) AS end_offset
        FROM (SELECT DISTINCT v.queue_key FROM visible v) d JOIN mqdb.queue q USING (queue_key)
    ), runs AS (
        INSERT INTO mqdb.queue_run (last_offset, log_pos, tags_code, queue_key, segment, positions, codes)
        SELECT r.last_offset, CASE WHEN r.entries = 1 THEN r.positions[1] END, CASE WHEN r.entries = 1 THEN r.codes[1] END,
               r.queue_key, batch.segment, CASE WHEN r.entries > 1 THEN r.positions END, CASE WHEN r.entries > 1 THEN r.codes END
        FROM (
            SELECT n.queue_key, max(n.queue_offset) AS last_offset, count(*) AS entries,
                   array_agg(n.log_pos ORDER BY n.log_pos) AS positions, array_agg(n.tags_code ORDER BY n.log_pos) AS codes
            FROM (
                SELECT s.queue_key, s.log_pos, s.tags_code, e.end_offset + row_number() OVER of_queue - 1 AS queue_offset,
                       (row_number() OVER of_queue - 1) / 100 AS run
                FROM visible s JOIN queue_end e USING (queue_key)
                WINDOW of_queue AS (PARTITION BY s.queue_key ORDER BY s.log_pos)
            ) n GROUP BY n.queue_key, n.run
        ) r
    )
    SELECT v.messages, v.walked_to, v.lowest, (SELECT string_agg(e.queue_key::text, ',') FROM queue_end e),
           s.has_more, s.last_xid, s.last_place[2], s.last_place[3], CASE WHEN s.first_xid = s.last_xid THEN s.last_xid END
    INTO messages, walked_to, lowest, arrivals, has_more, last_xid, last_key, last_pos, only_xid
    FROM (SELECT count(*) AS messages, max(v.log_pos) FILTER (WHERE v.is_walked) AS walked_to, min(v.log_pos) AS lowest
          FROM visible v) v,
         (SELECT count(*) = max_rows OR max(s.place) = most_looked_at AS has_more, min(s.xid) AS first_xid,
                 max(s.xid) AS last_xid, max(ARRAY[s.place, s.queue_key, s.log_pos]) AS last_place
          FROM straggler s) s;

    IF has_more THEN
        walked_to := NULL;
    ELSIF messages < max_rows THEN
        walked_to := batch.until_pos;
    END IF;
    IF messages < max_rows OR max_rows = 1 THEN
        only_xid := NULL;
    END IF;
    IF lowest < batch.lowest_log_pos THEN
        UPDATE mqdb.segment s SET lowest_log_pos = lowest WHERE s.segment = batch.segment;
    END IF;
END
$$;
COMMENT ON FUNCTION mqdb.dispatch_records(mqdb.batch, integer[], boolean, integer) IS 'Gives the records of a batch their queue offsets; part of mqdb.dispatch';
