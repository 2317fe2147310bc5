-- Epochs are only compared for equality, so they may restart from 1. A member can write any epoch: without this
-- function, the queue could neither be taken nor reset after the largest one.
CREATE FUNCTION mqdb.next_epoch(epoch bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN epoch < 9223372036854775807 THEN epoch + 1 ELSE 1 END;
COMMENT ON FUNCTION mqdb.next_epoch(bigint) IS 'The epoch that follows a new owner of a queue, or a reset of its offset';
