"""Group offsets: read and commit the progress of a group without owning its queues.

This module is for consumers that choose their own queues, and for commits that can also move back.
RocketMQ: DefaultLitePullConsumer, RemoteBrokerOffsetStore.
"""

from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType
from typing import NamedTuple

from sqlalchemy import Connection

from mqdb.store.consumers import group_offsets, poll_commits
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb.store.consumers.group_offsets import ReadQueue
from mqdb.store.consumers.offset_commits import OffsetCommit
from mqdb.store.dispatch import queues
from mqdb.store.dispatch.queues import Ends
from mqdb.store.engine import transaction, translates
from mqdb.store.log import history


@translates
def queue_ends(connection: Connection, queue_key: int) -> Ends | None:
    """Min and max offset of a queue; None if the queue does not exist."""
    return queues.ends(connection, [queue_key]).get(queue_key)


class Refused(NamedTuple):
    """The queues whose offsets were not committed."""

    owned: Mapping[int, str]
    """The queues owned by members, with their owners."""
    reset: Set[int]
    """The queues whose offset was reset since they were read, or whose log now has another history. The reader should
    continue at the new offset."""


@translates
def commit_without_owner(connection: Connection, group: str, positions: Sequence[ReadQueue]) -> Refused:
    """Set the offsets of a group, forward or back, in queues without an owner. A missing group is created.

    A group that has only such offsets in a topic still counts as new to the topic when its members start.
    """
    if not positions:
        return Refused({}, frozenset())
    with transaction(connection):
        group_offsets.ensure_group(connection, group)
        done = group_offsets.commit(connection, group, positions)
        rest = [position for position in positions if position.queue_key not in done]
        if not rest:
            return Refused({}, frozenset())
        owned = group_offsets.owners(connection, group, [position.queue_key for position in rest])
        current = history.find(connection)
        moved = {position.queue_key for position in rest if position.history not in (None, current)}
        return Refused(owned, moved | group_offsets.reset_since(connection, group, rest))


@translates
def reset_since(connection: Connection, group: str, positions: Sequence[ReadQueue]) -> set[int]:
    """The keys of the queues whose offset was set by a reset after they were read."""
    if not positions:
        return set()
    return group_offsets.reset_since(connection, group, positions)


@translates
def append_commits(connection: Connection, group: str, commits: Sequence[OffsetCommit]) -> set[int]:
    """Commit on queues that the caller owns, forward from its last commit; returns the keys of those it still owns.

    The commit is complete on return, but `commit_positions` has to follow some time later.
    """
    return poll_commits.append(connection, group, commits) if commits else set()


@translates
def commit_positions(
    connection: Connection, group: str, owned: Sequence[OwnedQueue], floors: Mapping[int, int] = MappingProxyType({})
) -> list[OwnedQueue]:
    """Commit offsets, forward or back; returns the queues that were lost to a newer owner.

    Appended commits are merged. `floors` are the offsets that the last call stored for each queue, if known.
    """
    if not owned:
        return []
    with transaction(connection):
        return poll_commits.settle(connection, group, owned, floors)
