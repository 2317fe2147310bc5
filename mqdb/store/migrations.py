"""The schema and its versions: upgrade, where a database stands, the SQL for those who apply it by hand.

Alembic takes longer to load than the rest of a client's store, and only who upgrades needs it: every client asks which
revision is the newest, and the names of the scripts tell.
"""

import io
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, TableClause, column, func, select, table, update

import mqdb
from mqdb.dsn import redact
from mqdb.errors import EncodingNotSupported, ParameterInvalid, SchemaMissing, SchemaTooNew, SchemaTooOld
from mqdb.store import locks, tables
from mqdb.store.engine import create_engine, target_of, translated

if TYPE_CHECKING:
    from alembic.config import Config


def upgrade(
    dsn: str, revision: str = "head", *, broker_name: str | None = None, cluster_name: str | None = None
) -> None:
    """Bring the schema of a database to a revision, in one transaction; names are given to the broker on the way.

    Two callers at once: the second waits for the first and finds nothing to do. Raises SchemaTooNew,
    EncodingNotSupported.
    """
    from alembic import command

    engine = create_engine(dsn, prepared=False).execution_options(isolation_level="READ COMMITTED")
    with translated(redact(dsn)):
        try:
            with engine.begin() as connection:
                connection.execute(select(func.pg_advisory_xact_lock(locks.LOCK_CLASS, locks.MIGRATION)))
                config = _config()
                config.attributes["connection"] = connection
                _refuse_newer(current(connection))
                _refuse_encoding(connection)
                command.upgrade(config, revision)
                names = {"broker_name": broker_name, "cluster_name": cluster_name}
                given = {column: name for column, name in names.items() if name is not None}
                if given:
                    connection.execute(update(tables.broker).values(given))
        finally:
            engine.dispose()


def upgrade_sql(since: str | None = None) -> str:
    """The migrations after a revision as SQL text; all of them, for an empty database, without one.

    Raises ParameterInvalid for an unknown revision.
    """
    from alembic import command

    if since is not None and since not in _known():
        raise ParameterInvalid("since", since, f"the versions are: {', '.join(sorted(_known()))}")
    output = io.StringIO()
    command.upgrade(_config(output), "head" if since is None else f"{since}:head", sql=True)
    return output.getvalue()


def function_sql(name: str) -> str:
    """The text of one stored function, which its migration executes."""
    return (_scripts() / "functions" / f"{name}.sql").read_text(encoding="utf-8")


def current(connection: Connection) -> str | None:
    """The revision of a database, None without an mqdb schema."""
    if connection.scalar(select(func.to_regclass("mqdb.alembic_version"))) is None:
        return None
    return connection.scalar(select(_version.c.version_num))


_version: TableClause = table("alembic_version", column("version_num"), schema="mqdb")


@cache
def head() -> str:
    """The newest revision that this mqdb knows, and the only one that it speaks."""
    return max(_known())


def check_schema(connection: Connection) -> None:
    """Raises SchemaMissing, SchemaTooOld or SchemaTooNew unless the database is at `head()`."""
    check_revision(current(connection), target_of(connection))


def check_revision(found: str | None, target: str) -> None:
    """As `check_schema`, for the revision that was found in the database at `target`."""
    if found is None:
        raise SchemaMissing(target)
    if found != head():
        _refuse_newer(found)
        raise SchemaTooOld(found, head())


def _refuse_newer(found: str | None) -> None:
    if found is not None and found not in _known():
        raise SchemaTooNew(found, head())


def _refuse_encoding(connection: Connection) -> None:
    encoding: str = connection.execute(select(func.current_setting("server_encoding"))).scalar_one()
    if encoding != "UTF8":
        raise EncodingNotSupported(target_of(connection), encoding)


def _known() -> set[str]:
    """The revisions, which follow each other as their numbers do."""
    return {script.name.partition("_")[0] for script in (_scripts() / "versions").glob("[0-9]*_*.py")}


def _config(output: io.StringIO | None = None) -> "Config":
    from alembic.config import Config

    config = Config(output_buffer=output) if output is not None else Config()
    config.set_main_option("script_location", str(_scripts()).replace("%", "%%"))
    return config


def _scripts() -> Path:
    # Inside the package in a wheel, beside it in a checkout.
    package = Path(mqdb.__file__).parent
    inside = package / "migrations"
    return inside if inside.is_dir() else package.parent / "migrations"
