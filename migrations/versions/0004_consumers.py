"""Consumers: versions of subscriptions, queue locks, exactly-once commits, delayed delivery, retries and the DLQ.

All of it is new beside what was there: no row is rewritten, and offsets stay where they are.
"""

from alembic import op

from mqdb.store.migrations import function_sql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

GROUPS = """
ALTER TABLE mqdb.subscription_group ADD COLUMN subscription_version bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN mqdb.subscription_group.subscription_version IS 'Version of the subscriptions that members have to agree on; a rolling change announces a higher one';

CREATE TABLE mqdb.queue_lock (
    group_id integer NOT NULL REFERENCES mqdb.subscription_group ON DELETE CASCADE,
    queue_key integer NOT NULL REFERENCES mqdb.queue ON DELETE CASCADE,
    owner text NOT NULL,
    epoch bigint NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (group_id, queue_key)
) WITH (fillfactor = 50);
COMMENT ON TABLE mqdb.queue_lock IS 'Who consumes a queue in order, and until when nobody else may. RocketMQ: RebalanceLockManager';
COMMENT ON COLUMN mqdb.queue_lock.epoch IS 'The epoch of consumer_offset under which it was locked';

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
COMMENT ON TABLE mqdb.offset_commit IS 'Commits of exactly-once consumers, each in the transaction of a listener; folded into consumer_offset every few seconds by the owner of the queue';
COMMENT ON COLUMN mqdb.offset_commit.from_offset IS 'The first message of the queue that the transaction has consumed';
COMMENT ON COLUMN mqdb.offset_commit.next_offset IS 'The next message to consume';
COMMENT ON COLUMN mqdb.offset_commit.segment IS 'No message from next_offset on lies in an older segment';

CREATE TABLE mqdb.offset_audit (
    audit_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    group_name text NOT NULL,
    topic text NOT NULL,
    queue_id integer NOT NULL,
    old_offset bigint,
    new_offset bigint NOT NULL,
    reason text NOT NULL,
    actor text NOT NULL DEFAULT current_user,
    changed_at timestamptz NOT NULL DEFAULT mqdb.now()
);
COMMENT ON TABLE mqdb.offset_audit IS 'Offsets that people have set, and why';
COMMENT ON COLUMN mqdb.offset_audit.old_offset IS 'NULL where the group had none';
"""

DELAY = """
CREATE TABLE mqdb.delay_level (
    level smallint PRIMARY KEY CHECK (level > 0),
    delay interval NOT NULL CHECK (delay > interval '0')
);
COMMENT ON TABLE mqdb.delay_level IS 'How long each delay level takes. RocketMQ: messageDelayLevel';
INSERT INTO mqdb.delay_level (level, delay)
SELECT level, delay::interval FROM unnest('{1 s,5 s,10 s,30 s,1 min,2 min,3 min,4 min,5 min,6 min,7 min,8 min,9 min,10 min,20 min,30 min,1 h,2 h}'::text[])
    WITH ORDINALITY AS given (delay, level);

CREATE TABLE mqdb.delay_offset (
    level smallint NOT NULL,
    seq bigint NOT NULL,
    next_offset bigint NOT NULL,
    messages integer NOT NULL,
    written_at timestamptz NOT NULL DEFAULT mqdb.now(),
    PRIMARY KEY (level, seq)
);
COMMENT ON TABLE mqdb.delay_offset IS 'How far each delay level is delivered; append-only, the newest row counts. Its key fences a second leader. RocketMQ: delayOffset.json';
COMMENT ON COLUMN mqdb.delay_offset.next_offset IS 'In the queue of SCHEDULE_TOPIC_XXXX that has number level - 1';
COMMENT ON COLUMN mqdb.delay_offset.messages IS 'How many of them were delivered by this step';

WITH schedule AS (
    INSERT INTO mqdb.topic (topic, read_queue_nums, write_queue_nums, perm, message_type)
    VALUES ('SCHEDULE_TOPIC_XXXX', 18, 18, 6, 'DELAY')
    RETURNING topic_id
)
INSERT INTO mqdb.queue (topic_id, queue_id) SELECT topic_id, generate_series(0, 17) FROM schedule;
"""

DEAD_LETTERS = """
CREATE TABLE mqdb.redrive (
    redrive_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    target_topic text,
    body_edited boolean NOT NULL,
    condition text NOT NULL,
    actor text NOT NULL DEFAULT current_user,
    started_at timestamptz NOT NULL DEFAULT mqdb.now()
);
COMMENT ON TABLE mqdb.redrive IS 'Each time that somebody has sent messages of DLQs back to work';
COMMENT ON COLUMN mqdb.redrive.target_topic IS 'NULL: to the groups that failed them, and to nobody else';
COMMENT ON COLUMN mqdb.redrive.body_edited IS 'The message was given another body';
COMMENT ON COLUMN mqdb.redrive.condition IS 'How the messages were chosen: options of the command line, or the statement';

CREATE TABLE mqdb.redrive_result (
    redrive_id bigint NOT NULL REFERENCES mqdb.redrive ON DELETE CASCADE,
    log_pos bigint NOT NULL,
    group_name text,
    msg_id uuid,
    status text NOT NULL CHECK (status IN ('REDRIVEN', 'FAILED')),
    error text,
    new_log_pos bigint,
    redriven_at timestamptz NOT NULL DEFAULT mqdb.now(),
    PRIMARY KEY (redrive_id, log_pos),
    CHECK ((status = 'REDRIVEN') = (new_log_pos IS NOT NULL AND msg_id IS NOT NULL AND error IS NULL))
);
CREATE INDEX redrive_result_log_pos ON mqdb.redrive_result (log_pos);
COMMENT ON TABLE mqdb.redrive_result IS 'What became of each message of a redrive';
COMMENT ON COLUMN mqdb.redrive_result.log_pos IS 'Position of the copy in the DLQ';
COMMENT ON COLUMN mqdb.redrive_result.group_name IS 'The group that had given it up; NULL, with the id, where there was no such message';
COMMENT ON COLUMN mqdb.redrive_result.new_log_pos IS 'Position of the copy that was sent back to work';
COMMENT ON INDEX mqdb.redrive_result_log_pos IS 'Whether a message of the DLQ was redriven';
"""

CLIENT_REQUESTS = """
CREATE TABLE mqdb.client_request (
    request_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    client_id text NOT NULL,
    kind text NOT NULL,
    arguments jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT mqdb.now(),
    answer jsonb,
    answered_at timestamptz
);
CREATE INDEX client_request_open ON mqdb.client_request (client_id) WHERE answered_at IS NULL;
COMMENT ON TABLE mqdb.client_request IS 'What people ask of a running client: its status, to consume one message now. RocketMQ: GET_CONSUMER_RUNNING_INFO, CONSUME_MESSAGE_DIRECTLY';
COMMENT ON INDEX mqdb.client_request_open IS 'What a client has yet to answer';
"""

FUNCTIONS: tuple[str, ...] = (
    "consumer_lag_v1",
    "property_number_v1",
    "property_time_v1",
    "dlq_v1",
    "dlq_redrive_plan_v1",
    "dlq_redrive_v1",
)


def upgrade() -> None:
    """Create it all."""
    for statements in (GROUPS, DELAY, DEAD_LETTERS, CLIENT_REQUESTS):
        op.execute(statements)
    for name in FUNCTIONS:
        op.execute(function_sql(name))


def downgrade() -> None:
    """Not offered: messages that wait for a retry would never come."""
    raise NotImplementedError("restore a backup from before the migration instead")
