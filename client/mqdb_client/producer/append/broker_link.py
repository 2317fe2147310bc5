"""A producer's link to one broker: a connection for appends, and one for all other statements."""

import copy
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from sqlalchemy import Connection

from mqdb.broker.log.outcome import Backend, backend_of
from mqdb.common.durability import Durability
from mqdb.errors import BrokerUnavailable, MqdbError, SendGivenUp
from mqdb_client.instance import ClientInstance
from mqdb_client.new_connection import prepared
from mqdb_client.producer.append.durability import apply, chosen_or_default, refuse_shared, refuse_shared_default
from mqdb_client.producer.append.group_append import BACKEND, GroupAppend
from mqdb_client.producer.append.held_connection import HeldConnection, NotRun, Overdue
from mqdb_client.producer.append.waking import Waking

T = TypeVar("T")

_MOST_GONE: Final = 16


class BrokerLink:
    """A link to one broker, opened once and closed once.

    Thread-safe while open. Deadlines are values of time.monotonic.
    """

    def __init__(self, instance: ClientInstance, durability: Durability | None, waking: Waking) -> None:
        """Create a link without connecting.

        Raises ParameterInvalid for a durability that is impossible behind a pooler.

        Without a `durability`, each appending connection gets the broker's default at the time of connecting. `waking`
        is shared by all links of a producer, because their threads run in one interpreter.
        """
        self.instance = instance
        self.name = instance.broker_name
        self._chosen = durability
        #: The durability of the last appending connection.
        self.durability = durability or Durability.SYNC_FLUSH
        connect = instance.connect_to_hold
        if instance.pool_dsn is None:
            connect = prepared(connect, self._apply_durability, _note_backend)
        elif durability is None:  # behind a pooler each statement may meet another backend
            connect = prepared(connect, refuse_shared_default)
        else:
            refuse_shared(durability)
        distrust = instance.watch.distrust
        self.connection = HeldConnection(connect, instance.target, distrust)
        self.appends = GroupAppend(self.connection, waking, instance.counts.note_refusal)
        #: The last few backends of lost connections that are known to have ended.
        self.gone: deque[Backend] = deque(maxlen=_MOST_GONE)
        self._questions = HeldConnection(instance.connect_to_hold, instance.target, distrust, is_shared=True)

    def open(self) -> None:
        """Start to connect.

        Raises ParameterInvalid if the broker's default durability is impossible behind a pooler; RuntimeError if a
        thread cannot be started.
        """
        if self.instance.pool_dsn is not None and self._chosen is None and self.instance.is_met:
            with suppress(BrokerUnavailable), self.instance.connect() as connection:
                refuse_shared_default(connection)
        self.appends.open()
        self.connection.open()

    def close(self) -> None:
        """Wait for the appends under way, and disconnect."""
        self.appends.close()
        self.connection.close()
        self._questions.close()

    def ask(self, work: Callable[[Connection], T], deadline: float, late: MqdbError, is_patient: bool = True) -> T:
        """Run `work`, which is not an append. Raises `late` if `work` does not end in time, even if it had an effect.

        Raises the errors of `work`, and BrokerUnavailable and its subclasses.
        """
        self._questions.open()
        try:
            return self._questions.run(work, deadline, is_patient)
        except NotRun as not_run:
            if not_run.error is not None:
                raise copy.copy(not_run.error) from not_run.error.__cause__
            raise self._with_reason(late, deadline) from None
        except Overdue as overdue:
            raise self._with_reason(late, deadline) from overdue.__cause__

    def ask_anew(self) -> None:
        """Use a new connection for the next query: the current connection may lead to a database that was replaced."""
        self._questions.cut()

    def trouble_since(self, moment: float) -> MqdbError | None:
        """The reason why the connection was last missing, unless that was before `moment`."""
        return self.connection.trouble_since(moment) or self._questions.trouble_since(moment)

    def _apply_durability(self, connection: Connection) -> None:
        self.durability = chosen_or_default(connection, self._chosen)
        apply(connection, self.durability)

    def _with_reason(self, late: MqdbError, deadline: float) -> MqdbError:
        if not isinstance(late, SendGivenUp):
            return late
        trouble = self.trouble_since(deadline - late.timeout_seconds)
        return SendGivenUp(late.topic, late.timeout_seconds, str(trouble or ""))


def _note_backend(connection: Connection) -> None:
    """Remember the backend, in case the connection is lost."""
    connection.info[BACKEND] = backend_of(connection)
