"""A unit of a group append: records that go together, what its thread waits for, and what becomes of it.

A unit is one message, or the messages of one batch: stored as a whole or not at all, whatever becomes of the units
beside it.
"""

import threading
from collections.abc import Callable, Sequence
from enum import Enum, auto

from mqdb.broker.outcome import Backend
from mqdb.errors import MqdbError
from mqdb.message import SendStatus
from mqdb.store.commit_log import Record


class OutcomeUnknown(Exception):
    """The server was asked to store the records, and its answer is missing.

    `backend` was asked, where that can be known; if it has stored them, then above `after_pos`.
    """

    def __init__(self, reason: str, backend: Backend | None, after_pos: int) -> None:
        super().__init__(reason, backend, after_pos)
        self.reason = reason
        self.backend = backend
        self.after_pos = after_pos


class UnitState(Enum):
    """Whose turn it is with a unit."""

    WAITING = auto()
    LEADING = auto()  #: its thread appends, for itself and for those it takes along
    TAKEN = auto()  #: in the statement of another thread, which the server was asked to run
    APART = auto()  #: out of a statement that was refused, and to go into a smaller one
    DONE = auto()
    ABANDONED = auto()  #: its thread waits no longer


class Unit:
    """Records that go together, and what becomes of them: `positions` and `status`, or `error`.

    `deadline` is of time.monotonic, `timeout_seconds` is for an error's sentence. One that is not patient does not
    wait for a connection that is lost. The state changes under the guard of the group append only.
    """

    __slots__ = (
        "deadline",
        "done",
        "error",
        "has_waited",
        "is_patient",
        "positions",
        "state",
        "status",
        "timeout_seconds",
        "topic",
        "turn",
    )

    #: Where its records are, in their order, and what their commit has waited for; set when they are stored.
    positions: Sequence[int]
    status: SendStatus
    state: UnitState

    def __init__(self, topic: str, deadline: float, timeout_seconds: float, is_patient: bool = True) -> None:
        self.topic = topic
        self.deadline = deadline
        self.timeout_seconds = timeout_seconds
        self.is_patient = is_patient
        #: Released when its thread has to lead, or finds a result; None for one that leads from the start.
        self.turn: threading.Lock | None = None
        #: Called when it has ended, for a unit that no thread waits for.
        self.done: Callable[[], None] | None = None
        self.has_waited = False
        self.error: MqdbError | OutcomeUnknown | None = None

    def records(self) -> Sequence[Record]:
        """Its records, of one topic; made when they are first asked for.

        Mostly that is in the thread that leads: one that makes those of many, one after the other, takes a third of
        the time that it costs many threads to make one each.
        """
        raise NotImplementedError

    def succeed(self, positions: Sequence[int], status: SendStatus) -> None:
        """They are stored. Called by the thread that leads, like `records`."""
        self.positions = positions
        self.status = status
