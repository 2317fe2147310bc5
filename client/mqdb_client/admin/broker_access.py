"""Connections of an administrator to one broker."""

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from sqlalchemy import Connection, Engine, func, select

from mqdb.broker.dispatch import DispatchOutcome, dispatch, is_attended
from mqdb.broker.log.query import broker_info
from mqdb.common.dsn import BrokerDsn, redact
from mqdb.errors import ParameterInvalid, ServerIsStandby
from mqdb.store import replication
from mqdb.store.acl import owns
from mqdb.store.engine import create_engine, driver, translated
from mqdb.store.server_choice import ServerRole, is_standby
from mqdb.store.server_state import can_write

logger = logging.getLogger(__name__)

_CHECKED: Final = "mqdb_checked"
_BEGUN: Final = "mqdb_begun"
#: Reads stay on a standby for so long, even if there is a primary again: a look for it takes 5 s if a host hangs.
_STANDBY_SECONDS: Final = 10.0
#: A leader dispatches every few milliseconds.
_LEADER_SECONDS: Final = 0.1
_FORBID_WRITES: Final = "SET default_transaction_read_only = on"


class BrokerAccess:
    """Connections to one broker, opened on first use. Thread-safe.

    If the object was made for several brokers, each use raises ParameterInvalid: the caller has to choose a broker.
    """

    def __init__(self, *brokers: BrokerDsn, actor: str | None = None, read_only: bool = False) -> None:
        self._brokers = brokers
        #: The actor of a change if the call does not name an actor.
        self.actor = actor
        self._is_read_only = read_only
        server = ServerRole.ANY if read_only else ServerRole.PRIMARY_FIRST
        self._engines = [
            create_engine(each.dsn, application_name="mqdb admin", pool_size=0, server=server) for each in brokers[:1]
        ]

    @property
    def name(self) -> str:
        """The name of the broker."""
        return self._only()[0].name

    def _only(self) -> tuple[BrokerDsn, Engine]:
        if len(self._brokers) > 1:
            names = ", ".join(broker.name for broker in self._brokers)
            reason = f"there are several brokers, {names}: name one with on(), or ask each with on_each()"
            raise ParameterInvalid("broker", None, reason)
        return self._brokers[0], self._engines[0]

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """A connection in AUTOCOMMIT mode.

        Raises BrokerUnavailable and its subclasses, BrokerMisnamed, and a SchemaMismatch if the schema does not fit
        this version of mqdb. Driver errors in the block are translated, because some methods read from the store
        directly.
        """
        broker, engine = self._only()
        with translated(redact(broker.dsn)), self._opened(broker, engine) as connection, translated(connection):
            yield connection

    @contextmanager
    def lent(self) -> Iterator[Connection]:
        """A connection for a block of the user's code; errors raised in the block are not translated."""
        broker, engine = self._only()
        with ExitStack() as closing:
            with translated(redact(broker.dsn)):
                connection = closing.enter_context(self._opened(broker, engine))
            yield connection

    @contextmanager
    def _opened(self, broker: BrokerDsn, engine: Engine) -> Iterator[Connection]:
        with self._connect(engine) as connection:
            if _CHECKED not in connection.info:
                self._check(broker, connection)
                connection.info[_CHECKED] = True
            try:
                yield connection
            except ServerIsStandby:
                # In the pool it would also refuse the next change, even when there is a primary again.
                connection.invalidate()
                raise

    def _check(self, broker: BrokerDsn, connection: Connection) -> None:
        if self._is_read_only:
            connection.exec_driver_sql(_FORBID_WRITES)
        target = redact(broker.dsn)
        broker_info(connection).require_name(broker.name, target)
        if is_standby(driver(connection)) and (recovery := replication.recovery(connection)):
            logger.info("reads from a standby", extra={"target": target, **recovery._asdict()})

    def _connect(self, engine: Engine) -> Connection:
        """A connection from the pool.

        The pool prefers the primary: it keeps a connection to a standby only for a while.
        """
        while True:
            connection = engine.connect()
            begun = connection.info.setdefault(_BEGUN, time.monotonic())
            may_stay = time.monotonic() - begun < _STANDBY_SECONDS
            if self._is_read_only or may_stay or not is_standby(driver(connection)):
                return connection
            connection.invalidate()
            connection.close()

    @contextmanager
    def dispatched(self) -> Iterator[Connection]:
        """A connection through which the sent messages can be read from their queues.

        If no `mqdb serve` is running, all sent messages are dispatched first. If `mqdb serve` is running, it may not
        have dispatched the latest messages yet. In a read-only session, and on a standby, only messages that another
        session has dispatched are in their queues.
        """
        with self.connected() as connection:
            tend_dispatch(connection)
            yield connection

    def dispatch(self) -> bool:
        """Put all sent messages into their queues; False if another session is already doing this.

        Besides a leader, only the owner of the schema may dispatch. Other roles wait for the leader, many times longer
        than its dispatch takes.
        """
        with self.connected() as connection:
            while (result := dispatch(connection)).more:
                pass
            if result.outcome is not DispatchOutcome.LOCKED:
                return True
            is_guest = not owns(connection, connection.scalars(select(func.session_user())).one())
        if is_guest:
            time.sleep(_LEADER_SECONDS)
        return is_guest

    def close(self) -> None:
        """Disconnect. The next use reconnects."""
        for engine in self._engines:
            engine.dispose()


def tend_dispatch(connection: Connection) -> None:
    """Dispatch sent messages, unless `mqdb serve` does so or the session is read-only."""
    if not is_attended(connection) and can_write(connection):
        while dispatch(connection).more:
            pass
