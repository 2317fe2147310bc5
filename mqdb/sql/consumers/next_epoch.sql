-- Only equal epochs mean anything, so they may begin anew. A member can write any: behind the last one nobody could take the queue or
-- reset its offset.
CREATE FUNCTION mqdb.next_epoch(epoch bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN epoch < 9223372036854775807 THEN epoch + 1 ELSE 1 END;
COMMENT ON FUNCTION mqdb.next_epoch(bigint) IS 'The epoch of the next owner of a queue, and of a reset of its offset';
