"""The schema: its tables and first rows are in this file, its functions and views in `mqdb/sql`.

Nothing has been released, so this is the only revision, and it may still change: its id ends in a fingerprint of all
these texts. The first release freezes it (ARCHITECTURE.md, "Changing the schema").

The statements are plain SQL on purpose: a migration records the change as it was on the day it was written, while
`mqdb/store/tables.py` describes the current schema. A test checks that both agree. The statements need PostgreSQL 15 or
newer and no contrib module.
"""

from alembic import op

from mqdb.store.migrations import head, sql_text

revision = head()
down_revision = None
branch_labels = None
depends_on = None

BROKER = """
COMMENT ON TABLE mqdb.alembic_version IS 'Revision of the schema: one row, written by mqdb migrate';

CREATE TABLE mqdb.broker (
    one_row boolean PRIMARY KEY DEFAULT true CHECK (one_row),
    broker_name text NOT NULL,
    cluster_name text NOT NULL,
    segment_size bigint NOT NULL CHECK (segment_size > 0),
    system_identifier bigint NOT NULL,
    database_oid oid NOT NULL,
    created_at timestamptz NOT NULL,
    enable_property_filter boolean NOT NULL DEFAULT true,
    filter_support_retry boolean NOT NULL DEFAULT false,
    timer_max_delay_ms bigint CHECK (timer_max_delay_ms > 0),
    reject_transaction_message boolean NOT NULL DEFAULT false,
    default_durability text NOT NULL DEFAULT 'SYNC_FLUSH'
        CHECK (default_durability IN ('ASYNC_FLUSH', 'SYNC_FLUSH', 'SYNC_MASTER'))
);
COMMENT ON TABLE mqdb.broker IS 'Identity and settings of this broker: one row. RocketMQ: broker.conf';
COMMENT ON COLUMN mqdb.broker.segment_size IS 'Number of records in the next segment; the segment keeper adapts it to the traffic';
COMMENT ON COLUMN mqdb.broker.system_identifier IS 'Together with database_oid, shows whether the database was restored elsewhere, in which case its stored xids are meaningless';
COMMENT ON COLUMN mqdb.broker.enable_property_filter IS 'Whether consumers may subscribe with SQL92; a setting of mqdb serve';
COMMENT ON COLUMN mqdb.broker.filter_support_retry IS 'Whether the SQL92 filter of the original topic also applies to its retries; a setting of mqdb serve';
COMMENT ON COLUMN mqdb.broker.timer_max_delay_ms IS 'Maximum time from now to a delivery, in ms; NULL for no limit. A setting of mqdb serve';
COMMENT ON COLUMN mqdb.broker.reject_transaction_message IS 'Whether the broker refuses half messages; a setting of mqdb serve';
COMMENT ON COLUMN mqdb.broker.default_durability IS 'Durability for producers that do not choose one; a setting of mqdb serve';

CREATE TABLE mqdb.leader (
    service_set text PRIMARY KEY,
    holder text NOT NULL,
    epoch bigint NOT NULL,
    backend_pid integer NOT NULL,
    backend_start timestamptz,
    expires_at timestamptz NOT NULL,
    lease interval NOT NULL
);
COMMENT ON TABLE mqdb.leader IS 'The leader that runs the services, and the time until which it promised to be alive';
COMMENT ON COLUMN mqdb.leader.lease IS 'Length of each promise; a promise that ends later than now + lease was made before the clock was set back, and is ignored';
COMMENT ON COLUMN mqdb.leader.epoch IS 'Increases with each new leader';
COMMENT ON COLUMN mqdb.leader.backend_pid IS 'Backend pid of the leader; a candidate terminates this backend if the promise is not renewed. 0 for a leader that has resigned';
COMMENT ON COLUMN mqdb.leader.backend_start IS 'Start time of the backend, because pids are reused';
"""

#: Empty tables, each used for a lock: PostgreSQL has access rights for tables, but not for advisory locks.
LOCKS = """
CREATE TABLE mqdb.lock_dispatch ();
CREATE TABLE mqdb.lock_index ();
CREATE TABLE mqdb.lock_delay ();
CREATE TABLE mqdb.lock_timer ();
CREATE TABLE mqdb.lock_transaction ();
ALTER TABLE mqdb.lock_dispatch REPLICA IDENTITY FULL;
ALTER TABLE mqdb.lock_index REPLICA IDENTITY FULL;
ALTER TABLE mqdb.lock_delay REPLICA IDENTITY FULL;
ALTER TABLE mqdb.lock_timer REPLICA IDENTITY FULL;
ALTER TABLE mqdb.lock_transaction REPLICA IDENTITY FULL;
COMMENT ON TABLE mqdb.lock_dispatch IS 'Empty. Locked by the session that dispatches a batch';
COMMENT ON TABLE mqdb.lock_index IS 'Empty. Locked by the session that indexes the keys of a batch';
COMMENT ON TABLE mqdb.lock_delay IS 'Empty. Locked by the session that delivers delayed messages';
COMMENT ON TABLE mqdb.lock_timer IS 'Empty. Locked by the session that delivers timers or recalls a timer';
COMMENT ON TABLE mqdb.lock_transaction IS 'Empty. Locked by the session that processes half messages';
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
COMMENT ON COLUMN mqdb.topic.perm IS 'Sum of 4 (readable), 2 (writable) and 1 (template of automatic topics); RocketMQ: PermName';

CREATE TABLE mqdb.queue (
    queue_key integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic_id integer NOT NULL REFERENCES mqdb.topic ON DELETE CASCADE,
    queue_id integer NOT NULL CHECK (queue_id >= 0),
    base_offset bigint NOT NULL DEFAULT 0,
    end_offset bigint NOT NULL DEFAULT 0,
    UNIQUE (topic_id, queue_id)
);
COMMENT ON TABLE mqdb.queue IS 'Message queues of each topic; a queue_key is never reused. RocketMQ: MessageQueue';
COMMENT ON COLUMN mqdb.queue.base_offset IS 'Min offset of the queue: the lowest offset that retention has kept';
COMMENT ON COLUMN mqdb.queue.end_offset IS 'Next offset of the queue when the last segment was closed; valid only for a queue without entries in a newer segment';

CREATE TABLE mqdb.live_queue (queue_key integer PRIMARY KEY REFERENCES mqdb.queue ON DELETE CASCADE);
COMMENT ON TABLE mqdb.live_queue IS 'Queues that accept messages: all queues except those of a deleted topic that are still to be removed. Every append reads this table';
"""

