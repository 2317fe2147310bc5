"""First light: the log, its dispatch, consumer state and the leader lease.

The statements are plain SQL on purpose: a migration says what it did on the day it was written, while
`mqdb/store/tables.py` says what the schema is today. A test proves that both agree. PostgreSQL 15 and
newer; no contrib module.
"""

from alembic import op

from mqdb.store.migrations import function_sql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

#: In the order in which they need each other.
FUNCTIONS = (
    "now_v1",
    "java_hash_v1",
    "tag_code_v1",
    "body_text_v1",
    "unique_id_text_v1",
    "identity_v1",
    "add_segment_v1",
    "ensure_segments_v1",
    "begin_batch_v1",
    "end_batch_v1",
    "adopt_v1",
    "dispatch_v1",
    "index_keys_v1",
    "refuse_sealed_v1",
    "seal_segment_v1",
    "reserved_properties_v1",
    "send_v1",
)

BROKER = """
COMMENT ON TABLE mqdb.alembic_version IS 'Which revision the schema is at: one row. mqdb migrate writes it';

CREATE TABLE mqdb.broker (
    one_row boolean PRIMARY KEY DEFAULT true CHECK (one_row),
    broker_name text NOT NULL,
    cluster_name text NOT NULL,
    segment_size bigint NOT NULL CHECK (segment_size > 0),
    system_identifier bigint NOT NULL,
    database_oid oid NOT NULL,
    created_at timestamptz NOT NULL
);
COMMENT ON TABLE mqdb.broker IS 'Who this database is: one row. RocketMQ: broker.conf';
COMMENT ON COLUMN mqdb.broker.segment_size IS 'Records in the next segment; the segment keeper adapts it to the traffic';
COMMENT ON COLUMN mqdb.broker.system_identifier IS 'With database_oid: tells that the database was restored somewhere else, where its stored xids mean nothing';

CREATE TABLE mqdb.leader (
    service_set text PRIMARY KEY,
    holder text NOT NULL,
    epoch bigint NOT NULL,
    backend_pid integer NOT NULL,
    expires_at timestamptz NOT NULL
);
COMMENT ON TABLE mqdb.leader IS 'The lease behind the leader lock: who runs the services, and until when it promised to be alive';
COMMENT ON COLUMN mqdb.leader.epoch IS 'Rises with each new leader';
COMMENT ON COLUMN mqdb.leader.backend_pid IS 'Backend that holds the advisory lock; a challenger ends it when the lease has expired';
"""

TOPICS = """
CREATE TABLE mqdb.topic (
    topic_id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic text NOT NULL UNIQUE,
    read_queue_nums integer NOT NULL CHECK (read_queue_nums > 0),
    write_queue_nums integer NOT NULL CHECK (write_queue_nums > 0),
    perm smallint NOT NULL CHECK (perm BETWEEN 0 AND 7),
    ordered boolean NOT NULL DEFAULT false,
    message_type text NOT NULL DEFAULT 'NORMAL'
        CHECK (message_type IN ('NORMAL', 'FIFO', 'DELAY', 'TRANSACTION', 'UNSPECIFIED', 'MIXED')),
    created_at timestamptz NOT NULL DEFAULT mqdb.now()
);
COMMENT ON TABLE mqdb.topic IS 'Topics and their settings. RocketMQ: topics.json';
COMMENT ON COLUMN mqdb.topic.perm IS 'Sum of 4 readable, 2 writable, 1 template of automatic topics (PermName)';

CREATE TABLE mqdb.queue (
    queue_key integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic_id integer NOT NULL REFERENCES mqdb.topic ON DELETE CASCADE,
    queue_id integer NOT NULL CHECK (queue_id >= 0),
    base_offset bigint NOT NULL DEFAULT 0,
    end_offset bigint NOT NULL DEFAULT 0,
    UNIQUE (topic_id, queue_id)
);
COMMENT ON TABLE mqdb.queue IS 'The message queues of each topic; a queue_key is never used again. RocketMQ: MessageQueue';
COMMENT ON COLUMN mqdb.queue.base_offset IS 'Min offset: the first one that retention has left';
COMMENT ON COLUMN mqdb.queue.end_offset IS 'Next offset as of the last closed segment; only right for a queue without entries in a newer one';
"""

