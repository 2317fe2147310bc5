-- Pop: the members of a group take messages from any queue, and acknowledge each message. Queues have no owners.
-- RocketMQ: PopMessageProcessor.
--
-- The offset of the group is the cursor of a queue, and its row of consumer_offset is the lock for new messages. A pop
-- appends the new position of the cursor to offset_commit, which is folded every 5 s, because versions of a single row
-- would pile up under an old snapshot. A pop inserts one row in pop_batch for up to 64 messages, with a bit for each
-- message in flight. An ack clears bits; the last ack deletes the row. When visible_at has passed, the row is due, and
-- a pop delivers its remaining messages under a new batch_id, with attempt + 1. The visible_at of a failed message is
-- changed, so nothing is copied until the message is dead. The functions run with the rights of the owner, because
-- members may not delete anything.

-- Returns the group for a member that pops, and whether the role is the owner, whose rights need no check. Popped
-- messages can still be acknowledged when the group has changed to pulling (`has_to_pop`).
CREATE FUNCTION mqdb.popping_group(group_name text, has_to_pop boolean DEFAULT true, OUT of_group mqdb.subscription_group, OUT is_owner boolean)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    is_owner := mqdb.is_owner(session_user);
    IF NOT is_owner THEN
        PERFORM mqdb.check_member(popping_group.group_name);
    END IF;
    SELECT * INTO of_group FROM mqdb.subscription_group g WHERE g.group_name = mqdb.full_group(popping_group.group_name);
    IF of_group.group_id IS NULL THEN
        PERFORM mqdb.refuse_parameter('group_name', popping_group.group_name, 'is not a group');
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM mqdb.refuse_isolation('pop');
    ELSIF has_to_pop AND of_group.consume_mode <> 'POP' THEN
        RAISE EXCEPTION 'group "%" pulls, so it cannot pop', mqdb.own_name(of_group.group_name)
            USING ERRCODE = 'MQ206', DETAIL = jsonb_build_object(
                'group', mqdb.own_name(of_group.group_name), 'stored', lower(of_group.consume_mode), 'wanted', 'pop');
    END IF;
END
$$;
COMMENT ON FUNCTION mqdb.popping_group(text, boolean) IS 'Returns a group for one of its members that pops; raises an error if the role may not be a member, or if the group does not exist';

CREATE FUNCTION mqdb.check_invisible(invisible interval, shortest interval) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF invisible IS NULL OR invisible < shortest OR invisible > '12 hours' THEN
        PERFORM mqdb.refuse_parameter('invisible', invisible::text, format('must be from %s to 12:00:00', shortest));
    END IF;
END
$$;
COMMENT ON FUNCTION mqdb.check_invisible(interval, interval) IS 'Raises an error unless this invisible time is allowed';

CREATE FUNCTION mqdb.check_pop(client_id text, invisible interval, wanted integer) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF octet_length(client_id) > 1024 OR client_id IS NULL THEN
        PERFORM mqdb.refuse_parameter('client_id', client_id, 'must have up to 1,024 bytes');
    ELSIF wanted IS NULL OR wanted NOT BETWEEN 1 AND 1024 THEN
        PERFORM mqdb.refuse_parameter('wanted', wanted::text, 'must be from 1 to 1,024');
    ELSIF invisible IS NULL OR invisible NOT BETWEEN '1 ms' AND '12 hours' THEN
        PERFORM mqdb.check_invisible(invisible, '1 ms');
    END IF;
END
$$;
COMMENT ON FUNCTION mqdb.check_pop(text, interval, integer) IS 'Raises an error unless the arguments of a pop are valid';

-- -- receipt handles -------------------------------------------------------------------------------

-- Hexadecimal digits: history, group, queue, batch, the expiry of the handle in microseconds since 1970, and a bit for
-- each message of the batch to which the handle refers. Handles of one batch can therefore be combined
-- (`mqdb/common/receipt_handle.py`).
CREATE FUNCTION mqdb.receipt_handle(batch mqdb.pop_batch, messages bigint) RETURNS text
LANGUAGE sql STABLE
RETURN lpad(to_hex(mqdb.history()), 16, '0') || lpad(to_hex((batch).group_id), 8, '0') || lpad(to_hex((batch).queue_key), 8, '0')
    || lpad(to_hex((batch).batch_id), 16, '0') || lpad(to_hex((extract(epoch FROM (batch).visible_at) * 1000000)::bigint), 16, '0')
    || lpad(to_hex(messages), 16, '0');
