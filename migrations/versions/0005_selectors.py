"""Selectors: what a broker says about SQL92 filters, and the functions that they are judged with.

Nothing that is stored changes.
"""

from alembic import op

from mqdb.store.migrations import function_sql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

FILTER_SETTINGS = """
ALTER TABLE mqdb.broker ADD COLUMN enable_property_filter boolean NOT NULL DEFAULT true;
ALTER TABLE mqdb.broker ADD COLUMN filter_support_retry boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN mqdb.broker.enable_property_filter IS 'Whether consumers may subscribe by SQL92; a setting of mqdb serve';
COMMENT ON COLUMN mqdb.broker.filter_support_retry IS 'Whether a retry is judged by the SQL92 filter of its topic again; a setting of mqdb serve';
"""

FUNCTIONS: tuple[str, ...] = ("java_integer_v1", "java_double_v1")


def upgrade() -> None:
    """Create it all."""
    op.execute(FILTER_SETTINGS)
    for name in FUNCTIONS:
        op.execute(function_sql(name))


def downgrade() -> None:
    """Not offered: a consumer whose filter the database cannot judge would get everything."""
    raise NotImplementedError("restore a backup from before the migration instead")
