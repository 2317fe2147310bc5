-- Spares senders the notification. Clients that dispatch because there is no leader call it: a call by a role with few
-- rights has no effect while a leader attends.
CREATE FUNCTION mqdb.stay_awake() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF mqdb.is_owner(session_user)
        OR current_setting('transaction_isolation') = 'read committed' AND NOT mqdb.is_attended()  -- by a new snapshot
    THEN
        PERFORM setval('mqdb.dispatcher_state', 2);
    END IF;
END
$$;
COMMENT ON FUNCTION mqdb.stay_awake() IS 'Notes that a process dispatches without sleeping, so that appends need not notify';