LOG = """
CREATE UNLOGGED SEQUENCE mqdb.dispatcher_state;
COMMENT ON SEQUENCE mqdb.dispatcher_state IS '1: the dispatcher sleeps, and appends place their records. 2: the dispatcher is awake. 3: the dispatcher sleeps, and records wait. 4: the dispatcher sleeps, and appends do not place records. An unused sequence counts as awake';
GRANT SELECT ON SEQUENCE mqdb.dispatcher_state TO PUBLIC;
CREATE UNLOGGED SEQUENCE mqdb.placed MINVALUE -9223372036854775808;
CREATE UNLOGGED SEQUENCE mqdb.placed_from MINVALUE 0;
COMMENT ON SEQUENCE mqdb.placed IS 'Position up to which no record waits for dispatch, XOR the history';
COMMENT ON SEQUENCE mqdb.placed_from IS 'Value of seq of the dispatch checkpoint from which on mqdb.placed is valid';
GRANT SELECT ON SEQUENCE mqdb.placed TO PUBLIC;

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
COMMENT ON TABLE mqdb.segment IS 'Ranges of log_pos; each segment has a partition of commit_log, queue_run and message_index. RocketMQ: MappedFile';
COMMENT ON COLUMN mqdb.segment.end_pos IS 'First position after the segment';
COMMENT ON COLUMN mqdb.segment.lowest_log_pos IS 'Lowest position to which the consume queue of this segment points; below start_pos after a late commit';
COMMENT ON COLUMN mqdb.segment.state IS 'open: accepts records. closed: all its positions are used. sealed: no transaction can still write to the segment, and all its records are dispatched. drained: the segment is below every min offset; its consume queue is dropped or about to be dropped, while its log may still serve a newer segment';

CREATE DOMAIN mqdb.message_time AS timestamptz CHECK (VALUE >= '1970-01-01 00:00+00' AND VALUE < '9999-01-01 00:00+00');
CREATE DOMAIN mqdb.message_tags_code AS bigint CHECK (VALUE BETWEEN -2147483648 AND 253402300799999);
CREATE DOMAIN mqdb.message_properties AS jsonb CHECK (jsonb_typeof(VALUE) = 'object');
COMMENT ON DOMAIN mqdb.message_time IS 'Times that every reader can represent: from 1970 to before 9999';
COMMENT ON DOMAIN mqdb.message_tags_code IS 'Hash of a tag; for a waiting message, its delivery time in ms since 1970, before the year 10000';
COMMENT ON DOMAIN mqdb.message_properties IS 'Properties by name; readers use the JSON text of a value that is not a string';

CREATE TABLE mqdb.commit_log (
    xid xid8 DEFAULT pg_current_xact_id(),
    log_pos bigint NOT NULL GENERATED BY DEFAULT AS IDENTITY (SEQUENCE NAME mqdb.log_pos MINVALUE 0 CACHE 1),
    store_time mqdb.message_time NOT NULL DEFAULT mqdb.now(),
    born_time mqdb.message_time NOT NULL,
    tags_code mqdb.message_tags_code NOT NULL,
    msg_id uuid NOT NULL,
    queue_key integer NOT NULL,
    sys_flag integer NOT NULL DEFAULT 0,
    flag integer NOT NULL DEFAULT 0,
    reconsume_times integer NOT NULL DEFAULT 0,
    born_host text NOT NULL,
    tags text,
    keys text,
    properties mqdb.message_properties NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (log_pos)
) PARTITION BY RANGE (log_pos);
CREATE INDEX commit_log_xid ON mqdb.commit_log (xid, queue_key, log_pos) WHERE xid IS NOT NULL;
-- Through statistics, EXPLAIN would show every role values of other roles (add_segment).
ALTER TABLE mqdb.commit_log ALTER tags_code SET STATISTICS 0, ALTER born_host SET STATISTICS 0, ALTER tags SET STATISTICS 0,
    ALTER keys SET STATISTICS 0, ALTER properties SET STATISTICS 0, ALTER body SET STATISTICS 0;
COMMENT ON SEQUENCE mqdb.log_pos IS 'Positions in the commit log. Positions are not in commit order, which dispatch establishes';
COMMENT ON TABLE mqdb.commit_log IS 'All messages in order of arrival; rows are never updated, and dropped by segment. RocketMQ: CommitLog';
COMMENT ON COLUMN mqdb.commit_log.xid IS 'Transaction that wrote the record, by which dispatch finds newly visible records. NULL if the append has already placed the record';
COMMENT ON COLUMN mqdb.commit_log.tags_code IS 'Java String.hashCode of the tag, sign-extended; 0 without a tag; for a waiting message, its delivery time';
COMMENT ON COLUMN mqdb.commit_log.msg_id IS 'Unique id set by the producer (UNIQ_KEY); all copies of a message have the same id';
COMMENT ON COLUMN mqdb.commit_log.sys_flag IS 'Bit 0: the body is compressed; bits 8 to 10: its compression, 0 and 3 for ZLIB, 1 for LZ4, 2 for ZSTD. RocketMQ: MessageSysFlag';
COMMENT ON COLUMN mqdb.commit_log.keys IS 'Keys separated by blanks';
COMMENT ON COLUMN mqdb.commit_log.properties IS 'Properties as a map of strings, without TAGS, KEYS and UNIQ_KEY, which have columns (all_properties)';
COMMENT ON INDEX mqdb.commit_log_xid IS 'Index that dispatch uses to find records of late commits';

CREATE TABLE mqdb.queue_run (
    last_offset bigint NOT NULL,
    log_pos bigint,
    tags_code bigint,
    queue_key integer NOT NULL,
    segment integer NOT NULL,
    positions bigint[],
    codes bigint[],
    CONSTRAINT one_or_many CHECK ((log_pos IS NULL) = (tags_code IS NULL) AND (log_pos IS NULL) = (positions IS NOT NULL)
                                  AND (positions IS NULL) = (codes IS NULL)),
    CONSTRAINT longest_run CHECK (cardinality(positions) BETWEEN 2 AND 100 AND cardinality(codes) = cardinality(positions))
) PARTITION BY LIST (segment);
-- A run fits into a page. There is therefore no TOAST table, and nothing is compressed.
ALTER TABLE mqdb.queue_run ALTER positions SET STORAGE PLAIN, ALTER codes SET STORAGE PLAIN;
ALTER TABLE mqdb.queue_run ALTER tags_code SET STATISTICS 0, ALTER codes SET STATISTICS 0;
CREATE INDEX queue_run_offset ON mqdb.queue_run (queue_key, last_offset);
-- Rows are only inserted, and an INSERT writes no identity. Partitions do not inherit it (add_segment).
ALTER TABLE mqdb.queue_run REPLICA IDENTITY FULL;
COMMENT ON TABLE mqdb.queue_run IS 'The consume queues: a row holds one entry, or up to 100 consecutive entries. Only dispatch writes rows. Use the view consume_queue or the function mqdb.entries to read the entries';
COMMENT ON COLUMN mqdb.queue_run.last_offset IS 'Offset of the last entry; the other entries have the offsets just before it';
COMMENT ON COLUMN mqdb.queue_run.log_pos IS 'Position of the record, if the row has a single entry';
COMMENT ON COLUMN mqdb.queue_run.tags_code IS 'Code of the tag, if the row has a single entry; for a waiting message, its delivery time in ms since 1970';
COMMENT ON COLUMN mqdb.queue_run.positions IS 'Positions of the records in order of offset, if the row has several entries';
COMMENT ON COLUMN mqdb.queue_run.codes IS 'Codes of the entries, if the row has several';
COMMENT ON INDEX mqdb.queue_run_offset IS 'Pull. Index for pulls. It is not unique, because a unique key would have to include the segment; the lock of dispatch keeps offsets unique';

CREATE TABLE mqdb.message_index (
    key_hash bigint NOT NULL,
    log_pos bigint NOT NULL,
    segment integer NOT NULL
) PARTITION BY LIST (segment);
CREATE INDEX message_index_key ON mqdb.message_index (key_hash);
-- As for queue_run: rows are only inserted.
ALTER TABLE mqdb.message_index REPLICA IDENTITY FULL;
COMMENT ON TABLE mqdb.message_index IS 'Positions of messages by key and unique id, except for ids covered by id_span; the table has only hashes, so readers compare the text. Written by index_keys. RocketMQ: IndexFile';
COMMENT ON COLUMN mqdb.message_index.key_hash IS 'hashtextextended(key, topic_id) for each word of KEYS, uuid_hash_extended(msg_id, 0) for the unique id';

CREATE TABLE mqdb.id_span (
    first_pos bigint PRIMARY KEY,
    last_pos bigint NOT NULL,
    made_ms int8range NOT NULL
);
CREATE INDEX id_span_made_ms ON mqdb.id_span USING gist (made_ms);
COMMENT ON TABLE mqdb.id_span IS 'Ranges of the log, none across a multiple of 1,024, whose records are found by the time in their unique ids and therefore have no entry for these ids in message_index. Written by index_keys';
COMMENT ON COLUMN mqdb.id_span.made_ms IS 'Range of times at which the ids were made, as in unique_id_ms';

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
    stragglers_cur pg_snapshot,
    stragglers_tail bigint,
    straggler_xid xid8,
    straggler_key integer,
    straggler_pos bigint,
    PRIMARY KEY (service, seq),
    CONSTRAINT checkpoint_stragglers CHECK (
        num_nulls(stragglers_cur, stragglers_tail, straggler_xid, straggler_key, straggler_pos) IN (0, 5))
);
COMMENT ON TABLE mqdb.checkpoint IS 'Progress of each service; append-only, and only the newest row counts. The primary key fences a second leader. RocketMQ: checkpoint, delayOffset.json';
COMMENT ON COLUMN mqdb.checkpoint.cur IS 'Snapshot of the round: all records up to done_pos that it sees are processed; prev is the snapshot of the previous round';
COMMENT ON COLUMN mqdb.checkpoint.tail_pos IS 'Last position of the round; the round is over when done_pos = tail_pos';
COMMENT ON COLUMN mqdb.checkpoint.stragglers_cur IS 'Snapshot of a round that has started and has more stragglers than fit into one batch; NULL otherwise. In that case, cur and tail_pos are those of the previous round';
COMMENT ON COLUMN mqdb.checkpoint.stragglers_tail IS 'The tail_pos of the round of stragglers_cur';
COMMENT ON COLUMN mqdb.checkpoint.straggler_xid IS 'With straggler_key and straggler_pos: the last straggler that was processed, in the order of (xid, queue_key, log_pos)';
COMMENT ON COLUMN mqdb.checkpoint.floor_pos IS 'Positions up to this one count as processed forever; set when a restored database is adopted';

CREATE TABLE mqdb.dispatch_lane (
    service text PRIMARY KEY,
    queue_keys integer[] NOT NULL
);
COMMENT ON TABLE mqdb.dispatch_lane IS 'Queues to which a large transaction has written, and that are dispatched separately until they have caught up; usually empty';
COMMENT ON COLUMN mqdb.dispatch_lane.service IS 'Name under which the lane has its checkpoints: lane and the xid of the transaction';
COMMENT ON COLUMN mqdb.dispatch_lane.queue_keys IS 'Queues of the lane; a queue is never in two lanes';

CREATE TYPE mqdb.straggler_range AS (
    after_xid xid8,
    after_key integer,
    after_pos bigint,
    to_xid xid8
);
COMMENT ON TYPE mqdb.straggler_range IS 'Records after a given point in the order of commit_log_xid, up to the last record of a transaction';

CREATE TYPE mqdb.batch AS (
    outcome text,
    seq bigint,
    prev pg_snapshot,
    cur pg_snapshot,
    is_first boolean,
    is_stale boolean,
    stragglers mqdb.straggler_range[],
    scan_floor bigint,
    floor_pos bigint,
    done_pos bigint,
    until_pos bigint,
    tail_pos bigint,
    segment integer,
    last_segment integer,
    lowest_log_pos bigint
);
COMMENT ON TYPE mqdb.batch IS 'Result of begin_batch: the records that a service processes next';
"""

