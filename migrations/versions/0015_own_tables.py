"""Tables of one's own stay out of the broker's schema, also where role and schema have the same name.

PostgreSQL looks first for a schema named like the role, so what role `mqdb` made without a schema's name went into schema
`mqdb`: its `message` or `alembic_version` met the broker's tables. A search path that somebody has given the role stays.
And mqdb.send names the topic in the command that creates it.
"""

from alembic import op

from mqdb.store.migrations import function_sql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

#: For sessions to come.
SEARCH_PATH = """
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'mqdb') AND NOT EXISTS (
        SELECT FROM pg_db_role_setting s CROSS JOIN unnest(s.setconfig) AS given
        WHERE s.setrole = 'mqdb'::regrole AND given ^@ 'search_path='
          AND s.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database())))
    THEN
        EXECUTE format('ALTER ROLE mqdb IN DATABASE %I SET search_path = public', current_database());
    END IF;
EXCEPTION WHEN insufficient_privilege THEN
    NULL;  -- whose role that is may do it
END
$$
"""


def upgrade() -> None:
    """Give the role a search path, and mqdb.send its hint."""
    op.execute(SEARCH_PATH)
    op.execute(function_sql("send_v3"))


def downgrade() -> None:
    """The hint of before. The search path stays: tables were made by it."""
    op.execute(function_sql("send_v2"))
