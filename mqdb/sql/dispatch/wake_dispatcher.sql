-- Wakes the dispatcher when records are written while it sleeps. The rules are those of fall_asleep. It runs with the
-- rights of its owner, because a role that may send need not be able to set the state.
CREATE FUNCTION mqdb.wake_dispatcher() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pg_sequence_last_value('mqdb.log_pos') # mqdb.history() = pg_sequence_last_value('mqdb.placed') THEN
        RETURN NULL;  -- take_places has placed them: nothing waits
    END IF;
    IF current_setting('max_prepared_transactions') <> '0'
        OR (current_setting('synchronous_standby_names') <> ''
            AND current_setting('synchronous_commit') NOT IN ('off', 'local'))
    THEN
        -- PostgreSQL refuses PREPARE TRANSACTION after NOTIFY, and this transaction may be about to be prepared. And a
        -- commit that waits for a standby keeps the lock for which all other commits that notify wait.
        PERFORM setval('mqdb.dispatcher_state', 3);
    ELSE
        PERFORM pg_notify('mqdb_wake', '');
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION mqdb.wake_dispatcher() IS 'Wakes a sleeping dispatcher, with NOTIFY if possible';
-- No role can use it as a trigger on its own tables.
REVOKE EXECUTE ON FUNCTION mqdb.wake_dispatcher() FROM PUBLIC;

-- The condition is evaluated once for each statement, after its records. A sequence is read without MVCC, so the state is
-- that of this moment, however old the snapshot is. A sequence that was not used yet, as after a crash, counts as awake: the
-- dispatcher has lost its connection then, too. PostgreSQL plans the condition again for each statement, so it is short.
CREATE TRIGGER commit_log_wake AFTER INSERT ON mqdb.commit_log
    WHEN (pg_sequence_last_value('mqdb.dispatcher_state') <> 2)
    EXECUTE FUNCTION mqdb.wake_dispatcher();
