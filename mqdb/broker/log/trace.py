"""Trace: every copy of a message, with its time of dispatch and its state in each group. RocketMQ: MessageTrack.

A trace only reads a few rows, by the id of the message and by the queues of its copies, and counts nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

from sqlalchemy import Connection

from mqdb.common.group import MessageModel
from mqdb.common.topic import DLQ_PREFIX, HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from mqdb.common.transaction import HalfState
from mqdb.common.unique_id import format_unique_id
from mqdb.errors import TagExpressionInvalid
from mqdb.selector.subscription import ExpressionType
from mqdb.selector.tags import parse_tag_expression
from mqdb.store.consumers import standings
from mqdb.store.consumers.standings import QueuePlace, QueueStanding
from mqdb.store.dead_letters import PastRedrive, past_redrives
from mqdb.store.engine import transaction, translates
from mqdb.store.log import message_statistics, message_trace
from mqdb.store.log.message_trace import TracedRecord
from mqdb.store.transactions.half_messages import HalfMessage

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class TrackType(StrEnum):
    """The relation of a group to a copy. RocketMQ: TrackType, which checks the members before the offset."""

    CONSUMED = "CONSUMED"
    """The group's offset is past the copy. If the message failed, there is a newer copy."""
    FILTERED = "FILTERED"
    """The group subscribes to other tags. RocketMQ: CONSUMED_BUT_FILTERED."""
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    """The copy is not consumed yet, and the group has no members."""
    CONSUME_BROADCASTING = "CONSUME_BROADCASTING"
    """The group's members keep their own offsets."""


@dataclass(frozen=True, slots=True)
class GroupTrack:
    """The relation of a group to a copy. `next_offset` is None if the group has no offset in the queue."""

    group: str
    status: TrackType
    next_offset: int | None


class WaitState(StrEnum):
    """The outcome of a copy that has to wait."""

    WAITING = "WAITING"
    DELIVERED = "DELIVERED"
    RECALLED = "RECALLED"
    DROPPED = "DROPPED"
    """The time of the copy has passed, but its topic did not exist."""


@dataclass(frozen=True, slots=True)
class CopyWait:
    """The wait of a copy in the queue of a delay level, or among the timers."""

    state: WaitState | None
    """None if the role may not see it."""
    topic: str | None
    """The topic to which the message then goes."""
    due_at: datetime | None
    delay_level: int | None
    """None for a message with its own time of delivery."""


@dataclass(frozen=True, slots=True)
class CopyFailure:
    """Why a group last failed to consume the message before this copy was made."""

    exception: str | None
    error: str | None
    host: str | None
    """The client id of the consumer."""


@dataclass(frozen=True, slots=True)
class MessageCopy:
    """A copy of a message. Fields that the role may not see are None.

    A role that does not own the broker does not see half states, and sees recalls and deliveries only in copies.
    """

    log_pos: int
    topic: str | None
    """None if the topic is deleted."""
    queue_id: int | None
    queue_offset: int | None
    """None until it is dispatched."""
    stored_at: datetime | None
    dispatched_at: datetime | None
    """Also None if the broker no longer has this time: it keeps the times of at least the last 1,000 batches."""
    reconsume_times: int | None
    failure: CopyFailure | None
    wait: CopyWait | None
    half: HalfMessage | None
    redrives: tuple[PastRedrive, ...]
    """Earlier redrives of a dead letter."""
    tracks: tuple[GroupTrack, ...]
    """The groups with an offset in its queue, or a subscription to its topic, sorted by name."""


@dataclass(frozen=True, slots=True)
class MessageTrace:
    """The history of a message on a broker: its copies in the order in which they were stored.

    A message that was resent after an apparent failure, and was stored both times, has two copies in its topic.
    """

    message_id: str
    copies: tuple[MessageCopy, ...]


@translates
def trace(connection: Connection, unique_id: UUID) -> MessageTrace:
    """The history of the message with a unique id; it has no copies if the broker has no record of the message."""
    with transaction(connection):
        records = message_trace.find(connection, unique_id)
        times = _dispatch_times(connection) if records else {}
        groups = standings.find(connection, _places(records))
        redrives = {
            each.log_pos: tuple(past_redrives(connection, each.log_pos))
            for each in records
            if (each.topic or "").startswith(DLQ_PREFIX)
        }
    copies = tuple(
        MessageCopy(
            each.log_pos,
            each.topic,
            each.queue_id,
            each.queue_offset,
            each.store_time,
            each.store_time if each.is_placed else times.get((each.segment, each.xid)),
            each.reconsume_times,
            _failure(each),
            _wait(each, records),
            _half(each, unique_id),
            redrives.get(each.log_pos, ()),
            tuple(_track(each, group) for group in groups.get(each.queue_key or 0, ())),
        )
        for each in records
    )
    return MessageTrace(format_unique_id(unique_id), copies)


