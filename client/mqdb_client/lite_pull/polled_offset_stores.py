"""Offset stores of lite pull consumers: they commit the progress of polls, even if a seek went back.

    PolledOffsetStore       subscribe: rows of `consumer_offset` that this member owns
    UnownedOffsetStore      assign: the same rows, if no member owns them

RocketMQ: DefaultLitePullConsumerImpl.commitAll, RemoteBrokerOffsetStore.
"""

import itertools
import logging
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection

from mqdb.broker.consumers.group_offsets import append_commits, commit_positions, commit_without_owner, reset_since
from mqdb.broker.consumers.offsets import start_offsets
from mqdb.broker.log.proofs import proven
from mqdb.common.group import StartingPoint
from mqdb.common.message import MessageQueue
from mqdb.errors import QueueLost, QueueOwned
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb.store.consumers.group_offsets import ReadQueue, committed_positions
from mqdb.store.consumers.offset_commits import OffsetCommit
from mqdb_client.consumer.offsets.offset_store import BrokerOffsetStore
from mqdb_client.lite_pull.poll_buffer import Agreed, PollBuffer

logger = logging.getLogger(__name__)


class _Committed(NamedTuple):
    """The committed offset of a queue under an epoch."""

    epoch: int
    #: The offset in the row.
    stored: int
    #: The offset including later appended commits.
    reached: int


class PolledOffsetStore(BrokerOffsetStore):
    """Commits by the rebalance service and by the user, one at a time, so that neither undoes a commit of the other.

    A commit by the user appends a row for each queue that has advanced, and the rebalance service merges these rows.
    """

    def __init__(self, group: str, client_id: str, buffer: PollBuffer) -> None:
        """`buffer` has the user's progress."""
        super().__init__(group, client_id)
        self._buffer = buffer
        self._committing = threading.Lock()
        #: The committed offsets by queue key; the offset of a missing queue is unknown.
        self._committed: dict[int, _Committed] = {}

    def take(
        self, connection: Connection, wanted: Mapping[int, MessageQueue], start: StartingPoint, *, force: bool
    ) -> list[OwnedQueue]:
        """Take queues like any member, and track their commits."""
        return self._taken(super().take(connection, wanted, start, force=force))

    def take_again(self, connection: Connection, held: Mapping[int, MessageQueue]) -> list[OwnedQueue]:
        """Take held queues again like any member, and track their commits."""
        return self._taken(super().take_again(connection, held))

    def _taken(self, taken: list[OwnedQueue]) -> list[OwnedQueue]:
        with self._committing:
            for own in taken:
                self._committed[own.queue_key] = _Committed(own.epoch, own.next_offset, own.next_offset)
        return taken

    def commit(self, connection: Connection, owned: Sequence[OwnedQueue]) -> list[OwnedQueue]:
        """Store the latest positions of queues, even if they are lower; returns the queues that were lost."""
        with self._committing:
            return self._settle(connection, [self._buffer.latest(own) for own in owned])

    def correct(self, connection: Connection, owned: OwnedQueue) -> bool:
        """Store the position of a queue, even if it is lower than the committed position."""
        with self._committing:
            return not self._settle(connection, [owned])

    def commit_agreed(self, connection: Connection, agreed: Sequence[Agreed]) -> None:
        """Commit the agreed positions, even if they are lower.

        Raises QueueLost if a queue was lost; all others are committed.
        """
        with self._committing:
            wanted = [position for _, position, is_named in agreed if is_named or not self._is_reached(position)]
            done = self._append(connection, wanted)
            lost = self._settle(connection, [position for position in wanted if position.queue_key not in done])
        for queue, position, _ in agreed:
            if position in lost:
                raise QueueLost(self._group, str(queue), position.epoch)

    def _is_reached(self, position: OwnedQueue) -> bool:
        known = self._committed.get(position.queue_key)
        return known is not None and (known.epoch, known.reached) == (position.epoch, position.next_offset)

    def _append(self, connection: Connection, positions: Sequence[OwnedQueue]) -> set[int]:
        """Append the positions that move forward; returns the keys of their queues."""
        commits = [
            OffsetCommit(key, epoch, known.reached, offset, segment, history)
            for key, epoch, offset, segment, history in positions
            if (known := self._committed.get(key)) and known.epoch == epoch and known.reached < offset
        ]
        # If the answer is lost, the outcome is unknown.
        before = {each.queue_key: self._committed.pop(each.queue_key) for each in commits}
        done = append_commits(connection, self._group, commits)
        for each in commits:
            if each.queue_key in done:
                self._committed[each.queue_key] = before[each.queue_key]._replace(reached=each.next_offset)
        return done

    def _settle(self, connection: Connection, positions: Sequence[OwnedQueue]) -> list[OwnedQueue]:
        """Store positions in the queues' rows; returns the queues that were lost."""
        known = {each.queue_key: self._committed.pop(each.queue_key, None) for each in positions}
        floors = {key: before.stored for key, before in known.items() if before}
        lost = commit_positions(connection, self._group, positions, floors)
        for each in positions:
            if each not in lost:
                self._committed[each.queue_key] = _Committed(each.epoch, each.next_offset, each.next_offset)
        return lost


class _Take(NamedTuple):
    """One take of a queue without an owner: its number, and the time of the offset's last manual reset."""

    queue: MessageQueue
    epoch: int
    reset_at: datetime | None


