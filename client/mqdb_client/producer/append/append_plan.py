"""The plan of a group append: which unit leads, and which records are stored together.

A state machine without threads: it does not wait, takes no lock and does not contact the server. `group_append.py` does
all this, and reports events to the plan:

    arrive     ──▶ LEAD   no leader: the sender's own thread appends at once
               ──▶ WAIT   another unit leads
               ──▶ CALL   no leader, and no thread waits for the unit: the append thread has to lead
    first      ──▶ the unit whose deadline applies if the append thread leads
    take       ──▶ the records of the next statement: those of the leader, then of the units that wait, in their order
    stored, refused, unknown, give_up    the outcome of that statement
    expire, leave, end_late              a unit stops waiting
    done       ──▶ tells whether the append thread has to lead next

Units that have ended stay in `ended` until they are notified.
"""

import copy
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from itertools import chain, takewhile
from typing import Final, Protocol
from uuid import UUID

from mqdb.broker.log.outcome import Backend, StoredAt
from mqdb.common.message import SendStatus
from mqdb.errors import IllegalState, MqdbError, SendGivenUp, TopicNotFound
from mqdb.store.log.commit_log import LogPlace, Record
from mqdb_client.producer.append.refusals import may_be_of_one_message

#: The maximum for one statement, unless a single unit is larger.
MAX_GATHERED_MESSAGES: Final = 1_024
MAX_GATHERED_BYTES: Final = 4 * 1024 * 1024

# A share of the send timeout. A unit with less time left does not set the deadline of a statement for others. The share
# is more than what is left when a statement is cancelled: otherwise the next statement of the same age would be cut off
# immediately.
_SHARE_TO_LEAD: Final = 0.12


class NoAnswer(Exception):
    """The server was asked to store the records but did not answer.

    `backend` is the backend that was asked, if known. If the backend has stored the records, their positions are above
    `after_pos`.
    """

    def __init__(self, reason: str, backend: Backend | None, after_pos: int) -> None:
        super().__init__(reason, backend, after_pos)
        self.reason = reason
        self.backend = backend
        self.after_pos = after_pos
        #: The stored messages after a lookup; final, as returned by `settle`.
        self.found: Mapping[UUID, StoredAt] | None = None


class UnitState(Enum):
    """The state of a unit in the plan."""

    LEADING = auto()  #: new, or to be appended by its own thread, together with others
    WAITING = auto()
    TAKEN = auto()  #: in another thread's statement, which was sent to the server
    APART = auto()  #: taken out of a statement that stored nothing, to be put into another one
    DONE = auto()
    #: Its deadline has passed, or its thread was interrupted. The sender knows; later results are dropped.
    ABANDONED = auto()


class Unit(ABC):
    """One message, or the messages of one batch.

    A unit is stored as a whole or not at all, independently of other units. A unit ends by `succeed` when its records
    are stored, or with an `error`. `deadline` is a value of time.monotonic; `timeout_seconds` is for error messages. A
    unit that is not patient does not wait for a lost connection.
    """

    __slots__ = (
        "deadline",
        "error",
        "is_handed_in",
        "is_patient",
        "records",
        "state",
        "tell",
        "timeout_seconds",
        "topic",
    )

    def __init__(self, topic: str, deadline: float, timeout_seconds: float, is_patient: bool = True) -> None:
        self.topic = topic
        self.deadline = deadline
        self.timeout_seconds = timeout_seconds
        self.is_patient = is_patient
        self.state = UnitState.LEADING
        #: The records, all of one topic; empty until they are made.
        self.records: Sequence[Record] = ()
        #: Whether no thread waits for this unit and watches its deadline.
        self.is_handed_in = False
        #: Called when the unit has ended; None while no thread waits.
        self.tell: Callable[[], None] | None = None
        self.error: Exception | None = None

    @abstractmethod
    def make_records(self) -> None:
        """Make the `records` of the unit, at least one record.

        The leading thread does this for most units: a single thread that makes the records of many units takes a third
        of the time that many threads take to make the records of one unit each. An exception ends only this unit.
        """

    @abstractmethod
    def succeed(self, places: Sequence[LogPlace], status: SendStatus) -> None:
        """End with success: the records are stored at `places`, in order.

        `status` is the durability of their commit.
        """


