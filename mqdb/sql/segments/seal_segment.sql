-- Seals a closed segment: from then on, a trigger refuses records, and all records in it are verified to be dispatched
-- and indexed. The lock for CREATE TRIGGER is only granted when all transactions that have written to the segment are
-- over; it is requested without waiting. Returns false if it is too early. Separate anti-joins, each with a hash: an OR
-- of them, or a nested loop, would be quadratic. A record whose id is covered by a span needs an entry only for its
-- keys.
CREATE FUNCTION mqdb.seal_segment(number integer) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan
SET jit = off
SET enable_nestloop = off
AS $$
DECLARE
    first_pos bigint;
    past_pos bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM mqdb.refuse_isolation('mqdb.seal_segment');
    END IF;
    SELECT s.start_pos, s.end_pos INTO first_pos, past_pos
    FROM mqdb.segment s WHERE s.segment = number AND s.state = 'closed';
    IF NOT FOUND THEN
        PERFORM mqdb.refuse_parameter('number', number::text, 'there is no such segment, or it is not closed');
    END IF;
    EXECUTE format('LOCK TABLE mqdb.commit_log_%s IN SHARE ROW EXCLUSIVE MODE NOWAIT', number);
    EXECUTE format('CREATE TRIGGER sealed BEFORE INSERT ON mqdb.commit_log_%s
                    FOR EACH ROW EXECUTE FUNCTION mqdb.refuse_sealed()', number);
    IF EXISTS (
        SELECT FROM mqdb.commit_log cl JOIN mqdb.queue q USING (queue_key)
        WHERE cl.log_pos >= first_pos AND cl.log_pos < past_pos
          AND NOT EXISTS (SELECT FROM (SELECT unnest(coalesce(r.positions, ARRAY[r.log_pos])) AS log_pos
                                   FROM mqdb.queue_run r WHERE r.segment >= number) cq WHERE cq.log_pos = cl.log_pos)
    ) OR EXISTS (
        SELECT FROM mqdb.commit_log cl JOIN mqdb.queue q USING (queue_key)
        WHERE cl.log_pos >= first_pos AND cl.log_pos < past_pos
          AND NOT EXISTS (SELECT FROM mqdb.message_index i WHERE i.segment >= number AND i.log_pos = cl.log_pos)
          AND NOT EXISTS (SELECT FROM mqdb.id_span s WHERE s.first_pos >> 10 = cl.log_pos >> 10 AND cl.keys IS NULL
                          AND cl.log_pos BETWEEN s.first_pos AND s.last_pos AND s.made_ms @> mqdb.unique_id_ms(cl.msg_id))
    ) THEN
        RAISE lock_not_available;  -- undoes the trigger
    END IF;
    UPDATE mqdb.segment s SET state = 'sealed', sealed_at = mqdb.now() WHERE s.segment = number;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;
COMMENT ON FUNCTION mqdb.seal_segment(integer) IS 'Seals a closed segment if no transaction can still write to it and all its records are dispatched; returns whether the segment was sealed';
