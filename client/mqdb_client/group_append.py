"""Group append: the sends of many threads in few statements.

A thread that finds nobody at work appends at once, itself, with no hand-off. While its statement is under way others
gather; when it ends, the one that has waited longest appends for all of them, and so on:

    thread 1   ├── append 1 ──┤
    thread 2       ╎ waits    ├── append 2, 3 and 4 ──┤
    thread 3           ╎ waits                        ┤
    thread 4             ╎ waits                      ┤

What gathers is bounded by the threads that send, for each brings one unit and waits for it. A unit is one message,
or the messages of one batch: stored as a whole or not at all, whatever becomes of the units beside it.
"""

import copy
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from itertools import chain
from typing import Final

from mqdb.broker.send import append
from mqdb.errors import (
    BrokerUnavailable,
    IllegalState,
    MqdbError,
    SendGivenUp,
    SendTimeout,
    StorageRefused,
    TopicNotFound,
)
from mqdb.store.commit_log import Record
from mqdb_client.held_connection import HeldConnection, NotRun, Overdue

#: One statement carries no more than this, unless a single unit is larger.
MAX_GATHERED_MESSAGES: Final = 1_024
MAX_GATHERED_BYTES: Final = 4 * 1024 * 1024

# Of the send timeout: with less than that left, nobody begins to append for others.
_SHARE_TO_LEAD: Final = 0.05

# Classes of SQLSTATE that a single row can cause: data exception, integrity violation, program limit.
_FAULTS_OF_A_ROW: Final = ("22", "23", "54")


class _State(Enum):
    WAITING = auto()
    LEADING = auto()  #: its thread appends, for itself and for those it takes along
    TAKEN = auto()  #: in the statement of another thread
    DONE = auto()
    ABANDONED = auto()  #: its thread waits no longer


class _Unit:
    """Records that go together, and what becomes of them. Its state changes under the guard only."""

    __slots__ = ("deadline", "error", "positions", "records", "state", "topic", "turn")

    def __init__(self, records: Sequence[Record], topic: str, deadline: float) -> None:
        self.records = records
        self.topic = topic
        self.deadline = deadline
        #: Released when its thread has to lead, or finds a result; None for one that leads from the start.
        self.turn: threading.Lock | None = None
        self.state = _State.LEADING
        self.positions: list[int] = []
        self.error: MqdbError | None = None

    def wait_in(self, queue: "deque[_Unit]") -> None:
        self.turn = threading.Lock()
        self.turn.acquire()
        self.state = _State.WAITING
        queue.append(self)

    def wake(self, state: _State) -> None:
        self.state = state
        if self.turn is not None:
            self.turn.release()