class Turn(Enum):
    """The next step for the thread that submits a unit."""

    LEAD = auto()  #: append it now
    WAIT = auto()  #: wait until it has ended
    CALL = auto()  #: call the append thread
    ENDED = auto()  #: nothing: it has an error already


class ConnectionNews(Protocol):
    """The state of the connection, as far as it is known without using the connection."""

    #: Why there is no connection.
    why_lost: MqdbError | None

    def trouble_since(self, moment: float) -> MqdbError | None:
        """The error of the last lost connection or failed attempt to connect, unless that was before `moment`."""


class AppendPlan:
    """The units of one group append. Only one thread at a time may use the plan."""

    def __init__(self, connection: ConnectionNews) -> None:
        self._connection = connection
        self.is_closed = False  #: to refuse new units
        #: A thread leads, or was called to lead.
        self.is_busy = False
        #: The unit whose own thread leads; None while the append thread leads, or no thread does.
        self.leading: Unit | None = None
        self.waiting: deque[Unit] = deque()
        #: The units that the leader has taken.
        self.batch: list[Unit] = []
        #: Ended units whose threads were not woken yet.
        self.ended: deque[Unit] = deque()
        #: A backend that has appended, and the last position that it returned.
        self._newest: tuple[Backend | None, int] = (None, 0)
        #: The backend of the current statement.
        self._asked: Backend | None = None

    # -- who leads ----------------------------------------------------------------------------

    def arrive(self, unit: Unit) -> Turn:
        """Register a unit to be appended. Raises IllegalState after the shutdown."""
        if self.is_closed:
            raise IllegalState("the producer", "shut down")
        if self.is_busy and not unit.is_patient and (why := self._connection.why_lost) is not None:
            # The leading unit waits for a connection.
            self._fail_not_stored([unit], why)
            return Turn.ENDED
        was_busy, self.is_busy = self.is_busy, True
        if not was_busy and not unit.is_handed_in:
            self.leading = unit
            return Turn.LEAD
        unit.state = UnitState.WAITING
        self.waiting.append(unit)
        return Turn.WAIT if was_busy else Turn.CALL

    def lead_apart(self, unit: Unit, backend: Backend | None) -> None:
        """Append a unit alone, on `backend`. No thread waits for the unit, and no unit may be leading."""
        self.is_busy = True
        self.leading = unit
        self.batch = [unit]
        unit.state = UnitState.TAKEN
        self._asked = backend

    def first(self, now: float) -> Unit | None:
        """The first waiting unit whose deadline can apply to a statement; units before it are given up."""
        late = list(takewhile(lambda unit: not _has_time(unit, now), self.waiting))
        self._fail_not_stored(late, self._connection.why_lost)
        return self.waiting[0] if self.waiting else None

    def done(self) -> bool:
        """Note that the leader has ended; returns whether the append thread has to lead next.

        This method may be called repeatedly.
        """
        for unit in reversed(self.batch):
            if unit.state is UnitState.APART:
                unit.state = UnitState.WAITING
                self.waiting.appendleft(unit)
        self.batch = []
        self.is_busy = bool(self.waiting)
        return self.is_busy

    # -- what is stored together --------------------------------------------------------------

    def take(self, batch: list[Unit], timekeeper: Unit, backend: Backend | None, now: float) -> list[Record]:
        """Take waiting units into the statement that `backend` is about to be asked to run; returns its records.

        Call this method only when there is a connection: until then, units are not bound to a statement. Takes no units
        if the wait for the connection left the timekeeper no time for other units.
        """
        self.batch = batch
        self._asked = backend
        _rejoin(batch)
        records: list[Record] = []
        for unit in batch:
            if not unit.records:
                unit.make_records()
            records += unit.records
        if not self.waiting or not _has_time(timekeeper, now):
            return records
        bytes_left = MAX_GATHERED_BYTES - size_of(records)
        while self.waiting:
            unit = self.waiting[0]
            if unit.is_handed_in and unit.deadline <= now:  # nothing is stored after that
                self._expire(self.waiting.popleft())
                continue
            if not unit.records:
                try:
                    unit.make_records()
                except Exception as error:  # noqa: BLE001 - the sender gets it
                    unit.error = error
                    self._end([self.waiting.popleft()])
                    continue
            bytes_left -= size_of(unit.records)
            if records and (bytes_left < 0 or len(records) + len(unit.records) > MAX_GATHERED_MESSAGES):
                break
            records += unit.records
            batch.append(unit)
            unit.state = UnitState.TAKEN
            self.waiting.popleft()
        return records

    def take_again(self, part: list[Unit], backend: Backend | None) -> list[Record]:
        """The records of a part of a statement that was refused. Units that no longer wait leave the part."""
        self._asked = backend
        _rejoin(part)
        return list(chain.from_iterable(unit.records for unit in part))

    # -- what became of a statement -----------------------------------------------------------

    def stored(self, units: Sequence[Unit], places: Sequence[LogPlace], status: SendStatus) -> None:
        """Note that the records of these units are stored."""
        begin = 0
        alive = []
        for unit in units:
            end = begin + len(unit.records)
            if not _has_ended(unit):
                unit.succeed(places[begin:end], status)
                alive.append(unit)
            begin = end
        self._end(alive)
        if places:
            # Not earlier: a unit without its result would be searched for above its own position.
            self._newest = (self._asked, places[-1].log_pos)

    def refused(self, units: list[Unit], error: MqdbError) -> list[list[Unit]]:
        """Note that the server refused the statement; returns the parts to try again, [] if all units have failed."""
        parts = _parts(units, error)
        if parts:
            self._set_apart(units)
        else:
            self._fail(units, lambda _: copy.copy(error), error.__cause__)
        return parts

    def unknown(self, units: Iterable[Unit], reason: str, cause: BaseException | None) -> None:
        """Note that the server did not answer."""
        self._fail(units, lambda _: self._no_answer(reason), cause)

    def give_up(self, units: list[Unit], timekeeper: Unit, why: MqdbError | None) -> None:
        """Note that nothing is stored and the timekeeper's time is up.

        The other units have time left, and wait again.
        """
        self._fail_not_stored([timekeeper], why)
        self._set_apart(units)

    def interrupt(self, batch: list[Unit], timekeeper: Unit, cause: BaseException) -> None:
        """Note that the leading thread was interrupted, so that the other units do not wait for ever."""
        asked = [unit for unit in batch if unit.state in (UnitState.LEADING, UnitState.TAKEN)]
        # Even if no unit was sent, the next attempt must not meet the same interruption for ever.
        self.unknown(asked or [timekeeper], f"{type(cause).__name__} in the thread that sent it along", cause)

    def await_connection(self, why: MqdbError | None) -> None:
        """Note that the leader waits for a lost connection; impatient units try another broker.

        The units already taken for this statement were refused by a standby, so none of them is stored.
        """
        self._set_apart(self.batch)
        self._fail_not_stored([unit for unit in self.waiting if not unit.is_patient], why)

    # -- who does not wait any longer ---------------------------------------------------------

    def expire(self, unit: Unit) -> None:
        """Note that the deadline of a unit has passed. This has no effect if the unit has ended."""
        self._expire(unit)
        self._drop_ended()

    def leave(self, unit: Unit) -> None:
        """Note that the thread of a unit was interrupted and no longer waits for it."""
        if unit.state is not UnitState.DONE:
            unit.state = UnitState.ABANDONED
        self._drop_ended()

    def end_late(self, now: float) -> None:
        """End the submitted units whose time is up, whatever the current statement waits for."""
        late = [unit for unit in (*self.waiting, *self.batch) if unit.is_handed_in and unit.deadline <= now]
        for unit in late:
            self._expire(unit)
        if late:
            self._drop_ended()

    # -- how it is done -----------------------------------------------------------------------

    def _expire(self, unit: Unit) -> None:
        if _has_ended(unit):
            return
        if unit.state is UnitState.TAKEN:
            unit.error = self._no_answer("no answer in time")
        else:
            unit.error = self._not_stored(unit, self._connection.why_lost)
        unit.state = UnitState.ABANDONED
        if unit.is_handed_in:
            self.ended.append(unit)

    def _end(self, units: Iterable[Unit]) -> None:
        for unit in units:
            unit.state = UnitState.DONE
            if unit.tell is not None:
                self.ended.append(unit)

    def _drop_ended(self) -> None:
        self.waiting = deque(unit for unit in self.waiting if unit.state is UnitState.WAITING)

    def _set_apart(self, units: Iterable[Unit]) -> None:
        for unit in units:
            if unit.state is UnitState.TAKEN:
                unit.state = UnitState.APART

    def _fail_not_stored(self, units: Iterable[Unit], why: MqdbError | None) -> None:
        self._fail(units, lambda unit: self._not_stored(unit, why), None)

    def _fail(self, units: Iterable[Unit], error_of: Callable[[Unit], Exception], cause: BaseException | None) -> None:
        failed = [unit for unit in units if not _has_ended(unit)]
        had_waited = any(unit.state is UnitState.WAITING for unit in failed)
        for unit in failed:
            # Each sender raises its own copy of the error, because otherwise they would overwrite each other's
            # traceback.
            unit.error = error_of(unit)
            unit.error.__cause__ = cause
        self._end(failed)
        if had_waited:
            self._drop_ended()

    def _not_stored(self, unit: Unit, why: MqdbError | None) -> MqdbError:
        if why is not None:
            return copy.copy(why)
        trouble = self._connection.trouble_since(unit.deadline - unit.timeout_seconds)
        return SendGivenUp(unit.topic, unit.timeout_seconds, str(trouble or ""))

    def _no_answer(self, reason: str) -> NoAnswer:
        backend = self._asked
        if backend is None:
            return NoAnswer(reason, None, 0)
        # Positions come from one sequence: records appended after an answer lie above the position in that answer.
        newest_of, newest_pos = self._newest
        return NoAnswer(reason, backend, newest_pos if newest_of == backend else backend.after_pos)


