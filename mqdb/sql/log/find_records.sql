-- Finds the records with these unique ids, indexed or not, above the position after_pos, so that records below it need
-- not be read. Records are returned in no particular order, and one may be returned twice: while the index processes
-- the stragglers of a round batch by batch, stragglers that it already has also count as not indexed. So another record
-- lies above done_pos (commit_log_pkey), or is a straggler that cur did not see (commit_log_xid): of a younger
-- transaction, or of one that was in progress then. In progress now means invisible, so those are left out; one long
-- transaction may have many records. Sealed segments and positions up to floor_pos have no stragglers.
--
-- One statement, so that checkpoint, index and log are of one snapshot, and no record is between two places. Each ORDER BY binds
-- a part to the index of that order, as sorts are off, and is a fence, as OFFSET 0 is. IS TRUE keeps the list of ids a test of
-- each row by a hash: a join the planner may turn round, and = ANY compares each row with each id.
--
-- It runs with the rights of the owner: who may only send learns what became of a message by its id, and cannot read it.
CREATE FUNCTION mqdb.find_records(unique_ids uuid[], after_pos bigint)
RETURNS TABLE (msg_id uuid, log_pos bigint, queue_key integer)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
#variable_conflict use_column
DECLARE
    is_guest boolean := session_user <> current_user AND NOT mqdb.is_owner(session_user);
    found record;
BEGIN
    FOR found IN
        WITH indexed AS (
            SELECT newest.cur, newest.done_pos, greatest(find_records.after_pos, newest.floor_pos, (
                SELECT min(s.start_pos) - 1 FROM mqdb.segment s WHERE s.state IN ('open', 'closed'))) AS straggler_floor
            FROM (SELECT c.cur, c.done_pos, c.floor_pos FROM mqdb.checkpoint c
                  WHERE c.service = 'index' ORDER BY c.seq DESC LIMIT 1) newest
        )
        SELECT r.msg_id, r.log_pos, r.queue_key
        FROM unnest(find_records.unique_ids) AS wanted (msg_id)
        CROSS JOIN LATERAL (  -- a record is indexed in its own segment, or as a straggler in a younger one
            SELECT i.log_pos FROM mqdb.message_index i
            WHERE i.key_hash = uuid_hash_extended(wanted.msg_id, 0) AND i.log_pos > find_records.after_pos
              AND i.segment >= (SELECT coalesce(max(s.segment), 0) FROM mqdb.segment s
                                WHERE s.start_pos - 1 <= find_records.after_pos)
            OFFSET 0) entry
        CROSS JOIN LATERAL (  -- not by =, which leaves no order to ask for
            SELECT cl.msg_id, cl.log_pos, cl.queue_key FROM mqdb.commit_log cl
            WHERE cl.log_pos >= entry.log_pos AND cl.log_pos <= entry.log_pos AND cl.msg_id = wanted.msg_id
            ORDER BY cl.log_pos) r
        UNION ALL
        SELECT r.msg_id, r.log_pos, r.queue_key
        FROM (
            SELECT DISTINCT covering.first_pos, covering.last_pos  -- each once, for ids that were made together
            FROM unnest(find_records.unique_ids) AS wanted (msg_id)
            CROSS JOIN LATERAL (
                SELECT s.first_pos, s.last_pos FROM mqdb.id_span s
                WHERE s.made_ms @> mqdb.unique_id_ms(wanted.msg_id) AND s.last_pos > find_records.after_pos
                OFFSET 0) covering) span
        CROSS JOIN LATERAL (
            SELECT cl.msg_id, cl.log_pos, cl.queue_key FROM mqdb.commit_log cl
            WHERE cl.log_pos >= span.first_pos AND cl.log_pos <= span.last_pos AND cl.log_pos > find_records.after_pos
              AND (cl.msg_id IN (SELECT unnest(find_records.unique_ids))) IS TRUE
            ORDER BY cl.log_pos) r
        UNION ALL
        SELECT r.msg_id, r.log_pos, r.queue_key
        FROM (
            SELECT cl.msg_id, cl.log_pos, cl.queue_key FROM mqdb.commit_log cl
            WHERE (SELECT i.straggler_floor < i.done_pos FROM indexed i)
              AND cl.xid >= (SELECT pg_snapshot_xmax(i.cur) FROM indexed i)
              AND cl.log_pos > (SELECT i.straggler_floor FROM indexed i) AND cl.log_pos <= (SELECT i.done_pos FROM indexed i)
              AND (cl.msg_id IN (SELECT unnest(find_records.unique_ids))) IS TRUE
            ORDER BY cl.xid) r
        UNION ALL
        SELECT r.msg_id, r.log_pos, r.queue_key
        FROM (SELECT pg_snapshot_xip(i.cur) AS xid FROM indexed i EXCEPT SELECT pg_snapshot_xip(pg_current_snapshot())) ended
        CROSS JOIN LATERAL (
            SELECT cl.msg_id, cl.log_pos, cl.queue_key FROM mqdb.commit_log cl
            WHERE cl.xid >= ended.xid AND cl.xid <= ended.xid
              AND cl.log_pos > (SELECT i.straggler_floor FROM indexed i) AND cl.log_pos <= (SELECT i.done_pos FROM indexed i)
              AND (cl.msg_id IN (SELECT unnest(find_records.unique_ids))) IS TRUE
            ORDER BY cl.xid) r
        UNION ALL
        SELECT r.msg_id, r.log_pos, r.queue_key
        FROM (
            SELECT cl.msg_id, cl.log_pos, cl.queue_key FROM mqdb.commit_log cl
            WHERE cl.log_pos > greatest(find_records.after_pos, (SELECT i.done_pos FROM indexed i))
              AND (cl.msg_id IN (SELECT unnest(find_records.unique_ids))) IS TRUE
            ORDER BY cl.log_pos) r
    LOOP
        IF NOT is_guest OR mqdb.is_own(found.log_pos, found.queue_key) THEN
            msg_id := found.msg_id;
            log_pos := found.log_pos;
            queue_key := found.queue_key;
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mqdb.find_records(uuid[], bigint) IS 'Positions and queues of the records with these unique ids above a position, whether or not they are dispatched and indexed';
