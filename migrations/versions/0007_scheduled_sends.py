"""Scheduled sends: records that wait go to system topics, and mqdb.send takes a delay level and a time of delivery.

Nothing that is stored changes.
"""

from alembic import op

from mqdb.store.migrations import function_sql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

FUNCTIONS: tuple[str, ...] = ("place_v1", "send_v2")


def upgrade() -> None:
    """Create the one, replace the other."""
    for name in FUNCTIONS:
        op.execute(function_sql(name))


def downgrade() -> None:
    """Not offered: what waits would be delivered by no one who knows how."""
    raise NotImplementedError("restore a backup from before the migration instead")
