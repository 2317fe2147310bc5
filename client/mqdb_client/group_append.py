"""Group append: the sends of many threads in few statements.

A thread that finds nobody at work appends at once, itself, with no hand-off. While its statement is under way others
gather; when it ends, the one that has waited longest appends for all of them, and so on:

    thread 1   ├── append 1 ──┤
    thread 2       ╎ waits    ├── append 2, 3 and 4 ──┤
    thread 3           ╎ waits                        ┤
    thread 4             ╎ waits                      ┤

A thread may also hand its unit in and go on; when such a unit has to lead, a thread of the group append does that.

What gathers is bounded by the threads that wait, for each brings one unit, and by the limits on what is handed in
(`async_send`). A unit is one message, or the messages of one batch: stored as a whole or not at all, whatever becomes
of the units beside it.
"""

import copy
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import chain
from queue import SimpleQueue
from typing import Final, TypeVar

from sqlalchemy import Connection

from mqdb.broker.outcome import Backend
from mqdb.broker.send import append
from mqdb.errors import (
    BrokerUnavailable,
    IllegalState,
    MessageIllegal,
    MqdbError,
    SendGivenUp,
    StorageRefused,
    TopicNotFound,
    TransactionRefused,
)
from mqdb.message import SendStatus
from mqdb.store.commit_log import Record
from mqdb_client.append_unit import OutcomeUnknown, Unit, UnitState
from mqdb_client.batch import record_size
from mqdb_client.durability import committed
from mqdb_client.held_connection import HeldConnection, NotRun, Overdue

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: One statement carries no more than this, unless a single unit is larger.
MAX_GATHERED_MESSAGES: Final = 1_024
MAX_GATHERED_BYTES: Final = 4 * 1024 * 1024

# Of the send timeout: with less than that left, nobody begins to append for others.
_SHARE_TO_LEAD: Final = 0.05

# While there is no connection: how late one that was handed in learns that its time is up.
_LATENESS_SECONDS: Final = 0.05

# Classes of SQLSTATE that a single row can cause: data exception, integrity violation, program limit.
_FAULTS_OF_A_ROW: Final = ("22", "23", "54")


