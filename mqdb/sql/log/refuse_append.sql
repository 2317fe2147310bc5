-- Stands behind a coalesce where an append has looked for its queue, so it is called only if the queue was not found. Without it
-- the column would be NULL, and PostgreSQL's log would have an ERROR of a not-null constraint with the whole record, which looks
-- like corruption. STABLE: the planner calls an IMMUTABLE one at once, and with a VOLATILE one the plan of an append of several
-- records has one more node.
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
COMMENT ON FUNCTION mqdb.refuse_append() IS 'Raises the error of an append whose queue is gone, or of another history';
