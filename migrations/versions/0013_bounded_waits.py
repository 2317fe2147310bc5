"""Bounded waits: a recall that does not walk through what waits, and no half message that waits for years."""

from alembic import op

from mqdb.store.migrations import function_sql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

#: Rows of before: mqdb.transaction bounds an immunity since.
IMMUNE = """
UPDATE mqdb.half_message SET check_at = stored_at + interval '72 hours'
WHERE state = 'PREPARED' AND check_at > stored_at + interval '72 hours' AND check_times = 0
"""

FUNCTIONS: tuple[str, ...] = ("recall_v2",)


def upgrade() -> None:
    """Replace the function, and bound what waits."""
    op.execute(IMMUNE)
    for name in FUNCTIONS:
        op.execute(function_sql(name))


def downgrade() -> None:
    """The function of before."""
    op.execute(function_sql("recall_v1").replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1))
