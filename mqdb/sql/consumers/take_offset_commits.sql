-- OFFSET 0 leaves the planner no choice: if it believed the table to be empty, which is true every few seconds, it
-- would read all rows of the group, including dead rows. Uses offset_commit_pkey.
CREATE FUNCTION mqdb.take_offset_commits(group_name text, queue_keys integer[], floors bigint[])
RETURNS TABLE (queue_key integer, next_offset bigint, segment integer)
LANGUAGE plpgsql SECURITY DEFINER ROWS 10
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    id integer := mqdb.check_member(take_offset_commits.group_name);
BEGIN
    RETURN QUERY
    WITH gone AS (
        DELETE FROM mqdb.offset_commit c
        WHERE c.ctid = ANY (ARRAY(
            SELECT found.ctid FROM unnest(take_offset_commits.queue_keys, floors) AS own (queue_key, floor) CROSS JOIN LATERAL (
                SELECT o.ctid FROM mqdb.offset_commit o
                WHERE o.group_id = id AND o.queue_key = own.queue_key AND o.from_offset >= own.floor OFFSET 0) found))
        RETURNING c.queue_key, c.next_offset, c.segment)
    SELECT g.queue_key, max(g.next_offset), max(g.segment) FROM gone g GROUP BY g.queue_key;
END
$$;
COMMENT ON FUNCTION mqdb.take_offset_commits(text, integer[], bigint[]) IS 'Deletes the commits of a group in these queues from these offsets on; returns the end of the newest commit in each queue';
