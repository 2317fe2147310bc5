-- The entries of the consume queues, extracted from the runs that `mqdb.dispatch` writes: a row has at most 100
-- entries.

-- An array, because the planner would expect 1,000 rows from generate_series, and read the whole log for them.
CREATE FUNCTION mqdb.steps_back() RETURNS integer[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN '{99,98,97,96,95,94,93,92,91,90,89,88,87,86,85,84,83,82,81,80,79,78,77,76,75,74,73,72,71,70,69,68,67,66,65,64,63,62,61,60,59,58,57,56,55,54,53,52,51,50,49,48,47,46,45,44,43,42,41,40,39,38,37,36,35,34,33,32,31,30,29,28,27,26,25,24,23,22,21,20,19,18,17,16,15,14,13,12,11,10,9,8,7,6,5,4,3,2,1,0}'::integer[];
COMMENT ON FUNCTION mqdb.steps_back() IS 'The numbers 99 to 0: the distances of entries from the last entry in the longest run';

-- Runs with the rights of the owner, for views that do the same; consume_queue uses those of the caller. The order ties
-- plans to the index.
CREATE VIEW mqdb.every_entry AS
SELECT e.last_offset - e.back AS queue_offset,
       coalesce(e.positions[cardinality(e.positions) - e.back], e.log_pos) AS log_pos,
       coalesce(e.codes[cardinality(e.codes) - e.back], e.tags_code) AS tags_code,
       e.queue_key,
       e.segment,
       e.last_offset
FROM (SELECT r.*, unnest((mqdb.steps_back())[101 - coalesce(cardinality(r.positions), 1):]) AS back
      FROM mqdb.queue_run r ORDER BY r.last_offset) e;
COMMENT ON VIEW mqdb.every_entry IS 'Entries of all consume queues, for views that run with the rights of their owner';

CREATE VIEW mqdb.consume_queue WITH (security_invoker) AS
SELECT e.last_offset - e.back AS queue_offset,
       coalesce(e.positions[cardinality(e.positions) - e.back], e.log_pos) AS log_pos,
       coalesce(e.codes[cardinality(e.codes) - e.back], e.tags_code) AS tags_code,
       e.queue_key,
       e.segment,
       e.last_offset
FROM (SELECT r.*, unnest((mqdb.steps_back())[101 - coalesce(cardinality(r.positions), 1):]) AS back
      FROM mqdb.queue_run r) e;
COMMENT ON VIEW mqdb.consume_queue IS 'One entry for each message in each queue, with offsets 0, 1, 2, ... without gaps. RocketMQ: ConsumeQueue';
COMMENT ON COLUMN mqdb.consume_queue.last_offset IS 'Offset of the last entry in the same row of queue_run, which is 0 to 99 above queue_offset. Only this column is in the index: a search by offset has to restrict both, as mqdb.entries does';

-- PostgreSQL inlines this function, and then sees the partitions and the index. A LIMIT therefore reads no further than
-- necessary. Inlining requires a function that calls nothing volatile and has no rights or settings of its own. Sorted
-- by queue_offset as well, PostgreSQL 15 reads all that could match before it gives the first. There are at most as
-- many runs as entries that are asked for, so lone rows behind the range are not read.
CREATE FUNCTION mqdb.entries(
    queue_key integer, first_offset bigint, past_offset bigint DEFAULT 9223372036854775807,
    first_segment integer DEFAULT 0, last_segment integer DEFAULT 2147483647, codes bigint[] DEFAULT NULL
) RETURNS TABLE (queue_offset bigint, log_pos bigint, tags_code bigint, segment integer, last_offset bigint)
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT e.queue_offset,
           coalesce(e.positions[cardinality(e.positions) - (e.last_offset - e.queue_offset)::integer], e.log_pos),
           coalesce(e.codes[cardinality(e.codes) - (e.last_offset - e.queue_offset)::integer], e.tags_code),
           e.segment,
           e.last_offset
    FROM (
        SELECT generate_series(greatest(r.last_offset - coalesce(cardinality(r.positions), 1) + 1, entries.first_offset),
                               least(r.last_offset + 1, entries.past_offset) - 1) AS queue_offset, r.*
        FROM (
            SELECT r.* FROM mqdb.queue_run r
            WHERE r.queue_key = entries.queue_key AND r.segment >= entries.first_segment AND r.segment <= entries.last_segment
              AND r.last_offset >= entries.first_offset AND r.last_offset < least(entries.past_offset, 1::bigint << 62) + 99
              AND (entries.codes IS NULL OR r.tags_code = ANY (entries.codes) OR r.codes && entries.codes)
            ORDER BY r.last_offset
            LIMIT greatest(greatest(least(entries.past_offset, 1::bigint << 62), 0) - greatest(entries.first_offset, 0), 0)
        ) r ORDER BY r.last_offset
    ) e
    -- The bounds are repeated: with them, the planner expects 5 entries in a run; without them, 1,000.
    WHERE e.queue_offset >= entries.first_offset AND e.queue_offset < entries.past_offset
      AND (entries.codes IS NULL
           OR coalesce(e.codes[cardinality(e.codes) - (e.last_offset - e.queue_offset)::integer], e.tags_code) = ANY (entries.codes))
    ORDER BY e.last_offset;
END;
COMMENT ON FUNCTION mqdb.entries(integer, bigint, bigint, integer, integer, bigint[]) IS 'The entries of a queue from one offset to before another, in order; only entries with one of the codes, if codes are given';
