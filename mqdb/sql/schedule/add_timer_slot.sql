-- Adds a partition for waiting messages, unless it exists. CREATE TABLE and ATTACH: the parent gets only a SHARE UPDATE
-- EXCLUSIVE lock, so that its readers can continue.
CREATE FUNCTION mqdb.add_timer_slot(number integer, first_ms bigint, past_ms bigint) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF (number >= 1 AND first_ms >= 0 AND first_ms <= 253402300799999 AND past_ms > first_ms) IS NOT TRUE THEN
        PERFORM mqdb.refuse_parameter('slot', concat_ws(' ', number, 'from', first_ms, 'to before', past_ms, 'ms'),
            'give a number from 1 on, and times of the years 1970 to 9999');
    END IF;
    LOCK TABLE mqdb.timer_slot IN SHARE ROW EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM mqdb.timer_slot s WHERE s.slot = number) THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE mqdb.timer_%1$s (LIKE mqdb.timer INCLUDING DEFAULTS INCLUDING STORAGE)', number);
    EXECUTE format('ALTER TABLE mqdb.timer_%s REPLICA IDENTITY FULL', number);
    EXECUTE format('ALTER TABLE mqdb.timer ATTACH PARTITION mqdb.timer_%1$s FOR VALUES IN (%1$s)', number);
    EXECUTE format('COMMENT ON TABLE mqdb.timer_%s IS %L', number, format('Messages to be delivered from %s UTC on',
        to_char(to_timestamp(first_ms / 1000) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI')));
    INSERT INTO mqdb.timer_slot (slot, first_ms, past_ms) VALUES (number, first_ms, past_ms);
    RETURN true;
END
$$;
COMMENT ON FUNCTION mqdb.add_timer_slot(integer, bigint, bigint) IS 'Adds a partition for waiting messages; false if it already exists';
