"""Connections of callers whose transactions a send joins: their kinds, and how each kind runs a statement.

For SQLAlchemy and Django, statements run on the psycopg connection below. An asynchronous connection runs its
statements in its own event loop, while the send waits in a thread.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import psycopg
import sqlalchemy
from psycopg import errors as pg
from psycopg.adapt import AdaptersMap
from psycopg.rows import tuple_row
from sqlalchemy.exc import DBAPIError, InvalidRequestError, UnboundExecutionError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from mqdb.errors import IllegalState, MqdbError, ParameterInvalid, StorageRefused, shown
from mqdb.store.engine import translate
from mqdb.store.log.joined_append import Statement
from mqdb_client.producer.joined.django_connection import DjangoConnection, below_django, is_of_django

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, scoped_session


class BridgedConnection:
    """An asynchronous connection for a send that runs in a thread: its statements run in the connection's loop."""

    def __init__(self, connection: "psycopg.AsyncConnection[Any]", loop: asyncio.AbstractEventLoop) -> None:
        self.connection = connection
        self._loop = loop
        self._statement: asyncio.Task[Any] | None = None
        self._is_left = False

    def execute(self, text: str, values: Mapping[str, object]) -> "Sequence[_Row]":
        """Run a statement and return its rows; must be called in the thread. Raises CancelledError after `leave`."""
        return asyncio.run_coroutine_threadsafe(self._execute(text, values), self._loop).result()

    def leave(self) -> None:
        """Cancel the running statement and run no further statements, because the transaction may be over.

        Must be called in the event loop.
        """
        self._is_left = True
        if self._statement is not None:
            self._statement.cancel()

    async def _execute(self, text: str, values: Mapping[str, object]) -> "Sequence[_Row]":
        if self._is_left:
            raise asyncio.CancelledError
        self._statement = asyncio.current_task()
        cursor = _AsyncCursor(self.connection, row_factory=tuple_row)
        return await (await cursor.execute(text, values)).fetchall()


_OfSqlalchemy: TypeAlias = "sqlalchemy.Connection | Session | scoped_session[Any]"

#: The types of the `connection` argument of a send that joins a transaction.
CallersConnection: TypeAlias = "_OfSqlalchemy | psycopg.Connection[Any] | DjangoConnection | BridgedConnection"

_Row: TypeAlias = Sequence[Any]
DriverConnection: TypeAlias = "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]"
_Driver = TypeVar("_Driver", "psycopg.Connection[Any]", "psycopg.AsyncConnection[Any]")


class JoinedConnection(NamedTuple):
    """A connection of the caller, with a way to execute on it and the driver's connection below it."""

    execute: Callable[[str, Mapping[str, object]], Sequence[_Row]]
    driver: DriverConnection

    def run(self, statement: Statement, target: str) -> Sequence[_Row]:
        """Run a statement and return its rows. Raises the errors of `mqdb.store.engine.translate`, and IllegalState."""
        with _translated(target):
            return self.execute(statement.text, statement.values)

    @property
    def target(self) -> str:
        """The host, port and name of the database, without a password. Raises IllegalState for a closed connection."""
        info = self.driver.info
        try:
            return f"{info.host}:{info.port}/{info.dbname}"
        except psycopg.OperationalError as error:
            raise _closed() from error


def join(connection: object) -> JoinedConnection:
    """Wrap a connection of the caller, so that a send can use it.

    Raises ParameterInvalid for any other kind of connection, and for a connection that returns text as bytes;
    IllegalState for a closed connection.
    """
    if not isinstance(connection, psycopg.Connection) and is_of_django(connection):
        connection = below_django(connection)
    if isinstance(connection, psycopg.Connection):
        joined = JoinedConnection(partial(_execute_psycopg, _opened(connection)), connection)
    elif isinstance(connection, BridgedConnection):
        joined = JoinedConnection(connection.execute, _opened(connection.connection))
    else:
        joined = _join_sqlalchemy(connection)
    if joined.driver.info.encoding == "ascii":
        raise _encoding_unfit("SQL_ASCII")
    return joined


def _opened(driver: _Driver) -> _Driver:
    if driver.closed and not driver.broken:
        raise _closed()
    return driver


def _join_sqlalchemy(connection: object) -> JoinedConnection:
    if not isinstance(connection, sqlalchemy.Connection):
        connection = _connection_of(connection)
    _check_dialect(connection)
    with _translated(_address(connection.engine)):
        driver: Any = connection.connection.driver_connection
    return JoinedConnection(partial(_execute_sqlalchemy, connection), driver)


def _encoding_unfit(encoding: str, text: str = "") -> ParameterInvalid:
    reason = f"cannot be sent {shown(text)}" if text else "gives texts as bytes"
    value = f"client_encoding {encoding}"
    return ParameterInvalid("connection", value, f"{reason}; execute SET client_encoding TO 'UTF8' on it")


