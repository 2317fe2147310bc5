"""Access to PostgreSQL: engines, driver connections, compiled statements, translated errors.

SQLAlchemy owns the connections and builds the statements. Hot statements are compiled to text once and run
on the driver's connection, where psycopg prepares them on the server: Core adds 40 to 75 µs of CPU to each
execution, which is more than the statement itself takes.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial, wraps
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, Self, TypeVar, cast
from weakref import WeakSet

import psycopg
import sqlalchemy
from psycopg import errors as pg
from psycopg.adapt import PyFormat
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.types.array import BaseListDumper, ListBinaryDumper, ListDumper
from sqlalchemy import Connection, Engine, event
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine import AdaptedConnection
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.compiler import SQLCompiler

from mqdb.common.dsn import SHAPE, redact
from mqdb.errors import (
    BY_SQLSTATE,
    AuthenticationFailed,
    BrokerUnavailable,
    DatabaseMissing,
    MqdbError,
    SchemaMissing,
    ServerIsStandby,
    SettingInvalid,
    StorageRefused,
)
from mqdb.store.awaited_connection import AwaitedConnection
from mqdb.store.server_choice import ServerChoice, ServerRole, hosts_of, is_not_primary, is_standby
from mqdb.store.session_settings import SESSION_SETTINGS, startup_options

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Give up on a lost host after about 15 s, on a connection attempt after 5 s. A DSN may override this.
_CONNECT_DEFAULTS = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}

#: Making a custom plan over hundreds of partitions takes longer than running it.
_PLANNING: Final = {"plan_cache_mode": "force_generic_plan", "jit": "off"}

#: Timeouts set for the role or the database would cancel statements that mqdb limits by rows, and each retry as well.
#: Timeouts in a DSN apply.
_NO_TIMEOUTS: Final = dict.fromkeys(
    ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout"), "0"
)

_DIALECT = PGDialect_psycopg()  # type: ignore[no-untyped-call]
#: Writes $1, $2, ... for parameters. (SQLAlchemy has no types for the arguments of a dialect.)
NUMBERING_DIALECT: Final = PGDialect_psycopg(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]


#: A plan is made once per connection, perhaps while segments are empty according to ANALYZE; it would read them
#: completely, even after they have filled.
_INDEXES_ONLY: Final = {"enable_seqscan": "off", "enable_bitmapscan": "off"}


def create_engine(
    dsn: str,
    *,
    prepared: bool = True,
    indexes_only: bool = False,
    application_name: str = "mqdb",
    pool_size: int = 5,
    server: ServerRole = ServerRole.PRIMARY,
    is_asynchronous: bool = False,
) -> Engine:
    """An engine whose connections are in AUTOCOMMIT, because most requests of mqdb are one statement.

    A function that needs a transaction opens one with `transaction`. With `prepared=False` the driver prepares no
    statement and makes no session settings: this is for a pooler such as PgBouncer (MQDB_POOL_DSN), and for SQL text
    with several statements. All transactions, including single statements, are still READ COMMITTED. A `pool_size` of 0
    means no limit. `indexes_only` is for clients, whose statements never have to read a whole table. An asynchronous
    engine requires greenlet, and is used inside `greenlet_spawn`, only with transactions. `server` determines to which
    server it connects, unless the DSN has a `target_session_attrs`; for a pooler, which chooses the server itself, it
    is ANY. The connection parameters and the `options` of the DSN apply, except for settings on which mqdb relies.
    Raises SettingInvalid if `dsn` is not a DSN.
    """
    given = _parts(dsn)
    arguments: dict[str, Any] = {name: value for name, value in _CONNECT_DEFAULTS.items() if name not in given}
    # Overrides the role and the environment, because the names and properties of messages are Unicode.
    arguments |= {"application_name": application_name, "client_encoding": "utf8"}
    if not prepared:
        arguments["prepare_threshold"] = None
    else:
        ours = startup_options(SESSION_SETTINGS, _PLANNING, _INDEXES_ONLY if indexes_only else {})
        # Of two settings with the same name the last one applies.
        options = f"{startup_options(_NO_TIMEOUTS)} {given.get('options', '')} {ours}"
        arguments |= {"prepare_threshold": 0, "options": options}
    engine_options: dict[str, Any] = {
        "execution_options": {"mqdb_target": _target(given)},
        "isolation_level": "AUTOCOMMIT",
        "pool_size": pool_size,
        "max_overflow": pool_size,
        # LIFO: a dropped connection is replaced by a new one in its place.
        "pool_use_lifo": True,
        "pool_pre_ping": False,
        # On a connection that broke below SQLAlchemy it would raise and hide the actual error.
        "skip_autocommit_rollback": True,
        # Each engine would query on its first connection whether the type exists.
        "use_native_hstore": False,
    }
    choice = ServerChoice(given, _target(given), server, arguments)
    if is_asynchronous:
        from sqlalchemy.ext.asyncio import create_async_engine  # requires greenlet

        engine_options["async_creator"] = partial(choice.connect_asynchronously, dsn)
        engine = create_async_engine("postgresql+psycopg://", **engine_options).sync_engine
    else:
        engine_options["creator"] = partial(choice.connect, dsn)
        engine = sqlalchemy.create_engine("postgresql+psycopg://", **engine_options)
    event.listen(engine, "connect", _adapt)
    if not prepared and not is_asynchronous:
        event.listen(engine, "connect", _read_committed)
    event.listen(engine, "checkout", _refuse_unusable)
    _engines.add(engine)
    return engine


_engines: Final[WeakSet[Engine]] = WeakSet()


def _after_fork_in_child() -> None:
    """Drop inherited connections: the child must not use the sockets that it shares with its parent."""
    for engine in list(_engines):
        engine.dispose(close=False)


os.register_at_fork(after_in_child=_after_fork_in_child)


class _ListDumper(ListBinaryDumper):
    """A binary dumper for lists: the text dumper takes 5 ms of CPU for 1,000 strings, the binary one 0.7 ms."""

    def upgrade(self, obj: list[Any], format: PyFormat) -> BaseListDumper:
        """The dumper for lists like this one."""
        dumper = super().upgrade(obj, format)
        return dumper if isinstance(dumper, ListBinaryDumper) else _EmptyListDumper(self.cls, self._tx)


class _EmptyListDumper(ListDumper):
    """A dumper for lists without values, which have no binary form. A list that contains only None becomes NULL.

    As text, such a list would contain strings behind a pooler, whose sessions may have array_nulls off.
    """

    def dump(self, obj: list[Any]) -> bytes | None:
        """Text, or None for NULL."""
        return None if obj else b"{}"


def _adapt(_connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
    connection = _driver(entry)
    connection.adapters.register_dumper(list, _ListDumper)
    # For connections without options. PgBouncer gives its client the same style on all its servers.
    if not (connection.info.parameter_status("DateStyle") or "ISO").startswith("ISO"):
        connection.execute("SET DateStyle TO ISO")


def _read_committed(_connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
    """Start each transaction with its isolation level, because a pooler accepts no options and keeps no settings."""
    connection = entry.driver_connection
    assert isinstance(connection, psycopg.Connection)
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    default = connection.execute("SHOW default_transaction_isolation").fetchone()
    if default != ("read committed",):
        connection.cursor_factory = _TransactionalCursor


class _TransactionalCursor(psycopg.Cursor[Any]):
    """A cursor that runs each single statement in a transaction: three round trips instead of one."""

    def execute(self, *arguments: Any, **options: Any) -> Self:
        connection = self.connection
        if connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE:
            with connection.transaction():
                return super().execute(*arguments, **options)
        return super().execute(*arguments, **options)


class _TransactionalRawCursor(_TransactionalCursor, psycopg.RawCursor[Any]):
    pass


def _refuse_unusable(_connection: DBAPIConnection, entry: ConnectionPoolEntry, _proxy: PoolProxiedConnection) -> None:
    """Drop a connection that is not idle. The pool then opens a new connection.

    Code that uses the driver's connection may leave it unusable without SQLAlchemy's knowledge.
    """
    if _driver(entry).info.transaction_status is not TransactionStatus.IDLE:
        raise DisconnectionError


def driver(connection: Connection) -> "psycopg.Connection[tuple[Any, ...]]":
    """The psycopg connection below a SQLAlchemy one, for COPY, LISTEN and prepared hot statements.

    With an asynchronous engine it is an AwaitedConnection, which has only the methods needed while a listener uses it.
    """
    return _driver(connection.connection)


def _driver(pooled: ConnectionPoolEntry | PoolProxiedConnection) -> "psycopg.Connection[tuple[Any, ...]]":
    below = pooled.driver_connection
    if isinstance(below, psycopg.AsyncConnection):
        return cast("psycopg.Connection[Any]", AwaitedConnection(cast(AdaptedConnection, pooled.dbapi_connection)))
    assert isinstance(below, psycopg.Connection)
    return below


def raw_cursor(connection: Connection) -> "psycopg.RawCursor[tuple[Any, ...]]":
    """A cursor for a `NumberedStatement`."""
    return raw_cursor_of(driver(connection))


def raw_cursor_of(below: "psycopg.Connection[Any]") -> "psycopg.RawCursor[tuple[Any, ...]]":
    """A cursor for a `NumberedStatement`, on the driver's connection."""
    return (_TransactionalRawCursor if below.cursor_factory is _TransactionalCursor else psycopg.RawCursor)(below)


