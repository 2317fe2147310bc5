-- The notification about queues that have new messages: their keys, or * if there are too many keys for a notification.
CREATE FUNCTION mqdb.arrivals(queue_keys text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 'a:' || CASE WHEN length(queue_keys) < 7000 THEN queue_keys ELSE '*' END;
COMMENT ON FUNCTION mqdb.arrivals(text) IS 'The text of the notification about queues with new messages; the keys are separated by commas';
