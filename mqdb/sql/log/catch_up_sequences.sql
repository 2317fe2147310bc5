-- Logical replication transfers a log without the values of its sequences. Positions and keys would start again, and a
-- record at a position that dispatch has passed would be lost. The sequences therefore continue after the largest
-- values in the tables.
CREATE FUNCTION mqdb.catch_up_sequences() RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    numbers regclass;
    of_table regclass;
    of_column name;
    highest bigint;
BEGIN
    FOR numbers, of_table, of_column IN
        SELECT s.oid::regclass, a.attrelid::regclass, a.attname
        FROM pg_class s JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = s.oid AND d.deptype = 'i'
        JOIN pg_attribute a ON (a.attrelid, a.attnum) = (d.refobjid, d.refobjsubid)
        WHERE s.relnamespace = 'mqdb'::regnamespace AND s.relkind = 'S' AND d.refclassid = 'pg_class'::regclass
    LOOP
        EXECUTE format('SELECT max(%I) FROM %s', of_column, of_table) INTO highest;
        IF numbers = 'mqdb.log_pos'::regclass THEN
            highest := greatest(highest, (SELECT max(tail_pos) FROM mqdb.checkpoint));
        END IF;
        IF highest > coalesce(pg_sequence_last_value(numbers), 0) THEN
            RAISE WARNING 'sequence % was at %, and continues at %: it was not copied with its table',
                numbers, coalesce(pg_sequence_last_value(numbers), 0), highest
                USING HINT = 'docs/upgrade.md has the command that copies sequences; mqdb has now corrected this one.';
            PERFORM setval(numbers, highest);
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mqdb.catch_up_sequences() IS 'Makes sequences that are behind their tables continue after them; part of mqdb.adopt and mqdb.ensure_segments';
REVOKE EXECUTE ON FUNCTION mqdb.catch_up_sequences() FROM PUBLIC;
