"""Spark's exactly-once sink: the stage of its tasks, the ledger of batches in the log, and the statements for both.

    sink_write    an attempt of a task          UNLOGGED
    sink_stage    the messages it has staged    UNLOGGED
    sink_batch    the ledger: batches that are in the log
    sink_part     the attempts of a batch that goes into the log in several transactions; none once it is there

Statements are strings for psycopg, not Core: Spark starts a Python process to plan each batch of a stream and another
one to commit it. Importing SQLAlchemy would cost each of these processes 0.17 s of CPU, as much as everything else. So
this module imports nothing.

A role that does not own the broker has its own ledger and stage: row security determines which rows it sees. The owner
sees all rows, so these statements name the principal. The statements OWN_... are for such roles, which cannot delete
rows, nor COPY into a table with row security. In SQL: `mqdb/sql/acl/sink_own.sql`, `mqdb/sql/log/refuse_append.sql`,
`mqdb/sql/segments/ensure_segments.sql`.
"""

from typing import Final

#: How many batches of a sink the ledger keeps: as many as Spark's checkpoint (spark.sql.streaming.minBatchesToRetain).
BATCHES_KEPT: Final = 100

# -- staging ------------------------------------------------------------------------------------

#: Whether the role of a connection does not own the broker; NULL without a schema.
IS_GUEST: Final = "SELECT row_security_active(to_regclass('mqdb.sink_stage')::oid)"

#: topic → perm, write_queue_nums, the keys of all its queues in order, and whether the role may send to it.
#: Uses topic_topic_key and queue_topic_id_queue_id_key.
FIND_TOPIC: Final = """
    SELECT t.perm, t.write_queue_nums,
           (SELECT array_agg(q.queue_key ORDER BY q.queue_id) FROM mqdb.queue q WHERE q.topic_id = t.topic_id),
           NOT row_security_active('mqdb.sink_stage') OR mqdb.is_allowed(session_user, 'SEND', 'TOPIC', t.topic)
    FROM mqdb.topic t WHERE t.topic = mqdb.full_topic(%(topic)s)"""

#: topic: raises AccessDenied for a role that may not send to it.
CHECK_RIGHT: Final = "SELECT mqdb.check_right('SEND', 'TOPIC', %(topic)s)"

#: Whether the schema has the sink.
IS_THERE: Final = "SELECT to_regclass('mqdb.sink_stage') IS NOT NULL"

#: Run after the rows, so that staged rows are as old as the end of their task.
RECORD_WRITE: Final = """
    INSERT INTO mqdb.sink_write (write_id, sink_id, batch_id) VALUES (%(write_id)s, %(sink_id)s, %(batch_id)s)"""

#: The columns of the stage, and their types for `psycopg.Copy.set_types`. jsonb is passed as bytes: its binary form is
#: a version followed by the text, which psycopg would make from an object.
STAGE_COLUMNS: Final = {
    "write_id": "uuid",
    "born_time": "timestamptz",
    "tags_code": "int8",
    "deliver_ms": "int8",
    "msg_id": "uuid",
    "seq": "int4",
    "queue_key": "int4",
    "delay_level": "int4",
    "born_host": "text",
    "tags": "text",
    "keys": "text",
    "properties": "bytea",
    "body": "bytea",
}
COPY_STAGE: Final = f"COPY mqdb.sink_stage ({', '.join(STAGE_COLUMNS)}) FROM STDIN (FORMAT BINARY)"

_TEXTS: Final = STAGE_COLUMNS | {"properties": "text"}

#: The same rows, as one array per column, with properties as text.
OWN_STAGE: Final = f"""
    INSERT INTO mqdb.sink_stage ({", ".join(STAGE_COLUMNS)})
    SELECT {", ".join(f"given.{name}::{type_}" for name, type_ in (STAGE_COLUMNS | {"properties": "jsonb"}).items())}
    FROM unnest({", ".join(f"%({name})s::{type_}[]" for name, type_ in _TEXTS.items())})
        AS given ({", ".join(STAGE_COLUMNS)})"""

