-- For people: views show a body as text if it is text. Not parallel: before PostgreSQL 17 a block with EXCEPTION fails
-- while other workers run.
CREATE FUNCTION mqdb.body_text(body bytea) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN convert_from(body, 'UTF8');
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION mqdb.body_text(bytea) IS 'The body as text; NULL if it is not UTF-8';
