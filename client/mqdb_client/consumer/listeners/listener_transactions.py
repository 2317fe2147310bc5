"""Listener transactions: the connections of exactly-once listeners, each with a transaction.

These connections are configured like an application's own connections, because they run the application's statements:
planning and preparing are not tuned for mqdb. But the listener cannot commit.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, NoReturn, TypeVar, cast

import psycopg
from psycopg.types.array import ListDumper
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import AdaptedConnection, ExceptionContext
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.util import greenlet_spawn

from mqdb.broker.consumers import exactly_once
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import TransactionEnded
from mqdb.store.engine import create_engine, driver, translated
from mqdb.store.log import history as histories
from mqdb.store.silence import in_time
from mqdb_client.consumer.listeners.ctrl_c import hand_on
from mqdb_client.consumer.listeners.loop_calls import LoopCalls, LoopClosed
from mqdb_client.instance import ClientInstance
from mqdb_client.new_connection import history_on, note_history

T = TypeVar("T")

#: Source: psycopg's Connection.prepare_threshold.
_PREPARE_THRESHOLD: Final = 5


class ListenerTransactions:
    """The listener transactions of one consumer on one broker. Thread-safe.

    With an asynchronous listener, the transactions run in the loop of `loop_calls`, and begin and end inside calls of
    `run`.
    """

    def __init__(self, instance: ClientInstance, loop_calls: LoopCalls | None = None) -> None:
        """Raises ImportError if `loop_calls` is given but greenlet is not installed."""
        self._instance = instance
        self._loop_calls = loop_calls
        # No limit here: each thread that calls the listener needs a connection.
        engine = create_engine(
            instance.connections.dsn,
            prepared=False,
            pool_size=0,
            server=instance.connections.server,
            application_name=f"mqdb {instance.client_id} listener",
            is_asynchronous=loop_calls is not None,
        )
        # The user's statements may take long.
        instance.watch.cover(engine, is_direct=instance.pool_dsn is None, counts=False)
        event.listen(engine, "connect", self._make_usual)
        event.listen(engine, "commit", _refuse_commit)
        if loop_calls is not None:
            event.listen(engine, "handle_error", _keep_connection)
        self._engine: Engine = engine.execution_options(isolation_level="READ COMMITTED")
        # None means that a connection was lost or leads elsewhere: connections of the same age are not reused.
        self._losses = instance.on_group_change(lambda group: self._dispose() if group is None else None)

    def run(self, work: Callable[[], T]) -> T:
        """Run work that begins transactions; if there is a loop, the work runs there while this thread waits."""
        return work() if self._loop_calls is None else self._loop_calls.run(partial(greenlet_spawn, work))

    def blocking(self, listener: Callable[..., Any]) -> Callable[..., Any]:
        """The listener as a blocking function, which is called with messages and a connection from `begin`."""
        if self._loop_calls is None:
            return listener
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine  # requires greenlet

        engine = AsyncEngine(self._engine)

        def call(messages: list[ReceivedMessage], connection: Connection, *context: object) -> Any:
            given = AsyncConnection(engine, connection)
            adapted = cast(AdaptedConnection, connection.connection.dbapi_connection)
            try:
                return adapted.run_async(lambda _: listener(messages, given, *context))
            except BaseException as error:
                hand_on(error)
                raise

        return call

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A connection with a transaction, which is rolled back at the end unless `exactly_once.commit` has ended it.

        Raises BrokerUnavailable and its subclasses, and IllegalState in a forked child.
        """
        self._instance.check_process()
        pool = self._engine.pool
        with translated(self._instance.target):
            connection = self._engine.connect()
        try:
            self._note_history(connection)
            connection.begin()
            exactly_once.begin(connection)
            yield connection
        finally:
            _roll_back(connection, is_reusable=self._engine.pool is pool)

    def _note_history(self, connection: Connection) -> None:
        """Read the history in a separate transaction: the listener may set the isolation level of its transaction."""
        if self._instance.pool_dsn is None and history_on(connection) is None:
            with translated(self._instance.target), in_time(connection):
                note_history(connection, histories.find(connection))
                connection.rollback()

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._losses.cancel()
        try:
            self.run(self._engine.dispose)
        except LoopClosed:
            # psycopg closes a connection without waiting, so no loop is needed.
            with suppress(StopIteration):
                greenlet_spawn(self._engine.dispose).send(None)

    def _dispose(self) -> None:
        """Discard all connections; the notification thread calls this."""
        pool = self._engine.pool
        self._engine.dispose(close=self._loop_calls is None)
        if self._loop_calls is not None:
            self._loop_calls.start(partial(greenlet_spawn, pool.dispose))

    def _make_usual(self, _connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
        connection = entry.driver_connection
        assert isinstance(connection, psycopg.Connection | psycopg.AsyncConnection)
        connection.adapters.register_dumper(list, ListDumper)  # mixed lists and JSON have no binary form
        if self._instance.pool_dsn is None:
            connection.prepare_threshold = _PREPARE_THRESHOLD


def is_lost(connection: Connection) -> bool:
    """Whether a connection no longer reaches the broker, so that nothing is committed."""
    return connection.invalidated or (not connection.closed and driver(connection).closed)


def _refuse_commit(_connection: Connection) -> NoReturn:
    raise TransactionEnded("tried to commit")


def _keep_connection(context: ExceptionContext) -> None:
    """Let a task that is cancelled in a statement keep its connection: psycopg has also cancelled the statement."""
    if isinstance(context.original_exception, asyncio.CancelledError):
        context.is_disconnect = False


def _roll_back(connection: Connection, *, is_reusable: bool) -> None:
    if connection.closed:
        return
    if not is_lost(connection):
        # Below SQLAlchemy, which considers a transaction ended if its commit was refused.
        try:
            driver(connection).rollback()
        # A connection stuck in a pipeline that the server has left does not count as closed.
        except (psycopg.Error, asyncio.CancelledError):
            driver(connection).close()
    if is_lost(connection) or not is_reusable:  # its pool may no longer exist, and would not close it
        connection.invalidate()
    connection.close()