# -- appending ----------------------------------------------------------------------------------

#: messages → how many segments ahead of the log are needed for this many, including the room that others expect.
SEGMENTS_FOR: Final = "SELECT (%(messages)s / b.segment_size)::integer + 2 FROM mqdb.broker b"

ENSURE_SEGMENTS: Final = "SELECT mqdb.ensure_segments(%(ahead)s)"

#: For the rest of the transaction: plans with indexes and without sorts, whatever the statistics say, because the stage
#: may contain all rows of another job. A client that is cut off or stopped soon releases the row of its batch. And
#: commits are on disk: with synchronous_commit off, Spark's checkpoint could contain a batch that a crash has lost.
SETTINGS: Final = """
    SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
           set_config('enable_sort', 'off', true),
           set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
           set_config('idle_in_transaction_session_timeout', '20s', true),
           set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'local'), true)"""

#: No row is inserted if the ledger has the batch, a later batch, or a batch of another query; nor if it lacks the
#: previous batch, unless `may_skip`; nor if the sink wrote to a list of brokers before and this batch does not. Waits
#: for a transaction that is just inserting it. Uses sink_batch_pkey.
RECORD_BATCH: Final = """
    INSERT INTO mqdb.sink_batch (sink_id, batch_id, query_id, messages, checksum, brokers)
    SELECT %(sink_id)s, %(batch_id)s, %(query_id)s, %(messages)s, %(checksum)s::bigint, %(brokers)s::text[]
    WHERE NOT EXISTS (SELECT FROM mqdb.sink_batch b
                      WHERE b.sink_id = %(sink_id)s AND b.principal = mqdb.sink_principal()
                      AND (b.batch_id > %(batch_id)s OR b.query_id IS DISTINCT FROM %(query_id)s
                           OR (b.brokers IS NOT NULL AND %(brokers)s::text[] IS NULL)))
      AND (%(batch_id)s = 0 OR %(may_skip)s
           OR EXISTS (SELECT FROM mqdb.sink_batch b
                      WHERE b.sink_id = %(sink_id)s AND b.principal = mqdb.sink_principal()
                        AND b.batch_id = %(batch_id)s - 1))
    ON CONFLICT DO NOTHING"""

#: sink_id, query_id → query_id, batch_id, messages, brokers, and whether parts of it are left: the batch in the way,
#: which is one of another query if there is one, otherwise the newest. Uses sink_batch_pkey and sink_part_pkey.
FIND_NEWEST: Final = """
    SELECT b.query_id, b.batch_id, b.messages, b.brokers,
           EXISTS (SELECT FROM mqdb.sink_part p
                   WHERE p.principal = b.principal AND p.sink_id = b.sink_id AND p.batch_id = b.batch_id)
    FROM mqdb.sink_batch b
    WHERE b.sink_id = %(sink_id)s AND b.principal = mqdb.sink_principal()
    ORDER BY (b.query_id IS DISTINCT FROM %(query_id)s) DESC, b.batch_id DESC LIMIT 1"""

#: write_id, first, past: appends its messages from one seq to before another to the log, in order, unless a queue is
#: gone. Uses sink_stage_write and live_queue_pkey: each queue is looked up separately, because a join would need a
#: sort.
APPEND: Final = """
    INSERT INTO mqdb.commit_log
        (queue_key, store_time, born_time, tags_code, msg_id, born_host, tags, keys, properties, body)
    SELECT coalesce((SELECT q.queue_key FROM mqdb.live_queue q WHERE q.queue_key = s.queue_key), mqdb.refuse_append()),
           clock.now, s.born_time, s.tags_code, s.msg_id, s.born_host, s.tags, s.keys, s.properties, s.body
    FROM mqdb.sink_stage s CROSS JOIN (SELECT mqdb.now() AS now OFFSET 0) clock
    WHERE s.write_id = %(write_id)s AND s.seq >= %(first)s AND s.seq < %(past)s ORDER BY s.seq"""

