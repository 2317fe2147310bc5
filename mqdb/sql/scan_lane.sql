-- Finds out which queues a large transaction has written to, max_rows of its records at a time, and opens its lane when
-- all are seen.
CREATE FUNCTION mqdb.scan_lane(lane mqdb.dispatch_lane, max_rows integer) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
    seen integer;
    seen_to bigint;
    found integer[];
BEGIN
    SELECT count(*), max(r.log_pos), array_agg(DISTINCT r.queue_key) INTO seen, seen_to, found
    FROM (SELECT cl.log_pos, cl.queue_key FROM mqdb.commit_log cl
          WHERE cl.xid >= lane.xid AND cl.xid <= lane.xid AND cl.log_pos > lane.scanned_pos
          ORDER BY cl.xid, cl.log_pos LIMIT max_rows) r;
    UPDATE mqdb.dispatch_lane SET
        queue_keys = ARRAY(SELECT DISTINCT k FROM unnest(queue_keys || coalesce(found, '{}')) AS k),
        scanned_pos = CASE WHEN seen = max_rows THEN seen_to END;
    IF seen < max_rows THEN
        PERFORM mqdb.open_lane(lane.xid);
    END IF;
END
$$;
COMMENT ON FUNCTION mqdb.scan_lane(mqdb.dispatch_lane, integer) IS 'Finds out which queues a large transaction has written to; a part of mqdb.dispatch';