def commits_each(connection: Connection) -> bool:
    """Whether the server commits each statement in AUTOCOMMIT; behind some poolers the client has to send COMMIT."""
    return driver(connection).cursor_factory is not _TransactionalCursor


def is_idle(connection: Connection) -> bool:
    """Whether the session can run another statement: it is not lost and not in a transaction."""
    return driver(connection).info.transaction_status is TransactionStatus.IDLE


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """One transaction of several statements on a connection in AUTOCOMMIT, or part of its open transaction."""
    with driver(connection).transaction():
        yield


#: Shorter than deadlock_timeout, which is 1 s: in a deadlock with other sessions, this session steps back.
_LOCK_TIMEOUT: Final = "200ms"
_TRIES: Final = 25


def steps_back(function: Callable[Concatenate[Connection, _P], _R]) -> Callable[Concatenate[Connection, _P], _R]:
    """Run a function in a transaction that waits up to 200 ms for a lock; if that is too short, retry for 5 s in all.

    Between two attempts, sessions that wait behind this session for the lock get it.
    """

    @wraps(function)
    def trying(connection: Connection, /, *arguments: _P.args, **options: _P.kwargs) -> _R:
        tries = 0
        while True:
            try:
                with transaction(connection):
                    driver(connection).execute("SELECT set_config('lock_timeout', %s, true)", [_LOCK_TIMEOUT])
                    return function(connection, *arguments, **options)
            except (DBAPIError, pg.LockNotAvailable) as error:
                tries += 1
                cause = error.orig if isinstance(error, DBAPIError) else error
                if not isinstance(cause, pg.LockNotAvailable) or tries == _TRIES:
                    raise

    return trying


