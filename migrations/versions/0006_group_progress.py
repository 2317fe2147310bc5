"""Groups: how old they are, which topics their members have read, and when somebody has set an offset.

Older rows get the defaults, and are not rewritten: a group that is there counts as older than all retries, and its
offsets as those of members.
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

GROUPS = """
ALTER TABLE mqdb.subscription_group ADD COLUMN created_pos bigint NOT NULL DEFAULT 0;
ALTER TABLE mqdb.subscription_group ALTER COLUMN created_pos
    SET DEFAULT coalesce(pg_sequence_last_value('mqdb.log_pos'), 0);
CREATE INDEX subscription_group_created_pos ON mqdb.subscription_group (created_pos);
COMMENT ON INDEX mqdb.subscription_group_created_pos IS 'Which groups are younger than the retries that are due';
COMMENT ON COLUMN mqdb.subscription_group.created_pos IS 'How far the log was when the group was made; a retry from there or below is for an older group of this name';
"""

OFFSETS = """
ALTER TABLE mqdb.consumer_offset ADD COLUMN begun boolean NOT NULL DEFAULT true;
ALTER TABLE mqdb.consumer_offset ADD COLUMN reset_at timestamptz;
COMMENT ON COLUMN mqdb.consumer_offset.begun IS 'False where no member has ever had the queue, but somebody who reads it without owning it has committed';
COMMENT ON COLUMN mqdb.consumer_offset.reset_at IS 'When somebody has set the offset last; it tells those who read the queue without owning it';
"""


def upgrade() -> None:
    """Add the columns."""
    op.execute(GROUPS)
    op.execute(OFFSETS)


def downgrade() -> None:
    """Not offered: a group made anew would get the retries of the one before it."""
    raise NotImplementedError("restore a backup from before the migration instead")
