"""Connections of an administrator to one broker."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from sqlalchemy import Connection, Engine, func, select

from mqdb.broker.dispatch import DispatchOutcome, dispatch, is_attended
from mqdb.broker.log.query import broker_info
from mqdb.common.dsn import BrokerDsn, redact
from mqdb.errors import ParameterInvalid
from mqdb.store.acl import owns
from mqdb.store.engine import create_engine, translated

_CHECKED: Final = "mqdb_checked"
#: A leader dispatches every few milliseconds.
_LEADER_SECONDS: Final = 0.1
_FORBID_WRITES: Final = "SET default_transaction_read_only = on"


class BrokerAccess:
    """Connections to one broker. The first use opens one; any thread may use it.

    If it is made for several brokers, each use raises ParameterInvalid, which asks for one of them.
    """

    def __init__(self, *brokers: BrokerDsn, actor: str | None = None, read_only: bool = False) -> None:
        self._brokers = brokers
        #: Who is behind a change, if the call does not say it.
        self.actor = actor
        self.is_read_only = read_only
        self._engines = [create_engine(each.dsn, application_name="mqdb admin", pool_size=0) for each in brokers[:1]]

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
        """A connection in AUTOCOMMIT.

        Raises BrokerUnavailable and its kin, BrokerMisnamed, and a SchemaMismatch unless the schema is the one of this
        mqdb. Errors of the driver in the block are translated: some methods read what is stored without a verb.
        """
        with translated(redact(self._only()[0].dsn)), self.lent() as connection:
            yield connection

    @contextmanager
    def lent(self) -> Iterator[Connection]:
        """The same, for a block of the user's own code, whose errors come out as they are."""
        broker, engine = self._only()
        target = redact(broker.dsn)
        with ExitStack() as closing:
            with translated(target):
                connection = closing.enter_context(engine.connect())
                if _CHECKED not in connection.info:
                    if self.is_read_only:
                        connection.exec_driver_sql(_FORBID_WRITES)
                    broker_info(connection).require_name(broker.name, target)
                    connection.info[_CHECKED] = True
            yield connection

    @contextmanager
    def dispatched(self) -> Iterator[Connection]:
        """The same. Messages that were sent are in their queues, even if no `mqdb serve` runs. One that runs may yet
        have to put them there.

        In a read-only session only those that somebody else has dispatched.
        """
        with self.connected() as connection:
            if not self.is_read_only:
                tend_dispatch(connection)
            yield connection

    def dispatch(self) -> bool:
        """Put all messages that were sent into their queues; False if another session is at it.

        Beside a leader only the owner of the schema may dispatch. All others give the leader a moment, which is many
        times what it takes.
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
        """Disconnect. A later use connects again."""
        for engine in self._engines:
            engine.dispose()


def tend_dispatch(connection: Connection) -> None:
    """Dispatch what was sent, unless a `mqdb serve` does."""
    if not is_attended(connection):
        while dispatch(connection).more:
            pass
