"""The connection of Alembic to the database: the DSN and the connection come from `mqdb.store.migrations`."""

from alembic import context
from sqlalchemy import Connection, text

from mqdb.store.engine import create_engine
from mqdb.store.session_settings import SESSION_SETTINGS
from mqdb.store.tables import metadata


def run(connection: Connection | None) -> None:
    """Run the migrations on a connection, or print their SQL if `connection` is None."""
    context.configure(
        connection=connection,
        dialect_name=None if connection is not None else "postgresql",
        target_metadata=metadata,
        version_table_schema="mqdb",
        literal_binds=connection is None,
        # The default style doubles each percent sign, for a driver that is not used here.
        dialect_opts={} if connection is not None else {"paramstyle": "named"},
    )
    with context.begin_transaction():
        # Views, defaults and some functions are parsed when they are created, under the settings of this session.
        for name, value in SESSION_SETTINGS.items():
            context.execute(f"SET LOCAL {name} = '{value}'")
        # The version table is in the schema, so the schema has to exist first. CREATE SCHEMA is skipped if the schema
        # exists: a role without CREATE on the database may still migrate.
        if not _has_schema(connection):
            context.execute("CREATE SCHEMA mqdb")
            context.execute("COMMENT ON SCHEMA mqdb IS 'mqdb: a message broker'")
        context.run_migrations()


def _has_schema(connection: Connection | None) -> bool:
    if connection is None:
        return context.get_starting_revision_argument() is not None
    return bool(connection.scalar(text("SELECT to_regnamespace('mqdb') IS NOT NULL")))


if context.is_offline_mode():
    run(None)
elif (given := context.config.attributes.get("connection")) is not None:
    run(given)
else:  # `alembic` on the command line
    with create_engine(context.config.get_main_option("sqlalchemy.url") or "").begin() as connection:
        run(connection)
