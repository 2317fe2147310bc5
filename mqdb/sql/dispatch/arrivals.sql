-- The announcement that queues have got messages: their keys, or * if these are too many for a notification of PostgreSQL.
CREATE FUNCTION mqdb.arrivals(queue_keys text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 'a:' || CASE WHEN length(queue_keys) < 7000 THEN queue_keys ELSE '*' END;
COMMENT ON FUNCTION mqdb.arrivals(text) IS 'The notification about queues that have got messages, by their keys with commas in between';