CONSUMERS = """
CREATE TABLE mqdb.subscription_group (
    group_id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    group_name text NOT NULL UNIQUE,
    consume_enable boolean NOT NULL DEFAULT true,
    consume_broadcast_enable boolean NOT NULL DEFAULT true,
    retry_queue_nums integer NOT NULL DEFAULT 1 CHECK (retry_queue_nums > 0),
    retry_max_times integer NOT NULL DEFAULT 16 CHECK (retry_max_times >= 0),
    consume_mode text NOT NULL DEFAULT 'PULL' CHECK (consume_mode IN ('PULL', 'POP')),
    consume_message_orderly boolean NOT NULL DEFAULT false,
    retry_delays interval[] CHECK (cardinality(retry_delays) BETWEEN 1 AND 100),
    consume_from_where text NOT NULL DEFAULT 'LAST_OFFSET' CHECK (consume_from_where IN ('LAST_OFFSET', 'FIRST_OFFSET')),
    created_at timestamptz NOT NULL DEFAULT mqdb.now(),
    subscription_version bigint NOT NULL DEFAULT 0,
    created_pos bigint NOT NULL DEFAULT coalesce(pg_sequence_last_value('mqdb.log_pos'), 0)
);
CREATE INDEX subscription_group_created_pos ON mqdb.subscription_group (created_pos);
COMMENT ON TABLE mqdb.subscription_group IS 'Consumer groups. RocketMQ: subscriptionGroup.json';
COMMENT ON COLUMN mqdb.subscription_group.consume_mode IS 'PULL: each queue has an owner, which commits offsets. POP: all members receive messages from all queues, and acknowledge each message. RocketMQ: MessageRequestMode';
COMMENT ON COLUMN mqdb.subscription_group.consume_message_orderly IS 'In a group that pops, whether a queue delivers its next messages only after the previous ones are acknowledged';
COMMENT ON COLUMN mqdb.subscription_group.retry_delays IS 'Delays after the first failure of a message, the second, and so on; the last delay also applies to all later failures. NULL for the delays of the delay levels, from the third level on. RocketMQ: GroupRetryPolicy';
COMMENT ON COLUMN mqdb.subscription_group.consume_from_where IS 'Start of the group in a topic if its consumers do not choose one: consumers that pop with RocketMQ''s protocols or in SQL. RocketMQ: consumeFromMinEnable';
COMMENT ON COLUMN mqdb.subscription_group.subscription_version IS 'Version of the subscriptions on which members have to agree; a rolling change announces a higher version';
COMMENT ON INDEX mqdb.subscription_group_created_pos IS 'Index that finds groups younger than due retries';
COMMENT ON COLUMN mqdb.subscription_group.created_pos IS 'Log position at which the group was created; a retry at or below it belongs to an older group with the same name';

CREATE TABLE mqdb.subscription (
    group_id integer NOT NULL REFERENCES mqdb.subscription_group ON DELETE CASCADE,
    topic text NOT NULL,
    expression_type text NOT NULL DEFAULT 'TAG' CHECK (expression_type IN ('TAG', 'SQL92')),
    expression text NOT NULL,
    version bigint NOT NULL,
    PRIMARY KEY (group_id, topic)
);
COMMENT ON TABLE mqdb.subscription IS 'The filter of each group on each of its topics';

CREATE TABLE mqdb.consumer_offset (
    group_id integer NOT NULL REFERENCES mqdb.subscription_group ON DELETE CASCADE,
    queue_key integer NOT NULL REFERENCES mqdb.queue ON DELETE CASCADE,
    next_offset bigint NOT NULL CHECK (next_offset >= 0),
    segment integer NOT NULL DEFAULT 0,
    owner text,
    epoch bigint NOT NULL DEFAULT 0,
    updated_at timestamptz NOT NULL DEFAULT mqdb.now(),
    begun boolean NOT NULL DEFAULT true,
    reset_at timestamptz,
    PRIMARY KEY (group_id, queue_key)
) WITH (fillfactor = 50);
COMMENT ON TABLE mqdb.consumer_offset IS 'Offset of a group in each queue, and the member that owns the queue. RocketMQ: consumerOffset.json';
COMMENT ON COLUMN mqdb.consumer_offset.segment IS 'Segment of the last message that was read; the next pull starts its search there';
COMMENT ON COLUMN mqdb.consumer_offset.epoch IS 'Increases with each new owner; a commit with an older epoch is refused';
COMMENT ON COLUMN mqdb.consumer_offset.begun IS 'False until a member has owned the queue; a reader without ownership may have committed before';
COMMENT ON COLUMN mqdb.consumer_offset.reset_at IS 'Time of the last reset of the offset, by which readers without ownership detect a reset';

CREATE TABLE mqdb.client (
    client_id text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('PRODUCER', 'CONSUMER')),
    group_name text NOT NULL,
    message_model text NOT NULL DEFAULT 'CLUSTERING' CHECK (message_model IN ('CLUSTERING', 'BROADCASTING')),
    language text NOT NULL,
    version text NOT NULL,
    registered_at timestamptz NOT NULL DEFAULT mqdb.now(),
    heartbeat_at timestamptz NOT NULL DEFAULT mqdb.now(),
    checks_transactions boolean NOT NULL DEFAULT false,
    principal text NOT NULL DEFAULT session_user,
    PRIMARY KEY (client_id, kind, group_name, principal)
) WITH (fillfactor = 50);
CREATE INDEX client_group ON mqdb.client (group_name, kind);
COMMENT ON TABLE mqdb.client IS 'Live producers and consumers. RocketMQ: ConsumerManager, ProducerManager';
COMMENT ON COLUMN mqdb.client.principal IS 'Role that registered the client';
COMMENT ON COLUMN mqdb.client.checks_transactions IS 'Whether this producer can be asked about half messages of its group';

CREATE TABLE mqdb.presence (
    client_id text,
    principal text DEFAULT session_user,
    lock_key bigint NOT NULL,
    PRIMARY KEY (client_id, principal)
);
COMMENT ON TABLE mqdb.presence IS 'Advisory locks held by the LISTEN connections of client processes, through which closed connections are detected';
COMMENT ON COLUMN mqdb.presence.principal IS 'Role of the connection; a lock held by another role does not count';
COMMENT ON COLUMN mqdb.presence.lock_key IS 'Key of the advisory lock: random and new for each connection, so that no other session can take the lock before the client';

CREATE TABLE mqdb.queue_lock (
    group_id integer NOT NULL REFERENCES mqdb.subscription_group ON DELETE CASCADE,
    queue_key integer NOT NULL REFERENCES mqdb.queue ON DELETE CASCADE,
    owner text NOT NULL,
    epoch bigint NOT NULL,
    expires_at timestamptz NOT NULL,
    expiry interval NOT NULL,
    PRIMARY KEY (group_id, queue_key)
) WITH (fillfactor = 50);
COMMENT ON TABLE mqdb.queue_lock IS 'The client that consumes a queue in order, and the time until which no other client may. RocketMQ: RebalanceLockManager';
COMMENT ON COLUMN mqdb.queue_lock.expiry IS 'Length of a renewal; an expires_at later than now + expiry was written before the clock was set back, and is ignored';
COMMENT ON COLUMN mqdb.queue_lock.epoch IS 'Epoch in consumer_offset under which the queue was locked';

CREATE TABLE mqdb.offset_commit (
    group_id integer NOT NULL,
    queue_key integer NOT NULL,
    from_offset bigint NOT NULL,
    next_offset bigint NOT NULL CHECK (next_offset > from_offset),
    segment integer NOT NULL,
    epoch bigint NOT NULL,
    committed_at timestamptz NOT NULL DEFAULT mqdb.now(),
    PRIMARY KEY (group_id, queue_key, from_offset),
    FOREIGN KEY (group_id, queue_key) REFERENCES mqdb.consumer_offset ON DELETE CASCADE
);
COMMENT ON TABLE mqdb.offset_commit IS 'Commits of exactly-once consumers, each made in the transaction of a listener; every few seconds the owner of the queue folds them into consumer_offset';
COMMENT ON COLUMN mqdb.offset_commit.from_offset IS 'Offset of the first message that the transaction consumed';
COMMENT ON COLUMN mqdb.offset_commit.next_offset IS 'Offset of the next message to consume';
COMMENT ON COLUMN mqdb.offset_commit.segment IS 'No message at or after next_offset is in an older segment';

CREATE TABLE mqdb.pop_batch (
    group_id integer NOT NULL,
    queue_key integer NOT NULL,
    batch_id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    visible_at timestamptz NOT NULL,
    attempt integer NOT NULL DEFAULT 1 CHECK (attempt >= 0),
    segment integer NOT NULL,
    first_offset bigint NOT NULL CHECK (first_offset >= 0),
    steps integer[] CHECK (cardinality(steps) BETWEEN 2 AND 64),
    in_flight bigint NOT NULL CHECK (in_flight <> 0),
    client_id text NOT NULL,
    popped_at timestamptz NOT NULL DEFAULT mqdb.now(),
    PRIMARY KEY (group_id, queue_key, batch_id, visible_at),
    FOREIGN KEY (group_id, queue_key) REFERENCES mqdb.consumer_offset ON DELETE CASCADE
) WITH (fillfactor = 50);
CREATE INDEX pop_batch_visible_at ON mqdb.pop_batch (group_id, visible_at);
COMMENT ON TABLE mqdb.pop_batch IS 'Popped messages that are not acknowledged yet, up to 64 consecutive messages of a queue in a row. RocketMQ: PopCheckPoint';
COMMENT ON COLUMN mqdb.pop_batch.batch_id IS 'New for each delivery; unchanged if only the invisible time of a message changes';
COMMENT ON COLUMN mqdb.pop_batch.visible_at IS 'Time at which the messages become visible again';
COMMENT ON COLUMN mqdb.pop_batch.attempt IS 'Number of this delivery; the first is 1. It is one less if the messages have not been read';
COMMENT ON COLUMN mqdb.pop_batch.segment IS 'No message of this row is in an older segment';
COMMENT ON COLUMN mqdb.pop_batch.steps IS 'Queue offset of each message relative to first_offset; NULL if the offsets are consecutive';
COMMENT ON COLUMN mqdb.pop_batch.in_flight IS 'One bit for each message, the lowest bit for the first message; the bit is cleared when the message is acknowledged';

CREATE TABLE mqdb.client_request (
    request_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    client_id text NOT NULL,
    kind text NOT NULL,
    arguments jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT mqdb.now(),
    answer jsonb,
    answered_at timestamptz,
    principal text NOT NULL DEFAULT SESSION_USER
);
CREATE INDEX client_request_open ON mqdb.client_request (client_id) WHERE answered_at IS NULL;
COMMENT ON TABLE mqdb.client_request IS 'Requests of operators to a running client: to report its status, or to consume a message now. RocketMQ: GET_CONSUMER_RUNNING_INFO, CONSUME_MESSAGE_DIRECTLY';
COMMENT ON COLUMN mqdb.client_request.principal IS 'Role of the client: the same client id used by another role is a different client';
COMMENT ON INDEX mqdb.client_request_open IS 'Index for requests that a client has not answered yet';
"""

