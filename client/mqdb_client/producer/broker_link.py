"""A producer's way to one broker: a connection that appends, and one for all other questions."""

import copy
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from sqlalchemy import Connection

from mqdb.broker.log.outcome import Backend, backend_of
from mqdb.errors import MqdbError, SendGivenUp
from mqdb_client.instance import ClientInstance
from mqdb_client.new_connection import prepared
from mqdb_client.producer.durability import Durability, apply, refuse_shared
from mqdb_client.producer.group_append import BACKEND, GroupAppend
from mqdb_client.producer.held_connection import HeldConnection, NotRun, Overdue
from mqdb_client.producer.waking import Waking

T = TypeVar("T")

_MOST_GONE: Final = 16


class BrokerLink:
    """Opened once, closed once. Any thread may use it between. Deadlines are of time.monotonic."""

    def __init__(self, instance: ClientInstance, durability: Durability, waking: Waking) -> None:
        """Connects to nothing yet. Raises ParameterInvalid for a durability that a pooler cannot give.

        `waking` is shared by the ways of one producer: their threads run in one interpreter.
        """
        self.instance = instance
        self.name = instance.broker_name
        refuse_shared(durability, instance.pool_dsn)
        connect = instance.connect
        if instance.pool_dsn is None:  # behind a pooler each statement may meet another backend
            connect = prepared(connect, partial(apply, durability=durability), _note_backend)
        self.connection = HeldConnection(connect, instance.target, instance.ages.distrust)
        self.appends = GroupAppend(self.connection, waking)
        #: Backends of lost connections that are known to have ended; the last few.
        self.gone: deque[Backend] = deque(maxlen=_MOST_GONE)
        distrust = instance.ages.distrust
        self._questions = HeldConnection(instance.connect, instance.target, distrust, is_shared=True)

    def open(self) -> None:
        """Begin to connect. Raises RuntimeError where a thread cannot be started."""
        self.appends.open()
        self.connection.open()

    def close(self) -> None:
        """Let the appends under way end, and disconnect."""
        self.appends.close()
        self.connection.close()
        self._questions.close()

    def ask(self, work: Callable[[Connection], T], deadline: float, late: MqdbError, is_patient: bool = True) -> T:
        """Run what is no append; `late` is raised when it does not end in time, whatever it has done by then.

        Raises what `work` raises, and BrokerUnavailable and its kin.
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

    def _with_reason(self, late: MqdbError, deadline: float) -> MqdbError:
        if not isinstance(late, SendGivenUp):
            return late
        trouble = self.trouble_since(deadline - late.timeout_seconds)
        return SendGivenUp(late.topic, late.timeout_seconds, str(trouble or ""))


def _note_backend(connection: Connection) -> None:
    """For the time when the connection is lost."""
    connection.info[BACKEND] = backend_of(connection)