#: The same if messages may wait for their time.
APPEND_WAITING: Final = """
    INSERT INTO mqdb.commit_log
        (queue_key, store_time, born_time, tags_code, msg_id, born_host, tags, keys, properties, body)
    SELECT coalesce(p.placed_key, mqdb.refuse_append()), clock.now,
           s.born_time, p.placed_code, s.msg_id, s.born_host, s.tags, s.keys, p.placed_properties, s.body
    FROM mqdb.sink_stage s CROSS JOIN (SELECT mqdb.now() AS now OFFSET 0) clock
    CROSS JOIN LATERAL mqdb.place(s.queue_key, s.tags_code, s.properties, clock.now,
                                  s.delay_level, NULL, s.deliver_ms, NULL) p
    WHERE s.write_id = %(write_id)s AND s.seq >= %(first)s AND s.seq < %(past)s ORDER BY s.seq"""

#: sink_id, batch_id: removes batches from the ledger that are too old to be rerun. Uses sink_batch_pkey.
FORGET_BATCHES: Final = f"""
    DELETE FROM mqdb.sink_batch
    WHERE sink_id = %(sink_id)s AND batch_id <= %(batch_id)s - {BATCHES_KEPT} AND principal = mqdb.sink_principal()"""
OWN_FORGET_BATCHES: Final = f"SELECT mqdb.forget_own_batches(%(sink_id)s, %(batch_id)s - {BATCHES_KEPT})"

#: sink_id: removes a sink from the ledger whose name cannot be used again.
FORGET_SINK: Final = """
    DELETE FROM mqdb.sink_batch WHERE sink_id = %(sink_id)s AND principal = mqdb.sink_principal()"""
OWN_FORGET_SINK: Final = "SELECT mqdb.forget_own_batches(%(sink_id)s, 9223372036854775807)"

# -- in parts -----------------------------------------------------------------------------------

#: Whether the stage survives a crash of PostgreSQL.
IS_DURABLE: Final = """
    SELECT bool_and(c.relpersistence = 'p') FROM pg_class c
    WHERE c.oid IN ('mqdb.sink_stage'::regclass, 'mqdb.sink_write'::regclass)"""

#: sink_id, batch_id, part, write_id, messages, waits: adds an attempt whose messages belong to the batch.
RECORD_PART: Final = """
    INSERT INTO mqdb.sink_part (sink_id, batch_id, part, write_id, messages, waits)
    VALUES (%(sink_id)s, %(batch_id)s, %(part)s, %(write_id)s, %(messages)s, %(waits)s)"""

#: sink_id, batch_id → write_id, messages, how many of them are in the log, the seq after these, waits: a part on which
#: no other session works. Uses sink_part_pkey.
TAKE_PART: Final = """
    SELECT p.write_id, p.messages, p.moved, p.next_seq, p.waits FROM mqdb.sink_part p
    WHERE p.principal = mqdb.sink_principal() AND p.sink_id = %(sink_id)s AND p.batch_id = %(batch_id)s
      AND p.moved < p.messages
    ORDER BY p.part LIMIT 1 FOR UPDATE SKIP LOCKED"""

#: write_id, first, messages → the seq of the message after this many. Uses sink_stage_write.
PART_END: Final = """
    SELECT s.seq FROM mqdb.sink_stage s
    WHERE s.write_id = %(write_id)s AND s.seq >= %(first)s ORDER BY s.seq OFFSET %(messages)s LIMIT 1"""

#: write_id, messages, past: notes that this many more messages, up to this seq, are in the log, and deletes them from
#: the stage.
RECORD_MOVE: Final = """
    UPDATE mqdb.sink_part SET moved = moved + %(messages)s, next_seq = %(past)s WHERE write_id = %(write_id)s"""
CLEAR_MOVED: Final = "DELETE FROM mqdb.sink_stage s WHERE s.write_id = %(write_id)s AND s.seq < %(past)s"