class GroupAppend:
    """Appends on one connection. Any thread may call it; deadlines are of time.monotonic."""

    def __init__(self, held: HeldConnection, target: str, timeout_seconds: float) -> None:
        """`target` and `timeout_seconds` are for the sentence of an error."""
        self._held = held
        self._target = target
        self._timeout_seconds = timeout_seconds
        self._guard = threading.Lock()
        self._idle = threading.Condition(self._guard)
        self._is_busy = False
        self._is_closed = False
        self._waiting: deque[_Unit] = deque()

    def append(self, records: Sequence[Record], topic: str, deadline: float) -> list[int]:
        """The positions of records of one topic, in their order: all are stored, or none.

        Raises what `mqdb.broker.send.append` raises, SendGivenUp or SendTimeout at the deadline, and a
        BrokerUnavailable that says so where the outcome is unknown.
        """
        unit = _Unit(records, topic, deadline)
        with self._guard:
            if self._is_closed:
                raise IllegalState("the producer", "shut down")
            if self._is_busy:
                unit.wait_in(self._waiting)
            self._is_busy = True
        if unit.turn is None or self._follow(unit, unit.turn):
            self._lead(unit)
        if unit.error is not None:
            raise unit.error
        return unit.positions

    def close(self) -> None:
        """Refuse what comes from now on, and wait for what is under way: until its deadline at most."""
        with self._guard:
            self._is_closed = True
            self._idle.wait_for(lambda: not self._is_busy)

    # -- taking turns -------------------------------------------------------------------------

    def _follow(self, unit: _Unit, turn: threading.Lock) -> bool:
        """Wait; True when it is this thread's turn to lead, False when there is a result."""
        try:
            turn.acquire(timeout=max(0.0, unit.deadline - time.monotonic()))
        except BaseException:  # Ctrl-C
            with self._guard:
                if unit.state is _State.LEADING:
                    self._pass_on()
                self._abandon(unit)
            raise
        with self._guard:
            if unit.state is _State.WAITING:
                unit.error = self._not_stored(unit, self._held.why_lost)
            elif unit.state is _State.TAKEN:
                unit.error = SendTimeout(unit.topic, self._timeout_seconds)
            else:
                return unit.state is _State.LEADING
            self._abandon(unit)
            return False

    def _abandon(self, unit: _Unit) -> None:
        if unit.state is _State.WAITING:
            self._waiting.remove(unit)
        unit.state = _State.ABANDONED

    def _lead(self, leader: _Unit) -> None:
        batch = [leader]
        try:
            self._check_time(leader)
            self._held.wait_connected(leader.deadline)
            if self._waiting:
                self._take_along(batch)
            self._store(batch, leader)
        except NotRun as not_run:
            leader.error = self._not_stored(leader, not_run.error)
        finally:
            with self._guard:
                self._put_back(batch)  # those that Ctrl-C has left over
                self._pass_on()

    def _check_time(self, leader: _Unit) -> None:
        """Raise NotRun when one that has waited has hardly any time left: its end would end the others' statement."""
        if leader.turn is not None:
            seconds_left = leader.deadline - time.monotonic()
            if seconds_left < self._timeout_seconds * _SHARE_TO_LEAD:
                raise NotRun(self._held.why_lost)

    def _take_along(self, batch: list[_Unit]) -> None:
        room, bytes_left = MAX_GATHERED_MESSAGES - len(batch[0].records), MAX_GATHERED_BYTES - _bytes(batch[0])
        with self._guard:
            while self._waiting:
                unit = self._waiting[0]
                room, bytes_left = room - len(unit.records), bytes_left - _bytes(unit)
                if room < 0 or bytes_left < 0:
                    break
                self._waiting.popleft()
                unit.state = _State.TAKEN
                batch.append(unit)

    def _pass_on(self) -> None:
        if self._waiting:
            self._waiting.popleft().wake(_State.LEADING)
            return
        self._is_busy = False
        if self._is_closed:
            self._idle.notify_all()

    # -- storing ------------------------------------------------------------------------------

    def _store(self, batch: list[_Unit], leader: _Unit) -> None:
        """Append units by one statement, or by several where one of them spoils it for the others."""
        records = list(chain.from_iterable(unit.records for unit in batch)) if len(batch) > 1 else batch[0].records
        topic = batch[0].topic
        try:
            positions = self._held.run(lambda connection: append(connection, records, topic), leader.deadline)
        except NotRun as not_run:
            self._give_up(batch, leader, not_run.error)
        except Overdue as overdue:
            if overdue.is_undone:
                self._give_up(batch, leader, None)
            else:
                self._fail(batch, lambda unit: SendTimeout(unit.topic, self._timeout_seconds), overdue.__cause__)
        except BrokerUnavailable as error:
            reason = error.reason
            self._fail(batch, lambda _: self._unknown(reason), error)
        except MqdbError as error:
            parts = _apart(batch, error)
            for part in parts:
                self._store(part, leader)
            if not parts:
                refusal = error
                self._fail(batch, lambda _: copy.copy(refusal), error.__cause__)
        except BaseException as error:  # Ctrl-C in the thread that leads must not strand the others
            reason = f"{type(error).__name__} in the thread that sent it along"
            self._fail(batch, lambda _: self._unknown(reason), error)
            raise
        else:
            self._succeed(batch, positions)

    def _succeed(self, batch: list[_Unit], positions: list[int]) -> None:
        begin = 0
        with self._guard:
            for unit in batch:
                end = begin + len(unit.records)
                if unit.state is not _State.ABANDONED:
                    unit.positions = positions[begin:end]
                    unit.wake(_State.DONE)
                begin = end

    def _fail(self, batch: list[_Unit], error_of: Callable[[_Unit], MqdbError], cause: BaseException | None) -> None:
        with self._guard:
            for unit in batch:
                if unit.state is not _State.ABANDONED:
                    # Each thread raises an error of its own: they would write over each other's traceback.
                    unit.error = error_of(unit)
                    unit.error.__cause__ = cause
                    unit.wake(_State.DONE)

    def _give_up(self, batch: list[_Unit], leader: _Unit, why: MqdbError | None) -> None:
        """Nothing is stored, and the leader's time is up. The others have time left, and wait again."""
        with self._guard:
            if leader in batch:
                leader.error = self._not_stored(leader, why)
            self._put_back(batch)

    def _put_back(self, batch: list[_Unit]) -> None:
        for unit in reversed(batch):
            if unit.state is _State.TAKEN:
                unit.state = _State.WAITING
                self._waiting.appendleft(unit)

    def _not_stored(self, unit: _Unit, why: MqdbError | None) -> MqdbError:
        return copy.copy(why) if why is not None else SendGivenUp(unit.topic, self._timeout_seconds)

    def _unknown(self, reason: str) -> BrokerUnavailable:
        return BrokerUnavailable(self._target, f"{reason}; the message may be stored, or not")


def _apart(batch: list[_Unit], error: MqdbError) -> list[list[_Unit]]:
    """The parts to try again when one unit may have spoilt it for the others; none when all are to blame.

    A queue is gone or not for all its units, so they are parted by queues; another fault is searched for by halves.
    """
    of_queue: dict[int, list[_Unit]] = {}
    for unit in batch:
        of_queue.setdefault(unit.records[0].queue_key, []).append(unit)
    if isinstance(error, TopicNotFound):
        return list(of_queue.values()) if len(of_queue) > 1 else []
    if isinstance(error, StorageRefused) and error.sqlstate.startswith(_FAULTS_OF_A_ROW) and len(batch) > 1:
        return [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
    return []


def _bytes(unit: _Unit) -> int:
    return sum(len(record.body) + len(record.properties) for record in unit.records)