LOG = """
CREATE SEQUENCE mqdb.log_pos AS bigint MINVALUE 0 CACHE 1;
COMMENT ON SEQUENCE mqdb.log_pos IS 'Positions in the commit log. Not commit order: dispatch makes that';

CREATE TABLE mqdb.segment (
    segment integer PRIMARY KEY,
    start_pos bigint NOT NULL UNIQUE,
    end_pos bigint NOT NULL CHECK (end_pos > start_pos),
    lowest_log_pos bigint NOT NULL,
    state text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'closed', 'sealed', 'drained')),
    created_at timestamptz NOT NULL DEFAULT mqdb.now(),
    closed_at timestamptz,
    sealed_at timestamptz
);
COMMENT ON TABLE mqdb.segment IS 'Ranges of log_pos; each has a partition of commit_log, consume_queue and message_index. RocketMQ: MappedFile';
COMMENT ON COLUMN mqdb.segment.end_pos IS 'First position after the segment';
COMMENT ON COLUMN mqdb.segment.lowest_log_pos IS 'Lowest position that the consume queue of this segment points to; below start_pos after a late committer';
COMMENT ON COLUMN mqdb.segment.state IS 'open: takes records. closed: all its positions are taken. sealed: nothing can be written any more, all is dispatched. drained: below every min offset; its consume queue is dropped or about to be, its log may still serve a newer segment';

CREATE TABLE mqdb.commit_log (
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    log_pos bigint NOT NULL DEFAULT nextval('mqdb.log_pos'),
    store_time timestamptz NOT NULL DEFAULT mqdb.now(),
    born_time timestamptz NOT NULL,
    tags_code bigint NOT NULL,
    msg_id uuid NOT NULL,
    queue_key integer NOT NULL,
    sys_flag integer NOT NULL DEFAULT 0,
    flag integer NOT NULL DEFAULT 0,
    reconsume_times integer NOT NULL DEFAULT 0,
    born_host text NOT NULL,
    tags text,
    keys text,
    properties jsonb NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (log_pos)
) PARTITION BY RANGE (log_pos);
CREATE INDEX commit_log_xid ON mqdb.commit_log (xid, log_pos);
COMMENT ON TABLE mqdb.commit_log IS 'All messages, in order of arrival; never updated, dropped by segment. RocketMQ: CommitLog';
COMMENT ON COLUMN mqdb.commit_log.xid IS 'Transaction that wrote the record: how dispatch finds what has become visible';
COMMENT ON COLUMN mqdb.commit_log.tags_code IS 'Java String.hashCode of the tag, sign-extended; 0 without a tag';
COMMENT ON COLUMN mqdb.commit_log.msg_id IS 'Unique id given by the producer (UNIQ_KEY); the same over all copies of a message';
COMMENT ON COLUMN mqdb.commit_log.keys IS 'Keys separated by blanks';
COMMENT ON COLUMN mqdb.commit_log.properties IS 'All properties, system ones (TAGS, KEYS, UNIQ_KEY, ...) included; text to text';
COMMENT ON INDEX mqdb.commit_log_xid IS 'Late committers: dispatch';

CREATE TABLE mqdb.consume_queue (
    queue_offset bigint NOT NULL,
    log_pos bigint NOT NULL,
    tags_code bigint NOT NULL,
    queue_key integer NOT NULL,
    segment integer NOT NULL
) PARTITION BY LIST (segment);
CREATE INDEX consume_queue_offset ON mqdb.consume_queue (queue_key, queue_offset);
CREATE INDEX consume_queue_tags ON mqdb.consume_queue (queue_key, tags_code, queue_offset);
COMMENT ON TABLE mqdb.consume_queue IS 'One entry for each message of each queue, offsets 0, 1, 2, ... without gaps; written by dispatch only. RocketMQ: ConsumeQueue';
COMMENT ON INDEX mqdb.consume_queue_offset IS 'Pull. Not unique: a partitioned key would need the segment; the lock of dispatch makes offsets unique';
COMMENT ON INDEX mqdb.consume_queue_tags IS 'Pull with a rare tag';

CREATE TABLE mqdb.message_index (
    key_hash bigint NOT NULL,
    log_pos bigint NOT NULL,
    segment integer NOT NULL
) PARTITION BY LIST (segment);
CREATE INDEX message_index_key ON mqdb.message_index (key_hash);
COMMENT ON TABLE mqdb.message_index IS 'Where messages with a key or unique id are; hashes, so readers compare the text. Written by index_keys. RocketMQ: IndexFile';
COMMENT ON COLUMN mqdb.message_index.key_hash IS 'hashtextextended(key, topic_id) for a word of KEYS, uuid_hash_extended(msg_id, 0) for the unique id';

CREATE TABLE mqdb.checkpoint (
    service text NOT NULL,
    seq bigint NOT NULL,
    prev pg_snapshot NOT NULL,
    cur pg_snapshot NOT NULL,
    done_pos bigint NOT NULL,
    tail_pos bigint NOT NULL,
    floor_pos bigint NOT NULL DEFAULT 0,
    segment integer NOT NULL,
    messages integer NOT NULL,
    written_at timestamptz NOT NULL DEFAULT mqdb.now(),
    PRIMARY KEY (service, seq)
);
COMMENT ON TABLE mqdb.checkpoint IS 'Progress of each service; append-only, the newest row counts. Its key fences a second leader. RocketMQ: checkpoint, delayOffset.json';
COMMENT ON COLUMN mqdb.checkpoint.cur IS 'Snapshot of the round: all that is visible in it up to done_pos is done; prev is the snapshot of the round before';
COMMENT ON COLUMN mqdb.checkpoint.tail_pos IS 'Where the walk of the round ends; the round is over when done_pos = tail_pos';
COMMENT ON COLUMN mqdb.checkpoint.floor_pos IS 'Positions up to here are done for ever: set when a restored database was adopted';

CREATE TYPE mqdb.batch AS (
    outcome text,
    seq bigint,
    prev pg_snapshot,
    cur pg_snapshot,
    is_first boolean,
    is_stale boolean,
    late xid8[],
    scan_floor bigint,
    floor_pos bigint,
    done_pos bigint,
    until_pos bigint,
    tail_pos bigint,
    segment integer,
    last_segment integer,
    lowest_log_pos bigint
);
COMMENT ON TYPE mqdb.batch IS 'What begin_batch found: the records that a service has to take next';
"""