class GroupAppend:
    """Appends on one connection. Any thread may call it."""

    def __init__(
        self, held: HeldConnection, backend_on: Callable[[Connection], Backend | None] = lambda _connection: None
    ) -> None:
        """`backend_on` tells the backend of a connection of `held`, for an OutcomeUnknown."""
        self._held = held
        self._backend_on = backend_on
        #: A backend that has appended, and the last position that it told.
        self._newest: tuple[Backend | None, int] = (None, 0)
        #: The backend of the statement under way.
        self._asked: Backend | None = None
        self._guard = threading.Lock()
        self._idle = threading.Condition(self._guard)
        self._is_busy = False
        self._is_closed = False
        self._waiting: deque[Unit] = deque()
        #: Done, and not told so yet.
        self._untold: deque[Unit] = deque()
        self._to_lead: SimpleQueue[Unit | None] = SimpleQueue()
        self._leader: threading.Thread | None = None

    def append(self, unit: Unit) -> None:
        """Append the records of a unit: all are stored, or none.

        Raises what `mqdb.broker.send.append` raises; SendGivenUp, or why there is no connection, at the deadline;
        OutcomeUnknown.
        """
        with self._guard:
            self._enter(unit)
        if unit.state is UnitState.LEADING if unit.turn is None else self._follow(unit, unit.turn):
            self._lead(unit)
        if unit.error is not None:
            raise unit.error

    def hand_in(self, unit: Unit, done: Callable[[], None]) -> None:
        """Have a unit appended, and `done` called, soon after the deadline at the latest.

        `done` is called in a thread that appends and has to be quick; it must not come back here.
        """
        unit.done = done
        with self._guard:
            if self._leader is None and not self._is_closed:
                leader = threading.Thread(target=self._lead_handed_in, name="mqdb-group-append", daemon=True)
                leader.start()  # which may fail
                self._leader = leader
            self._enter(unit)

    def close(self) -> None:
        """Refuse what comes from now on, and wait for what is under way: until its deadline at most."""
        with self._guard:
            self._is_closed = True
            self._idle.wait_for(lambda: not self._is_busy)
        if self._leader is not None:
            self._to_lead.put(None)
            self._leader.join()

    def _enter(self, unit: Unit) -> None:
        if self._is_closed:
            raise IllegalState("the producer", "shut down")
        if not self._is_busy:
            self._is_busy = True
            self._wake(unit, UnitState.LEADING)
        elif unit.is_patient or not self._held.is_lost:
            if unit.done is None:
                unit.turn = threading.Lock()
                unit.turn.acquire()
            unit.has_waited = True
            unit.state = UnitState.WAITING
            self._waiting.append(unit)
        else:  # the one that leads waits for a connection
            unit.error = self._not_stored(unit, self._held.why_lost)
            self._wake(unit, UnitState.DONE)

    def _wake(self, unit: Unit, state: UnitState) -> None:
        unit.state = state
        if unit.done is None:
            # Not held any more by one whose time was up in the moment in which it was told to lead.
            if unit.turn is not None and unit.turn.locked():
                unit.turn.release()
        elif state is UnitState.LEADING:
            self._to_lead.put(unit)
        else:
            unit.done()

    def _lead_handed_in(self) -> None:
        while (unit := self._to_lead.get()) is not None:
            try:
                self._lead(unit)
            except Exception:
                # Its unit has been told; those that come later need this thread.
                logger.exception("an append failed in an unforeseen way")

    # -- taking turns -------------------------------------------------------------------------

    def _follow(self, unit: Unit, turn: threading.Lock) -> bool:
        """Wait; True when it is this thread's turn to lead, False when there is a result."""
        try:
            if turn.acquire(timeout=max(0.0, unit.deadline - time.monotonic())):
                return unit.state is UnitState.LEADING
        except BaseException:  # Ctrl-C
            with self._guard:
                if unit.state is UnitState.LEADING:
                    self._pass_on()
                self._abandon(unit)
            raise
        with self._guard:  # time is up, unless it was told something in this moment
            if unit.state in (UnitState.WAITING, UnitState.APART):
                unit.error = self._not_stored(unit, self._held.why_lost)
            elif unit.state is UnitState.TAKEN:
                unit.error = self._unknown("no answer in time")
            else:
                return unit.state is UnitState.LEADING
            self._abandon(unit)
            return False

    def _abandon(self, unit: Unit) -> None:
        if unit.state is UnitState.WAITING:
            self._waiting.remove(unit)
        unit.state = UnitState.ABANDONED

    def _lead(self, leader: Unit) -> None:
        batch = [leader]
        try:
            if self._has_time(leader):
                self._store(batch, leader, self._take_along)
            else:
                self._give_up(batch, leader, self._held.why_lost)
        except BaseException as error:  # Ctrl-C in the thread that leads must not strand the others
            reason = f"{type(error).__name__} in the thread that sent it along"
            asked = [unit for unit in batch if unit.state in (UnitState.LEADING, UnitState.TAKEN)]
            self._fail(asked, lambda _: self._unknown(reason), error)
            raise
        finally:
            self._tell()
            with self._guard:
                self._put_back(batch, UnitState.APART)
                self._pass_on()

    def _has_time(self, leader: Unit) -> bool:
        """Whether one that has waited has some time left: the end of its time would end the others' statement."""
        seconds_left = leader.deadline - time.monotonic()
        return not leader.has_waited or seconds_left >= leader.timeout_seconds * _SHARE_TO_LEAD

    def _take_along(self, batch: list[Unit], backend: Backend | None) -> list[Record]:
        """Take those who wait into the statement that `backend` is about to be asked to run; its records."""
        records = list(batch[0].records())
        if not self._waiting:
            self._asked = backend
            return records
        bytes_left = MAX_GATHERED_BYTES - sum(map(record_size, records))
        with self._guard:
            self._asked = backend
            now = time.monotonic()
            while self._waiting:
                unit = self._waiting[0]
                if unit.done is not None and unit.deadline <= now:
                    # No thread of its own ends it at its deadline, and nothing is stored after that.
                    self._end_as_failed([self._waiting.popleft()], lambda late: self._not_stored(late, None), None)
                    continue
                try:
                    more = unit.records()
                except Exception:  # noqa: BLE001 - raised again in its own thread, when that leads
                    break
                bytes_left -= sum(map(record_size, more))
                if bytes_left < 0 or len(records) + len(more) > MAX_GATHERED_MESSAGES:
                    break
                records += more
                batch.append(unit)
                unit.state = UnitState.TAKEN
                self._waiting.popleft()
        return records

    def _take_again(self, part: list[Unit], backend: Backend | None) -> list[Record]:
        """The same for a part of a statement that was refused; who does not wait any more is left out."""
        with self._guard:
            self._asked = backend
            part[:] = [unit for unit in part if unit.state is not UnitState.ABANDONED]
            for unit in part:
                if unit.state is UnitState.APART:
                    unit.state = UnitState.TAKEN
        return list(chain.from_iterable(unit.records() for unit in part))

    def _pass_on(self) -> None:
        if self._waiting:
            self._wake(self._waiting.popleft(), UnitState.LEADING)
            return
        self._is_busy = False
        if self._is_closed:
            self._idle.notify_all()

    # -- storing ------------------------------------------------------------------------------

    def _store(
        self, units: list[Unit], leader: Unit, take: Callable[[list[Unit], Backend | None], list[Record]]
    ) -> None:
        """Append units by one statement, or by several where one of them spoils it for the others.

        `take` is called when there is a connection, and changes the list: until then nobody is bound to this leader.
        """

        def work(connection: Connection) -> tuple[list[int], SendStatus]:
            records = take(units, self._backend_on(connection))
            if not records:
                return [], SendStatus.SEND_OK
            return committed(connection, lambda connection: append(connection, records, units[0].topic))

        try:
            positions, status = self._run(work, leader)
        except NotRun as not_run:
            self._give_up(units, leader, not_run.error)
        except Overdue as overdue:
            if overdue.is_undone:
                self._give_up(units, leader, None)
            else:
                self._fail(units, lambda _: self._unknown("no answer in time"), overdue.__cause__)
        except BrokerUnavailable as error:
            reason = error.reason
            self._fail(units, lambda _: self._unknown(reason), error)
        except MqdbError as error:
            parts = _apart(units, error)
            if parts:
                self._set_apart(units)
            for part in parts:
                self._store(part, leader, self._take_again)
            if not parts:
                refusal = error
                self._fail(units, lambda _: copy.copy(refusal), error.__cause__)
        else:
            self._succeed(units, positions, status)

    def _run(self, work: Callable[[Connection], T], leader: Unit) -> T:
        """As HeldConnection.run. While a patient leader waits for a connection, those who are not turn elsewhere."""
        while True:
            try:
                return self._held.run(work, leader.deadline, is_patient=False)
            except NotRun as not_run:
                if not leader.is_patient or time.monotonic() >= leader.deadline:
                    raise
                self._dismiss_impatient(not_run.error)
                self._wait_connected(leader)

    def _wait_connected(self, leader: Unit) -> None:
        """Raises NotRun at the leader's deadline. Of those handed in some may have less time left than it has."""
        while True:
            until = min(leader.deadline, time.monotonic() + _LATENESS_SECONDS)
            try:
                return self._held.wait_connected(until)
            except NotRun as not_run:
                if until >= leader.deadline or isinstance(not_run.error, IllegalState):
                    raise
                self._end_late(not_run.error)

    def _end_late(self, why: MqdbError | None) -> None:
        """No thread of its own ends a unit that was handed in."""
        now = time.monotonic()
        with self._guard:
            late = [unit for unit in self._waiting if unit.done is not None and unit.deadline <= now]
            for unit in late:
                self._waiting.remove(unit)
            self._end_as_failed(late, lambda unit: self._not_stored(unit, why), None)
        self._tell()

    def _dismiss_impatient(self, why: MqdbError | None) -> None:
        with self._guard:
            patient = [unit for unit in self._waiting if unit.is_patient]
            impatient = [unit for unit in self._waiting if not unit.is_patient]
            self._waiting.clear()
            self._waiting.extend(patient)
            self._end_as_failed(impatient, lambda unit: self._not_stored(unit, why), None)
        self._tell()

    def _succeed(self, units: list[Unit], positions: list[int], status: SendStatus) -> None:
        begin = 0
        with self._guard:
            for unit in units:
                end = begin + len(unit.records())
                if unit.state is not UnitState.ABANDONED:
                    unit.succeed(positions[begin:end], status)
                    unit.state = UnitState.DONE
                    self._untold.append(unit)
                begin = end
            if positions:
                # Not before: one who has not been told yet would be looked for above its own position.
                self._newest = (self._asked, positions[-1])
        self._tell()

    def _fail(
        self, units: list[Unit], error_of: Callable[[Unit], MqdbError | OutcomeUnknown], cause: BaseException | None
    ) -> None:
        with self._guard:
            self._end_as_failed(units, error_of, cause)
        self._tell()

    def _end_as_failed(
        self, units: list[Unit], error_of: Callable[[Unit], MqdbError | OutcomeUnknown], cause: BaseException | None
    ) -> None:
        for unit in units:
            if unit.state not in (UnitState.DONE, UnitState.ABANDONED):
                # Each thread raises an error of its own: they would write over each other's traceback.
                unit.error = error_of(unit)
                unit.error.__cause__ = cause
                unit.state = UnitState.DONE
                self._untold.append(unit)

    def _tell(self) -> None:
        # Without the guard: those who are woken while it is held would only wait for it.
        while self._untold:
            self._wake(self._untold.popleft(), UnitState.DONE)

    def _give_up(self, units: list[Unit], leader: Unit, why: MqdbError | None) -> None:
        """Nothing is stored, and the leader's time is up. The others have time left, and wait again."""
        if leader in units:
            self._fail([leader], lambda unit: self._not_stored(unit, why), None)
        with self._guard:
            self._put_back(units, UnitState.TAKEN, UnitState.APART)

    def _set_apart(self, units: list[Unit]) -> None:
        with self._guard:
            for unit in units:
                if unit.state is UnitState.TAKEN:
                    unit.state = UnitState.APART

    def _put_back(self, units: list[Unit], *states: UnitState) -> None:
        for unit in reversed(units):
            if unit.state in states:
                unit.state = UnitState.WAITING
                self._waiting.appendleft(unit)

    def _not_stored(self, unit: Unit, why: MqdbError | None) -> MqdbError:
        return copy.copy(why) if why is not None else SendGivenUp(unit.topic, unit.timeout_seconds)

    def _unknown(self, reason: str) -> OutcomeUnknown:
        backend = self._asked
        if backend is None:
            return OutcomeUnknown(reason, None, 0)
        # Positions come from one sequence: what a backend appended after an answer lies above what that told.
        newest_of, newest_pos = self._newest
        return OutcomeUnknown(reason, backend, newest_pos if newest_of == backend else backend.after_pos)


def _apart(batch: list[Unit], error: MqdbError) -> list[list[Unit]]:
    """The parts to try again when one unit may have spoilt it for the others; none when all are to blame.

    A queue is gone or not for all its units, so they are parted by queues; another fault is searched for by halves.
    """
    of_queue: dict[int, list[Unit]] = {}
    for unit in batch:
        of_queue.setdefault(unit.records()[0].queue_key, []).append(unit)
    if isinstance(error, TopicNotFound):
        return list(of_queue.values()) if len(of_queue) > 1 else []
    is_of_a_row = isinstance(error, StorageRefused) and error.sqlstate.startswith(_FAULTS_OF_A_ROW)
    if (is_of_a_row or isinstance(error, (MessageIllegal, TransactionRefused))) and len(batch) > 1:
        return [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
    return []
