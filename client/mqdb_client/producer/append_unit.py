"""A unit of a group append: records that go together, what its thread waits for, and what becomes of it.

A unit is one message, or the messages of one batch: stored as a whole or not at all, whatever becomes of the units
beside it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from uuid import UUID

from mqdb.broker.outcome import Backend, StoredAt
from mqdb.message import SendStatus
from mqdb.store.commit_log import Record
from mqdb_client.producer.waking import Sleeper


class NoAnswer(Exception):
    """The server was asked to store the records, and its answer is missing.

    `backend` was asked, where that can be known; if it has stored them, then above `after_pos`.
    """

    def __init__(self, reason: str, backend: Backend | None, after_pos: int) -> None:
        super().__init__(reason, backend, after_pos)
        self.reason = reason
        self.backend = backend
        self.after_pos = after_pos
        #: What was found of its messages, once somebody has looked for them: final, as `settle` tells it.
        self.found: Mapping[UUID, StoredAt] | None = None


class UnitState(Enum):
    """Whose turn it is with a unit."""

    WAITING = auto()
    LEADING = auto()  #: new; or its own thread is to append it, and takes others along
    TAKEN = auto()  #: in a statement of another thread, which the server was asked to run
    APART = auto()  #: out of a statement that has stored nothing, and to go into another one
    DONE = auto()
    #: Its time was over, or its thread interrupted: it was told so, and what comes later is for nobody.
    ABANDONED = auto()


class Unit(ABC):
    """Records that go together, and what becomes of them: it is told that they are stored, or has an `error`.

    `deadline` is of time.monotonic, `timeout_seconds` is for an error's sentence. One that is not patient does not
    wait for a connection that is lost. `state` changes under the guard of the group append only.
    """

    __slots__ = (
        "deadline",
        "done",
        "error",
        "is_patient",
        "records",
        "sleeper",
        "state",
        "timeout_seconds",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        deadline: float,
        timeout_seconds: float,
        is_patient: bool = True,
    ) -> None:
        self.topic = topic
        self.deadline = deadline
        self.timeout_seconds = timeout_seconds
        self.is_patient = is_patient
        self.state = UnitState.LEADING
        #: Of one topic; none until they are made.
        self.records: Sequence[Record] = ()
        #: The thread that waits for it, to be woken when it has ended.
        self.sleeper: Sleeper | None = None
        #: Called when it has ended, for a unit that no thread waits for; None from then on.
        self.done: Callable[[], None] | None = None
        self.error: Exception | None = None

    @abstractmethod
    def make_records(self) -> None:
        """Make its `records`, of which there is at least one.

        Mostly that is in the thread that leads: one that makes those of many, one after the other, takes a third of
        the time that it costs many threads to make one each. What it raises is the outcome of this unit alone.
        """

    @abstractmethod
    def succeed(self, positions: Sequence[int], status: SendStatus) -> None:
        """Its records are stored at these positions, in their order; `status` is what their commit has waited for.

        Called by the thread that leads, or that finds it out.
        """
