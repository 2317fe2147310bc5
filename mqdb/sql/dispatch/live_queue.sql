-- The queues that accept messages: all, except those of a deleted topic that the segment keeper has yet to remove
-- (mqdb.drop_topics). Each append reads only this table.
CREATE FUNCTION mqdb.queues_born() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO mqdb.live_queue (queue_key) SELECT n.queue_key FROM new_queues n;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION mqdb.queues_born() IS 'Adds the rows of live_queue for new queues';
REVOKE EXECUTE ON FUNCTION mqdb.queues_born() FROM PUBLIC;

CREATE TRIGGER queue_born AFTER INSERT ON mqdb.queue REFERENCING NEW TABLE AS new_queues
    FOR EACH STATEMENT EXECUTE FUNCTION mqdb.queues_born();