COMMENT ON FUNCTION mqdb.receipt_handle(mqdb.pop_batch, bigint) IS 'The receipt handle for messages of a batch';

CREATE TYPE mqdb.receipt AS (ordinal bigint, queue_key integer, batch_id bigint, messages bigint);
COMMENT ON TYPE mqdb.receipt IS 'A decoded receipt handle. batch_id is NULL if the handle is not valid';

-- A handle is invalid if it has expired, belongs to another group or another history of the log, or is not a handle.
-- STABLE, because PostgreSQL only inlines such functions into the calling statement.
CREATE FUNCTION mqdb.receipts(id integer, handles text[]) RETURNS SETOF mqdb.receipt
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT given.ordinal,
           ('x' || substr(good.handle, 25, 8))::bit(32)::integer,
           ('x' || substr(good.handle, 33, 16))::bit(64)::bigint,
           ('x' || substr(good.handle, 65, 16))::bit(64)::bigint
    FROM unnest(handles) WITH ORDINALITY AS given (handle, ordinal)
    CROSS JOIN (SELECT (extract(epoch FROM mqdb.now()) * 1000000)::bigint AS us, mqdb.history() AS history OFFSET 0) AS now
    LEFT JOIN LATERAL (
        SELECT given.handle WHERE given.handle ~ '^[0-9a-f]{80}$'
    ) AS good ON ('x' || substr(good.handle, 1, 16))::bit(64)::bigint = now.history
             AND ('x' || substr(good.handle, 17, 8))::bit(32)::integer = id
             AND ('x' || substr(good.handle, 49, 16))::bit(64)::bigint > now.us;
END;
COMMENT ON FUNCTION mqdb.receipts(integer, text[]) IS 'Decodes the receipt handles of a group';
REVOKE EXECUTE ON FUNCTION mqdb.receipts(integer, text[]) FROM PUBLIC;

