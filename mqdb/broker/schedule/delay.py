"""Delay: deliver the messages of SCHEDULE_TOPIC_XXXX whose time has come, each exactly once and never early.

    look      finds which levels are due, and up to where; one statement, and the only one if nothing is due
    take      writes in one transaction a copy of each message to its real queue, and a step for each level

If two sessions look at the same time, both try to take the same steps, and only one succeeds. RocketMQ:
ScheduleMessageService.

A message goes to the topic that it names, even if this topic was deleted and created again, unless the topic was
deleted together with its waiting messages. A retry goes to the group that failed to consume the message. As long as the
group exists, its retry topic is created again when needed. Retries of a deleted group are delivered only if its retry
topic was kept. A newer group with the same name does not get them. Messages without a target are skipped and counted,
and can still be read in SCHEDULE_TOPIC_XXXX. RocketMQ writes them to a topic that has no configuration.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final, NamedTuple

import psycopg
from psycopg import errors as pg
from sqlalchemy import Connection, func, select

from mqdb.broker.topics.route import find_or_create_retry_topic
from mqdb.common.topic import RETRY_PREFIX
from mqdb.errors import MessageMissing, NameInvalid, TopicNotFound
from mqdb.store.engine import transaction, translates
from mqdb.store.log.commit_log import UNMEASURED_RECORDS
from mqdb.store.schedule import delay_queues as schedule
from mqdb.store.schedule import delay_steps
from mqdb.store.schedule.delay_queues import Head
from mqdb.store.schedule.delay_steps import DelayStep, DelayWindow, Stray

#: The maximum number of messages in one transaction, which copies at most `MAX_COPIED_BYTES`.
MAX_MESSAGES: Final = 10_000

#: The number of steps kept per level, for people who look at the last minutes.
STEPS_KEPT: Final = 1_000


class DelayRound(NamedTuple):
    """The result of a round."""

    messages: int
    """Number of delivered messages."""
    next_due_in: timedelta | None
    """The time until the next message is due, 0 if more may already be due; None while nothing waits."""
    skipped: Mapping[str, int]
    """The number of messages by missing topic, or topic of a missing group.

    These messages can still be read in SCHEDULE_TOPIC_XXXX.
    """
    unreadable: tuple[int, ...]
    """The positions of messages without a target queue, which are skipped."""
    missing: tuple[MessageMissing, ...]
    """The messages that the log has lost; their levels are stuck."""
    first_segment: int
    """The lowest segment with remaining messages, for the next round."""
    took: timedelta
    """The time that the server took to deliver."""
    is_held_up: bool = False
    """Whether due messages were not delivered because another session delivers, or has just delivered."""


class _Attempt(NamedTuple):
    """The steps that were taken, and the outcomes of their messages."""

    steps: Sequence[DelayStep]
    copied: int
    took: timedelta
    strays: Sequence[Stray]
    made: frozenset[str]
    """The retry topics that this round has so far created again, or has tried to."""

    @property
    def skipped(self) -> Counter[str]:
        """The number of records by missing topic."""
        return Counter(stray.real_topic or "" for stray in self.strays if stray.is_readable)

    @property
    def unreadable(self) -> tuple[int, ...]:
        """The positions of the records without a target queue."""
        return tuple(stray.log_pos for stray in self.strays if stray.has_record and not stray.is_readable)

    @property
    def retry_topics(self) -> set[str]:
        """The retry topics that have to be created again, for existing groups."""
        strays = (stray for stray in self.strays if stray.is_readable and stray.has_group)
        return {stray.real_topic for stray in strays if stray.real_topic} - self.made

    @property
    def lost(self) -> dict[int, Stray]:
        """The first message without a record, by level."""
        return {stray.level: stray for stray in reversed(self.strays) if not stray.has_record}

    @property
    def may_stand(self) -> bool:
        """Whether the step is valid: no topic was created between making the copies and finding the strays."""
        is_complete = self.copied + len(self.strays) == _messages(self.steps)
        return is_complete and not self.retry_topics and not self.lost


@translates
def deliver_due(connection: Connection, max_messages: int = MAX_MESSAGES, first_segment: int = 0) -> DelayRound:
    """Deliver due messages: the level that has been due longest comes first, and each level is delivered in order.

    Does nothing while another session delivers. `first_segment` is that of the previous round, 0 at first.
    """
    heads, newest_segment = schedule.look(connection, max_messages, first_segment)
    intact = [head for head in heads if head.queue_offset in (None, head.next_offset)]
    wanted = _messages(steps := _steps(intact, max_messages))
    if wanted > UNMEASURED_RECORDS:
        fitting = delay_steps.count_fitting(connection, steps, _window(intact))
        max_messages = fitting if fitting < wanted else max_messages
    attempt, lost = _take(connection, intact, max_messages)
    # Offsets have no gaps.
    missing = [MessageMissing(head.queue_key, head.next_offset, 0) for head in heads if head not in intact]
    missing += [MessageMissing(stray.queue_key, stray.queue_offset, stray.log_pos) for stray in lost]
    return DelayRound(
        attempt.copied if attempt else 0,
        _next_due_in(intact, attempt, max_messages),
        attempt.skipped if attempt else {},
        attempt.unreadable if attempt else (),
        tuple(missing),
        _first_segment(heads, newest_segment),
        attempt.took if attempt else timedelta(0),
        is_held_up=bool(steps) and attempt is None,
    )


@translates
def first_undelivered_segment(connection: Connection) -> int:
    """The segment of the first waiting or due entry; without such an entry, the segment to which dispatch writes."""
    with transaction(connection):
        # For a session that does not plan with indexes only.
        connection.execute(select(func.set_config("enable_seqscan", "off", True)))
        heads, newest_segment = schedule.look(connection, limit=0, first_segment=0)
    return _first_segment(heads, newest_segment)


def _first_segment(heads: Sequence[Head], newest_segment: int) -> int:
    return min(newest_segment if head.segment is None else head.segment for head in heads)


def _steps(heads: Sequence[Head], max_messages: int) -> list[DelayStep]:
    """One step per due level, as long as there is room."""
    steps, room = [], max_messages
    for head in heads:
        past_offset = min(head.due_to or 0, head.next_offset + room)
        if past_offset > head.next_offset:
            steps.append(DelayStep(head.level, head.queue_key, head.seq + 1, head.next_offset, past_offset))
            room -= past_offset - head.next_offset
    return steps


def _messages(steps: Sequence[DelayStep]) -> int:
    return sum(step.past_offset - step.first_offset for step in steps)


def _next_due_in(heads: Sequence[Head], attempt: _Attempt | None, max_messages: int) -> timedelta | None:
    if attempt and _messages(attempt.steps) == max_messages:
        return timedelta(0)
    waits = [head.waits_ms for head in heads if head.waits_ms is not None]
    return timedelta(milliseconds=min(waits)) if waits else None


def _window(heads: Sequence[Head]) -> DelayWindow:
    due = [head for head in heads if head.due_to is not None]
    return DelayWindow(
        min(head.segment for head in due if head.segment is not None),
        max(head.last_segment for head in due if head.last_segment is not None),
        min(head.lowest_pos for head in due if head.lowest_pos is not None),
        max(head.past_pos for head in due if head.past_pos is not None),
    )


def _take(connection: Connection, heads: Sequence[Head], max_messages: int) -> tuple[_Attempt | None, list[Stray]]:
    """Take the due messages of each level, up to the first message that the log has lost; returns the lost messages.

    Missing retry topics are created again, each once.
    """
    lost: dict[int, Stray] = {}
    made: frozenset[str] = frozenset()
    while steps := _steps(heads, max_messages):
        attempt = _try(connection, steps, _window(heads), made)
        if attempt is None or attempt.may_stand:
            return attempt, list(lost.values())
        for name in attempt.retry_topics:
            # A topic that cannot be created counts as missing, and does not block other messages.
            with suppress(NameInvalid, TopicNotFound):
                find_or_create_retry_topic(connection, name.removeprefix(RETRY_PREFIX))
        made |= attempt.retry_topics
        lost |= attempt.lost
        # Messages that cannot be taken from one level leave room for the others.
        heads = [head._replace(due_to=lost[head.level].queue_offset) if head.level in lost else head for head in heads]
    return None, list(lost.values())


def _try(
    connection: Connection, steps: Sequence[DelayStep], window: DelayWindow, made: frozenset[str]
) -> _Attempt | None:
    """One transaction; an invalid step is rolled back.

    Returns None if another session delivers, or has just delivered.
    """
    try:
        with transaction(connection):
            if not delay_steps.begin(connection):
                return None
            taken = delay_steps.take(connection, steps, window)
            copied = taken.cursor.rowcount
            strays = delay_steps.find_strays(connection, steps, window) if copied < _messages(steps) else []
            if copied + len(strays) < _messages(steps):
                strays += delay_steps.find_gaps(connection, steps, window)
            attempt = _Attempt(steps, copied, taken.took, strays, made)
            if not attempt.may_stand:
                raise psycopg.Rollback
            for step in steps:
                if not step.seq % STEPS_KEPT:
                    delay_steps.prune(connection, step.level, step.seq - 2 * STEPS_KEPT, step.seq - STEPS_KEPT)
    except pg.UniqueViolation:  # it has taken one of the steps since the query
        return None
    return attempt
