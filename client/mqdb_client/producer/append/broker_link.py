"""A producer's way to one broker: a connection that appends, and one for all other questions."""

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
    """Opened once, closed once. Any thread may use it between. Deadlines are of time.monotonic."""

    def __init__(self, instance: ClientInstance, durability: Durability | None, waking: Waking) -> None:
        """Does not connect yet. Raises ParameterInvalid for a durability that a pooler cannot give.

        Without a `durability` each connection that appends gets the default that the broker has when it is made.
        `waking` is shared by the ways of one producer: their threads run in one interpreter.
        """
        self.instance = instance
        self.name = instance.broker_name
        self._chosen = durability
        #: The durability of the last connection that appends.
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
        #: Backends of lost connections that are known to have ended; the last few.
        self.gone: deque[Backend] = deque(maxlen=_MOST_GONE)
        self._questions = HeldConnection(instance.connect_to_hold, instance.target, distrust, is_shared=True)

    def open(self) -> None:
        """Begin to connect.

        Raises ParameterInvalid if the broker's default is a durability that a pooler cannot give; RuntimeError if a
        thread cannot be started.
        """
        if self.instance.pool_dsn is not None and self._chosen is None and self.instance.is_met:
            with suppress(BrokerUnavailable), self.instance.connect() as connection:
                refuse_shared_default(connection)
        self.appends.open()
        self.connection.open()

    def close(self) -> None:
        """Let the appends under way end, and disconnect."""
        self.appends.close()
        self.connection.close()
        self._questions.close()

    def ask(self, work: Callable[[Connection], T], deadline: float, late: MqdbError, is_patient: bool = True) -> T:
        """Run `work`, which is not an append. Raises `late` if it does not end in time, even if it has done something.

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
        """Ask the next question on a new connection: this one may lead to a database that was replaced."""
        self._questions.cut()

    def trouble_since(self, moment: float) -> MqdbError | None:
        """Why there was no connection the last time, if that was not before `moment`."""
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
    """For the time when the connection is lost."""
    connection.info[BACKEND] = backend_of(connection)
