-- The code for a copy of a record: that of the original, for nobody works it out again. Where the original has waited,
-- its own tags_code is its time of delivery, and mqdb.place has put the code among its properties. A row that somebody
-- has written by hand may say none there: then its tag is hashed. What it says is taken as far as the log takes it.
CREATE FUNCTION mqdb.copied_code(tags_code bigint, tags text, properties jsonb) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN (properties ->> 'MQDB_TAGS_CODE') ~ '^-?[0-9]{1,10}$'
                THEN greatest((properties ->> 'MQDB_TAGS_CODE')::bigint, -2147483648)
            WHEN tags_code <= 2147483647 THEN tags_code
            ELSE mqdb.tag_code(tags) END;
COMMENT ON FUNCTION mqdb.copied_code(bigint, text, jsonb) IS 'The tags_code of a copy of the record with these columns';