@contextmanager
def _translated(target: str) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        raise _translation(error.orig or error, target) from error.orig or error
    except UnicodeEncodeError as error:  # raised by the driver, which has sent nothing
        raise _encoding_unfit(error.encoding, error.object[error.start : error.end]) from error
    except InvalidRequestError as error:
        raise IllegalState("the connection", f"not usable: {error}") from error
    except (psycopg.Error, PoolTimeout) as error:
        raise _translation(error, target) from error


def _translation(error: BaseException, target: str) -> MqdbError:
    if isinstance(error, pg.InFailedSqlTransaction | pg.PipelineAborted):
        return IllegalState("the connection's transaction", "failed already, by an earlier statement; roll it back")
    diag = error.diag if isinstance(error, psycopg.Error) else None
    if diag and (diag.schema_name, (diag.table_name or "")[:10]) == ("mqdb", "commit_log"):
        # On its own connection a producer would set the sequences or create a segment, and run the statement again.
        no_partition = isinstance(error, pg.CheckViolation) and diag.constraint_name is None
        if no_partition or isinstance(error, pg.UniqueViolation):
            return StorageRefused(diag.sqlstate or "", _NO_ROOM)
    return translate(error, target)


_NO_ROOM: Final = (
    "nothing is stored: the log has no room at its next position, as after a restore without sequences; roll back, "
    "start mqdb serve, which makes room, and send again"
)


def _closed() -> IllegalState:
    return IllegalState("the connection", "closed")


def _connection_of(session: object) -> sqlalchemy.Connection:
    # A caller with a Session has already imported this; for others the import would add 70 ms to each start.
    from sqlalchemy.orm import Session, scoped_session

    if isinstance(session, scoped_session):
        session = session()
    if not isinstance(session, Session):
        raise ParameterInvalid("connection", _kind_of(session), _remedy(session))
    try:
        bind = session.get_bind()
    except UnboundExecutionError as error:
        reason = "it may have several engines; give session.connection(bind_arguments=...) of the one that is meant"
        raise ParameterInvalid("connection", _kind_of(session), reason) from error
    _check_dialect(bind)
    with _translated(_address(bind.engine)):
        return session.connection()


def _check_dialect(bind: sqlalchemy.Connection | sqlalchemy.Engine) -> None:
    dialect = bind.dialect
    if (dialect.name, dialect.driver) not in _DIALECTS:
        found = f"{dialect.name}+{dialect.driver}"
        raise ParameterInvalid("connection", found, f"make the engine with postgresql+psycopg://, or {_IN_SQL}")


# The second is the type that AsyncConnection.run_sync passes to its function.
_DIALECTS: Final = {("postgresql", "psycopg"), ("postgresql", "psycopg_async")}

_IN_SQL: Final = "execute SELECT mqdb.send(...) on it"


def _remedy(connection: object) -> str:
    # SQLAlchemy's async connections have run_sync; importing their classes would require greenlet.
    if hasattr(type(connection), "run_sync") or isinstance(connection, psycopg.AsyncConnection):
        return f"it is asynchronous; give it to AsyncProducer.send, or {_IN_SQL}"
    return (
        "give a Connection or Session of SQLAlchemy whose driver is psycopg, a psycopg.Connection, "
        f"or the connection of Django, or {_IN_SQL}"
    )


def _kind_of(connection: object) -> str:
    # Not the connection itself: errors must be picklable.
    return f"{type(connection).__module__}.{type(connection).__qualname__}"


def _address(engine: sqlalchemy.Engine) -> str:
    return f"{engine.url.host or 'localhost'}:{engine.url.port or 5432}/{engine.url.database or ''}"


def _execute_sqlalchemy(connection: sqlalchemy.Connection, text: str, values: Mapping[str, object]) -> Sequence[_Row]:
    # Through SQLAlchemy, not below it: otherwise it would not know of the transaction, and its commit() would do
    # nothing.
    return connection.exec_driver_sql(text, values).all()


def _execute_psycopg(connection: "psycopg.Connection[Any]", text: str, values: Mapping[str, object]) -> Sequence[_Row]:
    return _Cursor(connection, row_factory=tuple_row).execute(text, values).fetchall()


class _Cursor(psycopg.Cursor[tuple[Any, ...]]):
    """A cursor without the adapters that the caller has registered on the connection."""

    @property
    def adapters(self) -> AdaptersMap:
        return _ADAPTERS


class _AsyncCursor(psycopg.AsyncCursor[tuple[Any, ...]]):
    """An asynchronous cursor without the adapters that the caller has registered on the connection."""

    @property
    def adapters(self) -> AdaptersMap:
        return _ADAPTERS


_ADAPTERS: Final = AdaptersMap(psycopg.adapters)
