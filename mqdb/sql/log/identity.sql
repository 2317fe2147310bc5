CREATE FUNCTION mqdb.identity(OUT system_identifier bigint, OUT database_oid oid)
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT c.system_identifier, d.oid FROM pg_control_system() c, pg_database d WHERE d.datname = current_database();
END;
COMMENT ON FUNCTION mqdb.identity() IS 'The identity of this database, which a copy restored elsewhere does not share';