DELAY = """
CREATE TABLE mqdb.delay_level (
    level smallint PRIMARY KEY CHECK (level > 0),
    delay interval NOT NULL CHECK (delay > interval '0')
);
COMMENT ON TABLE mqdb.delay_level IS 'Delay of each delay level. RocketMQ: messageDelayLevel';
CREATE TABLE mqdb.delay_offset (
    level smallint NOT NULL,
    seq bigint NOT NULL,
    next_offset bigint NOT NULL,
    messages integer NOT NULL,
    written_at timestamptz NOT NULL DEFAULT mqdb.now(),
    PRIMARY KEY (level, seq)
);
COMMENT ON TABLE mqdb.delay_offset IS 'Progress of delivery in each delay level; append-only, and only the newest row counts. The primary key fences a second leader. RocketMQ: delayOffset.json';
COMMENT ON COLUMN mqdb.delay_offset.next_offset IS 'Next offset in queue number level - 1 of SCHEDULE_TOPIC_XXXX';
COMMENT ON COLUMN mqdb.delay_offset.messages IS 'Number of messages delivered by this step';

CREATE TABLE mqdb.deleted_topic (
    topic text PRIMARY KEY,
    last_pos bigint NOT NULL DEFAULT coalesce(pg_sequence_last_value('mqdb.log_pos'), 0),
    deleted_at timestamptz NOT NULL DEFAULT mqdb.now()
);
COMMENT ON TABLE mqdb.deleted_topic IS 'Topics that were deleted together with the messages waiting for them; one row for each name';
COMMENT ON COLUMN mqdb.deleted_topic.last_pos IS 'A waiting message at or below this position was deleted with the topic: it is never delivered, not even to a newer topic with the same name';

CREATE TABLE mqdb.timer (
    deliver_ms bigint NOT NULL,
    log_pos bigint NOT NULL,
    store_time timestamptz NOT NULL,
    born_time timestamptz NOT NULL,
    msg_id uuid NOT NULL,
    slot integer NOT NULL,
    sys_flag integer NOT NULL,
    flag integer NOT NULL,
    reconsume_times integer NOT NULL,
    born_host text NOT NULL,
    tags text,
    keys text,
    properties jsonb NOT NULL,
    body bytea NOT NULL
) PARTITION BY LIST (slot);
CREATE INDEX timer_due ON mqdb.timer (deliver_ms, log_pos);
CREATE INDEX timer_msg_id ON mqdb.timer (msg_id);
CREATE INDEX timer_retry ON mqdb.timer (log_pos) WHERE starts_with(properties ->> 'REAL_TOPIC', '%RETRY%');
COMMENT ON TABLE mqdb.timer IS 'Messages with a delivery time that the deliverer has collected from rmq_sys_wheel_timer because they were not due yet. Rows are never updated, and dropped by slot. RocketMQ: TimerLog';
COMMENT ON COLUMN mqdb.timer.deliver_ms IS 'Delivery time by the clock of the broker, in milliseconds since 1970';
COMMENT ON COLUMN mqdb.timer.log_pos IS 'Position of the original record, which the log may no longer have';
COMMENT ON COLUMN mqdb.timer.slot IS 'An hour, a day, or a longer period, depending on how long the message had to wait: see timer_slot. 0 for messages that wait although their delivery time has passed, because the clock was set back; only in slot 0 are rows deleted one by one';
COMMENT ON INDEX mqdb.timer_due IS 'Index for messages that are due';
COMMENT ON INDEX mqdb.timer_msg_id IS 'Recall';
COMMENT ON INDEX mqdb.timer_retry IS 'Index for retries whose time was chosen by a listener: consumer_lag.waiting';
CREATE TABLE mqdb.timer_behind PARTITION OF mqdb.timer FOR VALUES IN (0);
-- With wal_level = logical, FULL writes the whole row to the WAL for each deleted row. Only rows of slot 0 are deleted,
-- and this slot is usually empty. A key would cost one index entry for each timer.
ALTER TABLE mqdb.timer REPLICA IDENTITY FULL;
ALTER TABLE mqdb.timer_behind REPLICA IDENTITY FULL;
COMMENT ON TABLE mqdb.timer_behind IS 'Messages that wait because the clock was set back; usually empty';

CREATE TABLE mqdb.timer_slot (
    slot integer PRIMARY KEY,
    first_ms bigint NOT NULL,
    past_ms bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT mqdb.now()
);
COMMENT ON TABLE mqdb.timer_slot IS 'Partitions of mqdb.timer; a partition is created when its first message arrives, and dropped when all its messages are delivered';
COMMENT ON COLUMN mqdb.timer_slot.first_ms IS 'Messages of the slot are due at or after this time, in ms since 1970';
COMMENT ON COLUMN mqdb.timer_slot.past_ms IS 'Messages of the slot are due before this time, in ms since 1970';

CREATE TABLE mqdb.timer_step (
    seq bigint PRIMARY KEY,
    next_offset bigint NOT NULL,
    delivered_ms bigint NOT NULL,
    delivered_pos bigint NOT NULL,
    next_due_ms bigint NOT NULL,
    waiting bigint NOT NULL DEFAULT 0,
    collected integer NOT NULL,
    messages integer NOT NULL,
    written_at timestamptz NOT NULL DEFAULT mqdb.now()
);
COMMENT ON TABLE mqdb.timer_step IS 'Progress of collecting and delivering timers; append-only, and only the newest row counts. The primary key fences a second leader. RocketMQ: TimerCheckpoint';
COMMENT ON COLUMN mqdb.timer_step.next_offset IS 'Offset in rmq_sys_wheel_timer of the first message that is not collected yet';
COMMENT ON COLUMN mqdb.timer_step.delivered_ms IS 'Messages in mqdb.timer that are due before this time, or in this millisecond up to delivered_pos, are delivered; slot 0 is not included';
COMMENT ON COLUMN mqdb.timer_step.next_due_ms IS 'No undelivered message in mqdb.timer is due before this time';
COMMENT ON COLUMN mqdb.timer_step.waiting IS 'Number of undelivered messages in mqdb.timer; a recalled message counts until its delivery time';
COMMENT ON COLUMN mqdb.timer_step.collected IS 'Number of messages that this step added to mqdb.timer';
COMMENT ON COLUMN mqdb.timer_step.messages IS 'Number of messages that this step delivered';

CREATE TABLE mqdb.timer_recall (
    log_pos bigint PRIMARY KEY,
    deliver_ms bigint NOT NULL
);
COMMENT ON TABLE mqdb.timer_recall IS 'Messages recalled before their delivery; a row is kept until the log and mqdb.timer no longer have its message. RocketMQ: TIMER_DEL_UNIQKEY';
COMMENT ON COLUMN mqdb.timer_recall.log_pos IS 'Position of the original record';
"""

