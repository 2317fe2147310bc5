-- For views: a property may contain any text. [0-9], because \d also matches other digits in some locales.
CREATE FUNCTION mqdb.property_number(properties jsonb, name text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN (properties ->> name) ~ '^[0-9]{1,18}$' THEN (properties ->> name)::bigint END;
COMMENT ON FUNCTION mqdb.property_number(jsonb, text) IS 'A property as a number; NULL if it is missing, or not a number of up to 18 digits';