class UnownedOffsetStore(PolledOffsetStore):
    """An offset store for queues without owners. A queue is lost, and taken again, when its offset is reset manually.

    Epochs only distinguish one take from the next.
    """

    def __init__(self, group: str, client_id: str, buffer: PollBuffer, auto_commit: bool) -> None:
        super().__init__(group, client_id, buffer)
        self._auto_commit = auto_commit
        self._numbers = itertools.count(1)
        self._takes: dict[int, _Take] = {}
        self._refused: set[int] = set()

    def take(
        self, connection: Connection, wanted: Mapping[int, MessageQueue], start: StartingPoint, *, force: bool
    ) -> list[OwnedQueue]:
        """Read the offsets of queues. Nothing is written, because no queue has an owner here."""
        committed = committed_positions(connection, self._group, list(wanted))
        new = wanted.keys() - {position.queue_key for position in committed}
        begun = self._begin(connection, {key: wanted[key] for key in new}, start)
        taken = []
        for queue_key, next_offset, segment, reset_at, _ in [*committed, *begun]:
            take = self._takes[queue_key] = _Take(wanted[queue_key], next(self._numbers), reset_at)
            taken.append(OwnedQueue(queue_key, take.epoch, next_offset, segment))
        return taken

    def _begin(self, connection: Connection, new: Mapping[int, MessageQueue], start: StartingPoint) -> list[ReadQueue]:
        """Begin in queues without an offset: at the user's offset if the log proves this offset, otherwise at `start`.

        If the log has lost messages that the user has read, the reader begins at `start` or before it.
        """
        starts = start_offsets(connection, sorted(new), start)
        reached = {key: found for key in starts if (found := self._buffer.reached(new[key]))}
        pulled = proven(connection, {key: found.pulled for key, found in reached.items() if found.pulled})
        handed = proven(connection, {key: found.handed for key, found in reached.items() if found.handed})
        for key, found in reached.items():
            if key in pulled:
                starts[key] = found.next_offset
            elif key in handed and found.handed:
                starts[key] = found.handed.queue_offset + 1
            else:
                starts[key] = min(found.next_offset, starts[key])
        return [ReadQueue(key, offset, 0, None) for key, offset in starts.items()]

    def take_again(self, connection: Connection, held: Mapping[int, MessageQueue]) -> list[OwnedQueue]:
        """Return no queues, because queues that `epochs` leaves out are taken again with another offset."""
        return []

    def epochs(self, connection: Connection) -> dict[int, int]:
        """The epochs of the taken queues, except queues whose offset was reset manually."""
        read = [ReadQueue(key, 0, 0, take.reset_at) for key, take in self._takes.items()]
        reset = reset_since(connection, self._group, read)
        return {key: take.epoch for key, take in self._takes.items() if key not in reset}

    def commit(self, connection: Connection, owned: Sequence[OwnedQueue]) -> list[OwnedQueue]:
        """Commit positions of queues that no member owns; returns the queues that were lost.

        Does nothing without `auto_commit`: the user commits and gets the errors.
        """
        if not self._auto_commit:
            return []
        with self._committing:
            refused, lost = self._commit(connection, [self._buffer.latest(own) for own in owned])
        for key in refused.keys() - self._refused:
            fields = {"group": self._group, "queue": str(self._takes[key].queue), "owner": refused[key]}
            sentence = "did not commit the offset of group %(group)s in queue %(queue)s: member %(owner)s owns it"
            logger.warning(sentence, fields, extra=fields)
        self._refused.difference_update(own.queue_key for own in owned)
        self._refused |= refused.keys()
        lost_keys = {position.queue_key for position in lost}
        return [own for own in owned if own.queue_key in lost_keys]

    def commit_agreed(self, connection: Connection, agreed: Sequence[Agreed]) -> None:
        """Commit the agreed positions.

        Raises QueueOwned if a member owns a queue, and QueueLost if the offset of a queue was reset manually. All other
        positions are committed.
        """
        with self._committing:
            refused, lost = self._commit(connection, [each.position for each in agreed])
        for queue, position, _ in agreed:
            if position in lost:
                raise QueueLost(self._group, str(queue), position.epoch)
            if position.queue_key in refused:
                raise QueueOwned(self._group, str(queue), refused[position.queue_key])

    def correct(self, connection: Connection, owned: OwnedQueue) -> bool:
        """Store another offset, if offsets are committed automatically."""
        if not self._auto_commit:
            return True
        with self._committing:
            return not self._commit(connection, [owned])[1]

    def _commit(
        self, connection: Connection, positions: Sequence[OwnedQueue]
    ) -> tuple[Mapping[int, str], list[OwnedQueue]]:
        """The owners of queues that belong to members, and the positions that are no longer valid."""
        current: list[ReadQueue] = []
        lost: list[OwnedQueue] = []
        for position in positions:
            take = self._takes.get(position.queue_key)
            if take is None or take.epoch != position.epoch:
                lost.append(position)
            else:
                key, _, next_offset, segment, history = position
                current.append(ReadQueue(key, next_offset, segment, take.reset_at, history))
        refused = commit_without_owner(connection, self._group, current)
        lost += [position for position in positions if position.queue_key in refused.reset and position not in lost]
        return refused.owned, lost

    def release(self, connection: Connection, owned: Sequence[OwnedQueue]) -> None:
        """Do nothing, because no queue has an owner here."""
        for own in owned:
            self._takes.pop(own.queue_key, None)
