-- Java's String.hashCode: h = 31 h + unit over UTF-16 units, 32 bits, signed. The text becomes an array first: substr would
-- count from the beginning for each character.
CREATE FUNCTION mqdb.java_hash(string text) RETURNS integer
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    hash bigint := 0;
    letter text;
    point integer;
BEGIN
    FOREACH letter IN ARRAY string_to_array(string, NULL) LOOP
        point := ascii(letter);
        IF point > 65535 THEN  -- a surrogate pair in Java
            hash := (hash * 31 + 55296 + ((point - 65536) >> 10)) & 4294967295;
            point := 56320 + ((point - 65536) & 1023);
        END IF;
        hash := (hash * 31 + point) & 4294967295;
    END LOOP;
    RETURN CASE WHEN hash > 2147483647 THEN hash - 4294967296 ELSE hash END;
END
$$;
COMMENT ON FUNCTION mqdb.java_hash(text) IS 'The result of Java String.hashCode';
