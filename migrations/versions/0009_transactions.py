"""Transactions: the topics of half messages, what became of each of these, and who can be asked about them."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

TOPICS = """
WITH system AS (
    INSERT INTO mqdb.topic (topic, read_queue_nums, write_queue_nums, perm, message_type)
    VALUES ('RMQ_SYS_TRANS_HALF_TOPIC', 1, 1, 6, 'TRANSACTION'), ('TRANS_CHECK_MAX_TIME_TOPIC', 1, 1, 6, 'TRANSACTION')
    RETURNING topic_id
)
INSERT INTO mqdb.queue (topic_id, queue_id) SELECT topic_id, 0 FROM system ORDER BY topic_id;
"""

HALF_MESSAGES = """
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
    check_client text,
    ended_at timestamptz,
    copy_pos bigint,
    CONSTRAINT half_message_check_at CHECK ((state = 'PREPARED') = (check_at IS NOT NULL)),
    CONSTRAINT half_message_check_client CHECK (state = 'PREPARED' OR check_client IS NULL),
    CONSTRAINT half_message_ended_at CHECK ((state <> 'PREPARED') = (ended_at IS NOT NULL)),
    CONSTRAINT half_message_copy_pos CHECK (CASE state WHEN 'COMMITTED' THEN copy_pos IS NOT NULL
                                                       WHEN 'ROLLED_BACK' THEN copy_pos IS NULL ELSE true END)
) WITH (fillfactor = 80);
CREATE INDEX half_message_check_at ON mqdb.half_message (check_at) WHERE state = 'PREPARED';
CREATE INDEX half_message_check_client ON mqdb.half_message (check_client) WHERE check_client IS NOT NULL;
CREATE INDEX half_message_discarded ON mqdb.half_message (log_pos) WHERE state = 'DISCARDED';
COMMENT ON TABLE mqdb.half_message IS 'What became of each half message; a row is made by its END or by the first look of the checker, and stays as long as the log has the message. RocketMQ: RMQ_SYS_TRANS_OP_HALF_TOPIC';
COMMENT ON COLUMN mqdb.half_message.log_pos IS 'Of the record in RMQ_SYS_TRANS_HALF_TOPIC';
COMMENT ON COLUMN mqdb.half_message.queue_offset IS 'Its offset there; NULL where its END came before the checker';
COMMENT ON COLUMN mqdb.half_message.topic IS 'The real topic, as the message names it';
COMMENT ON COLUMN mqdb.half_message.state IS 'PREPARED to COMMITTED, ROLLED_BACK or DISCARDED; DISCARDED back to PREPARED; nothing else (mqdb/transaction.py)';
COMMENT ON COLUMN mqdb.half_message.check_times IS 'How often a producer was asked';
COMMENT ON COLUMN mqdb.half_message.check_at IS 'When it is asked about next';
COMMENT ON COLUMN mqdb.half_message.check_client IS 'Who is asked and has not answered yet';
COMMENT ON COLUMN mqdb.half_message.copy_pos IS 'Of the copy in the real topic, or of the last one in TRANS_CHECK_MAX_TIME_TOPIC';
COMMENT ON INDEX mqdb.half_message_check_at IS 'What is due to be asked about';
COMMENT ON INDEX mqdb.half_message_check_client IS 'What a producer is asked';
COMMENT ON INDEX mqdb.half_message_discarded IS 'What was given up, for people';

CREATE TABLE mqdb.half_step (
    seq bigint PRIMARY KEY,
    next_offset bigint NOT NULL,
    messages integer NOT NULL,
    written_at timestamptz NOT NULL DEFAULT mqdb.now()
);
COMMENT ON TABLE mqdb.half_step IS 'How far the checker has looked through the half messages; append-only, the newest row counts';
COMMENT ON COLUMN mqdb.half_step.next_offset IS 'In RMQ_SYS_TRANS_HALF_TOPIC; each message below it has a row in half_message';
COMMENT ON COLUMN mqdb.half_step.messages IS 'How many of them had none before this step';
"""

PRODUCERS = """
ALTER TABLE mqdb.client ADD COLUMN checks_transactions boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN mqdb.client.checks_transactions IS 'Whether this producer can be asked about half messages of its group';
ALTER TABLE mqdb.broker ADD COLUMN reject_transaction_message boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN mqdb.broker.reject_transaction_message IS 'Whether the broker refuses half messages; a setting of mqdb serve';
"""

VIEW = """
CREATE VIEW mqdb.half_messages AS
WITH half AS (
    SELECT h.log_pos, h.queue_offset, h.msg_id, h.producer_group, h.topic, h.state, h.check_times, h.stored_at,
           h.check_at, h.check_client, h.ended_at, h.copy_pos
    FROM mqdb.half_message h
    UNION ALL
    SELECT cl.log_pos, cq.queue_offset, cl.msg_id, cl.properties ->> 'PGROUP', cl.properties ->> 'REAL_TOPIC', 'PREPARED', 0,
           cl.store_time, NULL, NULL, NULL, NULL
    FROM mqdb.topic t
    JOIN mqdb.queue q ON q.topic_id = t.topic_id
    JOIN mqdb.consume_queue cq ON cq.queue_key = q.queue_key
    JOIN mqdb.commit_log cl ON cl.log_pos = cq.log_pos
    WHERE t.topic = 'RMQ_SYS_TRANS_HALF_TOPIC'
      AND cq.queue_offset >= greatest(q.base_offset, (SELECT s.next_offset FROM mqdb.half_step s ORDER BY s.seq DESC LIMIT 1))
      AND NOT EXISTS (SELECT FROM mqdb.half_message h WHERE h.log_pos = cq.log_pos)
)
SELECT mqdb.unique_id_text(half.msg_id) AS transaction_id, half.* FROM half;
COMMENT ON VIEW mqdb.half_messages IS 'All half messages that the log holds, and what became of them; check_at is NULL for those too young to be asked about';
"""


def upgrade() -> None:
    """Create it all."""
    for statements in (TOPICS, HALF_MESSAGES, PRODUCERS, VIEW):
        op.execute(statements)


def downgrade() -> None:
    """Not offered: half messages would be forgotten, and with them what was promised."""
    raise NotImplementedError("restore a backup from before the migration instead")
