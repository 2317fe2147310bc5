CREATE FUNCTION mqdb.tag_code(tag text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
-- No sent message has a longer tag, but an INSERT into the log can store one.
RETURN CASE WHEN octet_length(tag) <= 32767 THEN mqdb.java_hash(tag)::bigint ELSE 0 END;
COMMENT ON FUNCTION mqdb.tag_code(text) IS 'The value of consume_queue.tags_code for a tag; 0 without a tag, and for a tag of more than 32767 bytes';
