"""The offset store of broadcasting: each consumer reads every queue, and keeps by itself how far it has come.

So nothing is owned: no epoch ever rises, nothing is lost to another member, and the broker holds no offset of such a
group. RocketMQ: LocalFileOffsetStore, RebalancePushImpl.computePullFromWhere.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection

from mqdb.broker.offsets import start_offsets, topics_created_at
from mqdb.group import ConsumeFromWhere
from mqdb.message import MessageQueue
from mqdb.store.consumer_offsets import OwnedQueue
from mqdb_client.consumer.local_offsets import LocalOffset, LocalOffsets
from mqdb_client.consumer.offset_store import Lease

_EPOCH = 0


class _Held(NamedTuple):
    queue: MessageQueue
    topic_created_at: datetime


class LocalFileOffsetStore:
    """The offsets of one consumer on one broker, in a file that the stores of all brokers share.

    The file is opened and closed by whoever made it. What writes it raises OffsetsUnusable.
    """

    lease: Lease | None = None

    def __init__(self, offsets: LocalOffsets, consume_timestamp: datetime | None = None) -> None:
        """`consume_timestamp` is where a consumer starts under ConsumeFromWhere.TIMESTAMP."""
        self._offsets = offsets
        self._consume_timestamp = consume_timestamp
        self._held: dict[int, _Held] = {}

    def take(
        self, connection: Connection, wanted: Mapping[int, MessageQueue], where: ConsumeFromWhere, *, force: bool
    ) -> list[OwnedQueue]:
        """All of them are free. Where one starts is written down at once: a crash must not move that."""
        created_at = topics_created_at(connection, list(wanted))
        held = {key: _Held(wanted[key], time) for key, time in created_at.items()}
        new = {key: each for key, each in held.items() if self._offsets.get(*each) is None}
        starts = self._starts(connection, new, where)
        self._put({new[key]: offset for key, offset in starts.items()})
        stored = {key: self._offsets.get(*each) for key, each in held.items()}
        owned = [OwnedQueue(key, _EPOCH, offset, 0) for key, offset in stored.items() if offset is not None]
        self._held.update((each.queue_key, held[each.queue_key]) for each in owned)
        return owned

    def take_again(self, connection: Connection, held: Mapping[int, MessageQueue]) -> list[OwnedQueue]:
        """Nobody takes a queue away."""
        return []

    def epochs(self, connection: Connection) -> dict[int, int]:
        """The broker believes what this member does."""
        return dict.fromkeys(self._held, _EPOCH)

    def commit(self, connection: Connection, owned: Sequence[OwnedQueue]) -> list[OwnedQueue]:
        """Only forward."""
        committed = {self._held[each.queue_key]: each.next_offset for each in owned}
        self._put({held: max(offset, self._offsets.get(*held) or 0) for held, offset in committed.items()})
        return []

    def correct(self, connection: Connection, owned: OwnedQueue) -> bool:
        """Also back."""
        self._put({self._held[owned.queue_key]: owned.next_offset})
        return True

    def renew(self, connection: Connection, owned: Sequence[OwnedQueue]) -> set[int]:
        """There is nothing to renew."""
        return {queue.queue_key for queue in owned}

    def release(self, connection: Connection, owned: Sequence[OwnedQueue]) -> None:
        """Nobody waits for them."""
        for queue in owned:
            del self._held[queue.queue_key]

    def _starts(self, connection: Connection, new: Mapping[int, _Held], where: ConsumeFromWhere) -> dict[int, int]:
        """A queue that was added to a topic is read from its beginning, as in clustering: see `begin` there."""
        added = [key for key, held in new.items() if self._is_known(held)]
        first_met = [key for key in new if key not in added]
        return {
            **start_offsets(connection, added, ConsumeFromWhere.FIRST_OFFSET),
            **start_offsets(connection, first_met, where, self._consume_timestamp),
        }

    def _is_known(self, held: _Held) -> bool:
        return self._offsets.knows(held.queue.topic, held.queue.broker_name, held.topic_created_at)

    def _put(self, offsets: Mapping[_Held, int]) -> None:
        self._offsets.put({held.queue: LocalOffset(held.topic_created_at, offset) for held, offset in offsets.items()})
