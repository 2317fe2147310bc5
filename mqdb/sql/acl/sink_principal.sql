-- The role that owns the ledger and the stage of a Spark sink's session: each role has its own, while the owner of the
-- schema and the members of its role share one, so that a query may continue under any of them.
CREATE FUNCTION mqdb.sink_principal() RETURNS text
LANGUAGE sql STABLE
RETURN CASE WHEN row_security_active('mqdb.sink_batch'::text) THEN session_user::text ELSE '' END COLLATE "default";
COMMENT ON FUNCTION mqdb.sink_principal() IS 'The role that owns the rows of Spark''s sink in this session; empty for the owner of the schema and the members of its role';