TRANSACTIONS = """
CREATE TABLE mqdb.half_message (
    log_pos bigint PRIMARY KEY,
    queue_offset bigint,
    msg_id uuid NOT NULL,
    producer_group text NOT NULL,
    topic text NOT NULL,
    state text NOT NULL DEFAULT 'PREPARED' CHECK (state IN ('PREPARED', 'COMMITTED', 'ROLLED_BACK', 'DISCARDED')),
    check_times integer NOT NULL DEFAULT 0 CHECK (check_times >= 0),
    stored_at timestamptz NOT NULL,
    check_at timestamptz,
    check_wait interval NOT NULL DEFAULT '0',
    check_client text,
    ended_at timestamptz,
    copy_pos bigint,
    principal text,
    CONSTRAINT half_message_check_at CHECK ((state = 'PREPARED') = (check_at IS NOT NULL)),
    CONSTRAINT half_message_check_client CHECK (state = 'PREPARED' OR check_client IS NULL),
    CONSTRAINT half_message_ended_at CHECK ((state <> 'PREPARED') = (ended_at IS NOT NULL)),
    CONSTRAINT half_message_copy_pos CHECK (CASE state WHEN 'COMMITTED' THEN copy_pos IS NOT NULL
                                                       WHEN 'ROLLED_BACK' THEN copy_pos IS NULL ELSE true END)
) WITH (fillfactor = 80);
CREATE INDEX half_message_check_at ON mqdb.half_message (check_at) WHERE state = 'PREPARED';
CREATE INDEX half_message_check_client ON mqdb.half_message (check_client) WHERE check_client IS NOT NULL;
CREATE INDEX half_message_discarded ON mqdb.half_message (log_pos) WHERE state = 'DISCARDED';
COMMENT ON TABLE mqdb.half_message IS 'Outcome of each half message; a row is created by the END of the half message or when the checker first sees it (see principal), and is kept as long as the log has the message. RocketMQ: RMQ_SYS_TRANS_OP_HALF_TOPIC';
COMMENT ON COLUMN mqdb.half_message.log_pos IS 'Position of the half message in RMQ_SYS_TRANS_HALF_TOPIC';
COMMENT ON COLUMN mqdb.half_message.queue_offset IS 'Offset of the half message in RMQ_SYS_TRANS_HALF_TOPIC; NULL if its END arrived before the checker saw it';
COMMENT ON COLUMN mqdb.half_message.topic IS 'The real topic, as named in the message';
COMMENT ON COLUMN mqdb.half_message.state IS 'PREPARED changes to COMMITTED, ROLLED_BACK or DISCARDED; DISCARDED may change back to PREPARED; there are no other changes (mqdb/common/transaction.py)';
COMMENT ON COLUMN mqdb.half_message.stored_at IS 'Time from which the age of the half message counts: when it was stored, or when its checks were resumed';
COMMENT ON COLUMN mqdb.half_message.check_times IS 'Number of checks sent to a producer';
COMMENT ON COLUMN mqdb.half_message.check_at IS 'Time of the next check';
COMMENT ON COLUMN mqdb.half_message.check_wait IS 'Time from the decision to check_at; if check_at is later than now + check_wait, the clock was ahead at the decision, and the check is due';
COMMENT ON COLUMN mqdb.half_message.check_client IS 'Client id of the producer that received the check and has not answered yet';
COMMENT ON COLUMN mqdb.half_message.copy_pos IS 'Position of the copy in the real topic, or of the last copy in TRANS_CHECK_MAX_TIME_TOPIC';
COMMENT ON COLUMN mqdb.half_message.principal IS 'Role that sent the half message and receives its checks; NULL for the owner of the schema or a member of its role. For any other role, the row is created together with the record';
COMMENT ON INDEX mqdb.half_message_check_at IS 'Index for checks that are due';
COMMENT ON INDEX mqdb.half_message_check_client IS 'Index for checks that a producer has not answered yet';
COMMENT ON INDEX mqdb.half_message_discarded IS 'Index for discarded half messages, for operators';

CREATE TABLE mqdb.half_step (
    seq bigint PRIMARY KEY,
    next_offset bigint NOT NULL,
    messages integer NOT NULL,
    written_at timestamptz NOT NULL DEFAULT mqdb.now()
);
COMMENT ON TABLE mqdb.half_step IS 'Progress of the checker through the half messages; append-only, and only the newest row counts';
COMMENT ON COLUMN mqdb.half_step.next_offset IS 'Next offset in RMQ_SYS_TRANS_HALF_TOPIC; each half message below it has a row in half_message';
COMMENT ON COLUMN mqdb.half_step.messages IS 'Number of half messages whose rows this step created';
"""