def _places(records: Sequence[TracedRecord]) -> set[QueuePlace]:
    """The queues that contain the records."""
    places = ((each.queue_key, each.topic, each.queue_id) for each in records)
    return {QueuePlace(key, name, number) for key, name, number in places if key and name and number is not None}


def _dispatch_times(connection: Connection) -> dict[tuple[int | None, str | None], datetime]:
    """The write times of the known batches, by segment and transaction; see `message_statistics`."""
    batches = message_statistics.batches(connection)
    return {(segment, each.xid): each.written_at for segment, known in batches.items() for each in known}


def _failure(record: TracedRecord) -> CopyFailure | None:
    failure = CopyFailure(record.exception or None, record.error or None, record.host or None)
    return None if failure == CopyFailure(None, None, None) else failure


def _wait(record: TracedRecord, records: Sequence[TracedRecord]) -> CopyWait | None:
    is_timer = record.topic == TIMER_TOPIC or record.slot is not None
    if not is_timer and record.topic != SCHEDULE_TOPIC:
        return None
    level = None if is_timer or record.queue_id is None else record.queue_id + 1
    due_at = None if record.tags_code is None else _EPOCH + timedelta(milliseconds=record.tags_code)
    has_copy = any(each.topic == record.real_topic and each.log_pos > record.log_pos for each in records)
    return CopyWait(_state(record, is_timer, has_copy), record.real_topic, due_at, level)


def _state(record: TracedRecord, is_timer: bool, has_copy: bool) -> WaitState | None:
    if record.is_recalled is None:  # not an owner of the broker
        return WaitState.DELIVERED if has_copy else None
    if is_timer and record.is_recalled and not has_copy:
        return WaitState.RECALLED
    if record.slot is not None:  # slot 0 holds no deliveries
        delivered = record.delivered_ms or 0, record.delivered_pos or 0
        waits = record.slot == 0 or (record.tags_code or 0, record.log_pos) > delivered
    else:
        delivered_to = record.collected_to if is_timer else record.level_delivered_to
        waits = record.queue_offset is None or record.queue_offset >= (delivered_to or 0)
    if waits:
        return WaitState.WAITING
    return WaitState.DELIVERED if has_copy else WaitState.DROPPED


def _half(record: TracedRecord, unique_id: UUID) -> HalfMessage | None:
    if record.topic != HALF_TOPIC or record.is_recalled is None or record.store_time is None:
        return None
    return HalfMessage(
        format_unique_id(unique_id),
        record.log_pos,
        record.producer_group or "",
        record.real_topic or "",
        record.half_state or HalfState.PREPARED,
        record.half_check_times or 0,
        record.half_stored_at or record.store_time,
        record.half_check_at,
        record.half_check_client,
        record.half_ended_at,
        record.half_copy_pos,
    )


def _track(record: TracedRecord, group: QueueStanding) -> GroupTrack:
    return GroupTrack(group.group, _status(record, group), group.next_offset)


def _status(record: TracedRecord, group: QueueStanding) -> TrackType:
    if group.message_models == {MessageModel.BROADCASTING}:
        return TrackType.CONSUME_BROADCASTING
    if record.store_time is not None and not _matches(record.tags, group):  # None: the role may not read the tag
        return TrackType.FILTERED
    if record.queue_offset is not None and (group.next_offset or 0) > record.queue_offset:
        return TrackType.CONSUMED
    return TrackType.NOT_CONSUME_YET if group.message_models else TrackType.NOT_ONLINE


def _matches(tag: str | None, group: QueueStanding) -> bool:
    """Whether the filter of the group accepts the tag. For an SQL92 or broken filter this is assumed."""
    if group.expression_type != ExpressionType.TAG:
        return True
    try:
        return parse_tag_expression(group.expression).matches(tag)
    except TagExpressionInvalid:
        return True
