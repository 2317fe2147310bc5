CREATE FUNCTION mqdb.unlock_queues(group_name text, client_id text, queue_keys integer[], epochs bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM mqdb.queue_lock l
    USING unnest(unlock_queues.queue_keys, unlock_queues.epochs) AS own (queue_key, epoch)
    WHERE l.group_id = mqdb.check_member(unlock_queues.group_name) AND l.owner = unlock_queues.client_id
      AND l.queue_key = own.queue_key AND l.epoch = own.epoch;
END
$$;
COMMENT ON FUNCTION mqdb.unlock_queues(text, text, integer[], bigint[]) IS 'Removes the locks of a member from queues, if the locks have these epochs';
