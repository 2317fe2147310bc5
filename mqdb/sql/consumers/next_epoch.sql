-- Epochs are compared for equality only, so they may start again from 1. A member can write any epoch: without this, the queue could
-- neither be taken nor reset after the largest one.
CREATE FUNCTION mqdb.next_epoch(epoch bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN epoch < 9223372036854775807 THEN epoch + 1 ELSE 1 END;
COMMENT ON FUNCTION mqdb.next_epoch(bigint) IS 'The epoch of the next owner of a queue, and of a reset of its offset';
