"""Group append: the sends of many threads in few statements.

A thread that finds nobody at work appends at once, itself, with no hand-off. While its statement is under way others
gather; when it ends, a thread of the group append's own appends for all of them, and for those who gather meanwhile:

    thread 1    ├── append 1 ──┤ ▶ goes on
    thread 2        ╎ waits                              ┤ ▶ wakes 3
    thread 3            ╎ waits                             ┤ ▶ wakes 4
    thread 4              ╎ waits                              ┤ ▶ wakes the own thread
    own thread                 ├── append 2, 3 and 4 ──┤          ├── append what has gathered ──┤

Each one that is woken wakes the next: woken all at once, they would fight for the interpreter, and on two cores that
costs more than all the work on their messages. The own thread waits until the last one is awake. A thread may also hand
its unit in and go on; the own thread appends it.

What gathers is bounded by the threads that wait, for each brings one unit, and by the limits on what is handed in
(`async_send`). A unit is one message, or the messages of one batch: stored as a whole or not at all, whatever becomes
of the units beside it.
"""

import contextlib
import copy
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import chain
from queue import Empty, SimpleQueue
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
from mqdb.store.engine import NO_SQLSTATE
from mqdb_client.producer.append_unit import NoAnswer, Unit, UnitState
from mqdb_client.producer.batch import record_size
from mqdb_client.producer.durability import committed
from mqdb_client.producer.held_connection import HeldConnection, NotRun, Overdue
from mqdb_client.producer.reentry import refuse_reentry
from mqdb_client.producer.waking import Sleeper, Waking

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: One statement carries no more than this, unless a single unit is larger.
MAX_GATHERED_MESSAGES: Final = 1_024
MAX_GATHERED_BYTES: Final = 4 * 1024 * 1024

# Of the send timeout: with less than that left, nobody's deadline becomes that of a statement for others. More than is
# left when a statement is cancelled, or the next one of the same age would be cut off at once.
_SHARE_TO_LEAD: Final = 0.12

# How long the own thread waits at most for those who are to be woken before it: user's code may keep the interpreter,
# or Ctrl-C hit one of them before it has woken the next.
_LONGEST_WAKING_SECONDS: Final = 0.01

# Classes of SQLSTATE that a single row can cause: data exception, integrity violation, program limit; or none at all,
# where the driver has refused a value.
_FAULTS_OF_A_ROW: Final = ("22", "23", "54", NO_SQLSTATE)


