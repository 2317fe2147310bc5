"""Listener transactions: the connections of exactly-once listeners, each in a transaction.

They are configured like an application's own connections, because they run the application's statements: nothing is
planned or prepared in a way that suits only mqdb. But the listener cannot commit.
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
    """The listener transactions of one consumer on one broker. Any thread may use it.

    With an asynchronous listener they are in the loop of `loop_calls`, and begin and end inside calls of `run`.
    """

    def __init__(self, instance: ClientInstance, loop_calls: LoopCalls | None = None) -> None:
        """Raises ImportError for `loop_calls` without greenlet."""
        self._instance = instance
        self._loop_calls = loop_calls
        # No limit of its own: each thread that calls the listener needs a connection.
        engine = create_engine(
            instance.connections.dsn,
            prepared=False,
            pool_size=0,
            server=instance.connections.server,
            application_name=f"mqdb {instance.client_id} listener",
            is_asynchronous=loop_calls is not None,
        )
        # Statements of the user may take long.
        instance.watch.cover(engine, is_direct=instance.pool_dsn is None, counts=False)
        event.listen(engine, "connect", self._make_usual)
        event.listen(engine, "commit", _refuse_commit)
        if loop_calls is not None:
            event.listen(engine, "handle_error", _keep_connection)
        self._engine: Engine = engine.execution_options(isolation_level="READ COMMITTED")
        # None is said when a connection was lost, or leads elsewhere: those that are as old are not used again.
        self._losses = instance.on_group_change(lambda group: self._dispose() if group is None else None)

    def run(self, work: Callable[[], T]) -> T:
        """Do work that begins transactions; in the loop, if there is one, while this thread waits."""
        return work() if self._loop_calls is None else self._loop_calls.run(partial(greenlet_spawn, work))

    def blocking(self, listener: Callable[..., Any]) -> Callable[..., Any]:
        """The listener as a function that returns: it is called with messages and a connection of `begin`."""
        if self._loop_calls is None:
            return listener
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine  # takes greenlet

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
        """A connection in a transaction, which is rolled back at the end unless `exactly_once.commit` has ended it.

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
        """In a transaction of its own: the listener's may choose its isolation level."""
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
        """Use none of the connections again; the notification thread has this done."""
        pool = self._engine.pool
        self._engine.dispose(close=self._loop_calls is None)
        if self._loop_calls is not None:
            self._loop_calls.start(partial(greenlet_spawn, pool.dispose))

    def _make_usual(self, _connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
        connection = entry.driver_connection
        assert isinstance(connection, psycopg.Connection | psycopg.AsyncConnection)
        connection.adapters.register_dumper(list, ListDumper)  # of mixed lists and of JSON there is no binary form
        if self._instance.pool_dsn is None:
            connection.prepare_threshold = _PREPARE_THRESHOLD


def is_lost(connection: Connection) -> bool:
    """Whether a connection no longer reaches the broker, so that nothing is committed."""
    return connection.invalidated or (not connection.closed and driver(connection).closed)


def _refuse_commit(_connection: Connection) -> NoReturn:
    raise TransactionEnded("tried to commit")


def _keep_connection(context: ExceptionContext) -> None:
    """Let a task that is cancelled in a statement keep its connection: psycopg has cancelled the statement as well."""
    if isinstance(context.original_exception, asyncio.CancelledError):
        context.is_disconnect = False


def _roll_back(connection: Connection, *, is_reusable: bool) -> None:
    if connection.closed:
        return
    if not is_lost(connection):
        # Below SQLAlchemy, which takes a transaction as over whose commit was refused.
        try:
            driver(connection).rollback()
        # Stuck in a pipeline that the server has left, it does not count as closed.
        except (psycopg.Error, asyncio.CancelledError):
            driver(connection).close()
    if is_lost(connection) or not is_reusable:  # its pool may be gone, and would not close it
        connection.invalidate()
    connection.close()
