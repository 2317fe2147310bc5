-- The rights in mqdb.acl, expanded to queues, so that policies look up one row. When a right is granted or revoked, the
-- rows of its principal are rebuilt. A new queue gets rows for all principals with a right on its topic, and so does a
-- topic that becomes writable or stops being writable. A row that allows neither sending nor reading belongs to an
-- operator, who sees the queue and its first and last offsets. A transaction that adds queues locks mqdb.acl against
-- changes until its end, and then reads it; a transaction that changes rights waits for that lock before it writes, and
-- reads the queues afterwards. Each of them reads with a snapshot newer than its lock, which requires READ COMMITTED.
CREATE FUNCTION mqdb.add_acl_queues(principals text[], queue_keys integer[]) RETURNS void
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    INSERT INTO mqdb.acl_queue (principal, queue_key, may_send, may_read)
    SELECT a.principal, q.queue_key,
           bool_or(t.perm & 2 = 2 AND (a.access = 'SEND' OR a.access = 'READ' AND a.resource_type = 'GROUP')), bool_or(a.access = 'READ')
    FROM mqdb.acl a
    JOIN mqdb.topic t ON mqdb.is_covered(t.topic, a.resource_type, a.resource)
    JOIN mqdb.queue q USING (topic_id)
    WHERE (principals IS NULL OR a.principal = ANY (principals)) AND (queue_keys IS NULL OR q.queue_key = ANY (queue_keys))
      AND NOT EXISTS (SELECT FROM mqdb.principal p WHERE p.principal = a.principal AND NOT p.is_role)
    GROUP BY a.principal, q.queue_key;
END;
COMMENT ON FUNCTION mqdb.add_acl_queues(text[], integer[]) IS 'Adds the rows of acl_queue for these principals and queues; NULL stands for all';

CREATE FUNCTION mqdb.rights_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    principals text[];
BEGIN
    CASE TG_OP
        WHEN 'INSERT' THEN principals := ARRAY(SELECT DISTINCT n.principal FROM new_rights n);
        WHEN 'DELETE' THEN principals := ARRAY(SELECT DISTINCT o.principal FROM old_rights o);
        WHEN 'UPDATE' THEN principals := ARRAY(SELECT n.principal FROM new_rights n UNION SELECT o.principal FROM old_rights o);
        ELSE NULL;  -- TRUNCATE: of all
    END CASE;
    DELETE FROM mqdb.acl_queue a WHERE principals IS NULL OR a.principal = ANY (principals);
    PERFORM mqdb.add_acl_queues(principals, NULL);
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION mqdb.rights_changed() IS 'Rebuilds the rows of acl_queue for principals whose rights have changed';
REVOKE EXECUTE ON FUNCTION mqdb.rights_changed() FROM PUBLIC;

CREATE FUNCTION mqdb.queues_added() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM mqdb.refuse_isolation('mqdb.make_topic');
    END IF;
    LOCK TABLE mqdb.acl IN SHARE MODE;
    PERFORM mqdb.add_acl_queues(NULL, ARRAY(SELECT n.queue_key FROM new_queues n));
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION mqdb.queues_added() IS 'Adds the rows of acl_queue for new queues';
REVOKE EXECUTE ON FUNCTION mqdb.queues_added() FROM PUBLIC;

-- A topic that is not writable accepts no INSERTs by hand either. As when queues are added, rights cannot change during
-- this.
CREATE FUNCTION mqdb.perm_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    queue_keys integer[] := ARRAY(SELECT q.queue_key FROM mqdb.queue q WHERE q.topic_id = NEW.topic_id);
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN  -- it would bring back rights that were taken away
        PERFORM mqdb.refuse_isolation('mqdb.change_topic');
    END IF;
    LOCK TABLE mqdb.acl IN SHARE MODE;
    DELETE FROM mqdb.acl_queue a WHERE a.queue_key = ANY (queue_keys);
    PERFORM mqdb.add_acl_queues(NULL, queue_keys);
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION mqdb.perm_changed() IS 'Rebuilds the rows of acl_queue for a topic whose permission has changed';
REVOKE EXECUTE ON FUNCTION mqdb.perm_changed() FROM PUBLIC;

CREATE TRIGGER acl_granted AFTER INSERT ON mqdb.acl REFERENCING NEW TABLE AS new_rights
    FOR EACH STATEMENT EXECUTE FUNCTION mqdb.rights_changed();
CREATE TRIGGER acl_revoked AFTER DELETE ON mqdb.acl REFERENCING OLD TABLE AS old_rights
    FOR EACH STATEMENT EXECUTE FUNCTION mqdb.rights_changed();
CREATE TRIGGER acl_changed AFTER UPDATE ON mqdb.acl REFERENCING OLD TABLE AS old_rights NEW TABLE AS new_rights
    FOR EACH STATEMENT EXECUTE FUNCTION mqdb.rights_changed();
CREATE TRIGGER acl_truncated AFTER TRUNCATE ON mqdb.acl
    FOR EACH STATEMENT EXECUTE FUNCTION mqdb.rights_changed();
CREATE TRIGGER topic_closed AFTER UPDATE OF perm ON mqdb.topic
    FOR EACH ROW WHEN (OLD.perm & 2 <> NEW.perm & 2 AND OLD.topic = NEW.topic) EXECUTE FUNCTION mqdb.perm_changed();
CREATE TRIGGER queue_added AFTER INSERT ON mqdb.queue REFERENCING NEW TABLE AS new_queues
    FOR EACH STATEMENT EXECUTE FUNCTION mqdb.queues_added();
