-- Consumers receive properties as texts. Numbers and booleans become their JSON text.
CREATE FUNCTION mqdb.text_properties(properties jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    name text;
    kind text;
BEGIN
    SELECT p.key, jsonb_typeof(p.value) INTO name, kind
    FROM jsonb_each(text_properties.properties) p WHERE jsonb_typeof(p.value) IN ('null', 'object', 'array') LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'property "%": the value is a JSON %; give a text, a number or a boolean', name, kind
            USING ERRCODE = 'MQ105', DETAIL = jsonb_build_object(
                'name', name, 'reason', format('the value is a JSON %s; give a text, a number or a boolean', kind));
    END IF;
    RETURN (SELECT coalesce(jsonb_object_agg(p.key, p.value), '{}') FROM jsonb_each_text(text_properties.properties) p);
END
$$;
COMMENT ON FUNCTION mqdb.text_properties(jsonb) IS 'Properties with numbers and booleans converted to text, {} for NULL; raises an error for other values';
