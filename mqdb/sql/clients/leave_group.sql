-- The queues that a consumer owns or has locked become free.
CREATE FUNCTION mqdb.leave_group(group_name text, client_id text, kind text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    id integer;
BEGIN
    IF kind = 'CONSUMER' THEN  -- a producer's group is a word of its role
        leave_group.group_name := mqdb.full_group(leave_group.group_name);
        id := mqdb.check_member(leave_group.group_name);
    END IF;
    DELETE FROM mqdb.client c
    WHERE c.client_id = leave_group.client_id AND c.group_name = leave_group.group_name AND c.kind = leave_group.kind
      AND (c.kind = 'CONSUMER' OR c.principal = session_user OR mqdb.is_owner(session_user));
    IF kind = 'CONSUMER' THEN
        UPDATE mqdb.consumer_offset o SET owner = NULL, updated_at = mqdb.now()
        WHERE o.group_id = id AND o.owner = leave_group.client_id;
        DELETE FROM mqdb.queue_lock l WHERE l.group_id = id AND l.owner = leave_group.client_id;
    END IF;
END
$$;
COMMENT ON FUNCTION mqdb.leave_group(text, text, text) IS 'Removes a client from a group';
