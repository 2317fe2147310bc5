-- Partitions must exist before a record needs one. The keeper sees to it; dispatch does when it enters a
-- segment, and a producer whose append found none.
CREATE FUNCTION mqdb.ensure_segments(ahead integer) RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    made integer := 0;
BEGIN
    IF ahead IS NULL OR ahead NOT BETWEEN 0 AND 1000 THEN
        PERFORM mqdb.refuse_parameter('ahead', ahead::text, 'is no number of segments; give 0 to 1000');
    END IF;
    WHILE (SELECT count(*) FROM mqdb.segment WHERE start_pos > (SELECT last_value FROM mqdb.log_pos)) < ahead LOOP
        PERFORM mqdb.add_segment((SELECT segment_size FROM mqdb.broker));
        made := made + 1;
    END LOOP;
    RETURN made;
END
$$;
COMMENT ON FUNCTION mqdb.ensure_segments(integer) IS 'Makes so many segments exist ahead of the log; returns how many it made';
