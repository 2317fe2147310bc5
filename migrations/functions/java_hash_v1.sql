-- Java's String.hashCode: h = 31 h + unit over UTF-16 units, 32 bits, signed.
CREATE FUNCTION mqdb.java_hash(string text) RETURNS integer
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
AS $$
DECLARE
    hash bigint := 0;
    point integer;
BEGIN
    FOR i IN 1 .. length(string) LOOP
        point := ascii(substr(string, i, 1));
        IF point > 65535 THEN  -- a surrogate pair in Java
            hash := (hash * 31 + 55296 + ((point - 65536) >> 10)) & 4294967295;
            point := 56320 + ((point - 65536) & 1023);
        END IF;
        hash := (hash * 31 + point) & 4294967295;
    END LOOP;
    RETURN CASE WHEN hash > 2147483647 THEN hash - 4294967296 ELSE hash END;
END
$$;
COMMENT ON FUNCTION mqdb.java_hash(text) IS 'Java String.hashCode';