#: sink_id, batch_id → whether all of its parts are in the log; NULL if it has no parts. Waits for sessions that work on
#: them.
ARE_MOVED: Final = """
    SELECT bool_and(p.moved = p.messages)
    FROM (SELECT moved, messages FROM mqdb.sink_part
          WHERE principal = mqdb.sink_principal() AND sink_id = %(sink_id)s AND batch_id = %(batch_id)s
          FOR UPDATE) p"""

CLOSE_PARTS: Final = """
    DELETE FROM mqdb.sink_part
    WHERE principal = mqdb.sink_principal() AND sink_id = %(sink_id)s AND batch_id = %(batch_id)s"""

# -- clearing away ------------------------------------------------------------------------------

#: sink_id, batch_id: removes this batch of the sink, and those before it, from the stage. Uses sink_write_batch.
CLEAR_BATCHES: Final = """
    WITH cleared AS (
        DELETE FROM mqdb.sink_write
        WHERE sink_id = %(sink_id)s AND batch_id <= %(batch_id)s AND principal = mqdb.sink_principal()
        RETURNING write_id
    )
    DELETE FROM mqdb.sink_stage s USING cleared WHERE s.write_id = cleared.write_id"""
OWN_CLEAR_BATCHES: Final = "SELECT mqdb.clear_own_batches(%(sink_id)s, %(batch_id)s::bigint)"

#: write_ids: removes these attempts from the stage, unless they are parts of a batch. Uses sink_write_pkey.
CLEAR_WRITES: Final = """
    WITH cleared AS (
        DELETE FROM mqdb.sink_write w
        WHERE w.write_id = ANY (%(write_ids)s)
          AND NOT EXISTS (SELECT FROM mqdb.sink_part p WHERE p.write_id = w.write_id)
        RETURNING w.write_id
    )
    DELETE FROM mqdb.sink_stage s USING cleared WHERE s.write_id = cleared.write_id"""

#: write_ids: the same, and also rows as old as below.
OWN_CLEAR_WRITES: Final = "SELECT mqdb.clear_own_writes(%(write_ids)s::uuid[])"

#: Removes batches from the stage for which no task has staged rows for a day: their applications are gone. A batch that
#: is partly in the log is kept, because its query may return. Does not wait for other sweeps. Reads all of sink_write,
#: which has one row per task of a running batch.
SWEEP: Final = """
    WITH old AS (
        SELECT w.write_id FROM mqdb.sink_write w
        WHERE w.staged_at < mqdb.now() - interval '1 day'
          AND NOT EXISTS (SELECT FROM mqdb.sink_write y
                          WHERE y.sink_id = w.sink_id AND y.batch_id = w.batch_id AND y.principal = w.principal
                          AND y.staged_at >= mqdb.now() - interval '1 day')
          AND NOT EXISTS (SELECT FROM mqdb.sink_part p WHERE p.write_id = w.write_id)
        LIMIT 1000 FOR UPDATE OF w SKIP LOCKED
    ), cleared AS (
        DELETE FROM mqdb.sink_write w USING old WHERE w.write_id = old.write_id RETURNING w.write_id
    )
    DELETE FROM mqdb.sink_stage s USING cleared WHERE s.write_id = cleared.write_id"""

# -- several brokers ----------------------------------------------------------------------------

#: sink_id, query_id → the name of the broker, and query_id, batch_id, messages, checksum and brokers of the row of
#: FIND_NEWEST, which are NULL without such a row. Uses sink_batch_pkey.
OUTLOOK: Final = """
    SELECT k.broker_name, newest.query_id, newest.batch_id, newest.messages, newest.checksum, newest.brokers
    FROM mqdb.broker k LEFT JOIN LATERAL (
        SELECT b.query_id, b.batch_id, b.messages, b.checksum, b.brokers FROM mqdb.sink_batch b
        WHERE b.sink_id = %(sink_id)s AND b.principal = mqdb.sink_principal()
        ORDER BY (b.query_id IS DISTINCT FROM %(query_id)s) DESC, b.batch_id DESC LIMIT 1
    ) newest ON true"""

#: The name of the broker.
BROKER_NAME: Final = "SELECT broker_name FROM mqdb.broker"
