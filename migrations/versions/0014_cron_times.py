"""Bounded cron times: a `next_at` that no broker can read or count from is refused.

One such row, of `-infinity` or a year before 1, ended each round of the cron sender, so that no cron was sent; `infinity`
and years after 9999 made `mqdb cron list` fail. What is out of bounds already is paused, with the present as its
`next_at`, as the sender does with a cron that it cannot send; `mqdb cron resume` goes on with its next time.
"""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

#: First the bounds, for rows to come: from there on nobody adds one while those of before are mended.
#: The upper one leaves room for the clock of any session.
CRON = """
ALTER TABLE mqdb.cron ADD CONSTRAINT cron_next_at
    CHECK (next_at >= timestamptz '1970-01-01 00:00+00' AND next_at < timestamptz '9999-01-01 00:00+00') NOT VALID;
UPDATE mqdb.cron SET is_paused = true, next_at = mqdb.now()
WHERE next_at < timestamptz '1970-01-01 00:00+00' OR next_at >= timestamptz '9999-01-01 00:00+00';
ALTER TABLE mqdb.cron VALIDATE CONSTRAINT cron_next_at;
COMMENT ON CONSTRAINT cron_next_at ON mqdb.cron IS 'A time that brokers can read and count from: since 1970, and before 9999';
"""

#: Its column was without a comment. What it means has changed for those that somebody resumes.
HALF_MESSAGE = """
COMMENT ON COLUMN mqdb.half_message.stored_at IS 'From when on its age counts: when it was stored; after a resume, until its next end, when it was resumed';
"""


def upgrade() -> None:
    """Bound the times, and pause what is out of bounds."""
    for statements in (CRON, HALF_MESSAGE):
        op.execute(statements)


def downgrade() -> None:
    """Any time again."""
    op.execute("ALTER TABLE mqdb.cron DROP CONSTRAINT cron_next_at")
    op.execute("COMMENT ON COLUMN mqdb.half_message.stored_at IS NULL")
