"""Timers: deliver messages at their time of delivery, each exactly once and never early.

    look       finds what is new in rmq_sys_wheel_timer, and whether the table has due messages; one statement, and the
               only one if there is nothing to do
    deliver    in one transaction: what is new and due to its real queue, what is new and not due into the table, what
               is due of the table to its real queue, and a step that says how far all this is

If two sessions look at the same time, both try to take the same step, and only one succeeds. A round takes a limited
number of messages of each kind. After hours of downtime the table is delivered from the longest overdue message on, and
the messages that have since arrived in the queue are delivered in parallel.

Delivery times are by the broker's clock. If the clock is set forward, messages become due. If it is set back, they wait
longer; messages sent later wait for their time, even if delivery had already passed that time.

A message goes to the topic that it names, unless the message was deleted with an older topic. Messages without a topic
are skipped and counted. Messages that the log has lost are skipped and counted, too, because blocking all others would
not help. RocketMQ: TimerMessageStore.
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

#: The maximum number of messages of each kind in one transaction; each kind has at most `MAX_COPIED_BYTES`.
MAX_MESSAGES: Final = 10_000

#: The number of steps kept, for people who look at the last minutes.
STEPS_KEPT: Final = 1_000

#: How far ahead a step searches for the next due message; so there is one step per hour even if nothing waits.
HORIZON: Final = timedelta(hours=1)

_MILLISECOND: Final = timedelta(milliseconds=1)

#: The result of `mqdb.recall_own` when it has written the recall; whether this was in time is checked afterwards.
_PENDING: Final = "PENDING"


class TimerRound(NamedTuple):
    """The result of a round."""

    messages: int
    """Number of delivered messages."""
    collected: int
    """The number of messages that were put into the table until they are due."""
    next_due_in: timedelta
    """The time until the next message may be due, 0 if more may already be due."""
    late: timedelta
    """The time for which the first delivered message had been due."""
    skipped: Mapping[str, int]
    """The number of messages by missing topic."""
    unreadable: tuple[int, ...]
    """The positions of messages without a target queue, which are skipped."""
    missing: int
    """Number of messages that the log has lost."""
    first_segment: int
    """The lowest segment with messages left to collect, for the next round."""
    took: timedelta
    """The time that the server took to collect and deliver."""
    is_held_up: bool = False
    """Whether new messages were not collected because another session does this, or has just done it."""


class RecallStatus(StrEnum):
    """The outcome of a recall."""

    RECALLED = "RECALLED"
    """The message will never be delivered."""
    ALREADY_DELIVERED = "ALREADY_DELIVERED"
    UNKNOWN = "UNKNOWN"
    """No message with this id waits or is known to be delivered, or it was recalled before."""


class _Delivery:
    """The state of a running round."""

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
        """Whether the table may contain due messages."""
        return self.at.next_due_ms <= self.at.now_ms

    def take_entries(self, connection: Connection) -> None:
        """Take all new entries."""
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
            # A topic was created or deleted between the two statements, so neither decides.
            raise psycopg.Rollback
        self.missing += sum(not each.has_record and not each.is_recalled for each in undelivered)
        strays = [each for each in undelivered if each.has_record and not each.is_recalled]
        self.skipped.update(each.real_topic or "" for each in strays if each.is_readable)
        self.unreadable += [each.log_pos for each in strays if not each.is_readable]


@translates
def deliver_due(connection: Connection, max_messages: int = MAX_MESSAGES, first_segment: int = 0) -> TimerRound:
    """Collect new messages, and deliver due messages.

    Does nothing while another session delivers or recalls. `first_segment` is that of the previous round, 0 at first.
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
    """The segment of the first uncollected message; without such a message, the segment to which dispatch writes."""
    with transaction(connection):
        # For a session that does not plan with indexes only.
        connection.execute(select(func.set_config("enable_seqscan", "off", True)))
        at = timer_looks.look(connection, limit=1, first_segment=0)
    return at.newest_segment if at.first_segment is None else at.first_segment


@translates
def recall(connection: Connection, handle: str, *, actor: str | None = None) -> RecallStatus:
    """Recall the message of a recall handle, in one transaction or as part of the open transaction.

    No timer is delivered until the transaction ends. A role that does not own the broker may recall messages for a
    topic to which it may send; this takes two separate transactions, and does not delay deliveries.
    Raises RecallHandleInvalid if `handle` is not a handle, or a handle of another broker; TopicNotFound and
    AccessDenied; TransactionUnsuitable for such a role in a transaction.
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
    """Recall a message for a RocketMQ client, which also names the topic; returns the id in the client's form.

    Raises the errors of `recall`, and RecallHandleInvalid also for a handle of another topic, and if the message is not
    recalled.
    """
    decoded = decode_handle(handle)
    if decoded.topic != topic:
        raise RecallHandleInvalid(handle, f"is of topic {decoded.topic!r}, not of {topic!r}")
    status = recall(connection, handle)
    if status is not RecallStatus.RECALLED:
        raise RecallHandleInvalid(handle, f"the message cannot be recalled: {status}")
    return decoded.message_id


_scheduled: Final = table("scheduled", column("topic", Text), column("msg_id", Text), schema="mqdb")


@translates
def recall_message(
    connection: Connection, unique_id: UUID, topic: str | None = None, *, actor: str | None = None
) -> RecallStatus:
    """Recall the message with a unique id, in one topic or in any, as `recall` does.

    Without a topic, a role that does not own the broker finds only dispatched messages that it may operate or read.
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
    """One transaction. Returns None if another session takes a step, or has taken one since the query."""
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
        # There may be more until now.
        return step._replace(delivered_ms=due.last_ms, delivered_pos=due.last_pos, next_due_ms=due.last_ms)
    if at.now_ms > at.delivered_ms:
        step = step._replace(delivered_ms=at.now_ms, delivered_pos=LAST_POS)
    horizon_ms = at.now_ms + HORIZON // _MILLISECOND
    slots = timer_slots.find(connection, horizon_ms, step.delivered_ms)
    next_due_ms = timer_looks.next_due_ms(connection, slots, step, horizon_ms)
    return step._replace(next_due_ms=horizon_ms if next_due_ms is None else min(next_due_ms, horizon_ms))
