-- Follows the look-up of a queue in the coalesce of an append, so it is called only if the queue was not found. Without
-- it, the column would be NULL, and PostgreSQL would log a not-null violation with the whole record, which looks like
-- corruption. STABLE: the planner calls IMMUTABLE functions immediately, and a VOLATILE one adds a node to the plan of
-- an append with several records.
CREATE FUNCTION mqdb.refuse_append() RETURNS integer
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'nothing is stored: the queue is gone, or the server was restarted since the producer looked it up'
        USING ERRCODE = 'MQ301', DETAIL = jsonb_build_object('topic', ''),
              HINT = 'Nothing is damaged. A producer looks up the queues of the topic and sends the message again.';
END
$$;
COMMENT ON FUNCTION mqdb.refuse_append() IS 'Raises the error for an append whose queue no longer exists or belongs to another history';
