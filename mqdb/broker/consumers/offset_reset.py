"""Reset and clone: set a group's offsets, back or forward, whether its members are online or not.

Online members notice that their epochs are over: they drop their messages in hand, take their queues again and continue
at the new offsets. RocketMQ: AdminBrokerProcessor.resetOffset, cloneGroupOffset.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from sqlalchemy import Connection, func, select

from mqdb.common.clock import check_moment
from mqdb.common.group import MessageModel, check_group_name
from mqdb.common.topic import retry_topic
from mqdb.errors import GroupInUse, ParameterInvalid, QueueNotFound
from mqdb.store import acl
from mqdb.store.acl import Access, Resource, ResourceType
from mqdb.store.clients import clients
from mqdb.store.consumers import groups, offset_changes
from mqdb.store.consumers.offset_changes import GroupStanding, Note, OffsetChange
from mqdb.store.engine import steps_back, translates
from mqdb.store.log import time_search
from mqdb.store.operations import Verb
from mqdb.store.topics import topics


class Boundary(StrEnum):
    """An end of a queue."""

    EARLIEST = "earliest"
    LATEST = "latest"


#: An end, an offset, or the time from which on messages are to be consumed: a moment, or a duration before now by the
#: broker's clock.
ResetTarget: TypeAlias = Boundary | int | datetime | timedelta


@translates
def reset_offsets(
    connection: Connection,
    group: str,
    topic: str,
    target: ResetTarget,
    *,
    queue_id: int | None = None,
    reason: str = "",
    dry_run: bool = False,
    actor: str | None = None,
) -> list[OffsetChange]:
    """Let the group continue at `target` in all queues of the topic, or in one queue; returns the changes.

    In exactly-once consumption, effects that listeners have committed stay committed, and their messages may be
    redelivered. With `dry_run` nothing is changed.
    Raises TopicNotFound, GroupNotFound, QueueNotFound; ParameterInvalid for an offset that a queue does not have, for a
    time without a time zone or too long ago, for a group whose members consume by broadcasting, and for one queue of a
    topic that the group has never read. AccessDenied for a role that may not operate the group, has no right on the
    topic, or may not read it if `target` is a time, which would reveal when its messages were stored.
    """
    acl.require(connection, Resource(Access.OPERATE, ResourceType.GROUP, group))
    _require_topic(connection, topic, target)
    keys = _queue_keys(connection, topic, queue_id)
    groups.existing(connection, group)
    _refuse_members(connection, group, force=True)
    before = offset_changes.standings(connection, group, keys)
    # Empty if the topic has been deleted in the meantime.
    if queue_id is not None and (not before or before[0].next_offset is None):
        fault = f"group {group!r} has no offset in it; reset all queues of the topic together"
        raise ParameterInvalid("queue", queue_id, fault)
    offsets = _offsets_at(connection, before, target)
    wanted = _Wanted(Verb.OFFSET_RESET, group, Note(None, str(target), reason, actor))
    return _change(connection, wanted, before, offsets, dry_run)


@translates
def clone_offsets(
    connection: Connection,
    source: str,
    target: str,
    topic_names: Collection[str] = (),
    *,
    force: bool = False,
    reason: str = "",
    dry_run: bool = False,
    actor: str | None = None,
) -> list[OffsetChange]:
    """Give group `target` the offsets of group `source`, in these topics or in all that it reads except its retries.

    A missing `target` is created. While it has live members, the change is refused unless `force` is given: then the
    members continue at the new offsets, as after a reset. With `dry_run` nothing is changed.
    Raises GroupNotFound for `source`, GroupInUse, TopicNotFound; ParameterInvalid for a topic that `source` has never
    read, if `source` and `target` are the same group, and for members that consume by broadcasting; NameInvalid for
    `target`. AccessDenied for a role that may not operate `target`, or neither operate nor read `source`.
    """
    check_group_name(target)
    acl.require(connection, Resource(Access.OPERATE, ResourceType.GROUP, target))
    if not acl.has(connection, Resource(Access.READ, ResourceType.GROUP, source)):
        acl.require(connection, Resource(Access.OPERATE, ResourceType.GROUP, source))
    if source == target:
        raise ParameterInvalid("target", target, "is the source, too")
    groups.existing(connection, source)
    _refuse_members(connection, target, force)
    copied = _read_by(connection, source, topic_names)
    before = offset_changes.standings(connection, target, list(copied))
    wanted = _Wanted(Verb.OFFSET_CLONE, target, Note(source, f"from {source}", reason, actor))
    return _change(connection, wanted, before, copied, dry_run)


class _Wanted(NamedTuple):
    """A requested change of offsets."""

    verb: Verb
    group: str
    note: Note


def _require_topic(connection: Connection, topic: str, target: ResetTarget) -> None:
    """Raise AccessDenied for a role without the required right to read or operate the topic."""
    read = Resource(Access.READ, ResourceType.TOPIC, topic)
    if not acl.has(connection, read):
        is_time = isinstance(target, datetime | timedelta)
        acl.require(connection, read if is_time else read._replace(access=Access.OPERATE))


def _queue_keys(connection: Connection, topic: str, queue_id: int | None) -> Sequence[int]:
    route = topics.existing_topic(connection, topic)
    if queue_id is None:
        return route.queue_keys
    if not 0 <= queue_id < len(route.queue_keys):
        raise QueueNotFound(topic, queue_id, len(route.queue_keys))
    return [route.queue_keys[queue_id]]


def _refuse_members(connection: Connection, group: str, force: bool) -> None:
    live = clients.live_members(connection, group)
    if MessageModel.BROADCASTING in live.values():
        fault = "its members consume by broadcasting: each member keeps its offsets in its own file"
        raise ParameterInvalid("group", group, fault)
    if live and not force:
        raise GroupInUse(group, tuple(sorted(live)))


def _read_by(connection: Connection, group: str, topic_names: Collection[str]) -> dict[int, int]:
    """The offset of the group in each queue of these topics."""
    for name in topic_names:
        topics.existing_topic(connection, name)
    standing = offset_changes.standings(connection, group, offset_changes.queues_read(connection, group))
    for name in set(topic_names) - {each.topic for each in standing}:
        raise ParameterInvalid("topic", name, f"group {group!r} has never read the topic")
    return {
        each.queue_key: each.next_offset
        for each in standing
        if each.next_offset is not None
        and (each.topic in topic_names if topic_names else each.topic != retry_topic(group))
    }


def _offsets_at(connection: Connection, standing: Sequence[GroupStanding], target: ResetTarget) -> dict[int, int]:
    match target:
        case Boundary.EARLIEST:
            return {each.queue_key: each.min_offset for each in standing}
        case Boundary.LATEST:
            return {each.queue_key: each.max_offset for each in standing}
        case datetime():
            check_moment("to", target)
            return time_search.offsets_of_time(connection, [each.queue_key for each in standing], target)
        case timedelta():
            check_moment("to", target)
            now: datetime = connection.execute(select(func.mqdb.now())).scalar_one()
            return _offsets_at(connection, standing, now - target)
    given: object = target
    if not isinstance(given, int) or isinstance(given, bool):
        raise ParameterInvalid("to", target, "must be a Boundary, a whole number, a datetime or a timedelta")
    for each in standing:
        if not each.min_offset <= target <= each.max_offset:
            fault = f"queue {each.queue_id} of topic {each.topic!r} has offsets {each.min_offset} to {each.max_offset}"
            raise ParameterInvalid("to", target, fault)
    return {each.queue_key: target for each in standing}


def _change(
    connection: Connection, wanted: _Wanted, before: Sequence[GroupStanding], offsets: Mapping[int, int], dry_run: bool
) -> list[OffsetChange]:
    if dry_run or not before:
        return _changes(before, {each.queue_key: each.next_offset for each in before}, offsets)
    # Members lock rows of offsets for the duration of a statement.
    return _overwrite(connection, wanted, before, offsets)


@steps_back
def _overwrite(
    connection: Connection, wanted: _Wanted, before: Sequence[GroupStanding], offsets: Mapping[int, int]
) -> list[OffsetChange]:
    old = offset_changes.overwrite(connection, wanted.verb, wanted.group, offsets, wanted.note)
    clients.notify_group(connection, wanted.group)
    return _changes([each for each in before if each.queue_key in old], old, offsets)


def _changes(
    before: Sequence[GroupStanding], old: Mapping[int, int | None], offsets: Mapping[int, int]
) -> list[OffsetChange]:
    return [
        OffsetChange(each.topic, each.queue_id, old[each.queue_key], offsets[each.queue_key], each.min_offset)
        for each in before
    ]
