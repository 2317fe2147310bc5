-- The code for a copy of a record is that of the original, which is not computed again. If the original waited, its
-- tags_code is its delivery time, and mqdb.place has stored the code among its properties. A row written by hand may
-- lack this property; in that case, the tag is hashed. A code in the property is used if the log can store it.
CREATE FUNCTION mqdb.copied_code(tags_code bigint, tags text, properties jsonb) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN (properties ->> 'MQDB_TAGS_CODE') ~ '^-?[0-9]{1,10}$'
                THEN greatest((properties ->> 'MQDB_TAGS_CODE')::bigint, -2147483648)
            WHEN tags_code <= 2147483647 THEN tags_code
            ELSE mqdb.tag_code(tags) END;
COMMENT ON FUNCTION mqdb.copied_code(bigint, text, jsonb) IS 'The tags_code for a copy of the record with these columns';
