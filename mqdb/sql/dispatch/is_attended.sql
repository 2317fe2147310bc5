-- A promise that lies further ahead than its length was made before the clock was set back, and is ignored. PostgreSQL
-- shows only the pid of other roles' sessions, so a caller with few rights does not see when the backend started.
CREATE FUNCTION mqdb.is_attended() RETURNS boolean
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT EXISTS (
        SELECT FROM mqdb.leader l CROSS JOIN mqdb.now() AS now
        WHERE l.expires_at > now AND l.expires_at <= now + l.lease
          -- The row of one backend in pg_stat_activity, without making the rows of all.
          AND EXISTS (SELECT FROM pg_stat_get_activity(l.backend_pid) a
                      WHERE a.backend_start = l.backend_start OR a.backend_start IS NULL));
END;
COMMENT ON FUNCTION mqdb.is_attended() IS 'Whether the leader of any services is connected, and its promise has not expired';