CRON = """
CREATE TABLE mqdb.cron (
    name text PRIMARY KEY,
    cron text NOT NULL,
    timezone text NOT NULL DEFAULT 'UTC',
    topic text NOT NULL,
    body bytea NOT NULL,
    tag text,
    keys text,
    properties jsonb NOT NULL DEFAULT '{}',
    sharding_key text,
    catch_up text NOT NULL DEFAULT 'once' CHECK (catch_up IN ('once', 'all', 'none')),
    is_paused boolean NOT NULL DEFAULT false,
    next_at timestamptz NOT NULL,
    last_fired_at timestamptz,
    sent bigint NOT NULL DEFAULT 0,
    skipped bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT mqdb.now(),
    created_by text NOT NULL DEFAULT current_user,
    principal text,
    slot smallint CHECK (slot BETWEEN 1 AND 100),
    application text CHECK (octet_length(application) <= 127),
    UNIQUE (principal, slot),
    CONSTRAINT cron_next_at
        CHECK (next_at >= timestamptz '1970-01-01 00:00+00' AND next_at < timestamptz '9999-01-01 00:00+00')
) WITH (fillfactor = 50);
COMMENT ON TABLE mqdb.cron IS 'Recurring sends. Each firing appends its message and advances next_at in one transaction';
COMMENT ON COLUMN mqdb.cron.cron IS 'Minute, hour, day of month, month and day of week, as in crontab(5); days 0 and 7 are Sunday';
COMMENT ON COLUMN mqdb.cron.timezone IS 'IANA name of the time zone of the cron expression';
COMMENT ON COLUMN mqdb.cron.topic IS 'Name of the topic; if the topic is deleted and recreated, it gets the messages again';
COMMENT ON COLUMN mqdb.cron.keys IS 'Keys separated by blanks';
COMMENT ON COLUMN mqdb.cron.sharding_key IS 'All messages go to the queue of this key; NULL for any queue';
COMMENT ON COLUMN mqdb.cron.catch_up IS 'Handling of times missed while no broker was running: send one message for the latest, one for each, or none';
COMMENT ON COLUMN mqdb.cron.next_at IS 'First time that is neither sent nor skipped; recalculated when a paused cron is resumed';
COMMENT ON COLUMN mqdb.cron.last_fired_at IS 'Scheduled time of the last message';
COMMENT ON COLUMN mqdb.cron.sent IS 'Messages';
COMMENT ON COLUMN mqdb.cron.skipped IS 'Number of times without a message, because the topic did not exist or was not writable';
COMMENT ON COLUMN mqdb.cron.principal IS 'Role or person that added the cron, whose rights are checked for each message. NULL if it was added by the owner of the schema or a member of its role';
COMMENT ON COLUMN mqdb.cron.application IS 'Application whose code declares the cron and may change it; NULL if the cron was added by hand';
COMMENT ON COLUMN mqdb.cron.slot IS 'Number of the cron among the 100 that a principal may have; NULL for the owner of the schema';
COMMENT ON CONSTRAINT cron_next_at ON mqdb.cron IS 'A time that brokers can read and calculate with: from 1970 to before 9999';
"""

DEAD_LETTERS = """
CREATE TABLE mqdb.redrive_result (
    operation_id bigint NOT NULL,
    log_pos bigint NOT NULL,
    group_name text,
    msg_id uuid,
    status text NOT NULL CHECK (status IN ('REDRIVEN', 'FAILED')),
    error text,
    new_log_pos bigint,
    redriven_at timestamptz NOT NULL DEFAULT mqdb.now(),
    PRIMARY KEY (operation_id, log_pos),
    CHECK ((status = 'REDRIVEN') = (new_log_pos IS NOT NULL AND msg_id IS NOT NULL AND error IS NULL))
);
CREATE INDEX redrive_result_log_pos ON mqdb.redrive_result (log_pos);
CREATE INDEX redrive_result_msg_id ON mqdb.redrive_result (msg_id);
COMMENT ON TABLE mqdb.redrive_result IS 'Outcome of each message in a redrive; kept as long as the log has the dead letter or its copy';
COMMENT ON COLUMN mqdb.redrive_result.operation_id IS 'Row in mqdb.operation, which retention may have deleted';
COMMENT ON COLUMN mqdb.redrive_result.log_pos IS 'Position of the dead letter';
COMMENT ON COLUMN mqdb.redrive_result.group_name IS 'Group that gave up the message; NULL, like the id, if the message did not exist';
COMMENT ON COLUMN mqdb.redrive_result.new_log_pos IS 'Position of the redriven copy';
COMMENT ON INDEX mqdb.redrive_result_log_pos IS 'Index that tells whether a dead letter was redriven';
COMMENT ON INDEX mqdb.redrive_result_msg_id IS 'Index for the operations that redrove a message';
"""

ACCESS = """
CREATE TABLE mqdb.acl (
    principal text NOT NULL CHECK (principal <> ''),
    access text NOT NULL CHECK (access IN ('SEND', 'READ', 'OPERATE', 'ADMIN')),
    resource_type text NOT NULL CHECK (resource_type IN ('TOPIC', 'GROUP')),
    resource text NOT NULL CHECK (resource <> ''),
    granted_at timestamptz NOT NULL DEFAULT mqdb.now(),
    CHECK (resource_type = 'TOPIC' OR access <> 'SEND' AND (access <> 'READ' OR right(resource, 1) <> '*')),
    PRIMARY KEY (principal, access, resource_type, resource)
);
CREATE TABLE mqdb.principal (
    principal text PRIMARY KEY CHECK (principal <> ''),
    is_role boolean NOT NULL DEFAULT true,
    namespace text CHECK (namespace ~ '^[a-zA-Z0-9_-]{1,60}$'),
    secret text CHECK (secret IS NULL OR NOT is_role)
);
COMMENT ON TABLE mqdb.principal IS 'Principals that are not a PostgreSQL role, or that have a namespace';
COMMENT ON COLUMN mqdb.principal.secret IS 'Secret of an access key, with which RocketMQ clients sign their requests; visible only to the owner of the broker';
COMMENT ON COLUMN mqdb.principal.is_role IS 'False for a user of the dashboard or an access key, whose rights the owner of the broker checks with mqdb.is_allowed';
COMMENT ON COLUMN mqdb.principal.namespace IS 'Namespace of the topics and groups that the principal names: shop in shop%orders. RocketMQ: ClientConfig.namespace';
COMMENT ON TABLE mqdb.acl IS 'Rights of principals, as evaluated by is_allowed; without a row, there is no right. The owner of the schema and the members of its role need no rows. RocketMQ: ACL 2.0';
CREATE TABLE mqdb.acl_queue (
    principal text NOT NULL,
    queue_key integer NOT NULL REFERENCES mqdb.queue ON DELETE CASCADE,
    may_send boolean NOT NULL,
    may_read boolean NOT NULL,
    PRIMARY KEY (principal, queue_key)
);
CREATE INDEX acl_queue_queue_key ON mqdb.acl_queue (queue_key);
COMMENT ON TABLE mqdb.acl_queue IS 'The rights in acl, expanded to queues. Only triggers write rows';
COMMENT ON INDEX mqdb.acl_queue_queue_key IS 'Index for deleting queues';
COMMENT ON COLUMN mqdb.acl.principal IS 'A PostgreSQL login role, unless mqdb.principal says otherwise';
COMMENT ON COLUMN mqdb.acl.resource IS 'Name of a topic or group, or a prefix that ends in *; membership needs the full name of the group';
"""