-- The positions of the lowest `wanted` bits.
CREATE FUNCTION mqdb.places_of(in_flight bigint, wanted bigint DEFAULT 64) RETURNS integer[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ARRAY(SELECT place FROM generate_series(0, 63) AS place WHERE in_flight & (1::bigint << place) <> 0 ORDER BY place LIMIT wanted);
COMMENT ON FUNCTION mqdb.places_of(bigint, bigint) IS 'The positions of the set bits, in ascending order';

CREATE FUNCTION mqdb.first_in_flight(batch mqdb.pop_batch) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (SELECT (batch).first_offset + coalesce((batch).steps[place + 1], place) FROM unnest(mqdb.places_of((batch).in_flight, 1)) AS place);
COMMENT ON FUNCTION mqdb.first_in_flight(mqdb.pop_batch) IS 'The lowest queue offset of a batch that is in flight';

-- -- pop -------------------------------------------------------------------------------------------

CREATE TYPE mqdb.popped AS (
    queue_key integer, first_offset bigint, last_offset bigint, steps integer[], segment integer, attempt integer, receipt_handle text);
COMMENT ON TYPE mqdb.popped IS 'Messages of a queue that are in flight: those whose bits are in the handle, at first_offset and the following steps, up to last_offset';

-- In an ordered group, a queue waits for its messages in flight.
CREATE FUNCTION mqdb.without_in_flight(id integer, queue_keys integer[]) RETURNS integer[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN ARRAY(SELECT k FROM unnest(queue_keys) AS k WHERE NOT EXISTS (
        SELECT FROM mqdb.pop_batch b WHERE b.group_id = id AND b.queue_key = k));
END
$$;
COMMENT ON FUNCTION mqdb.without_in_flight(integer, integer[]) IS 'The queues among these in which a group has no messages in flight';
REVOKE EXECUTE ON FUNCTION mqdb.without_in_flight(integer, integer[]) FROM PUBLIC;

-- Removes messages from a row that the caller has locked.
CREATE FUNCTION mqdb.take_out(batch mqdb.pop_batch, messages bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF batch.in_flight = messages THEN
        DELETE FROM mqdb.pop_batch b WHERE b.group_id = batch.group_id AND b.queue_key = batch.queue_key
            AND b.batch_id = batch.batch_id AND b.visible_at = batch.visible_at;
    ELSE
        UPDATE mqdb.pop_batch b SET in_flight = batch.in_flight & ~messages WHERE b.group_id = batch.group_id
            AND b.queue_key = batch.queue_key AND b.batch_id = batch.batch_id AND b.visible_at = batch.visible_at;
    END IF;
END
$$;
COMMENT ON FUNCTION mqdb.take_out(mqdb.pop_batch, bigint) IS 'Removes messages from those in flight';
REVOKE EXECUTE ON FUNCTION mqdb.take_out(mqdb.pop_batch, bigint) FROM PUBLIC;

CREATE VIEW mqdb.pop_cursor AS
SELECT o.group_id, o.queue_key, greatest(o.next_offset, c.next_offset) AS next_offset, greatest(o.segment, c.segment) AS segment,
       greatest(o.updated_at, c.committed_at) AS popped_at, o.next_offset AS folded_offset, o.updated_at AS folded_at, o.owner, o.epoch,
       o.owner IS NULL OR NOT EXISTS (
           SELECT FROM mqdb.client m JOIN mqdb.subscription_group g ON g.group_name = m.group_name
           WHERE m.client_id = o.owner AND m.kind = 'CONSUMER' AND g.group_id = o.group_id) AS is_free
FROM mqdb.consumer_offset o LEFT JOIN LATERAL (
    SELECT c.next_offset, c.segment, c.committed_at FROM mqdb.offset_commit c
    WHERE c.group_id = o.group_id AND c.queue_key = o.queue_key AND c.from_offset >= o.next_offset
    ORDER BY c.from_offset DESC LIMIT 1) c ON true;
COMMENT ON VIEW mqdb.pop_cursor IS 'Next offsets of groups in their queues, including commits that are not folded yet, and whether no member owns the queue';

-- Locks the queues from which a pop takes new messages, starting with the queue that was popped least recently. A queue
-- that a member still owns since the group pulled is left to that member until it is released. If other sessions hold
-- all queues, the function waits briefly for the lock of one queue. With a single queue it always waits, because
-- sessions that skip the lock would never get their turn among many. A row without a queue means that other sessions
-- still hold all queues.
CREATE FUNCTION mqdb.pop_queues(group_name text, queue_keys integer[], wanted integer)
RETURNS TABLE (queue_key integer, next_offset bigint, segment integer)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET jit = off
SET enable_seqscan = off
SET lock_timeout = '100ms'
AS $$
#variable_conflict use_column
DECLARE
    popping record;
    newest integer := (SELECT c.segment FROM mqdb.checkpoint c WHERE c.service = 'dispatch' ORDER BY c.seq DESC LIMIT 1);
    id integer;
    filled integer[];
    needed integer;
    locked integer[];
BEGIN
    popping := mqdb.popping_group(pop_queues.group_name);
    IF wanted IS NULL OR wanted NOT BETWEEN 1 AND 1024 THEN
        PERFORM mqdb.check_pop('', '1 s', wanted);
    END IF;
    IF NOT popping.is_owner THEN
        queue_keys := ARRAY(SELECT own.queue_key FROM mqdb.own_queue own WHERE own.queue_key = ANY (queue_keys) AND own.may_read);
    END IF;
    IF (popping.of_group).consume_message_orderly THEN
        queue_keys := mqdb.without_in_flight((popping.of_group).group_id, queue_keys);
    END IF;
    IF NOT (popping.of_group).consume_enable THEN
        RETURN;
    END IF;
    id := (popping.of_group).group_id;
    SELECT array_agg(c.queue_key ORDER BY c.popped_at, c.queue_key), count(*) FILTER (WHERE c.before < wanted)
    INTO filled, needed
    FROM (SELECT f.*, sum(f.unread) OVER (ORDER BY f.popped_at, f.queue_key) - f.unread AS before
          FROM (SELECT o.queue_key, o.popped_at, coalesce(
                    (SELECT r.last_offset + 1 FROM mqdb.queue_run r
                     WHERE r.queue_key = q.queue_key AND r.segment >= newest
                     ORDER BY r.last_offset DESC LIMIT 1), q.end_offset) - greatest(o.next_offset, q.base_offset) AS unread
                FROM mqdb.pop_cursor o JOIN mqdb.queue q USING (queue_key)
                WHERE o.group_id = id AND o.queue_key = ANY (queue_keys) AND o.is_free) f
          WHERE f.unread > 0) c;
    IF filled IS NULL THEN
        RETURN;
    END IF;
    IF cardinality(filled) > 1 THEN
        SELECT array_agg(l.queue_key) INTO locked
        FROM (SELECT o.queue_key FROM mqdb.consumer_offset o
              WHERE o.group_id = id AND o.queue_key = ANY (filled)
              ORDER BY array_position(filled, o.queue_key) LIMIT needed FOR NO KEY UPDATE SKIP LOCKED) l;
    END IF;
    IF locked IS NULL THEN
        BEGIN
            SELECT ARRAY[o.queue_key] INTO locked
            FROM mqdb.consumer_offset o WHERE o.group_id = id AND o.queue_key = filled[1] FOR NO KEY UPDATE;
        EXCEPTION WHEN lock_not_available THEN
            RETURN NEXT;
            RETURN;
        END;
    END IF;
    -- These statements have snapshots newer than the locks. The group may have changed to pulling by now.
    IF (popping.of_group).consume_message_orderly THEN
        locked := mqdb.without_in_flight(id, locked);
    END IF;
    RETURN QUERY
    SELECT o.queue_key, greatest(o.next_offset, q.base_offset), o.segment FROM mqdb.pop_cursor o JOIN mqdb.queue q USING (queue_key)
    WHERE o.group_id = id AND o.queue_key = ANY (locked) AND o.is_free
      AND EXISTS (SELECT FROM mqdb.subscription_group g WHERE g.group_id = id AND g.consume_mode = 'POP')
    ORDER BY array_position(filled, o.queue_key);
END
$$;
COMMENT ON FUNCTION mqdb.pop_queues(text, integer[], integer) IS 'Locks queues of a group that have messages, and returns their next offsets';

-- Takes up to `wanted` messages that were read from the queues locked by pop_queues, and moves the cursors. The arrays
-- have one value for each row of a pull (`pull_from` in mqdb/store/dispatch/consume_queue.py): the queue and its end,
-- the newest segment, the entry, the size of its body, and the last offset that the filter examined. A single statement
-- locks, reads and takes.
CREATE FUNCTION mqdb.pop_take(
    group_name text, client_id text, invisible interval, wanted integer, max_bytes bigint, is_durable boolean,
    queue_keys integer[], max_offsets bigint[], newest integer[], offsets bigint[], segments integer[], sizes integer[],
    seen_offsets bigint[], seen_segments integer[]
) RETURNS SETOF mqdb.popped
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET jit = off
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    popping record := mqdb.popping_group(pop_take.group_name);
    id integer := (popping.of_group).group_id;
    now timestamptz := mqdb.now();
    taken record;
    place record;
    part bigint[];
    batch mqdb.pop_batch;
BEGIN
    PERFORM mqdb.check_pop(client_id, invisible, wanted);
    IF cardinality(queue_keys) <> ALL (ARRAY[cardinality(max_offsets), cardinality(newest), cardinality(offsets), cardinality(segments),
                                             cardinality(sizes), cardinality(seen_offsets), cardinality(seen_segments)])
        OR NOT popping.is_owner AND EXISTS (
            SELECT FROM unnest(queue_keys, max_offsets, newest, offsets) AS g (queue_key, max_offset, newest, queue_offset)
            WHERE NOT EXISTS (SELECT FROM mqdb.own_queue own WHERE own.queue_key = g.queue_key AND own.may_read)
               OR g.max_offset IS NULL OR g.newest IS NULL
               OR g.queue_offset NOT BETWEEN greatest(g.max_offset - 1000000000, 0) AND g.max_offset - 1)
    THEN
        PERFORM mqdb.refuse_parameter('queue_keys', left(queue_keys::text, 100), 'must be queues that may be read, with offsets in them');
    END IF;
    IF NOT is_durable THEN  -- if the server crashes, all handles from before are refused anyway
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    FOR taken IN
        SELECT r.queue_key, max(r.max_offset) AS max_offset, max(r.newest) AS newest,
               array_agg(r.queue_offset ORDER BY r.number) FILTER (WHERE r.is_kept) AS offsets,
               min(r.segment) FILTER (WHERE r.is_kept) AS first_segment, max(r.segment) FILTER (WHERE r.is_kept) AS last_segment,
               max(r.seen_offset) AS seen_offset, max(r.seen_segment) AS seen_segment,
               -- Whether there may be more matching messages before the examined ones.
               count(r.queue_offset) >= wanted OR sum(r.size) >= max_bytes OR bool_or(r.queue_offset IS NOT NULL AND NOT r.is_kept)
                   AS has_more
        FROM (SELECT g.*, g.queue_offset IS NOT NULL
                     AND count(g.queue_offset) OVER (ORDER BY g.number ROWS UNBOUNDED PRECEDING) <= wanted AS is_kept
              FROM unnest(queue_keys, max_offsets, newest, offsets, segments, sizes, seen_offsets, seen_segments) WITH ORDINALITY
                  AS g (queue_key, max_offset, newest, queue_offset, segment, size, seen_offset, seen_segment, number)) r
        GROUP BY r.queue_key
        -- Otherwise a record was missing: the caller read too few segments.
        HAVING count(*) FILTER (WHERE r.queue_offset IS NOT NULL AND r.size IS NULL) = 0
    LOOP
        SELECT o.*, CASE WHEN taken.has_more THEN taken.offsets[cardinality(taken.offsets)]
                         ELSE greatest(taken.seen_offset, taken.offsets[cardinality(taken.offsets)]) END + 1 AS new_offset,
               CASE WHEN taken.has_more THEN taken.last_segment ELSE greatest(taken.seen_segment, taken.last_segment) END AS new_segment
        INTO place
        FROM mqdb.pop_cursor o WHERE o.group_id = id AND o.queue_key = taken.queue_key;
        CONTINUE WHEN place.new_offset > place.next_offset IS NOT TRUE;
        IF place.new_offset = taken.max_offset THEN  -- what comes next, dispatch has yet to write
            place.new_segment := taken.newest;
        END IF;
        IF place.owner IS NULL AND place.folded_at BETWEEN now - interval '5 s' AND now THEN
            INSERT INTO mqdb.offset_commit (group_id, queue_key, from_offset, next_offset, segment, epoch)
            VALUES (id, place.queue_key, place.next_offset, place.new_offset, place.new_segment, place.epoch);
        ELSE
            UPDATE mqdb.consumer_offset o
            SET next_offset = place.new_offset, segment = place.new_segment, updated_at = now, owner = NULL,
                epoch = CASE WHEN o.owner IS NULL THEN o.epoch ELSE mqdb.next_epoch(o.epoch) END
            WHERE o.group_id = id AND o.queue_key = place.queue_key;
            PERFORM mqdb.take_offset_commits(pop_take.group_name, ARRAY[place.queue_key], ARRAY[place.folded_offset]);
        END IF;
        FOR number IN 0..coalesce(cardinality(taken.offsets) - 1, -1) BY 64 LOOP
            part := taken.offsets[number + 1 : number + 64];
            INSERT INTO mqdb.pop_batch AS b (group_id, queue_key, visible_at, segment, first_offset, steps, in_flight, client_id)
            VALUES (id, place.queue_key, now + invisible, taken.first_segment, part[1],
                    CASE WHEN part[cardinality(part)] - part[1] >= cardinality(part)
                         THEN ARRAY(SELECT (o.queue_offset - part[1])::integer
                                    FROM unnest(part) WITH ORDINALITY AS o (queue_offset, n) ORDER BY n) END,
                    CASE WHEN cardinality(part) = 64 THEN -1 ELSE ~(-1::bigint << cardinality(part)) END, pop_take.client_id)
            RETURNING b.* INTO batch;
            RETURN NEXT ROW (batch.queue_key, batch.first_offset, part[cardinality(part)], batch.steps, batch.segment, batch.attempt,
                             mqdb.receipt_handle(batch, batch.in_flight))::mqdb.popped;
        END LOOP;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mqdb.pop_take(text, text, interval, integer, bigint, boolean, integer[], bigint[], integer[], bigint[], integer[], integer[], bigint[], integer[]) IS 'Marks messages that were read from locked queues as in flight, and moves the cursors of the group';

-- Redelivers messages whose invisible time has passed, those due longest first. With `look_back`, only those whose time
-- passed within that period: under an old snapshot, the index still has entries for all deleted rows, and each look-up
-- would read them. In an ordered group, no message overtakes the messages in flight of its queue.
CREATE FUNCTION mqdb.pop_due(
    group_name text, client_id text, invisible interval, queue_keys integer[], wanted integer, look_back interval DEFAULT NULL
) RETURNS SETOF mqdb.popped
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET jit = off
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    popping record := mqdb.popping_group(pop_due.group_name);
    of_group mqdb.subscription_group := popping.of_group;
    now timestamptz := mqdb.now();
    -- In an ordered group, a message that was due earlier may have waited for another one.
    since timestamptz := CASE WHEN of_group.consume_message_orderly THEN '-infinity' ELSE coalesce(now - look_back, '-infinity') END;
    due mqdb.pop_batch;
    places integer[];
    taken bigint;
BEGIN
    PERFORM mqdb.check_pop(client_id, invisible, wanted);
    FOR due IN
        SELECT b.* FROM mqdb.pop_batch b
        WHERE b.group_id = of_group.group_id AND b.visible_at > since AND b.visible_at <= now
          AND b.queue_key = ANY (queue_keys) AND of_group.consume_enable
          AND (popping.is_owner OR EXISTS (SELECT FROM mqdb.own_queue own WHERE own.queue_key = b.queue_key AND own.may_read))
          AND (NOT of_group.consume_message_orderly OR NOT EXISTS (
              SELECT FROM mqdb.pop_batch e
              WHERE e.group_id = b.group_id AND e.queue_key = b.queue_key AND mqdb.first_in_flight(e) < mqdb.first_in_flight(b)))
        ORDER BY b.visible_at LIMIT wanted FOR UPDATE OF b SKIP LOCKED
    LOOP
        EXIT WHEN wanted <= 0;
        places := mqdb.places_of(due.in_flight, wanted);
        SELECT bit_or(1::bigint << place) INTO taken FROM unnest(places) AS place;
        PERFORM mqdb.take_out(due, taken);
        INSERT INTO mqdb.pop_batch (group_id, queue_key, visible_at, attempt, segment, first_offset, steps, in_flight, client_id)
        VALUES (due.group_id, due.queue_key, now + invisible, due.attempt + 1, due.segment, due.first_offset, due.steps, taken,
                pop_due.client_id)
        RETURNING pop_batch.* INTO due;
        RETURN NEXT ROW (due.queue_key, due.first_offset, due.first_offset + coalesce(due.steps[cardinality(due.steps)], 63), due.steps,
                         due.segment, due.attempt, mqdb.receipt_handle(due, taken))::mqdb.popped;
        wanted := wanted - cardinality(places);
    END LOOP;
END
$$;
COMMENT ON FUNCTION mqdb.pop_due(text, text, interval, integer[], integer, interval) IS 'Marks messages whose invisible time has passed as in flight again';

-- -- what becomes of it -----------------------------------------------------------------------------

-- The rows that contain messages of these receipts, with the bits of these messages.
CREATE FUNCTION mqdb.lock_batches(id integer, receipts mqdb.receipt[]) RETURNS TABLE (batch mqdb.pop_batch, messages bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT b, b.in_flight & w.messages
    FROM (SELECT r.queue_key, r.batch_id, bit_or(r.messages) AS messages FROM unnest(receipts) r
          WHERE r.batch_id IS NOT NULL GROUP BY r.queue_key, r.batch_id) w
    JOIN mqdb.pop_batch b ON b.group_id = id AND b.queue_key = w.queue_key AND b.batch_id = w.batch_id
    WHERE b.in_flight & w.messages <> 0
    ORDER BY b.queue_key, b.batch_id, b.visible_at FOR UPDATE OF b;
END
$$;
COMMENT ON FUNCTION mqdb.lock_batches(integer, mqdb.receipt[]) IS 'Locks the rows that contain messages of these receipts';
REVOKE EXECUTE ON FUNCTION mqdb.lock_batches(integer, mqdb.receipt[]) FROM PUBLIC;

-- Each answer says whether the handle is still valid; the handle of a message that is already acknowledged is valid
-- until it expires.
CREATE FUNCTION mqdb.ack(group_name text, receipt_handles text[], is_durable boolean DEFAULT true) RETURNS boolean[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET jit = off
SET enable_seqscan = off
AS $$
DECLARE
    of_group mqdb.subscription_group := (mqdb.popping_group(ack.group_name, false)).of_group;
    receipts mqdb.receipt[] := ARRAY(SELECT r FROM mqdb.receipts(of_group.group_id, receipt_handles) r ORDER BY r.ordinal);
    found record;
    freed text;
    left_over bigint := (SELECT sum(bit_count(g.messages::bit(64))) FROM (
        SELECT bit_or(r.messages) AS messages FROM unnest(receipts) r WHERE r.batch_id IS NOT NULL GROUP BY r.queue_key, r.batch_id) g);
BEGIN
    IF NOT is_durable THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    -- A second attempt if messages were not found: a change of their invisible time may have moved them while this call
    -- waited for a lock.
    FOR look IN 1..2 LOOP
        EXIT WHEN left_over > 0 IS NOT TRUE;
        FOR found IN SELECT * FROM mqdb.lock_batches(of_group.group_id, receipts) LOOP
            PERFORM mqdb.take_out(found.batch, found.messages);
            left_over := left_over - bit_count(found.messages::bit(64));
            IF (found.batch).in_flight = found.messages THEN
                freed := concat_ws(',', freed, (found.batch).queue_key);
            END IF;
        END LOOP;
    END LOOP;
    IF of_group.consume_message_orderly AND freed IS NOT NULL THEN  -- the members that wait may have the next messages now
        PERFORM pg_notify('mqdb_arrivals', mqdb.arrivals(freed));
    END IF;
    RETURN ARRAY(SELECT r.batch_id IS NOT NULL FROM unnest(receipts) WITH ORDINALITY AS r ORDER BY r.ordinality);
END
$$;
COMMENT ON FUNCTION mqdb.ack(text, text[], boolean) IS 'Acknowledges popped messages; returns for each receipt handle whether it is valid. RocketMQ: AckMessageProcessor';

-- Makes messages visible again after another time, counted from now. Returns new handles for those messages that are in
-- flight; NULL if no message is in flight, or if the handle is invalid. The old handle stays valid until its own time
-- has passed. With `is_unread`, the delivery is not counted, because no listener has read the message. RocketMQ:
-- ChangeInvisibleTimeProcessor.
CREATE FUNCTION mqdb.change_invisible(group_name text, receipt_handles text[], invisible interval, is_unread boolean DEFAULT false)
RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET jit = off
SET enable_seqscan = off
AS $$
DECLARE
    id integer := ((mqdb.popping_group(change_invisible.group_name, false)).of_group).group_id;
    until timestamptz;
    receipts mqdb.receipt[] := ARRAY(SELECT r FROM mqdb.receipts(id, receipt_handles) r);
    found record;
    batch mqdb.pop_batch;
    is_sooner boolean := false;
BEGIN
    PERFORM mqdb.check_invisible(invisible, '0');
    until := mqdb.now() + invisible;
    FOR found IN SELECT * FROM mqdb.lock_batches(id, receipts) LOOP
        batch := found.batch;
        PERFORM mqdb.take_out(batch, found.messages);
        is_sooner := is_sooner OR until < batch.visible_at;
        batch.visible_at := until;
        batch.in_flight := found.messages;
        IF is_unread THEN
            batch.attempt := greatest(batch.attempt - 1, 0);
        END IF;
        INSERT INTO mqdb.pop_batch AS own OVERRIDING SYSTEM VALUE SELECT batch.*
        ON CONFLICT (group_id, queue_key, batch_id, visible_at) DO UPDATE SET in_flight = own.in_flight | excluded.in_flight;
    END LOOP;
    IF is_sooner THEN  -- for those that wait until another time
        PERFORM pg_notify('mqdb_arrivals', mqdb.arrivals(string_agg(DISTINCT r.queue_key::text, ','))) FROM unnest(receipts) r;
    END IF;
    RETURN ARRAY(
        SELECT CASE WHEN b.in_flight & r.messages <> 0 THEN mqdb.receipt_handle(b, b.in_flight & r.messages) END
        FROM unnest(receipts) r
        LEFT JOIN mqdb.pop_batch b ON b.group_id = id AND b.queue_key = r.queue_key AND b.batch_id = r.batch_id AND b.visible_at = until
        ORDER BY r.ordinal);
END
$$;
COMMENT ON FUNCTION mqdb.change_invisible(text, text[], interval, boolean) IS 'Makes popped messages visible again after another time; returns new receipt handles. RocketMQ: ChangeInvisibleTimeProcessor';
