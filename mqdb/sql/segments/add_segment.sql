-- Creates the three partitions of a segment. CREATE TABLE and ATTACH: the parents get only a SHARE UPDATE EXCLUSIVE
-- lock, so that sends and pulls can continue; the CHECK constraint avoids the scan. There is no DEFAULT partition: it
-- would have to be scanned.
CREATE FUNCTION mqdb.add_partitions(number integer, first_pos bigint, past_pos bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET quote_all_identifiers = off  -- the text of the policy names its table
AS $$
DECLARE
    parent text;
    bounds text;
    constraint_text text;
    readable text;
    untold text;
BEGIN
    FOREACH parent IN ARRAY ARRAY['commit_log', 'queue_run', 'message_index'] LOOP
        IF parent = 'commit_log' THEN
            bounds := format('FROM (%s) TO (%s)', first_pos, past_pos);
            constraint_text := format('log_pos >= %s AND log_pos < %s', first_pos, past_pos);
        ELSE
            bounds := format('IN (%s)', number);
            constraint_text := format('segment = %s', number);
        END IF;
        EXECUTE format('CREATE TABLE mqdb.%1$s_%2$s (LIKE mqdb.%1$s INCLUDING DEFAULTS INCLUDING STORAGE INCLUDING CONSTRAINTS,
                        CONSTRAINT in_segment CHECK (%3$s))', parent, number, constraint_text);
        IF parent <> 'commit_log' THEN  -- which has a primary key
            EXECUTE format('ALTER TABLE mqdb.%s_%s REPLICA IDENTITY FULL', parent, number);
        END IF;
        EXECUTE format('ALTER TABLE mqdb.%1$s ATTACH PARTITION mqdb.%1$s_%2$s FOR VALUES %3$s', parent, number, bounds);
        EXECUTE format('ALTER TABLE mqdb.%s_%s DROP CONSTRAINT in_segment', parent, number);
        -- Readers that name a partition, as Spark does, see the same rows as through the parent. The index is only read
        -- through its parent.
        EXECUTE format('ALTER TABLE mqdb.%s_%s ENABLE ROW LEVEL SECURITY', parent, number);
        SELECT replace(pg_get_expr(p.polqual, p.polrelid), parent || '.', format('%s_%s.', parent, number)) INTO readable
        FROM pg_policy p WHERE p.polrelid = format('mqdb.%s', parent)::regclass AND p.polname = 'readable';
        IF readable IS NOT NULL AND parent <> 'message_index' THEN
            EXECUTE format('CREATE POLICY readable ON mqdb.%s_%s FOR SELECT USING (%s)', parent, number, readable);
            EXECUTE format('GRANT SELECT ON mqdb.%s_%s TO PUBLIC', parent, number);
        END IF;
        -- Through statistics, EXPLAIN would show everyone values of rows that a policy hides.
        FOR untold IN
            SELECT a.attname FROM pg_attribute a
            WHERE a.attrelid = format('mqdb.%s', parent)::regclass AND a.attnum > 0 AND a.attstattarget = 0
        LOOP
            EXECUTE format('ALTER TABLE mqdb.%s_%s ALTER %I SET STATISTICS 0', parent, number, untold);
        END LOOP;
        EXECUTE format('COMMENT ON TABLE mqdb.%1$s_%2$s IS ''Segment %2$s of %1$s''', parent, number);
    END LOOP;
END
$$;
COMMENT ON FUNCTION mqdb.add_partitions(integer, bigint, bigint) IS 'Creates the partitions of a segment; part of mqdb.add_segment, and of an upgrade by logical replication';

CREATE FUNCTION mqdb.add_segment(records bigint) RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    number integer;
    first_pos bigint;
BEGIN
    IF records IS NULL OR records NOT BETWEEN 1 AND 1099511627776 THEN
        PERFORM mqdb.refuse_parameter('records', records::text, 'a segment has 1 to 1099511627776 positions');
    END IF;
    LOCK TABLE mqdb.segment IN SHARE ROW EXCLUSIVE MODE;
    SELECT coalesce(max(segment), 0) + 1, coalesce(max(end_pos), 1) INTO number, first_pos FROM mqdb.segment;
    PERFORM mqdb.add_partitions(number, first_pos, first_pos + records);
    INSERT INTO mqdb.segment (segment, start_pos, end_pos, lowest_log_pos)
    VALUES (number, first_pos, first_pos + records, first_pos);
    RETURN number;
END
$$;
COMMENT ON FUNCTION mqdb.add_segment(bigint) IS 'Adds a segment with this number of records after the last one, with its partitions; returns its number';
