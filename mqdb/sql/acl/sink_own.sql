-- Spark's sink deletes its own rows with these functions, for roles that do not own the schema and have no right to
-- delete rows.
CREATE FUNCTION mqdb.forget_own_batches(sink_id text, batch_id bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    DELETE FROM mqdb.sink_batch b
    WHERE b.principal = session_user::text COLLATE "default" AND b.sink_id = forget_own_batches.sink_id
      AND b.batch_id <= forget_own_batches.batch_id;
END;
COMMENT ON FUNCTION mqdb.forget_own_batches(text, bigint) IS 'Deletes batches up to this one from the ledger of the logged-in role';

CREATE FUNCTION mqdb.clear_own_batches(sink_id text, batch_id bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH cleared AS (
        DELETE FROM mqdb.sink_write w
        WHERE w.principal = session_user::text COLLATE "default" AND w.sink_id = clear_own_batches.sink_id
          AND w.batch_id <= clear_own_batches.batch_id
        RETURNING w.write_id
    )
    DELETE FROM mqdb.sink_stage s USING cleared WHERE s.write_id = cleared.write_id;
END;
COMMENT ON FUNCTION mqdb.clear_own_batches(text, bigint) IS 'Deletes batches up to this one from the stage of the logged-in role';

-- Also deletes old rows, as the owner's sweep does for all roles.
CREATE FUNCTION mqdb.clear_own_writes(write_ids uuid[]) RETURNS void
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH cleared AS (
        DELETE FROM mqdb.sink_write w
        WHERE w.principal = session_user::text COLLATE "default"
          AND (w.write_id = ANY (clear_own_writes.write_ids)
               OR w.staged_at < mqdb.now() - interval '1 day'
               AND NOT EXISTS (SELECT FROM mqdb.sink_write y
                               WHERE y.principal = w.principal AND y.sink_id = w.sink_id AND y.batch_id = w.batch_id
                                 AND y.staged_at >= mqdb.now() - interval '1 day'))
        RETURNING w.write_id
    )
    DELETE FROM mqdb.sink_stage s USING cleared WHERE s.write_id = cleared.write_id;
END;
COMMENT ON FUNCTION mqdb.clear_own_writes(uuid[]) IS 'Deletes these attempts from the stage of the logged-in role, and everything staged there more than a day ago';
