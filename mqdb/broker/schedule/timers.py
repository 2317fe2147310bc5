"""Timers: messages with a time of delivery are delivered when it has come, each exactly once and none early.

    look       what is new in rmq_sys_wheel_timer, and whether the table holds anything that is due by now; one
               statement, all that is done when there is nothing
    deliver    in one transaction: what is new and due to its real queue, what is new and not due into the table, what
               is due of the table to its real queue, and a step that says how far all this is

If two sessions look at once, both take the same step, and only one succeeds. A round takes a bounded number of messages
of each kind. After hours of standstill the table is delivered from the longest due message on, and beside it the
messages that have come into the queue since.

A delivery time is one of the broker's clock. If the clock is set forward, messages become due. If it is set back, they
wait longer; messages sent then wait for their time, even if delivery has been past that time before.

A message is for the topic of its name, unless it was deleted with an older one. Messages without a topic are skipped
and counted. So are messages that the log has lost, because holding up all others would not help. RocketMQ:
TimerMessageStore.
In SQL: `mqdb/sql/schedule/recall.sql`, `mqdb/sql/schedule/recall_own.sql`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

import psycopg
from sqlalchemy import Connection, Text, column, func, select, table
from sqlalchemy.exc import IntegrityError

from mqdb.broker.log.query import broker_info
from mqdb.common.recall_handle import decode_handle
from mqdb.common.unique_id import format_unique_id
from mqdb.errors import RecallHandleInvalid
from mqdb.store import acl
from mqdb.store.engine import Timed, transaction, translates
from mqdb.store.log.commit_log import UNMEASURED_RECORDS
from mqdb.store.schedule import timer_looks, timer_slots, timer_steps, timers
from mqdb.store.schedule.timer_looks import LAST_POS, Due, Look
from mqdb.store.schedule.timer_steps import TimerStep
from mqdb.store.schedule.timers import Undelivered

#: Messages of each kind in one transaction, of which each kind has at most `MAX_COPIED_BYTES`.
MAX_MESSAGES: Final = 10_000

#: For people who look at the last minutes.
STEPS_KEPT: Final = 1_000

#: A step does not look further ahead for what is due next: so there is one in an hour, even where nothing waits.
HORIZON: Final = timedelta(hours=1)

_MILLISECOND: Final = timedelta(milliseconds=1)

#: What `mqdb.recall_own` says when it has written the recall: whether it came in time is seen afterwards.
_PENDING: Final = "PENDING"


class TimerRound(NamedTuple):
    """The result of a round."""

    messages: int
    """Number of delivered messages."""
    collected: int
    """Number of messages that were put into the table, until they are due."""
    next_due_in: timedelta
    """Until the next one may be due, 0 when there may be more by now."""
    late: timedelta
    """Time for which the first of the delivered ones had been due."""
    skipped: Mapping[str, int]
    """Number of messages by topic that is gone."""
    unreadable: tuple[int, ...]
    """Positions of messages that say no queue they are for; they are passed by."""
    missing: int
    """Number of messages that the log has lost."""
    first_segment: int
    """Nothing that is left to collect lies in a segment below: for the next round."""
    took: timedelta
    """Time that the server took to collect and to deliver."""
    is_held_up: bool = False
    """Whether there is something new that was not collected: another session is at it, or has been."""


class RecallStatus(StrEnum):
    """The outcome of a recall."""

    RECALLED = "RECALLED"
    """The message will never be delivered."""
    ALREADY_DELIVERED = "ALREADY_DELIVERED"
    UNKNOWN = "UNKNOWN"
    """No message of that id waits or has been seen delivered, or it was recalled before."""


class _Delivery:
    """One round as it goes on."""

    def __init__(self, at: Look, limit: int, has_more: bool) -> None:
        self.at = at
        self.limit = limit
        self.delivered = 0
        self.collected = 0
        self.left = 0
        """The timers that have left the table, with or without a queue for them."""
        self.has_more = has_more
        self.skipped: Counter[str] = Counter()
        self.unreadable: list[int] = []
        self.missing = 0
        self.took = timedelta(0)
        self.first_ms = [] if at.first_due_ms is None else [at.first_due_ms]

    @property
    def opens_table(self) -> bool:
        """Whether there may be something due in the table."""
        return self.at.next_due_ms <= self.at.now_ms

    def take_entries(self, connection: Connection) -> None:
        """Everything that is new."""
        at = self.at
        if not at.entries:
            return
        assert at.past_offset is not None
        if at.slots:
            self.collected = self._copied(timers.collect(connection, at))
        if at.first_due_ms is not None:
            self.delivered += self._copied(timers.deliver_entries(connection, at))
        self.missing += at.past_offset - at.next_offset - at.entries
        taken = self.collected + self.delivered
        if taken < at.entries:
            self._account(timers.undelivered_entries(connection, at), at.entries - taken)

    def take_behind(self, connection: Connection) -> None:
        """Deliver the due messages of slot 0."""
        released, took = timers.deliver_behind(connection, self.at, self.limit)
        self.took += took
        self.left += sum(each.messages for each in released)
        for each in released:
            if each.has_queue:
                self.delivered += each.messages
            elif each.is_readable:
                self.skipped[each.real_topic or ""] += each.messages
            else:
                self.unreadable.append(each.first_pos)
            self.first_ms.append(each.first_ms)
        self.has_more |= sum(each.messages for each in released) == self.limit

    def take_due(self, connection: Connection, slots: Sequence[int]) -> Due | None:
        """Deliver the due messages of the other slots."""
        due = timer_looks.find_due(connection, self.at, slots, self.limit) if slots else None
        if due is None:
            return None
        delivered = self._copied(timers.deliver_due(connection, self.at, slots, due))
        if delivered < due.messages:
            self._account(timers.undelivered_due(connection, self.at, slots, due), due.messages - delivered)
        self.delivered += delivered
        self.left += due.messages
        self.first_ms.append(due.first_ms)
        self.has_more |= due.is_full
        return due

    def _copied(self, copied: Timed) -> int:
        self.took += copied.took
        return copied.cursor.rowcount

    def _account(self, undelivered: Sequence[Undelivered], expected: int) -> None:
        if len(undelivered) != expected:
            # A topic came or went between the two statements: not to be judged by either.
            raise psycopg.Rollback
        self.missing += sum(not each.has_record and not each.is_recalled for each in undelivered)
        strays = [each for each in undelivered if each.has_record and not each.is_recalled]
        self.skipped.update(each.real_topic or "" for each in strays if each.is_readable)
        self.unreadable += [each.log_pos for each in strays if not each.is_readable]


@translates
def deliver_due(connection: Connection, max_messages: int = MAX_MESSAGES, first_segment: int = 0) -> TimerRound:
    """Collect what is new, and deliver what is due.

    While another session delivers or recalls, nothing is done. `first_segment` is that of the round before, 0 at first.
    """
    at = timer_looks.look(connection, max_messages, first_segment)
    has_more = at.entries == max_messages
    if at.entries > UNMEASURED_RECORDS and (fitting := timers.count_fitting(connection, at)) < at.entries:
        at, has_more = timer_looks.look(connection, fitting, first_segment), True
    delivery = _Delivery(at, max_messages, has_more)
    step: TimerStep | None = None
    if at.entries or delivery.opens_table:
        timer_slots.add_missing(connection, at.slots or ())
        step = _take(connection, delivery)
    if step is None:
        delivery = _Delivery(at._replace(entries=0, first_due_ms=None), max_messages, has_more=False)
    is_held_up = bool(at.entries) and step is None
    late_ms = at.now_ms - min(delivery.first_ms, default=at.now_ms)
    return TimerRound(
        delivery.delivered,
        delivery.collected,
        timedelta(0) if delivery.has_more else max((step or at).next_due_ms - at.now_ms, 0) * _MILLISECOND,
        late_ms * _MILLISECOND,
        delivery.skipped,
        tuple(delivery.unreadable),
        delivery.missing,
        at.newest_segment if at.first_segment is None else at.first_segment,
        delivery.took,
        is_held_up,
    )


@translates
def first_uncollected_segment(connection: Connection) -> int:
    """The segment of the first message that is not collected; without one, the segment that dispatch writes to."""
    with transaction(connection):
        # For a session that does not plan by indexes only.
        connection.execute(select(func.set_config("enable_seqscan", "off", True)))
        at = timer_looks.look(connection, limit=1, first_segment=0)
    return at.newest_segment if at.first_segment is None else at.first_segment


@translates
def recall(connection: Connection, handle: str, *, actor: str | None = None) -> RecallStatus:
    """Take back the message of a recall handle. One transaction, or a part of the open one.

    No timer is delivered until the transaction ends. A role that does not own the broker may recall messages for a
    topic to which it may send; that takes two transactions of its own, and holds up no delivery.
    Raises RecallHandleInvalid if `handle` is not a handle, or of another broker; TopicNotFound and AccessDenied;
    TransactionUnsuitable for such a role in a transaction.
    """
    found = decode_handle(handle)
    name = broker_info(connection).broker_name
    if found.broker_name != name:
        raise RecallHandleInvalid(handle, f"is of broker {found.broker_name!r}, not of {name!r}")
    if acl.is_guest(connection):
        return _recall_own(connection, found.unique_id, found.topic, actor)
    return recall_message(connection, found.unique_id, found.topic, actor=actor)


@translates
def recall_from(connection: Connection, topic: str, handle: str) -> str:
    """Take back a message for a client of RocketMQ, which names the topic too; returns the id that the client knows.

    Raises what `recall` raises, and RecallHandleInvalid also for a handle of another topic, and if the message is not
    taken back.
    """
    decoded = decode_handle(handle)
    if decoded.topic != topic:
        raise RecallHandleInvalid(handle, f"is of topic {decoded.topic!r}, not of {topic!r}")
    status = recall(connection, handle)
    if status is not RecallStatus.RECALLED:
        raise RecallHandleInvalid(handle, f"the message is not to be taken back: {status}")
    return decoded.message_id


_scheduled: Final = table("scheduled", column("topic", Text), column("msg_id", Text), schema="mqdb")


@translates
def recall_message(
    connection: Connection, unique_id: UUID, topic: str | None = None, *, actor: str | None = None
) -> RecallStatus:
    """Take back the message of a unique id, of one topic or of any. As `recall`.

    A role that does not own the broker, and names no topic, finds what it operates or reads, once that is dispatched.
    """
    if acl.is_guest(connection):
        aim = topic or connection.scalar(
            select(_scheduled.c.topic).where(_scheduled.c.msg_id == format_unique_id(unique_id))
        )
        return RecallStatus.UNKNOWN if aim is None else _recall_own(connection, unique_id, aim, actor)
    status = func.mqdb.recall(topic, format_unique_id(unique_id), actor)
    return RecallStatus(connection.execute(select(status)).scalar_one())


def _recall_own(connection: Connection, unique_id: UUID, topic: str, actor: str | None) -> RecallStatus:
    message_id = format_unique_id(unique_id)
    status: str = connection.execute(select(func.mqdb.recall_own(topic, message_id, actor))).scalar_one()
    if status == _PENDING:
        status = connection.execute(select(func.mqdb.recall_outcome(topic, message_id))).scalar_one()
    return RecallStatus(status)


def _take(connection: Connection, delivery: _Delivery) -> TimerStep | None:
    """One transaction. None when another session is at it, or has been since the look."""
    at = delivery.at
    step: TimerStep | None = None
    try:
        with transaction(connection):
            if not timer_steps.begin(connection):
                return None
            delivery.take_entries(connection)
            due = None
            if delivery.opens_table:
                delivery.take_behind(connection)
                due = delivery.take_due(connection, timer_slots.find(connection, at.now_ms + 1, at.delivered_ms))
            taken = _step(connection, delivery, due)
            timer_steps.append(connection, taken, delivery.collected, delivery.delivered)
            if not taken.seq % STEPS_KEPT:
                timer_steps.prune(connection, taken.seq - 2 * STEPS_KEPT, taken.seq - STEPS_KEPT)
            step = taken
    except IntegrityError:
        return None
    return step


def _step(connection: Connection, delivery: _Delivery, due: Due | None) -> TimerStep:
    at = delivery.at
    reached = at.delivered_ms, at.delivered_pos, at.next_due_ms
    waiting = at.waiting + delivery.collected - delivery.left
    step = TimerStep(at.seq + 1, at.past_offset or at.next_offset, *reached, waiting)
    if not delivery.opens_table:
        return step._replace(next_due_ms=min(at.next_due_ms, at.next_waiting_ms or at.next_due_ms))
    if due is not None and due.is_full:
        # There may be more up to now.
        return step._replace(delivered_ms=due.last_ms, delivered_pos=due.last_pos, next_due_ms=due.last_ms)
    if at.now_ms > at.delivered_ms:
        step = step._replace(delivered_ms=at.now_ms, delivered_pos=LAST_POS)
    horizon_ms = at.now_ms + HORIZON // _MILLISECOND
    slots = timer_slots.find(connection, horizon_ms, step.delivered_ms)
    next_due_ms = timer_looks.next_due_ms(connection, slots, step, horizon_ms)
    return step._replace(next_due_ms=horizon_ms if next_due_ms is None else min(next_due_ms, horizon_ms))