class GroupAppend:
    """Appends on one connection. Any thread may call it."""

    def __init__(
        self,
        held: HeldConnection,
        waking: Waking,
        backend_on: Callable[[Connection], Backend | None] = lambda _connection: None,
    ) -> None:
        """`backend_on` tells the backend of a connection of `held`, for a NoAnswer."""
        self._held = held
        self._waking = waking
        self._backend_on = backend_on
        #: A backend that has appended, and the last position that it told.
        self._newest: tuple[Backend | None, int] = (None, 0)
        #: The backend of the statement under way.
        self._asked: Backend | None = None
        self._guard = threading.RLock()  # see `refuse_reentry`
        self._idle = threading.Condition(self._guard)
        self._is_busy = False
        #: The one whose own thread is at work; None while the thread of this group append is, or nobody.
        self._leading: Unit | None = None
        self._is_closed = False
        self._waiting: deque[Unit] = deque()
        #: What the one who leads has taken, while it is at work.
        self._batch: list[Unit] = []
        #: What to call for those that have ended, and have not been told so yet.
        self._untold: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        #: For the own thread: True, to append for those who wait; False, to end.
        self._work: SimpleQueue[bool] = SimpleQueue()

    def open(self) -> None:
        """Start the own thread. Raises RuntimeError where none can be started."""
        thread = threading.Thread(target=self._lead_for_others, name="mqdb-group-append", daemon=True)
        thread.start()
        self._thread = thread

    def append(self, unit: Unit) -> None:
        """Append the records of a unit: all are stored, or none.

        Raises what `mqdb.broker.send.append` raises; SendGivenUp, or why there is no connection, when its time is
        over or as good as that, and at once for one that is not patient; NoAnswer; IllegalState where this
        thread was interrupted here: by a signal handler that sends, or a finalizer.
        """
        refuse_reentry(self._guard)
        try:
            with self._guard:
                self._enter(unit)
            if unit.state is UnitState.LEADING:
                self._lead([unit], unit)
            elif unit.sleeper is not None:
                self._follow(unit, unit.sleeper)
        finally:
            try:
                if self._leading is unit:  # also after Ctrl-C on the way there
                    with self._guard:
                        self._hand_over()
            finally:
                if self._leading is unit:  # Ctrl-C on the way here
                    self._work.put(True)
        if unit.error is not None:
            raise unit.error

    def hand_in(self, unit: Unit, done: Callable[[], None]) -> None:
        """Have a unit appended, and `done` called when it has ended.

        `done` is called in any thread that comes here, this one included, and has to be quick; it must not come back
        here. At its deadline it ends by `end_late`, which somebody has to call from time to time. Raises IllegalState
        as `append` does.
        """
        refuse_reentry(self._guard)
        unit.done = done
        with self._guard:
            self._enter(unit)

    def end_late(self) -> None:
        """End those that were handed in and whose time is up, whatever the statement under way is waiting for."""
        now = time.monotonic()
        with self._guard:
            late = [unit for unit in (*self._waiting, *self._batch) if unit.done is not None and unit.deadline <= now]
            for unit in late:
                self._end_at_deadline(unit)
            if late:
                self._drop_ended()
        self._tell()

    def close(self) -> None:
        """Refuse what comes from now on, and wait for what is under way: until its deadline at most."""
        with self._guard:
            self._is_closed = True
            self._idle.wait_for(lambda: not self._is_busy)
        if self._thread is not None:
            self._work.put(False)
            self._thread.join()

    def _enter(self, unit: Unit) -> None:
        if self._is_closed:
            raise IllegalState("the producer", "shut down")
        if not self._is_busy and unit.done is None:
            self._leading = unit
            self._is_busy = True
        elif self._is_busy and not unit.is_patient and (why := self._held.why_lost) is not None:
            # The one that leads waits for a connection.
            self._end_as_failed([unit], lambda unit: self._not_stored(unit, why), None)
            self._tell()
        else:
            if unit.done is None:
                unit.sleeper = Sleeper()
            unit.state = UnitState.WAITING
            self._waiting.append(unit)
            if not self._is_busy:
                self._is_busy = True
                self._work.put(True)

    # -- waiting ------------------------------------------------------------------------------

    def _follow(self, unit: Unit, sleeper: Sleeper) -> None:
        """Wait until it has ended, or its time is up."""
        is_woken = False
        try:
            is_woken = sleeper.sleep(unit.deadline)
            if not is_woken:
                with self._guard:  # unless it has ended in this moment
                    self._end_at_deadline(unit)
                    self._drop_ended()
        except BaseException:  # Ctrl-C
            with self._guard:
                if unit.state is not UnitState.DONE:
                    unit.state = UnitState.ABANDONED
                self._drop_ended()
            raise
        finally:
            if is_woken:
                self._waking.pass_on()
            elif unit.state is UnitState.DONE:
                self._waking.leave(sleeper)

    def _end_at_deadline(self, unit: Unit) -> None:
        if unit.state in (UnitState.WAITING, UnitState.APART):
            error: MqdbError | NoAnswer = self._not_stored(unit, self._held.why_lost)
        elif unit.state is UnitState.TAKEN:
            error = self._unknown("no answer in time")
        else:
            return
        unit.error = error
        unit.state = UnitState.ABANDONED
        if unit.done is not None:
            self._untold.append(unit.done)
            unit.done = None

    def _drop_ended(self) -> None:
        """Out of those who wait: whoever has left or was told so."""
        self._waiting = deque(unit for unit in self._waiting if unit.state is UnitState.WAITING)

    # -- leading ------------------------------------------------------------------------------

    def _lead_for_others(self) -> None:
        while self._has_work():
            try:
                self._lead_next()
            except Exception:
                # Its units have been told; those that come later need this thread.
                logger.exception("an append failed in an unforeseen way")

    def _has_work(self) -> bool:
        """Wait for work; False: there will be none. Meanwhile those are woken whom nobody wakes: see `_await_woken`."""
        while True:
            left = self._waking.left
            with contextlib.suppress(Empty):
                return self._work.get(timeout=_LONGEST_WAKING_SECONDS if left else None)
            if self._waking.left == left:
                self._waking.pass_on()

    def _lead_next(self) -> None:
        try:
            first = self._first_with_time()
            if first is not None:
                self._lead([], first)
            self._await_woken()
        finally:
            with self._guard:
                self._hand_over()

    def _first_with_time(self) -> Unit | None:
        """The first of those who wait whose deadline can be that of a statement; those before it are given up."""
        late = []
        with self._guard:
            while self._waiting and not self._has_time(self._waiting[0]):
                late.append(self._waiting.popleft())
            first = self._waiting[0] if self._waiting else None
        if late:
            self._fail(late, lambda unit: self._not_stored(unit, self._held.why_lost), None)
        return first

    def _lead(self, batch: list[Unit], timekeeper: Unit) -> None:
        """Append a batch and those who wait, by the deadline of `timekeeper`: the one of the batch, or of those."""
        self._batch = batch
        try:
            self._store(batch, timekeeper, partial(self._take_along, timekeeper))
        except BaseException as error:  # Ctrl-C in the thread that leads must not strand the others
            reason = f"{type(error).__name__} in the thread that sent it along"
            asked = [unit for unit in batch if unit.state in (UnitState.LEADING, UnitState.TAKEN)]
            # Where nobody was, who waits first must not be met like this for ever.
            self._fail(asked or [timekeeper], lambda _: self._unknown(reason), error)
            raise
        finally:
            self._tell()
            with self._guard:
                self._put_back(batch)
                self._batch = []

    def _has_time(self, unit: Unit) -> bool:
        """Whether it has some time left: the end of its time would end the others' statement."""
        return unit.deadline - time.monotonic() >= unit.timeout_seconds * _SHARE_TO_LEAD

    def _take_along(self, timekeeper: Unit, batch: list[Unit], backend: Backend | None) -> list[Record]:
        """Take those who wait into the statement that `backend` is about to be asked to run; its records.

        Nobody is taken where the wait for the connection has left the timekeeper no time for others.
        """
        records: list[Record] = []
        if batch:
            if not batch[0].records:
                batch[0].make_records()
            records += batch[0].records
        if not self._waiting or not self._has_time(timekeeper):
            self._asked = backend
            return records
        bytes_left = MAX_GATHERED_BYTES - sum(map(record_size, records))
        with self._guard:
            self._asked = backend
            now = time.monotonic()
            while self._waiting:
                unit = self._waiting[0]
                if unit.done is not None and unit.deadline <= now:  # nothing is stored after that
                    self._end_at_deadline(self._waiting.popleft())
                    continue
                if not unit.records:
                    try:
                        unit.make_records()
                    except Exception as error:  # noqa: BLE001 - its own thread raises it
                        unit.error = error
                        self._end([self._waiting.popleft()])
                        continue
                more = unit.records
                bytes_left -= sum(map(record_size, more))
                if records and (bytes_left < 0 or len(records) + len(more) > MAX_GATHERED_MESSAGES):
                    break
                records += more
                batch.append(unit)
                unit.state = UnitState.TAKEN
                self._waiting.popleft()
        self._tell()
        return records

    def _take_again(self, part: list[Unit], backend: Backend | None) -> list[Record]:
        """The same for a part of a statement that was refused; who does not wait any more is left out."""
        with self._guard:
            self._asked = backend
            part[:] = [unit for unit in part if unit.state not in (UnitState.DONE, UnitState.ABANDONED)]
            for unit in part:
                if unit.state is UnitState.APART:
                    unit.state = UnitState.TAKEN
        return list(chain.from_iterable(unit.records for unit in part))

    def _await_woken(self) -> None:
        """Let those who are woken come first: they are done with then, and many are back to be taken along."""
        sleeper = Sleeper()
        self._waking.add_last(sleeper)
        self._waking.begin()
        if sleeper.sleep(time.monotonic() + _LONGEST_WAKING_SECONDS):
            self._waking.pass_on()
        else:
            self._waking.leave(sleeper)  # whatever became of the one who should have: it goes on from here

    def _hand_over(self) -> None:
        self._leading = None
        if self._waiting:
            self._work.put(True)
            return
        self._is_busy = False
        if self._is_closed:
            self._idle.notify_all()

    # -- storing ------------------------------------------------------------------------------

    def _store(
        self, units: list[Unit], timekeeper: Unit, take: Callable[[list[Unit], Backend | None], list[Record]]
    ) -> None:
        """Append units by one statement, or by several where one of them spoils it for the others.

        `take` is called when there is a connection, and changes the list: until then nobody is bound to it.
        """

        def work(connection: Connection) -> tuple[list[int], SendStatus]:
            records = take(units, self._backend_on(connection))
            if not records:
                return [], SendStatus.SEND_OK
            return committed(connection, lambda connection: append(connection, records, units[0].topic))

        try:
            positions, status = self._run(work, timekeeper)
        except NotRun as not_run:
            self._give_up(units, timekeeper, not_run.error)
        except Overdue as overdue:
            if overdue.is_undone:
                self._give_up(units, timekeeper, None)
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
                self._store(part, timekeeper, self._take_again)
            if not parts:
                refusal = error
                self._fail(units, lambda _: copy.copy(refusal), error.__cause__)
        else:
            self._succeed(units, positions, status)

    def _run(self, work: Callable[[Connection], T], timekeeper: Unit) -> T:
        """As HeldConnection.run. While a patient one waits for a connection, those who are not turn elsewhere."""
        while True:
            try:
                return self._held.run(work, timekeeper.deadline, is_patient=False)
            except NotRun as not_run:
                if not timekeeper.is_patient or time.monotonic() >= timekeeper.deadline:
                    raise
                self._dismiss_impatient(not_run.error)
                self._held.wait_connected(timekeeper.deadline)

    def _dismiss_impatient(self, why: MqdbError | None) -> None:
        with self._guard:
            impatient = [unit for unit in self._waiting if not unit.is_patient]
            self._end_as_failed(impatient, lambda unit: self._not_stored(unit, why), None)
        self._tell()

    def _succeed(self, units: list[Unit], positions: list[int], status: SendStatus) -> None:
        begin = 0
        stored = []
        with self._guard:
            for unit in units:
                end = begin + len(unit.records)
                if unit.state is not UnitState.ABANDONED:
                    unit.succeed(positions[begin:end], status)
                    stored.append(unit)
                begin = end
            self._end(stored)
            if positions:
                # Not before: one who has not been told yet would be looked for above its own position.
                self._newest = (self._asked, positions[-1])
        self._tell()

    def _fail(
        self, units: list[Unit], error_of: Callable[[Unit], MqdbError | NoAnswer], cause: BaseException | None
    ) -> None:
        with self._guard:
            self._end_as_failed(units, error_of, cause)
        self._tell()

    def _end_as_failed(
        self, units: list[Unit], error_of: Callable[[Unit], MqdbError | NoAnswer], cause: BaseException | None
    ) -> None:
        failed = [unit for unit in units if unit.state not in (UnitState.DONE, UnitState.ABANDONED)]
        for unit in failed:
            # Each thread raises an error of its own: they would write over each other's traceback.
            unit.error = error_of(unit)
            unit.error.__cause__ = cause
        had_waited = any(unit.state is UnitState.WAITING for unit in failed)
        self._end(failed)
        if had_waited:
            self._drop_ended()

    def _end(self, units: list[Unit]) -> None:
        """They have an outcome; `_tell` has to follow."""
        for unit in units:
            unit.state = UnitState.DONE
            if unit.done is not None:
                self._untold.append(unit.done)
                unit.done = None
            elif unit.sleeper is not None:
                self._waking.add(unit.sleeper)

    def _tell(self) -> None:
        # Where that can be, without the guard: those who are woken while it is held would only wait for it.
        self._waking.begin()
        while True:
            try:
                done = self._untold.popleft()
            except IndexError:
                return
            done()

    def _give_up(self, units: list[Unit], timekeeper: Unit, why: MqdbError | None) -> None:
        """Nothing is stored, and the timekeeper's time is up. The others have time left, and are to wait again."""
        self._fail([timekeeper], lambda unit: self._not_stored(unit, why), None)
        self._set_apart(units)

    def _set_apart(self, units: list[Unit]) -> None:
        with self._guard:
            for unit in units:
                if unit.state is UnitState.TAKEN:
                    unit.state = UnitState.APART

    def _put_back(self, units: list[Unit]) -> None:
        for unit in reversed(units):
            if unit.state is UnitState.APART:
                unit.state = UnitState.WAITING
                self._waiting.appendleft(unit)

    def _not_stored(self, unit: Unit, why: MqdbError | None) -> MqdbError:
        if why is not None:
            return copy.copy(why)
        trouble = self._held.trouble_since(unit.deadline - unit.timeout_seconds)
        return SendGivenUp(unit.topic, unit.timeout_seconds, str(trouble or ""))

    def _unknown(self, reason: str) -> NoAnswer:
        backend = self._asked
        if backend is None:
            return NoAnswer(reason, None, 0)
        # Positions come from one sequence: what a backend appended after an answer lies above what that told.
        newest_of, newest_pos = self._newest
        return NoAnswer(reason, backend, newest_pos if newest_of == backend else backend.after_pos)


def _apart(batch: list[Unit], error: MqdbError) -> list[list[Unit]]:
    """The parts to try again when one unit may have spoilt it for the others; none when all are to blame.

    A queue is gone for all its units or for none, so they are parted by queues and by the history in which these were
    found. Another fault is searched for by halves.
    """
    if isinstance(error, TopicNotFound):
        alike: dict[object, list[Unit]] = {}
        for unit in batch:
            alike.setdefault((unit.records[0].queue_key, unit.records[0].history), []).append(unit)
        return list(alike.values()) if len(alike) > 1 else []
    is_of_a_row = isinstance(error, StorageRefused) and error.sqlstate.startswith(_FAULTS_OF_A_ROW)
    if (is_of_a_row or isinstance(error, (MessageIllegal, TransactionRefused))) and len(batch) > 1:
        return [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
    return []