OPERATIONS = """
CREATE TABLE mqdb.operation (
    operation_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    occurred_at timestamptz NOT NULL DEFAULT mqdb.now(),
    principal text NOT NULL,
    actor text,
    verb text NOT NULL,
    topics text[] NOT NULL DEFAULT '{}',
    groups text[] NOT NULL DEFAULT '{}',
    object text,
    before jsonb,
    after jsonb,
    records bigint NOT NULL,
    reason text
);
CREATE INDEX operation_occurred_at ON mqdb.operation (occurred_at);
CREATE INDEX operation_names ON mqdb.operation USING gin (topics, groups);
CREATE INDEX operation_object ON mqdb.operation (object);
COMMENT ON TABLE mqdb.operation IS 'Changes by people and tools: one row for each change, inserted in the same transaction by record_operation and never updated. Message bodies are not included. RocketMQ: the audit log of ACL 2.0';
COMMENT ON COLUMN mqdb.operation.principal IS 'Role that was logged in (session_user)';
COMMENT ON COLUMN mqdb.operation.actor IS 'Person or program that made the change, as named by the caller; NULL if not named';
COMMENT ON COLUMN mqdb.operation.verb IS 'The kind of change, such as topic.create or offset.reset';
COMMENT ON COLUMN mqdb.operation.topics IS 'Topics that were changed';
COMMENT ON COLUMN mqdb.operation.groups IS 'Consumer groups that were changed';
COMMENT ON COLUMN mqdb.operation.object IS 'Other object that was changed: the name of a cron, the id of a message, a delay level';
COMMENT ON COLUMN mqdb.operation.before IS 'State before the change; NULL if the object did not exist';
COMMENT ON COLUMN mqdb.operation.after IS 'State after the change; NULL if the object no longer exists';
COMMENT ON COLUMN mqdb.operation.records IS 'Number of messages, or rows of settings and offsets, that it changed';
COMMENT ON COLUMN mqdb.operation.reason IS 'Reason given by the caller';
COMMENT ON INDEX mqdb.operation_occurred_at IS 'Retention';
COMMENT ON INDEX mqdb.operation_names IS 'Index for changes to a topic or group';
COMMENT ON INDEX mqdb.operation_object IS 'Index for changes to a cron or message';
"""

SPARK = """
CREATE TABLE mqdb.sink_batch (
    sink_id text NOT NULL,
    batch_id bigint NOT NULL CHECK (batch_id >= 0),
    query_id text,
    messages bigint NOT NULL CHECK (messages >= 0),
    checksum bigint,
    brokers text[],
    committed_at timestamptz NOT NULL DEFAULT mqdb.now(),
    principal text NOT NULL DEFAULT mqdb.sink_principal(),
    PRIMARY KEY (principal, sink_id, batch_id)
);
COMMENT ON TABLE mqdb.sink_batch IS 'Batches written by Spark: the transaction that appends the messages inserts the row, so no batch is appended twice';
COMMENT ON COLUMN mqdb.sink_batch.sink_id IS 'stream:<query id or sinkId>, or batch:<writeId>';
COMMENT ON COLUMN mqdb.sink_batch.principal IS 'Role to which this row belongs; empty for the owner of the schema and the members of its role';
COMMENT ON COLUMN mqdb.sink_batch.batch_id IS 'Number of the batch in the streaming query; 0 for a batch job';
COMMENT ON COLUMN mqdb.sink_batch.query_id IS 'Id of the checkpoint to which the batch numbers belong; NULL for a batch job';
COMMENT ON COLUMN mqdb.sink_batch.checksum IS 'Checksum of the rows written to this broker, independent of their order; NULL for a sink that writes to a single broker';
COMMENT ON COLUMN mqdb.sink_batch.brokers IS 'All brokers to which the batch was written; NULL for a sink that writes to a single broker';

CREATE UNLOGGED TABLE mqdb.sink_write (
    write_id uuid PRIMARY KEY,
    sink_id text NOT NULL,
    batch_id bigint NOT NULL,
    staged_at timestamptz NOT NULL DEFAULT mqdb.now(),
    principal text NOT NULL DEFAULT mqdb.sink_principal()
);
CREATE INDEX sink_write_batch ON mqdb.sink_write (principal, sink_id, batch_id);
COMMENT ON TABLE mqdb.sink_write IS 'One row for each attempt of a Spark task that has staged messages; emptied by a crash, like its rows in sink_stage';
COMMENT ON COLUMN mqdb.sink_write.principal IS 'Role to which this row belongs, as in sink_batch';
COMMENT ON INDEX mqdb.sink_write_batch IS 'Index for the rows that a commit deletes';

CREATE UNLOGGED TABLE mqdb.sink_stage (
    write_id uuid NOT NULL,
    born_time timestamptz NOT NULL,
    tags_code bigint NOT NULL,
    deliver_ms bigint,
    msg_id uuid NOT NULL,
    seq integer NOT NULL,
    queue_key integer NOT NULL,
    delay_level integer,
    born_host text NOT NULL,
    tags text,
    keys text,
    properties jsonb NOT NULL,
    body bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000, autovacuum_vacuum_insert_threshold = -1);
CREATE INDEX sink_stage_write ON mqdb.sink_stage (write_id, seq);
-- Deletes write no extra WAL, because unlogged tables cannot be published. A key would cost one index entry for each
-- message.
ALTER TABLE mqdb.sink_stage REPLICA IDENTITY FULL;
COMMENT ON TABLE mqdb.sink_stage IS 'Messages that Spark tasks have written and that wait for the commit of their batch. A crash of PostgreSQL empties this table unless its owner has set it LOGGED: the commit then finds too few messages, and Spark runs the batch again';
COMMENT ON COLUMN mqdb.sink_stage.seq IS 'Position of the message among those of its task';
COMMENT ON COLUMN mqdb.sink_stage.delay_level IS 'The argument delay_level of mqdb.place; NULL for a message that does not wait for a delay level';
COMMENT ON COLUMN mqdb.sink_stage.deliver_ms IS 'The argument deliver_ms of mqdb.place, in ms since 1970; NULL for a message without a delivery time';
COMMENT ON INDEX mqdb.sink_stage_write IS 'Index for the messages staged by a task, in order';

CREATE TABLE mqdb.sink_part (
    sink_id text NOT NULL,
    batch_id bigint NOT NULL,
    part integer NOT NULL,
    write_id uuid NOT NULL UNIQUE,
    messages bigint NOT NULL,
    moved bigint NOT NULL DEFAULT 0 CHECK (moved BETWEEN 0 AND messages),
    next_seq integer NOT NULL DEFAULT 0,
    waits boolean NOT NULL,
    principal text NOT NULL DEFAULT mqdb.sink_principal(),
    PRIMARY KEY (principal, sink_id, batch_id, part)
);
COMMENT ON TABLE mqdb.sink_part IS 'Attempts that make up a batch while the batch is appended in several transactions; a batch without a row in this table is completely in the log, or not at all';
COMMENT ON COLUMN mqdb.sink_part.part IS 'Position of the task in the batch';
COMMENT ON COLUMN mqdb.sink_part.moved IS 'Number of messages that are already in the log';
COMMENT ON COLUMN mqdb.sink_part.next_seq IS 'Messages with a smaller seq are already in the log';
COMMENT ON COLUMN mqdb.sink_part.waits IS 'Whether any of the messages waits for a delivery time';
COMMENT ON COLUMN mqdb.sink_part.principal IS 'Role to which this row belongs, as in sink_batch';

CREATE TABLE mqdb.archived_segment (
    segment integer NOT NULL,
    path text,
    topics text[],
    offsets jsonb NOT NULL,
    messages bigint NOT NULL CHECK (messages >= 0),
    bytes bigint NOT NULL CHECK (bytes >= 0),
    first_stored_at timestamptz,
    last_stored_at timestamptz,
    archived_at timestamptz NOT NULL DEFAULT mqdb.now(),
    UNIQUE NULLS NOT DISTINCT (segment, topics),
    CHECK (messages = 0 OR path IS NOT NULL)
);
-- A replica identity is not possible, because the unique index may contain NULL. Rows are only inserted.
ALTER TABLE mqdb.archived_segment REPLICA IDENTITY FULL;
COMMENT ON TABLE mqdb.archived_segment IS 'Catalogue of the archive: segments, or some of their topics, whose files were read back and verified. A row is kept when its segment is dropped';
COMMENT ON COLUMN mqdb.archived_segment.path IS 'Folder of the Parquet files, with subfolders topic=/hour=; NULL if there was nothing to write';
COMMENT ON COLUMN mqdb.archived_segment.topics IS 'Requested topics, ordered by name; NULL for all topics except those of the broker: only such a row allows retention to drop the segment. Other rows for the same segment have different topics';
COMMENT ON COLUMN mqdb.archived_segment.offsets IS 'Offsets in the archive, as {topic: {queue id: [first offset, offset after the last]}}';
COMMENT ON COLUMN mqdb.archived_segment.bytes IS 'Total size of the files';
COMMENT ON COLUMN mqdb.archived_segment.first_stored_at IS 'Store time of the oldest message; NULL if there are no messages';
COMMENT ON COLUMN mqdb.archived_segment.last_stored_at IS 'Store time of the newest message; NULL if there are no messages';

CREATE TABLE mqdb.archive_run (
    path text PRIMARY KEY,
    segment integer NOT NULL,
    started_at timestamptz NOT NULL DEFAULT mqdb.now()
);
COMMENT ON TABLE mqdb.archive_run IS 'Folders that are being written. The transaction that turns a folder into an archived segment deletes its row; the next run removes folders left by a crash';
"""