def target_of(way: Connection | Engine) -> str:
    """The address of a connection or an engine, for error messages, without a password."""
    target: str = way.get_execution_options()["mqdb_target"]
    return target


def _parts(dsn: str) -> dict[str, Any]:
    try:
        return conninfo_to_dict(dsn)
    except (psycopg.ProgrammingError, UnicodeError):
        # Not chained: libpq quotes the invalid part, which may be part of the password.
        raise SettingInvalid("dsn", redact(dsn), "argument", f"write {SHAPE}") from None


def _target(parts: Mapping[str, Any]) -> str:
    hosts = [f"{each.host or each.hostaddr}:{each.port}" for each in hosts_of(parts)]
    one = f"{parts.get('host', 'localhost')}:{parts.get('port', 5432)}"
    return f"{','.join(hosts) or one}/{parts.get('dbname', '')}"


class Timed(NamedTuple):
    """The cursor of an executed statement, and the time that the server took for it, without the round trip."""

    cursor: "psycopg.Cursor[tuple[Any, ...]]"
    took: timedelta


def run_timed(connection: Connection, text: str, values: Mapping[str, Any]) -> Timed:
    """Run a statement, and let the server read its clock before and after; one round trip."""
    below = driver(connection)
    with below.pipeline():
        begun = below.execute(_CLOCK)
        cursor = below.execute(text, values)
        ended = below.execute(_CLOCK)
    [(at_first,)], [(at_last,)] = begun.fetchall(), ended.fetchall()
    return Timed(cursor, at_last - at_first)


_CLOCK: Final = "SELECT clock_timestamp()"


def text_of(statement: ClauseElement) -> str:
    """The SQL text of a Core statement, for psycopg, with `%(name)s` for its bind parameters."""
    return str(statement.compile(dialect=_DIALECT))


class NumberedStatement(NamedTuple):
    """A statement for `psycopg.RawCursor`: with $1, $2, ... for its parameters, whose `names` are in this order.

    `literals` are the values that the statement itself contains, by name; the caller passes the others.
    """

    text: bytes
    names: tuple[str, ...]
    literals: Mapping[str, Any]