CONSUMERS = """
CREATE TABLE mqdb.subscription_group (
    group_id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    group_name text NOT NULL UNIQUE,
    consume_enable boolean NOT NULL DEFAULT true,
    consume_broadcast_enable boolean NOT NULL DEFAULT true,
    retry_queue_nums integer NOT NULL DEFAULT 1 CHECK (retry_queue_nums > 0),
    retry_max_times integer NOT NULL DEFAULT 16 CHECK (retry_max_times >= 0),
    created_at timestamptz NOT NULL DEFAULT mqdb.now()
);
COMMENT ON TABLE mqdb.subscription_group IS 'Consumer groups. RocketMQ: subscriptionGroup.json';

CREATE TABLE mqdb.subscription (
    group_id integer NOT NULL REFERENCES mqdb.subscription_group ON DELETE CASCADE,
    topic text NOT NULL,
    expression_type text NOT NULL DEFAULT 'TAG' CHECK (expression_type IN ('TAG', 'SQL92')),
    expression text NOT NULL,
    version bigint NOT NULL,
    PRIMARY KEY (group_id, topic)
);
COMMENT ON TABLE mqdb.subscription IS 'The filter that a group has on each of its topics';

CREATE TABLE mqdb.consumer_offset (
    group_id integer NOT NULL REFERENCES mqdb.subscription_group ON DELETE CASCADE,
    queue_key integer NOT NULL REFERENCES mqdb.queue ON DELETE CASCADE,
    next_offset bigint NOT NULL CHECK (next_offset >= 0),
    segment integer NOT NULL DEFAULT 0,
    owner text,
    epoch bigint NOT NULL DEFAULT 0,
    updated_at timestamptz NOT NULL DEFAULT mqdb.now(),
    PRIMARY KEY (group_id, queue_key)
) WITH (fillfactor = 50);
COMMENT ON TABLE mqdb.consumer_offset IS 'How far a group has read each queue, and which member owns it. RocketMQ: consumerOffset.json';
COMMENT ON COLUMN mqdb.consumer_offset.segment IS 'Segment of the last message seen: where the next pull begins to look';
COMMENT ON COLUMN mqdb.consumer_offset.epoch IS 'Rises with each new owner; a commit with an older epoch is refused';

CREATE TABLE mqdb.client (
    client_id text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('PRODUCER', 'CONSUMER')),
    group_name text NOT NULL,
    message_model text NOT NULL DEFAULT 'CLUSTERING' CHECK (message_model IN ('CLUSTERING', 'BROADCASTING')),
    language text NOT NULL,
    version text NOT NULL,
    registered_at timestamptz NOT NULL DEFAULT mqdb.now(),
    heartbeat_at timestamptz NOT NULL DEFAULT mqdb.now(),
    PRIMARY KEY (client_id, kind, group_name)
) WITH (fillfactor = 50);
CREATE INDEX client_group ON mqdb.client (group_name, kind);
COMMENT ON TABLE mqdb.client IS 'Live producers and consumers; each also holds an advisory lock, so that a closed connection is noticed. RocketMQ: ConsumerManager, ProducerManager';
"""

