-- Like refuse_append, but for the commit of an exactly-once listener. It has to be an error, because COMMIT has already
-- been sent.
CREATE FUNCTION mqdb.refuse_commit(group_name text, queue_key integer, epoch bigint) RETURNS integer
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'nothing is committed: another member has taken the queue, or the server was restarted'
        USING ERRCODE = 'MQ402',
              DETAIL = jsonb_build_object('group', left(group_name, 200), 'queue', queue_key::text, 'epoch', epoch),
              HINT = 'Nothing is damaged. The transaction is rolled back, and the owner of the queue consumes the messages.';
END
$$;
COMMENT ON FUNCTION mqdb.refuse_commit(text, integer, bigint) IS 'Raises the error for a commit in a queue that its consumer does not own';

CREATE FUNCTION mqdb.refuse_unmarked_commit() RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'nothing is committed: the listener ended its transaction and started another one'
        USING ERRCODE = 'MQ403', DETAIL = jsonb_build_object('how', 'replaced'),
              HINT = 'A listener with exactly_once=True leaves COMMIT and ROLLBACK to its consumer.';
END
$$;
COMMENT ON FUNCTION mqdb.refuse_unmarked_commit() IS 'Raises the error for a commit outside the transaction that was passed to a listener';
