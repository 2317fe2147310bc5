-- Gives each record that has become visible the next offset of its queue, and announces the arrivals. begin_batch says
-- which records and why: at most max_rows of them, so that a transaction of any size takes no statement longer than that.
--
-- A transaction that fills a batch of stragglers alone is large. Others must not wait until it is done, and nothing in its
-- queues may come before it. So its queues go to a lane of their own: dispatch passes over them and goes on with all
-- others, and each call takes a batch of each lane as well, until the lane has caught up.
--
-- outcome: DISPATCHED | IDLE (nothing is left) | LOCKED (another session is at it) | ADOPTED (the database was restored
-- here, and one segment of it was compared; more says whether there are others)
--
-- It runs with the rights of the owner, so that consumers may dispatch if no leader does. The lock of a batch is kept
-- until the caller's transaction ends; so a role that does not own the schema gets LOCKED as long as a leader attends, and in
-- a database that was restored.
CREATE FUNCTION mqdb.dispatch(max_rows integer DEFAULT 50000, OUT outcome text, OUT messages integer, OUT more boolean)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    is_guest boolean;
    batch mqdb.batch;
    lanes mqdb.dispatch_lane[];
    lane mqdb.dispatch_lane;
    laned integer[] := '{}';  -- the queues of all lanes
    share integer;  -- of max_rows, for each lane
    done record;
    arrivals text;
BEGIN
    IF max_rows IS NULL OR max_rows < 1 THEN
        PERFORM mqdb.refuse_parameter('max_rows', max_rows::text, 'must be at least 1');
    END IF;
    messages := 0;
    more := false;
    is_guest := session_user <> current_user AND NOT mqdb.is_owner(session_user);
    IF is_guest AND mqdb.is_attended() THEN
        outcome := 'LOCKED';
        RETURN;
    END IF;
    batch := mqdb.begin_batch('dispatch');
    outcome := batch.outcome;
    IF outcome = 'FOREIGN' AND is_guest THEN
        outcome := 'LOCKED';
        RETURN;
    ELSIF outcome = 'FOREIGN' THEN
        SELECT a.messages, a.more INTO messages, more FROM mqdb.adopt() a;
        outcome := 'ADOPTED';
        RETURN;
    ELSIF outcome = 'LOCKED' THEN
        RETURN;
    END IF;

    lanes := ARRAY(SELECT l FROM mqdb.dispatch_lane l ORDER BY l.service);
    FOREACH lane IN ARRAY lanes LOOP
        laned := laned || lane.queue_keys;
    END LOOP;
    IF outcome = 'BATCH' THEN
        IF batch.segment > batch.last_segment THEN
            PERFORM mqdb.leave_segment(batch.last_segment);
            PERFORM mqdb.ensure_segments(2);
        END IF;
        -- Most of the records that it passes over may be in progress, or belong to a lane.
        batch.until_pos := least(batch.until_pos, batch.done_pos + 20 * max_rows::bigint);
        SELECT * INTO done FROM mqdb.dispatch_records(batch, laned, false, max_rows);
        messages := done.messages;
        arrivals := done.arrivals;
        more := coalesce(done.walked_to < batch.tail_pos, true);
        PERFORM mqdb.end_batch('dispatch', batch, done.walked_to, messages, done.last_xid, done.last_key, done.last_pos);
        -- Stragglers only: the walk finds the end of the transaction, or a backlog from a time without dispatch.
        IF done.walked_to IS NULL AND done.only_xid IS NOT NULL THEN
            PERFORM mqdb.open_lane(done.only_xid, batch.scan_floor);
        END IF;
        -- The end of a round says nothing about what has become visible since the round began.
        outcome := CASE WHEN messages = 0 AND batch.is_first AND NOT more THEN 'IDLE' ELSE 'DISPATCHED' END;
    END IF;
    -- Small ones: all others wait for them.
    share := greatest(max_rows / 4 / greatest(cardinality(lanes), 1), 1);
    FOREACH lane IN ARRAY lanes LOOP
        SELECT * INTO done FROM mqdb.lane_batch(lane, share);
        messages := messages + done.messages;
        arrivals := nullif(concat_ws(',', arrivals, done.arrivals), '');
        outcome := 'DISPATCHED';
        more := true;
    END LOOP;
    IF arrivals IS NOT NULL THEN
        PERFORM pg_notify('mqdb_arrivals', mqdb.arrivals(arrivals));
    END IF;
END
$$;
COMMENT ON FUNCTION mqdb.dispatch(integer) IS 'Gives the records of one batch their queue offsets. Any role may call it, on an autocommit connection';
