"""The consume queue loses its index on tags, which no pull has ever used.

A pull asks for entries in the order of their offsets and looks at a bounded number of them, so it reads them by
`consume_queue_offset` and compares the tag codes on the way. The index took 40 % of dispatch's time.
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop it, with its part in each segment."""
    op.execute("DROP INDEX mqdb.consume_queue_tags")


def downgrade() -> None:
    """As before."""
    op.execute("CREATE INDEX consume_queue_tags ON mqdb.consume_queue (queue_key, tags_code, queue_offset)")
    op.execute("COMMENT ON INDEX mqdb.consume_queue_tags IS 'Pull with a rare tag'")
