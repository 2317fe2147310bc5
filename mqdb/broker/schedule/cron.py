"""Recurring sends: a message that is sent repeatedly, at the times given by a cron text.

A firing is one transaction: it appends the message and advances the next time. A firing locks the row, so only one of
two servers sends; and a server that is killed has done both or neither. Times are by the broker's clock.

`catch_up` determines what happens for times that passed while no broker ran: `once`, the default, sends one message for
the latest of these times; `all` sends one for each, oldest first and a limited number per transaction; `none` skips
them. Otherwise a firing is never skipped because it is late. If a topic is gone or not writable, the firing is counted
as skipped, and the cron stays. A paused cron does not fire; after a resume it continues with the next time.

A row can be changed by SQL so that it cannot be read or sent. Each cron is fired in its own savepoint, so such a cron
is paused, and the others of the round are fired.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from sqlalchemy import Connection

from mqdb.common.delivery_schedule import schedule_of
from mqdb.common.message import Message, check_message
from mqdb.common.property import KEY_SEPARATOR
from mqdb.common.topic import MAX_TOPIC_LENGTH, Perm, check_name
from mqdb.errors import (
    CronExists,
    CronNotFound,
    InvalidInput,
    MqdbError,
    ParameterInvalid,
    PropertyReserved,
    StorageRefused,
    TopicNotAllowed,
    TopicNotFound,
    TopicNotWritable,
)
from mqdb.store import acl
from mqdb.store.acl import Access, Resource, ResourceType
from mqdb.store.engine import transaction, translated, translates
from mqdb.store.schedule import cron as crons
from mqdb.store.schedule.cron import DueCron, NewCron
from mqdb.store.topics import topics

#: The properties of each message: the name of its cron, and its scheduled time, as 2026-03-29T01:30:00Z.
CRON_NAME: Final = "MQDB_CRON_NAME"
CRON_TIME: Final = "MQDB_CRON_TIME"

#: The limits per transaction, for crons and for messages of each: a cron with much to catch up does not delay others.
MAX_CRONS: Final = 100
MAX_MESSAGES: Final = 20

#: How late a firing may be without being skipped with `none`: longer than another server takes to take over.
GRACE: Final = timedelta(minutes=1)

#: Errors caused by the cron itself, not the database: data exceptions and program limits (errcodes-appendix).
_SQLSTATES_OF_A_CRON: Final = ("22", "54")

#: Returns the first time of a cron text in a zone after a given time: `mqdb.service.cron_times.next_time`.
NextTime = Callable[[str, str, datetime], datetime]


class CatchUp(StrEnum):
    """The handling of times that passed while no broker ran."""

    ONCE = "once"
    ALL = "all"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Cron:
    """A recurring send. `timezone` is an IANA name; messages with the same sharding key go to one queue."""

    name: str
    cron: str
    message: Message
    timezone: str = "UTC"
    sharding_key: str | None = None
    catch_up: CatchUp = CatchUp.ONCE
    application: str | None = None
    """The application whose code declares it, or None."""


class Firing(NamedTuple):
    """The result of a round for a cron that was due."""

    name: str
    topic: str
    scheduled_at: datetime
    """The first time that was handled."""
    sent: int
    skipped: int
    """The number of firings without a message, because the topic is missing."""
    left_out: bool
    """Whether times were skipped, as configured by the catch-up."""


class CronRound(NamedTuple):
    """The result of a round."""

    firings: tuple[Firing, ...]
    broken: Mapping[str, MqdbError]
    """The crons that can no longer be read or sent, by name. These crons have been paused."""
    next_due_in: timedelta | None
    """The time until the next cron is due, 0 if it is already due; None if all are paused."""


@translates
def add_cron(
    connection: Connection,
    cron: Cron,
    next_time: NextTime,
    *,
    actor: str | None = None,
    principal: str | None = None,
) -> datetime:
    """Store a recurring send; returns the time of its first message.

    A cron that the same application has declared is changed to this one. Its next time is kept unless its cron text or
    zone changes, and a paused cron stays paused.
    Raises CronInvalid, CronExists, ParameterInvalid for an unknown zone, NameInvalid, TopicNotFound, TopicNotWritable,
    and the errors of `check_message`; AccessDenied for a role that may not both operate the topic and send to it.
    """
    check_name("cron", cron.name, MAX_TOPIC_LENGTH)
    message = cron.message
    for name in (CRON_NAME, CRON_TIME):
        if name in message.properties:
            raise PropertyReserved(name)
    if schedule_of(message.system_properties) is not None:
        raise ParameterInvalid("message", cron.name, "already has a delivery time, but a cron sends immediately")
    if message.flag:
        raise ParameterInvalid("flag", message.flag, "must be 0 in a cron")
    with transaction(connection):
        now = crons.now(connection)
        # In the form in which it will be sent: if it fits now, it always fits.
        properties = {**message.properties, **_properties(cron.name, now)}
        check_message(Message(message.topic, message.body, message.tag, message.keys, properties))
        next_at = next_time(cron.cron, cron.timezone, now)
        for access in (Access.OPERATE, Access.SEND):
            acl.require(connection, Resource(access, ResourceType.TOPIC, message.topic))
        route = topics.existing_topic(connection, message.topic)
        if not route.config.perm & Perm.WRITE:
            raise TopicNotWritable(message.topic, int(route.config.perm))
        if not crons.add(connection, _row(cron), next_at, actor, principal):
            raise CronExists(cron.name)
    return next_at


@translates
def remove_cron(connection: Connection, name: str, *, actor: str | None = None) -> None:
    """Delete a recurring send; the messages that it sent are kept. Raises CronNotFound, AccessDenied."""
    with transaction(connection):
        if not crons.change(connection, name, "remove", actor):
            raise CronNotFound(name)


@translates
def pause_cron(connection: Connection, name: str, *, actor: str | None = None) -> None:
    """Pause a recurring send until it is resumed. Raises CronNotFound, AccessDenied."""
    with transaction(connection):
        if not crons.change(connection, name, "pause", actor):
            raise CronNotFound(name)


@translates
def resume_cron(connection: Connection, name: str, next_time: NextTime, *, actor: str | None = None) -> datetime:
    """Let a recurring send fire again, from its next time on, whatever its catch-up; returns this time.

    If it is not paused, nothing changes. Raises CronNotFound, CronInvalid, ParameterInvalid, AccessDenied.
    """
    with transaction(connection):
        found = crons.find(connection, name)
        if found is None:
            raise CronNotFound(name)
        next_at = next_time(found.cron, found.timezone, crons.now(connection))
        if not crons.change(connection, name, "resume", actor, next_at):
            raise CronNotFound(name)
    return next_at


@translates
def fire_due(
    connection: Connection, next_time: NextTime, max_crons: int = MAX_CRONS, max_messages: int = MAX_MESSAGES
) -> CronRound:
    """Send due messages, with limits for the crons and for the messages of each.

    Crons being fired by another session are skipped.
    """
    waits = crons.next_due_in(connection)
    if waits is None or waits > timedelta(0):
        return CronRound((), {}, waits)
    with transaction(connection):
        now, due = crons.take_due(connection, max_crons)
        work = _Work(connection, next_time, max_messages, now)
        for cron in due:
            work.fire(cron)
    waits = crons.next_due_in(connection)
    return CronRound(tuple(work.firings), work.broken, None if waits is None else max(waits, timedelta(0)))


@dataclass
class _Work:
    """The transaction of a round."""

    connection: Connection
    next_time: NextTime
    max_messages: int
    now: datetime
    firings: list[Firing] = field(default_factory=list)
    broken: dict[str, MqdbError] = field(default_factory=dict)

    def fire(self, cron: DueCron) -> None:
        """Send the messages of one cron, and advance it."""
        try:
            times, next_at, left_out = self._plan(cron)
            sent = len(times) if cron.takes_messages and self._send(cron, times) else 0
        except MqdbError as error:
            if not _is_broken(error):
                raise
            # The row was changed by hand, or this server knows fewer zones than another.
            crons.pause(self.connection, cron.name)
            self.broken[cron.name] = error
            return
        skipped = len(times) - sent
        crons.move(self.connection, cron.name, next_at, times[-1] if sent else None, sent, skipped)
        self.firings.append(Firing(cron.name, cron.topic, cron.next_at, sent, skipped, left_out))

    def _send(self, cron: DueCron, times: Sequence[datetime]) -> bool:
        """Send the messages for these times; False if the topic has just disappeared."""
        if not times:
            return False
        messages = [_properties(cron.name, time) for time in times]
        try:
            # A savepoint, so that a refused message does not end the transaction of the others.
            with translated(self.connection), transaction(self.connection):
                crons.send(self.connection, cron.name, messages)
        except (TopicNotFound, TopicNotWritable):
            return False
        return True

    def _plan(self, cron: DueCron) -> tuple[list[datetime], datetime, bool]:
        """The times to send now, the next time after them, and whether other times are skipped."""
        if cron.catch_up == CatchUp.ALL:
            times = [cron.next_at]
            while (after := self._next(cron, times[-1])) <= self.now and len(times) < self.max_messages:
                times.append(after)
            return times, after, False
        latest = self._latest(cron)
        is_wanted = cron.catch_up == CatchUp.ONCE or self.now - latest <= GRACE
        return [latest] if is_wanted else [], self._next(cron, latest), latest > cron.next_at or not is_wanted

    def _latest(self, cron: DueCron) -> datetime:
        """The last time that has passed, found by bisection, because a year of minutes may have passed."""
        first, end = cron.next_at, self.now
        while (time := self._next(cron, first)) <= self.now:
            middle = time + (end - time) / 2
            later = self._next(cron, middle)
            if later <= self.now:
                first = later
            else:
                first, end = time, middle
        return first

    def _next(self, cron: DueCron, after: datetime) -> datetime:
        return self.next_time(cron.cron, cron.timezone, after)


def _is_broken(error: MqdbError) -> bool:
    if isinstance(error, StorageRefused):
        return error.sqlstate.startswith(_SQLSTATES_OF_A_CRON)
    return isinstance(error, InvalidInput | TopicNotAllowed)


def _properties(name: str, time: datetime) -> dict[str, str]:
    return {CRON_NAME: name, CRON_TIME: f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"}


def _row(cron: Cron) -> NewCron:
    message = cron.message
    return NewCron(
        cron.name,
        cron.cron,
        cron.timezone,
        message.topic,
        message.body,
        message.tag,
        KEY_SEPARATOR.join(message.keys) or None,
        message.properties,
        cron.sharding_key,
        cron.catch_up.value,
        cron.application,
    )
