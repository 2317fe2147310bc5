-- The one clock of the broker. Tests move it with SET mqdb.clock_offset = '1 hour'.
CREATE FUNCTION mqdb.now() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$
    SELECT clock_timestamp() + coalesce(nullif(current_setting('mqdb.clock_offset', true), ''), '0')::interval
$$;
COMMENT ON FUNCTION mqdb.now() IS 'clock_timestamp() plus the setting mqdb.clock_offset';