def _has_time(unit: Unit, now: float) -> bool:
    """Whether a unit has enough time left; otherwise its deadline would also end the statement for the other units."""
    return unit.deadline - now >= unit.timeout_seconds * _SHARE_TO_LEAD


def _has_ended(unit: Unit) -> bool:
    return unit.state in (UnitState.DONE, UnitState.ABANDONED)


def _rejoin(units: list[Unit]) -> None:
    """Take back units that were set apart, except units that no longer wait."""
    units[:] = [unit for unit in units if not _has_ended(unit)]
    for unit in units:
        if unit.state is UnitState.APART:
            unit.state = UnitState.TAKEN


def size_of(records: Iterable[Record]) -> int:
    """The size of records in a statement or a batch: the bytes of the bodies, and the characters of the properties."""
    return sum([len(record.body) + len(record.properties) for record in records])


def _parts(batch: list[Unit], error: MqdbError) -> list[list[Unit]]:
    """The parts to retry if one unit may have made the other units fail; empty if the error concerns all units.

    A queue is missing for all its units or for none, so units are split by queue and by the history in which the queue
    was found. For other errors the batch is halved.
    """
    if isinstance(error, TopicNotFound):
        alike: dict[object, list[Unit]] = {}
        for unit in batch:
            alike.setdefault((unit.records[0].queue_key, unit.records[0].history), []).append(unit)
        return list(alike.values()) if len(alike) > 1 else []
    if may_be_of_one_message(error) and len(batch) > 1:
        return [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
    return []
