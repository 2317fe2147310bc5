CREATE FUNCTION mqdb.tag_code(tag text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT coalesce(mqdb.java_hash(tag), 0)::bigint $$;
COMMENT ON FUNCTION mqdb.tag_code(text) IS 'What consume_queue.tags_code holds for a tag; 0 without one';
