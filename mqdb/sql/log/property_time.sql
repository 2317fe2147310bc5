-- For views: a property may contain any text. Not parallel: before PostgreSQL 17 a block with EXCEPTION fails while
-- other workers run.
CREATE FUNCTION mqdb.property_time(properties jsonb, name text) RETURNS timestamptz
LANGUAGE plpgsql STABLE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Only with a time zone: without one, the text would mean a different time in each session.
    IF (properties ->> name) ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.]+(Z|[+-][0-9:]+)$' THEN
        RETURN (properties ->> name)::timestamptz;
    END IF;
    RETURN NULL;
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION mqdb.property_time(jsonb, text) IS 'A property as a time; NULL if it is missing, or not ISO 8601 with a zone';
