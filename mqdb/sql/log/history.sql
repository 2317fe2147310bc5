CREATE FUNCTION mqdb.history() RETURNS bigint
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT hash_record_extended(ROW (
        pg_postmaster_start_time(),
        pg_stat_get_bgwriter_stat_reset_time(),  -- a recovery resets all statistics
        pg_relation_filepath('mqdb.log_pos')), 0);  -- of this database, and of this sequence
END;
COMMENT ON FUNCTION mqdb.history() IS 'A number that stays the same as long as no transaction committed here can have been undone';