VIEWS = """
CREATE VIEW mqdb.message AS
SELECT t.topic, q.queue_id, cq.queue_offset, mqdb.unique_id_text(cl.msg_id) AS msg_id, cl.tags, cl.keys, cl.properties,
       mqdb.body_text(cl.body) AS text, cl.body, cl.born_time, cl.store_time, cl.born_host, cl.reconsume_times,
       cl.flag, cl.sys_flag, cl.log_pos, q.queue_key
FROM mqdb.topic t
JOIN mqdb.queue q USING (topic_id)
JOIN mqdb.consume_queue cq USING (queue_key)
JOIN mqdb.commit_log cl USING (log_pos)
WHERE cq.queue_offset >= q.base_offset;
COMMENT ON VIEW mqdb.message IS 'All messages that a consumer can read';
COMMENT ON COLUMN mqdb.message.text IS 'The body as text, NULL where it is not UTF-8';
"""

#: Three segments of the smallest size: enough for the keeper to stay ahead from the first message on.
#: last_value of a sequence that nobody has used is its first value, which would count as taken; hence setval:
#: last_value is the last position taken, also when there is none.
FIRST_ROWS = """
SELECT setval('mqdb.log_pos', 0);
INSERT INTO mqdb.broker (broker_name, cluster_name, segment_size, system_identifier, database_oid, created_at)
SELECT 'broker-a', 'DefaultCluster', 262144, i.system_identifier, i.database_oid, mqdb.now() FROM mqdb.identity() i;
SELECT mqdb.ensure_segments(3);
INSERT INTO mqdb.checkpoint (service, seq, prev, cur, done_pos, tail_pos, segment, messages)
SELECT service, 0, pg_current_snapshot(), pg_current_snapshot(), 0, 0, 1, 0
FROM unnest(ARRAY['dispatch', 'index']) AS service;
INSERT INTO mqdb.topic (topic, read_queue_nums, write_queue_nums, perm) VALUES ('TBW102', 8, 8, 7);
INSERT INTO mqdb.queue (topic_id, queue_id)
SELECT topic_id, queue_id FROM mqdb.topic, generate_series(0, 7) AS queue_id;
"""


def upgrade() -> None:
    """Create everything. `now` comes first: defaults call it; the other functions need the tables."""
    op.execute(function_sql(FUNCTIONS[0]))
    for statements in (BROKER, TOPICS, LOG, CONSUMERS):
        op.execute(statements)
    for name in FUNCTIONS[1:]:
        op.execute(function_sql(name))
    for statements in (VIEWS, FIRST_ROWS):
        op.execute(statements)


def downgrade() -> None:
    """Drop everything: the first migration has nothing before it but an empty database."""
    raise NotImplementedError("drop the schema instead: DROP SCHEMA mqdb CASCADE")
