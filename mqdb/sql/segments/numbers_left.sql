-- A number drawn in a transaction is used up, even after a rollback, and there are 2^31 of each kind. Half of them are
-- reserved for the owner, so that no role can prevent the owner from creating a topic or a group. A trigger before the
-- statement, so that no number is drawn.
CREATE FUNCTION mqdb.numbers_left() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    numbers regclass := pg_get_serial_sequence(format('%I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME), TG_ARGV[0]);
BEGIN
    IF pg_sequence_last_value(numbers) >= 1073741824 AND NOT mqdb.is_owner(session_user) THEN
        PERFORM mqdb.refuse_parameter(TG_ARGV[0], pg_sequence_last_value(numbers)::text,
            'half of all numbers are used; only the owner of the broker may use the others');
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION mqdb.numbers_left() IS 'Refuses a row of a role that does not own the schema once half of the numbers of a table are used';
REVOKE EXECUTE ON FUNCTION mqdb.numbers_left() FROM PUBLIC;

CREATE TRIGGER numbers_left BEFORE INSERT ON mqdb.topic FOR EACH STATEMENT EXECUTE FUNCTION mqdb.numbers_left('topic_id');
CREATE TRIGGER numbers_left BEFORE INSERT ON mqdb.queue FOR EACH STATEMENT EXECUTE FUNCTION mqdb.numbers_left('queue_key');
CREATE TRIGGER numbers_left BEFORE INSERT ON mqdb.subscription_group FOR EACH STATEMENT EXECUTE FUNCTION mqdb.numbers_left('group_id');
