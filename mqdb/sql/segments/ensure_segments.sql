-- Partitions must exist before a record needs one. The segment keeper creates them; dispatch does if it enters a
-- segment, and a producer does if its append found none. The function runs with the rights of the owner, for such a
-- producer.
CREATE FUNCTION mqdb.ensure_segments(ahead integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    made integer := 0;
BEGIN
    IF ahead IS NULL OR ahead NOT BETWEEN 0 AND 1000 THEN
        PERFORM mqdb.refuse_parameter('ahead', ahead::text, 'must be from 0 to 1000');
    ELSIF ahead > 2 AND NOT mqdb.is_owner(session_user) THEN
        PERFORM mqdb.refuse_parameter('ahead', ahead::text, 'only the owner of the broker may make more than 2');
    END IF;
    -- A producer may have taken position 0, which no segment has, before the keeper ran.
    IF (SELECT last_value FROM mqdb.log_pos) < (
        SELECT c.tail_pos FROM mqdb.checkpoint c WHERE c.service = 'dispatch' ORDER BY c.seq DESC LIMIT 1)
    THEN
        PERFORM mqdb.catch_up_sequences();
    END IF;
    -- The keeper does this. The lock of add_segment is kept until the caller's transaction ends.
    IF NOT mqdb.is_owner(session_user) AND mqdb.is_attended() THEN
        RETURN 0;
    END IF;
    WHILE (SELECT count(*) FROM mqdb.segment WHERE start_pos > (SELECT last_value FROM mqdb.log_pos)) < ahead LOOP
        PERFORM mqdb.add_segment((SELECT segment_size FROM mqdb.broker));
        made := made + 1;
    END LOOP;
    RETURN made;
END
$$;
COMMENT ON FUNCTION mqdb.ensure_segments(integer) IS 'Makes this number of segments exist ahead of the log; returns the number of segments created';
