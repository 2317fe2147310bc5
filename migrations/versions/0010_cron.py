"""Recurring sends: what is sent again and again, and when next."""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

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
    created_by text NOT NULL DEFAULT current_user
) WITH (fillfactor = 50);
COMMENT ON TABLE mqdb.cron IS 'Recurring sends. A firing appends its message and moves next_at in one transaction';
COMMENT ON COLUMN mqdb.cron.cron IS 'Minute, hour, day of month, month and day of week, as in crontab(5): day 0 and 7 are Sunday';
COMMENT ON COLUMN mqdb.cron.timezone IS 'IANA name of the zone whose clock the times are on';
COMMENT ON COLUMN mqdb.cron.topic IS 'By name: a topic that is made again gets the messages again';
COMMENT ON COLUMN mqdb.cron.keys IS 'Words with blanks between them';
COMMENT ON COLUMN mqdb.cron.sharding_key IS 'Its queue gets all messages; NULL for any queue';
COMMENT ON COLUMN mqdb.cron.catch_up IS 'What is sent of the times that have passed while no broker was there: once the latest, all of them, or none';
COMMENT ON COLUMN mqdb.cron.next_at IS 'The first time that is neither sent nor left out; what is paused gets a new one when it is resumed';
COMMENT ON COLUMN mqdb.cron.last_fired_at IS 'The time of the last message, as it was planned';
COMMENT ON COLUMN mqdb.cron.sent IS 'Messages';
COMMENT ON COLUMN mqdb.cron.skipped IS 'Firings without a message, as the topic was gone or took none';
"""


def upgrade() -> None:
    """Add the table."""
    op.execute(CRON)


def downgrade() -> None:
    """Drop it, with all recurring sends."""
    op.execute("DROP TABLE mqdb.cron")