#: Three segments of the smallest size, so that the segment keeper stays ahead from the first message on. An unused
#: sequence reports its first value as if it were used; setval makes last_value the last used position, even if no
#: position was used.
FIRST_ROWS = """
SELECT setval('mqdb.log_pos', 0);
INSERT INTO mqdb.broker (broker_name, cluster_name, segment_size, system_identifier, database_oid, created_at)
SELECT 'broker-a', 'DefaultCluster', 262144, i.system_identifier, i.database_oid, mqdb.now() FROM mqdb.identity() i;
SELECT mqdb.ensure_segments(3);
INSERT INTO mqdb.checkpoint (service, seq, prev, cur, done_pos, tail_pos, segment, messages)
SELECT service, 0, pg_current_snapshot(), pg_current_snapshot(), 0, 0, 1, 0
FROM unnest(ARRAY['dispatch', 'index']) AS service;
INSERT INTO mqdb.topic (topic, read_queue_nums, write_queue_nums, perm, message_type)
VALUES ('TBW102', 8, 8, 7, 'NORMAL'),
       ('SCHEDULE_TOPIC_XXXX', 18, 18, 6, 'DELAY'),
       ('rmq_sys_wheel_timer', 1, 1, 6, 'DELAY'),
       ('RMQ_SYS_TRANS_HALF_TOPIC', 1, 1, 6, 'TRANSACTION'),
       ('TRANS_CHECK_MAX_TIME_TOPIC', 1, 1, 6, 'TRANSACTION');
INSERT INTO mqdb.queue (topic_id, queue_id)
SELECT t.topic_id, queue_id FROM mqdb.topic t, generate_series(0, t.read_queue_nums - 1) AS queue_id ORDER BY 1, 2;
INSERT INTO mqdb.delay_level (level, delay)
SELECT level, delay::interval FROM unnest('{1 s,5 s,10 s,30 s,1 min,2 min,3 min,4 min,5 min,6 min,7 min,8 min,9 min,10 min,20 min,30 min,1 h,2 h}'::text[])
    WITH ORDINALITY AS given (delay, level);
INSERT INTO mqdb.timer_step (seq, next_offset, delivered_ms, delivered_pos, next_due_ms, collected, messages)
VALUES (0, 0, 0, 0, 0, 0, 0);
"""

#: A role named `mqdb` would create its own tables in schema `mqdb`, because PostgreSQL first looks for a schema named
#: like the role. A search path that was already set for the role is kept.
ROLE = """
DO $$
BEGIN
    IF to_regrole('mqdb') IS NOT NULL AND NOT EXISTS (
        SELECT FROM pg_db_role_setting s CROSS JOIN unnest(s.setconfig) AS given
        WHERE s.setrole = to_regrole('mqdb') AND given ^@ 'search_path='
          AND s.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database())))
    THEN
        EXECUTE format('ALTER ROLE mqdb IN DATABASE %I SET search_path = public', current_database());
    END IF;
EXCEPTION WHEN insufficient_privilege THEN
    NULL;  -- the owner of that role may do it
END
$$
"""

#: Each file comes after those that it needs. `now` and `sink_principal` come before the tables, because column defaults
#: call them.
FUNCTIONS = (
    "log/refuse_parameter",
    "log/refuse_isolation",
    "log/refuse_append",
    "consumers/refuse_commit",
    "filters/java_hash",
    "log/tag_code",
    "log/copied_code",
    "log/body_text",
    "log/unique_id_text",
    "log/unique_id_ms",
    "log/all_properties",
    "log/text_properties",
    "log/compression",
    "log/identity",
    "log/history",
    "topics/system_topics",
    "acl/namespace",
    "acl/is_allowed",
    "acl/acl_queue",
    "dispatch/live_queue",
    "segments/numbers_left",
    "acl/own_right",
    "dispatch/is_attended",
    "dispatch/stay_awake",
    "dispatch/consume_queue",
    "segments/add_segment",
    "log/catch_up_sequences",
    "segments/ensure_segments",
    "log/try_lock",
    "dispatch/arrivals",
    "dispatch/next_batch",
    "dispatch/begin_batch",
    "dispatch/end_batch",
    "segments/leave_segment",
    "dispatch/adopt",
    "dispatch/dispatch_records",
    "dispatch/open_lane",
    "dispatch/lane_batch",
    "dispatch/dispatch",
    "dispatch/fall_asleep",
    "dispatch/wake_dispatcher",
    "dispatch/mend_dispatcher_state",
    "dispatch/take_places",
    "dispatch/index_keys",
    "acl/is_own",
    "log/find_records",
    "segments/refuse_sealed",
    "segments/seal_segment",
    "log/reserved_properties",
    "log/limits",
    "log/check_send",
    "log/property_number",
    "log/property_time",
    "filters/java_integer",
    "filters/java_double",
    "log/place",
    "log/send",
    "schedule/add_timer_slot",
    "schedule/record_operation",
    "clients/check_member",
    "topics/max_queues",
    "topics/make_topic",
    "clients/reap_clients",
    "clients/leave_group",
    "consumers/replace_subscriptions",
    "consumers/unlock_queues",
    "consumers/take_offset_commits",
    "consumers/next_epoch",
    "consumers/set_offsets",
    "consumers/pop",
    "consumers/pop_messages",
    "schedule/recall",
    "schedule/recall_own",
    "log/message",
    "dispatch/queue_ends",
    "schedule/scheduled",
    "consumers/consumer_lag",
    "dead_letters/dead_letter",
    "dead_letters/dlq",
    "dead_letters/dlq_at",
    "dead_letters/dlq_outline",
    "log/unseen_time",
    "dead_letters/dlq_redrive_plan",
    "dead_letters/dlq_redrive",
    "transactions/half_messages",
    "transactions/half_own",
    "log/replies",
    "acl/sink_own",
    "transactions/resolve_half",
    "schedule/crons",
    "acl/administer",
    "acl/row_security",
)


def upgrade() -> None:
    """Create the schema."""
    op.execute(sql_text("log/now"))
    op.execute(sql_text("acl/sink_principal"))
    for statements in (
        BROKER,
        LOCKS,
        TOPICS,
        LOG,
        CONSUMERS,
        DELAY,
        TRANSACTIONS,
        CRON,
        DEAD_LETTERS,
        ACCESS,
        OPERATIONS,
        SPARK,
    ):
        op.execute(statements)
    for name in FUNCTIONS:
        op.execute(sql_text(name))
    for statements in (FIRST_ROWS, ROLE):
        op.execute(statements)


def downgrade() -> None:
    """Raise NotImplementedError, because there is no earlier revision."""
    raise NotImplementedError("drop the schema instead: DROP SCHEMA mqdb CASCADE")