def numbered(statement: ClauseElement) -> NumberedStatement:
    """A Core statement for `psycopg.RawCursor`, which sends the text unchanged, without parsing it."""
    compiled = statement.compile(dialect=NUMBERING_DIALECT, compile_kwargs={"render_postcompile": True})
    assert isinstance(compiled, SQLCompiler)
    assert compiled.positiontup is not None
    literals = {name: value for name, value in compiled.params.items() if value is not None}
    return NumberedStatement(compiled.string.encode(), tuple(compiled.positiontup), literals)


@contextmanager
def translated(way: str | Connection) -> Iterator[None]:
    """Turn errors of the driver into those of `mqdb.errors`, with the driver's error in `__cause__`.

    `way` is the connection, or the address of the database: a redacted DSN, or `target_of` an engine.
    """
    try:
        yield
    except DBAPIError as error:
        raise translate(error.orig or error, way) from error
    except psycopg.Error as error:
        raise translate(error, way) from error


@contextmanager
def connected(dsn: str, application_name: str, server: ServerRole = ServerRole.PRIMARY) -> Iterator[Connection]:
    """A connection for one piece of work, closed at the end. Errors of the driver are `translated`."""
    engine = create_engine(dsn, application_name=application_name, pool_size=1, server=server)
    try:
        with translated(redact(dsn)), engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def translates(function: Callable[Concatenate[Connection, _P], _R]) -> Callable[Concatenate[Connection, _P], _R]:
    """Make a function that takes a connection raise the errors of `mqdb.errors`, as in `translated`."""

    @wraps(function)
    def translating(connection: Connection, /, *arguments: _P.args, **options: _P.kwargs) -> _R:
        try:
            return function(connection, *arguments, **options)
        except DBAPIError as error:
            raise translate(error.orig or error, connection) from error
        except psycopg.Error as error:
            raise translate(error, connection) from error

    return translating


#: libpq gives no SQLSTATE for a refused connection, only a message.
_MISSING_DATABASE: Final = re.compile(r'FATAL:  database ".*" does not exist')

#: SQLSTATEs, or their prefixes, of a connection that broke or was ended; the last two mean timeouts of transactions.
_CONNECTION_LOST: Final = ("08", "57P", "25P03", "25P04")

#: The SQLSTATE of a statement refused by a standby, but also in a transaction that its user made read-only.
READ_ONLY: Final = "25006"

#: Replaces an SQLSTATE if the driver refused a value without asking the server.
NO_SQLSTATE: Final = "-----"


def translate(error: BaseException, way: str | Connection) -> MqdbError:
    """The mqdb error for an error of the driver. `way` is as in `translated`."""
    target = way if isinstance(way, str) else target_of(way)
    if not isinstance(error, psycopg.Error):
        return BrokerUnavailable(target, _first_line(error))
    sqlstate = error.sqlstate or ""
    reason = error.diag.message_primary or _first_line(error)
    if sqlstate in BY_SQLSTATE:
        # Others may raise it, too, with other values.
        with suppress(TypeError, ValueError):
            return BY_SQLSTATE[sqlstate](**json.loads(error.diag.message_detail or "null"))
    if isinstance(error, pg.InvalidPassword | pg.InvalidAuthorizationSpecification) or (
        not sqlstate and "password" in str(error)
    ):
        return AuthenticationFailed(target, reason)
    if isinstance(error, pg.InvalidSchemaName | pg.UndefinedTable | pg.UndefinedFunction) and "mqdb." in reason:
        return SchemaMissing(target)
    if isinstance(error, pg.InvalidCatalogName) or (not sqlstate and _MISSING_DATABASE.search(reason)):
        return DatabaseMissing(target, reason)
    if is_not_primary(error) or (sqlstate == READ_ONLY and not isinstance(way, str) and _leads_to_standby(way)):
        return ServerIsStandby(target, reason)
    if sqlstate.startswith(_CONNECTION_LOST) or (not sqlstate and isinstance(error, psycopg.OperationalError)):
        return BrokerUnavailable(target, reason)
    return StorageRefused(sqlstate or NO_SQLSTATE, reason)


def _leads_to_standby(connection: Connection) -> bool:
    if connection.closed or connection.invalidated or driver(connection).closed:
        return False
    return is_standby(driver(connection))


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
