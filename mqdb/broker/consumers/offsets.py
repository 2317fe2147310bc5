"""Offsets: take queues, commit how far they are read, give them back."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from psycopg.errors import ForeignKeyViolation
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from mqdb.common.group import FROM_LAST_OFFSET, ConsumeFromWhere, StartingPoint
from mqdb.errors import ParameterInvalid
from mqdb.store.clients import clients
from mqdb.store.consumers import consumer_offsets, offset_commits
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb.store.dispatch import queues
from mqdb.store.engine import transaction, translates
from mqdb.store.log import time_search


@translates
def take_queues(
    connection: Connection,
    group: str,
    client_id: str,
    queue_keys: Sequence[int],
    start: StartingPoint | None = FROM_LAST_OFFSET,
    *,
    force: bool = False,
) -> list[OwnedQueue]:
    """Claim those of the queues that are free. A group that is new to a topic starts at `start`.

    Without a `start` only queues in which the group has an offset are taken.

    A queue is free if it has no owner, or its owner is no longer a member. An owner gives a queue back after a
    rebalance has taken it away and the listeners that hold its messages have returned. With `force` this function does
    not wait for that: commits by the old owner are then refused, and its unfinished messages are redelivered.

    With TIMESTAMP the group starts at the first message of each queue that was stored at this time or later. Raises
    ParameterInvalid if the time is missing or has no time zone.
    """
    if start is not None:
        _check_start(start)
    if not queue_keys:
        return []
    with transaction(connection):
        if start is not None:
            consumer_offsets.begin(connection, group, queue_keys, start)
        taken = consumer_offsets.take(connection, group, client_id, queue_keys, force)
        return offset_commits.fold_taken(connection, group, taken)


@translates
def begin_queues(connection: Connection, group: str, queue_keys: Sequence[int], start: StartingPoint) -> None:
    """Give a group that is new to the topics of these queues its offsets there now, without claiming a queue.

    If a topic is being deleted, nothing is done. Raises ParameterInvalid as `take_queues` does.
    """
    _check_start(start)
    if not queue_keys:
        return
    try:
        with transaction(connection):
            consumer_offsets.begin(connection, group, queue_keys, start)
    except IntegrityError as error:
        if not isinstance(error.orig, ForeignKeyViolation):
            raise


@translates
def take_queues_at(connection: Connection, group: str, client_id: str, offsets: Mapping[int, int]) -> list[OwnedQueue]:
    """Take free queues for a member that has chosen its offsets, which are given by queue key.

    The group starts at these offsets if it has no offset there, and not in other queues of the topics. An existing
    offset is kept, so the result may contain another offset than the given one. A queue that does not exist is left
    out.
    """
    if not offsets:
        return []
    with transaction(connection):
        consumer_offsets.begin_at(connection, group, offsets)
        taken = consumer_offsets.take(connection, group, client_id, list(offsets), force=False)
        return offset_commits.fold_taken(connection, group, taken)


@translates
def start_offsets(
    connection: Connection,
    queue_keys: Sequence[int],
    start: StartingPoint,
) -> dict[int, int]:
    """The start offset in each queue for a new consumer that keeps its own offsets. Changes nothing.

    A queue that does not exist is left out. Raises ParameterInvalid as `take_queues` does.
    """
    _check_start(start)
    if not queue_keys:
        return {}
    if start.where is ConsumeFromWhere.TIMESTAMP and start.time is not None:
        return time_search.offsets_of_time(connection, queue_keys, start.time)
    ends = queues.ends(connection, queue_keys)
    is_first = start.where is ConsumeFromWhere.FIRST_OFFSET
    return {key: end.min_offset if is_first else end.max_offset for key, end in ends.items()}


@translates
def commit_offsets(connection: Connection, group: str, owned: Sequence[OwnedQueue]) -> list[OwnedQueue]:
    """Commit `next_offset` and `segment` of each queue; returns the queues that were lost to a newer owner."""
    if not owned:
        return []
    return consumer_offsets.commit(connection, group, owned)


@translates
def correct_offset(connection: Connection, group: str, owned: OwnedQueue) -> bool:
    """Set the offset of one queue, forward or back, if its stored offset does not exist;

    False if the queue was lost.
    """
    return not consumer_offsets.commit(connection, group, [owned], may_go_back=True)


@translates
def release_queues(connection: Connection, group: str, owned: Sequence[OwnedQueue]) -> None:
    """Give queues back and notify the group, so that waiting members take them immediately."""
    if not owned:
        return
    with transaction(connection):
        if consumer_offsets.release(connection, group, owned):
            clients.notify_group(connection, group)


@translates
def search_offset(connection: Connection, queue_key: int, time: datetime) -> int:
    """The first offset of a queue whose message was stored at `time` or later.

    Before the first message this is the min offset, after the last message the max offset. Raises ParameterInvalid for
    a time without a time zone.

    Source: DefaultMessageStore.getOffsetInQueueByTime, BoundaryType.LOWER.
    """
    _check_time("time", time)
    return time_search.offset_of_time(connection, queue_key, time)


@translates
def search_offsets(connection: Connection, queue_keys: Sequence[int], time: datetime) -> dict[int, int]:
    """The offset at a time in each of several queues, in as many statements as for one queue.

    A queue that does not exist is left out.
    """
    _check_time("time", time)
    return time_search.offsets_of_time(connection, queue_keys, time)


def _check_start(start: StartingPoint) -> None:
    if start.where is ConsumeFromWhere.TIMESTAMP:
        _check_time("consume_timestamp", start.time)


def _check_time(name: str, time: object) -> None:
    if not isinstance(time, datetime) or time.utcoffset() is None:
        raise ParameterInvalid(name, time, "must be a datetime with a time zone")
