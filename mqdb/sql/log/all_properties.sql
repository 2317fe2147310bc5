-- These three are not stored among the properties, because they have columns.
CREATE FUNCTION mqdb.all_properties(properties jsonb, tags text, keys text, msg_id uuid) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN properties || jsonb_object(
    ARRAY['UNIQ_KEY', mqdb.unique_id_text(msg_id)]
    || CASE WHEN tags IS NULL THEN '{}' ELSE ARRAY['TAGS', tags] END
    || CASE WHEN keys IS NULL THEN '{}' ELSE ARRAY['KEYS', keys] END);
COMMENT ON FUNCTION mqdb.all_properties(jsonb, text, text, uuid) IS 'All properties of a record, including TAGS, KEYS and UNIQ_KEY from its columns';
