"""The schema and its versions: the upgrade, the revision of a database, and the SQL to apply it by hand.

Alembic takes longer to load than the rest of a client's store, and only an upgrade needs it: every client needs the
newest revision, which the names of the scripts give.

An unreleased revision may still change. The id of such a revision ends in a fingerprint of all SQL that makes the
schema, so that a database made from other SQL is refused and not misread.

The first two digits of a revision are its series: each minor version of mqdb starts a series. mqdb also works with
newer revisions of its own series and of the next one, so a migration does not interrupt clients.
"""

import hashlib
import io
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, Engine, ScalarSelect, TableClause, column, func, select, table, text, update
from sqlalchemy.exc import DBAPIError

import mqdb
from mqdb.common.dsn import redact
from mqdb.errors import (
    EncodingNotSupported,
    ParameterInvalid,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
    SchemaUnreleased,
)
from mqdb.store import tables
from mqdb.store.engine import create_engine, target_of, translated

if TYPE_CHECKING:
    from alembic.config import Config

#: The number of the revision whose SQL is not frozen yet; None if all are released.
_UNRELEASED: Final[str | None] = "0100"


def upgrade(
    dsn: str, revision: str = "head", *, broker_name: str | None = None, cluster_name: str | None = None
) -> None:
    """Upgrade the schema of a database to a revision, in one transaction, which also sets the broker's given names.

    If two callers run this at once, the second waits for the first and finds nothing to do. Raises SchemaTooNew,
    SchemaUnreleased, EncodingNotSupported.
    """
    engine = create_engine(dsn, prepared=False).execution_options(isolation_level="READ COMMITTED")
    names = {"broker_name": broker_name, "cluster_name": cluster_name}
    with translated(redact(dsn)):
        try:
            try:
                _upgrade(engine, revision, names)
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) not in _SCHEMA_MADE_BY_ANOTHER:
                    raise
                _upgrade(engine, revision, names)
        finally:
            engine.dispose()


#: Errors of CREATE SCHEMA if another session has just created it: duplicate_schema, unique_violation.
_SCHEMA_MADE_BY_ANOTHER: Final = ("42P06", "23505")


def _upgrade(engine: Engine, revision: str, names: Mapping[str, str | None]) -> None:
    from alembic import command

    with engine.begin() as connection:
        _lock(connection)
        config = _config()
        config.attributes["connection"] = connection
        _refuse_unknown(current(connection), target_of(connection))
        _refuse_encoding(connection)
        command.upgrade(config, revision)
        given = {column: name for column, name in names.items() if name is not None}
        if given:
            connection.execute(update(tables.broker).values(given))


def _lock(connection: Connection) -> None:
    """Keep other sessions from migrating until this transaction ends.

    This locks a table, which requires rights on the table. Before the first migration the table does not exist, but two
    sessions cannot create the same schema.
    """
    if connection.scalar(select(func.to_regclass("mqdb.alembic_version"))) is not None:
        connection.execute(text("LOCK TABLE mqdb.alembic_version IN SHARE ROW EXCLUSIVE MODE"))


def upgrade_sql(since: str | None = None) -> str:
    """The migrations after a revision as SQL text; without a revision all of them, for an empty database.

    Raises ParameterInvalid for an unknown revision.
    """
    from alembic import command

    if since is not None and since not in _known():
        raise ParameterInvalid("since", since, f"the versions are: {', '.join(sorted(_known()))}")
    output = io.StringIO()
    command.upgrade(_config(output), "head" if since is None else f"{since}:head", sql=True)
    return output.getvalue()


def sql_text(name: str) -> str:
    """The text of `mqdb/sql/<name>.sql`: functions or a view in their current form. The name includes the folder."""
    return (_SQL / f"{name}.sql").read_text(encoding="utf-8")


def current(connection: Connection) -> str | None:
    """The revision of a database; None without an mqdb schema."""
    if connection.scalar(select(func.to_regclass("mqdb.alembic_version"))) is None:
        return None
    return connection.scalar(select(revision()))


def revision() -> ScalarSelect[Any]:
    """The revision, as part of a statement in a database with the schema."""
    return select(_version.c.version_num).scalar_subquery()


_version: TableClause = table("alembic_version", column("version_num"), schema="mqdb")


@cache
def head() -> str:
    """The newest revision that this version of mqdb includes."""
    return max(_known())


def check_schema(connection: Connection) -> None:
    """Raise SchemaMissing, SchemaTooOld, SchemaTooNew or SchemaUnreleased like `check_revision`."""
    check_revision(current(connection), target_of(connection))


def check_revision(found: str | None, target: str) -> None:
    """Check whether this mqdb works with the revision found in the database at `target`.

    Raises SchemaMissing, SchemaTooOld, SchemaTooNew or SchemaUnreleased if it does not.
    """
    if found is None:
        raise SchemaMissing(target)
    if found != head() and not is_ahead(found):
        _refuse_unknown(found, target)
        raise SchemaTooOld(found, head())


def is_ahead(found: str) -> bool:
    """Whether a revision is newer than `head()`, but close enough for this mqdb to work with it."""
    number, newest = found[:4], head()[:4]
    return number.isdecimal() and number > newest and int(number[:2]) <= int(newest[:2]) + 1


def _refuse_unknown(found: str | None, target: str) -> None:
    if found is None or found in _known():
        return
    if found[:4] <= head()[:4]:
        raise SchemaUnreleased(found, head(), target)
    raise SchemaTooNew(found, head())


def _refuse_encoding(connection: Connection) -> None:
    encoding: str = connection.execute(select(func.current_setting("server_encoding"))).scalar_one()
    if encoding != "UTF8":
        raise EncodingNotSupported(target_of(connection), encoding)


@cache
def _known() -> frozenset[str]:
    """The revisions, which follow each other by number."""
    numbers = {script.name.partition("_")[0] for script in _versions()}
    return frozenset(f"{number}.{_fingerprint()}" if number == _UNRELEASED else number for number in numbers)


def _fingerprint() -> str:
    """Eight hex digits that differ if any SQL of the schema differs."""
    texts = [path.name + path.read_text(encoding="utf-8") for path in (*_versions(), *sorted(_SQL.rglob("*.sql")))]
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:8]


def _versions() -> list[Path]:
    return sorted((_scripts() / "versions").glob("[0-9]*_*.py"))


def _config(output: io.StringIO | None = None) -> "Config":
    from alembic.config import Config

    config = Config(output_buffer=output) if output is not None else Config()
    config.set_main_option("script_location", str(_scripts()).replace("%", "%%"))
    return config


_SQL: Final = Path(mqdb.__file__).parent / "sql"


def _scripts() -> Path:
    # In a wheel inside the package, in a checkout beside it.
    package = Path(mqdb.__file__).parent
    inside = package / "migrations"
    return inside if inside.is_dir() else package.parent / "migrations"
