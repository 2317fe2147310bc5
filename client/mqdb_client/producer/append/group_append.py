"""Group append: combines the sends of many threads in few statements.

If no other thread leads, a thread appends immediately by itself, without a hand-off. Other sends gather while its
statement runs. When the statement ends, the append thread appends all gathered sends, then the sends that have gathered
since:

    thread 1       ├── append 1 ──┤ ▶ goes on
    thread 2           ╎ waits                              ┤ ▶ wakes 3
    thread 3               ╎ waits                             ┤ ▶ wakes 4
    thread 4                 ╎ waits                              ┤ ▶ wakes the append thread
    append thread                 ├── append 2, 3 and 4 ──┤          ├── append what has gathered ──┤

`append_plan.py` decides which unit leads and which records are stored together. This module takes the lock, runs the
statement, and lets threads sleep. Each woken thread wakes the next (`waking.py`). A thread may also submit its unit and
continue; the append thread appends it.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias, TypeVar

from sqlalchemy import Connection

from mqdb.broker.log.outcome import Backend
from mqdb.broker.log.send import append, start_append
from mqdb.common.message import SendStatus
from mqdb.errors import BrokerUnavailable, IllegalState, MqdbError
from mqdb.store.log.commit_log import LogPlace, Record
from mqdb_client.producer.append.append_plan import AppendPlan, Turn, Unit, UnitState
from mqdb_client.producer.append.durability import COMMIT_WAIT, CommitWait
from mqdb_client.producer.append.held_connection import HeldConnection, NotRun, Overdue
from mqdb_client.producer.append.waking import Sleeper, Waking

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Collects the records of units for a statement of a backend.
_Take: TypeAlias = Callable[[list[Unit], Backend | None], Sequence[Record]]

#: The key in `Connection.info` of an appending connection's backend, if it is known.
BACKEND: Final = "mqdb_backend"

# The append thread waits no longer than this for the threads that are woken before it: user code may hold the
# interpreter, or Ctrl-C may hit a thread before it has woken the next.
_LONGEST_WAKING_SECONDS: Final = 0.01


#: The pause between calls of `end_late`, and so the maximum delay with which a submitted unit notices its timeout.
LATENESS_SECONDS: Final = 0.05


class GroupAppend:
    """Appends on one connection. Thread-safe."""

    def __init__(
        self, held: HeldConnection, waking: Waking, note_refusal: Callable[[MqdbError], None] = lambda _: None
    ) -> None:
        """`note_refusal` is called with the error of each failed statement."""
        self._held = held
        self._note_refusal = note_refusal
        self._waking = waking
        self._plan = AppendPlan(held)
        self._guard = threading.RLock()  # see `refuse_reentry`
        self._idle = threading.Condition(self._guard)
        self._thread: threading.Thread | None = None
        #: The unit whose statement was sent by `begin`; no thread waits for the answer.
        self._begun: Unit | None = None
        #: Commands for the append thread: True to lead, False to end.
        self._work: SimpleQueue[bool] = SimpleQueue()

    def open(self) -> None:
        """Start the append thread. Raises RuntimeError if it cannot be started."""
        thread = threading.Thread(target=self._lead_for_others, name="mqdb-group-append", daemon=True)
        thread.start()
        self._thread = thread

    def append(self, unit: Unit) -> None:
        """Append the records of a unit, all or none.

        Raises the errors of `mqdb.broker.log.send.append`; SendGivenUp, or the reason why there is no connection, at or
        just before the deadline, and immediately for a unit that is not patient; NoAnswer; IllegalState in a signal
        handler or finalizer that has interrupted this method in the same thread.
        """
        refuse_reentry(self._guard)
        sleeper: Sleeper | None = None
        try:
            with self._guard:
                turn = self._plan.arrive(unit)
                if turn is Turn.WAIT:
                    sleeper = Sleeper()
                    unit.tell = partial(self._waking.add, sleeper)
            if self._begun is not None:
                self._work.put(True)
            if turn is Turn.LEAD:
                self._lead([unit], unit)
            elif sleeper is not None:
                self._follow(unit, sleeper)
        except BaseException:
            self._work.put(True)  # so that the append thread handles units that are not woken
            raise
        finally:
            try:
                if self._plan.leading is unit:  # also if Ctrl-C came on the way there
                    self._hand_over()
            finally:
                if self._plan.leading is unit:  # Ctrl-C came on the way here
                    self._plan.leading = None
                    self._work.put(True)
        if unit.error is not None:
            raise unit.error

    def hand_in(self, unit: Unit, done: Callable[[], None]) -> None:
        """Submit a unit to be appended, and call `done` when it has ended.

        `done` is called with the lock held, in any thread that calls a method of this object, including this call.
        `done` has to be quick and must not call a method of this object. At its deadline the unit ends by `end_late`,
        which has to be called from time to time. Raises IllegalState as `append` does.
        """
        refuse_reentry(self._guard)
        unit.is_handed_in = True
        unit.tell = done
        turn = Turn.CALL
        try:
            with self._guard:
                turn = self._plan.arrive(unit)
        finally:
            # Or Ctrl-C came on the way here: an extra call does no harm.
            if turn is Turn.CALL or self._begun is not None:
                self._work.put(True)
        if self._plan.ended:
            self._tell()

    def begin(self, unit: Unit, done: Callable[[], None], watch: Callable[[Connection], None]) -> bool:
        """Send the statement of a unit without waiting for the answer, if no unit leads and a connection is free.

        `watch` gets the connection first, with the lock held; call `end_begun` when the connection is readable. As soon
        as other units arrive, the append thread calls `end_begun`, so that these units do not wait for the caller.
        `done` and deadlines are as in `hand_in`. Returns False if nothing was sent; use `hand_in` in that case. Raises
        the errors of making the unit's records.
        """
        refuse_reentry(self._guard)
        if not unit.records:
            unit.make_records()
        with self._guard:
            plan = self._plan
            if plan.is_busy or plan.is_closed or len(unit.records) > 1:
                return False
            connection = self._held.begin(unit.deadline)
            if connection is None:
                return False
            is_started = False
            try:
                unit.is_handed_in = True
                unit.tell = done
                plan.lead_apart(unit, connection.info.get(BACKEND))
                self._begun = unit
                watch(connection)
                is_started = COMMIT_WAIT not in connection.info and start_append(connection, unit.records[0])
            finally:
                if not is_started:  # or Ctrl-C came on the way here
                    self._work.put(True)
        return True

    def end_begun(self) -> bool:
        """Read the answer to the statement of `begin`.

        Returns False if another thread reads the answer, or if nothing was begun.
        """
        with self._guard:
            unit, self._begun = self._begun, None
        if unit is not None:
            try:
                self._lead([unit], unit, lambda *_: unit.records)
            finally:
                self._hand_over()
        return unit is not None

    def withdraw(self, unit: Unit) -> bool:
        """Withdraw a waiting unit without calling `done`. Returns False if the unit is already in a statement."""
        with self._guard:
            is_out = unit.state in (UnitState.WAITING, UnitState.APART)
            if is_out:
                self._plan.leave(unit)
        return is_out

    def end_late(self) -> None:
        """End the submitted units whose time is up."""
        with self._guard:
            self._plan.end_late(time.monotonic())
        self._tell()

    def close(self) -> None:
        """Refuse new units, and wait for the current units, until their deadlines at most."""
        with self._guard:
            self._plan.is_closed = True
            if self._begun is not None:
                self._work.put(True)
            self._idle.wait_for(lambda: not self._plan.is_busy)
        if self._thread is not None:
            self._work.put(False)
            self._thread.join()

    # -- waiting ------------------------------------------------------------------------------

    def _follow(self, unit: Unit, sleeper: Sleeper) -> None:
        """Wait until a unit has ended, or its time is up."""
        is_woken = False
        try:
            is_woken = sleeper.sleep(unit.deadline)
            if not is_woken:
                with self._guard:  # unless it ended just now
                    self._plan.expire(unit)
        except BaseException:  # Ctrl-C
            with self._guard:
                self._plan.leave(unit)
            raise
        finally:
            if is_woken:
                self._waking.pass_on()
            elif unit.state is UnitState.DONE:
                self._tell()  # so that the thread is in the line, and can leave it
                self._waking.leave(sleeper)

    def _tell(self) -> None:
        """Wake the threads of ended units, and call `done` for ended units that were submitted."""
        if self._plan.ended:
            with self._guard:
                while self._plan.ended:
                    unit = self._plan.ended[0]
                    tell, unit.tell = unit.tell, None
                    if tell is not None:
                        tell()
                    self._plan.ended.popleft()
        # Without the guard: a thread woken while the guard is held would only wait for it.
        self._waking.begin()

    # -- leading ------------------------------------------------------------------------------

    def _lead_for_others(self) -> None:
        while self._has_work():
            try:
                self._lead_next()
            except Exception:
                # Its units have ended; later units need this thread.
                fields = {"broker": self._held.target}
                logger.exception("append to broker %(broker)s failed in an unforeseen way", fields, extra=fields)

    def _has_work(self) -> bool:
        """Wait for work; False on shutdown. While waiting, wake threads that were left asleep: see `_await_woken`."""
        while True:
            left = self._waking.left
            with contextlib.suppress(Empty):
                return self._work.get(timeout=_LONGEST_WAKING_SECONDS if left else None)
            if self._waking.left == left:
                self._waking.pass_on()

    def _lead_next(self) -> None:
        if self._begun is not None:
            self.end_begun()
        with self._guard:
            if self._plan.leading is not None:
                return  # an extra call, after Ctrl-C in the calling thread
            if not self._plan.done():
                self._idle.notify_all()
                return
            first = self._plan.first(time.monotonic())
        try:
            self._tell()
            if first is not None:
                self._lead([], first)
            self._await_woken()
        finally:
            self._hand_over()

    def _await_woken(self) -> None:
        """Let the woken threads run first: many of them return with their next unit."""
        sleeper = Sleeper()
        self._waking.add_last(sleeper)
        self._waking.begin()
        if sleeper.sleep(time.monotonic() + _LONGEST_WAKING_SECONDS):
            self._waking.pass_on()
        else:
            self._waking.leave(sleeper)  # the thread that should have woken the next did not, so continue from here

    def _hand_over(self) -> None:
        with self._guard:
            if self._plan.done():
                self._work.put(True)
            elif self._plan.is_closed:
                self._idle.notify_all()
            self._plan.leading = None

    def _lead(self, batch: list[Unit], timekeeper: Unit, take: _Take | None = None) -> None:
        """Append a batch and the waiting units, by the deadline of `timekeeper`, which is one of these units."""
        try:
            self._store(batch, timekeeper, take or partial(self._take, timekeeper))
        except BaseException as error:  # Ctrl-C in the leading thread must not strand the others
            with self._guard:
                self._plan.interrupt(batch, timekeeper, error)
            raise
        finally:
            if self._plan.ended:
                self._tell()

    # -- storing ------------------------------------------------------------------------------

    def _store(self, units: list[Unit], timekeeper: Unit, take: _Take) -> None:
        """Append units in one statement, or in several if one unit makes the statement fail for the others."""
        plan, parts = self._plan, list[list[Unit]]()
        try:
            places, status = self._run(partial(self._append, units, timekeeper, take), timekeeper)
        except NotRun as not_run:
            with self._guard:
                plan.give_up(units, timekeeper, not_run.error)
        except Overdue as overdue:
            with self._guard:
                if overdue.is_undone:
                    plan.give_up(units, timekeeper, None)
                else:
                    plan.unknown(units, "no answer in time", overdue.__cause__)
        except BrokerUnavailable as error:
            with self._guard:
                plan.unknown(units, error.reason, error)
        except MqdbError as error:
            with self._guard:
                parts = plan.refused(units, error)
        else:
            with self._guard:
                plan.stored(units, places, status)
        if plan.ended:
            self._tell()
        for part in parts:
            self._store(part, timekeeper, self._plan.take_again)

    def _append(
        self, units: list[Unit], timekeeper: Unit, take: _Take, connection: Connection
    ) -> tuple[list[LogPlace], SendStatus]:
        """Run the statement, including units that gathered while there was no connection."""
        backend: Backend | None = connection.info.get(BACKEND)
        with self._guard:
            records = take(units, backend)
        if self._plan.ended:
            self._tell()
        if not records:
            return [], SendStatus.SEND_OK
        wait: CommitWait | None = connection.info.get(COMMIT_WAIT)
        if wait is not None:
            wait.begin(connection)
        try:
            places = append(connection, records, units[0].topic)
        except MqdbError as error:
            self._note_refusal(error)
            raise
        return places, SendStatus.SEND_OK if wait is None else wait.status(connection)

    def _take(self, timekeeper: Unit, batch: list[Unit], backend: Backend | None) -> Sequence[Record]:
        return self._plan.take(batch, timekeeper, backend, time.monotonic())

    def _run(self, work: Callable[[Connection], T], timekeeper: Unit) -> T:
        """Run work on the connection. See HeldConnection.run.

        While a patient unit waits for a connection, other units try another broker.
        """
        while True:
            try:
                return self._held.run(work, timekeeper.deadline, is_patient=False)
            except NotRun as not_run:
                if not timekeeper.is_patient or time.monotonic() >= timekeeper.deadline:
                    raise
                with self._guard:
                    self._plan.await_connection(not_run.error)
                self._tell()
                self._held.wait_connected(timekeeper.deadline)


def refuse_reentry(guard: "threading.RLock") -> None:
    """Raise IllegalState if this thread holds the lock `guard`.

    A signal handler, or a finalizer called by the garbage collector, interrupts its thread. If the handler sent a
    message while the thread itself is sending, the handler would wait for a lock that the thread holds.
    """
    if guard._is_owned():  # type: ignore[attr-defined]  # as threading.Condition does
        raise IllegalState("this thread", "in the midst of another send, which was interrupted for this one")
