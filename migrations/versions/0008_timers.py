"""Timers: messages with a time of delivery, how far they are delivered, and how one takes them back.

All of it is new beside what was there.
"""

from alembic import op

from mqdb.store.migrations import function_sql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

SETTING = """
ALTER TABLE mqdb.broker ADD COLUMN timer_max_delay_ms bigint CHECK (timer_max_delay_ms > 0);
COMMENT ON COLUMN mqdb.broker.timer_max_delay_ms IS 'How far ahead a time of delivery may lie; NULL for as far as one likes. A setting of mqdb serve';
"""

TIMER = """
WITH system AS (
    INSERT INTO mqdb.topic (topic, read_queue_nums, write_queue_nums, perm, message_type)
    VALUES ('rmq_sys_wheel_timer', 1, 1, 6, 'DELAY') RETURNING topic_id
)
INSERT INTO mqdb.queue (topic_id, queue_id) SELECT topic_id, 0 FROM system;

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
COMMENT ON TABLE mqdb.timer IS 'Messages with a time of delivery: what the deliverer has collected from rmq_sys_wheel_timer because it was not due yet. Never updated, dropped by slot. RocketMQ: TimerLog';
COMMENT ON COLUMN mqdb.timer.deliver_ms IS 'When it is due by the clock of the broker, in milliseconds since 1970';
COMMENT ON COLUMN mqdb.timer.log_pos IS 'Position of the record that was sent; the log may hold it no longer';
COMMENT ON COLUMN mqdb.timer.slot IS 'An hour, a day, or longer, by how long the message had to wait: see timer_slot. 0 for what waits though delivery was past its time already, because the clock was set back; only there rows are deleted one by one';
COMMENT ON INDEX mqdb.timer_due IS 'What is due';
COMMENT ON INDEX mqdb.timer_msg_id IS 'Recall';
CREATE TABLE mqdb.timer_behind PARTITION OF mqdb.timer FOR VALUES IN (0);
COMMENT ON TABLE mqdb.timer_behind IS 'Messages that wait because the clock was set back: mostly none';

CREATE TABLE mqdb.timer_slot (
    slot integer PRIMARY KEY,
    first_ms bigint NOT NULL,
    past_ms bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT mqdb.now()
);
COMMENT ON TABLE mqdb.timer_slot IS 'The partitions of mqdb.timer; made when the first message for them comes, dropped when all of it is delivered';
COMMENT ON COLUMN mqdb.timer_slot.first_ms IS 'Its messages are due from here on, in milliseconds since 1970';
COMMENT ON COLUMN mqdb.timer_slot.past_ms IS 'Its messages are due before that';

CREATE TABLE mqdb.timer_step (
    seq bigint PRIMARY KEY,
    next_offset bigint NOT NULL,
    delivered_ms bigint NOT NULL,
    delivered_pos bigint NOT NULL,
    next_due_ms bigint NOT NULL,
    collected integer NOT NULL,
    messages integer NOT NULL,
    written_at timestamptz NOT NULL DEFAULT mqdb.now()
);
COMMENT ON TABLE mqdb.timer_step IS 'How far timers are collected and delivered; append-only, the newest row counts. Its key fences a second leader. RocketMQ: TimerCheckpoint';
COMMENT ON COLUMN mqdb.timer_step.next_offset IS 'Of the first message in rmq_sys_wheel_timer that is not collected';
COMMENT ON COLUMN mqdb.timer_step.delivered_ms IS 'All that mqdb.timer holds up to this time, and in its millisecond up to delivered_pos, is delivered; not what is in slot 0';
COMMENT ON COLUMN mqdb.timer_step.next_due_ms IS 'Nothing that mqdb.timer holds besides is due before this';
COMMENT ON COLUMN mqdb.timer_step.collected IS 'Messages put into mqdb.timer by this step';
COMMENT ON COLUMN mqdb.timer_step.messages IS 'Messages delivered by this step';
INSERT INTO mqdb.timer_step (seq, next_offset, delivered_ms, delivered_pos, next_due_ms, collected, messages)
VALUES (0, 0, 0, 0, 0, 0, 0);

CREATE TABLE mqdb.timer_recall (
    log_pos bigint PRIMARY KEY,
    deliver_ms bigint NOT NULL,
    actor text NOT NULL DEFAULT current_user,
    recalled_at timestamptz NOT NULL DEFAULT mqdb.now()
);
COMMENT ON TABLE mqdb.timer_recall IS 'Messages that were taken back before their delivery; kept until the log and mqdb.timer have forgotten them. RocketMQ: TIMER_DEL_UNIQKEY';
COMMENT ON COLUMN mqdb.timer_recall.log_pos IS 'Position of the record that was sent';
"""

FUNCTIONS: tuple[str, ...] = ("add_timer_slot_v1", "recall_v1", "scheduled_v1")


def upgrade() -> None:
    """Create it all."""
    op.execute(SETTING)
    op.execute(TIMER)
    for name in FUNCTIONS:
        op.execute(function_sql(name))


def downgrade() -> None:
    """Not offered: what waits would never be delivered."""
    raise NotImplementedError("restore a backup from before the migration instead")
