-- The bigint advisory locks that sessions hold in this database, with the roles of these sessions: every role can see
-- the role of every backend. A client is present as long as a session of its own role holds its lock.
CREATE VIEW mqdb.held_presence WITH (security_invoker) AS
SELECT l.classid::bigint << 32 | l.objid::bigint AS lock_key, a.usename::text AS principal
FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
COMMENT ON VIEW mqdb.held_presence IS 'Presence locks that are currently held, with the roles that hold them';
GRANT SELECT ON mqdb.held_presence TO PUBLIC;

CREATE FUNCTION mqdb.is_present(lock_key bigint, principal text) RETURNS boolean
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT EXISTS (SELECT FROM mqdb.held_presence h WHERE h.lock_key = is_present.lock_key AND h.principal = is_present.principal);
END;
COMMENT ON FUNCTION mqdb.is_present(bigint, text) IS 'Whether a session of this role holds this presence lock';

-- Presence keys are never reused: a released lock stays released, and a client that connects again has another key.
-- Rows locked by another session are left for the next round: a role can lock its own rows without blocking others. A
-- queue whose owner is not a member is also free. A call by a role that does not own the schema therefore has no effect
-- while a leader attends, and cannot declare a client silent earlier than RocketMQ would
-- (ConsumerManager.CHANNEL_EXPIRED_TIMEOUT).
CREATE FUNCTION mqdb.reap_clients(expiry interval) RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ids text[];
    roles text[];
    keys bigint[];
    left_groups text[];
BEGIN
    IF NOT mqdb.is_owner(session_user) THEN
        IF mqdb.is_attended() THEN
            RETURN;
        END IF;
        expiry := greatest(expiry, interval '120 seconds');
    END IF;
    SELECT array_agg(p.client_id), array_agg(p.principal), array_agg(p.lock_key) INTO ids, roles, keys
    FROM mqdb.presence p
    WHERE (p.lock_key, p.principal) NOT IN (SELECT h.lock_key, h.principal FROM mqdb.held_presence h);
    DELETE FROM mqdb.presence p
    WHERE p.ctid = ANY (ARRAY(
        SELECT q.ctid FROM mqdb.presence q
        JOIN unnest(ids, roles, keys) AS gone (client_id, principal, lock_key) USING (client_id, principal, lock_key)
        FOR UPDATE OF q SKIP LOCKED));
    WITH removed AS (
        DELETE FROM mqdb.client c
        WHERE c.ctid = ANY (ARRAY(
            SELECT d.ctid FROM mqdb.client d
            WHERE d.heartbeat_at < mqdb.now() - expiry
               OR (d.client_id, d.principal) NOT IN (SELECT p.client_id, p.principal FROM mqdb.presence p)
            FOR UPDATE SKIP LOCKED))
        RETURNING c.client_id, c.group_name, c.kind
    ), freed AS (
        UPDATE mqdb.consumer_offset o SET owner = NULL, updated_at = mqdb.now()
        WHERE (o.group_id, o.queue_key) IN (
            SELECT f.group_id, f.queue_key
            FROM removed r
            JOIN mqdb.subscription_group g ON g.group_name = r.group_name
            JOIN mqdb.consumer_offset f ON f.group_id = g.group_id AND f.owner = r.client_id
            WHERE r.kind = 'CONSUMER'
            FOR UPDATE OF f SKIP LOCKED)
    )
    SELECT array_agg(DISTINCT r.group_name) INTO left_groups FROM removed r WHERE r.kind = 'CONSUMER';
    RETURN QUERY SELECT name FROM unnest(left_groups) AS name ORDER BY name;
END
$$;
COMMENT ON FUNCTION mqdb.reap_clients(interval) IS 'Removes clients that have been silent for longer than the expiry or have lost their connection; returns the groups of the removed consumers';
