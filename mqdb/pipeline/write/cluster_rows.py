"""Assigns the rows of a DataFrame to brokers, and converts them to rows of the brokers' stages.

A batch is committed on one broker after the other. If it is rerun after a crash between two commits, each broker must
get the same rows as the first time, even if Spark splits the batch into other tasks or returns rows in another order.
So the broker of a row depends only on the row: on its queue, its key, or its content if it has neither. The checksum of
a broker's rows shows whether the rows have changed.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import count
from random import randrange
from typing import Final, NamedTuple
from uuid import UUID

from mqdb.broker.log.sink_outlook import sum_of_checksums
from mqdb.common.message import Message
from mqdb.errors import QueueNotFound
from mqdb.pipeline.broker_urls import PARTITIONS_OF_BROKER
from mqdb.pipeline.errors import ColumnInvalid
from mqdb.pipeline.write.bad_rows import BadRowProperty
from mqdb.pipeline.write.cluster_queues import BrokerQueue
from mqdb.pipeline.write.sink_columns import Columns
from mqdb.pipeline.write.sink_options import SinkOptions
from mqdb.pipeline.write.sink_rows import RowMaker, StageRow, by_hash
from mqdb.store.log.sink import STAGE_COLUMNS

_QUEUE_KEY: Final = list(STAGE_COLUMNS).index("queue_key")

#: The columns that differ if a row is in another task.
_OF_TASK: Final = frozenset({BadRowProperty.TASK.value, BadRowProperty.NUMBER.value})


class _Routed(NamedTuple):
    """The queue of a row, and a hash of everything that determined its broker."""

    place: int
    queue_key: int
    identity: int


class StageShare:
    """The rows of a task for one broker: their number so far, and a checksum that does not depend on the order."""

    def __init__(self) -> None:
        self.messages = 0
        self.checksum = 0

    def take(self, rows: Sequence[tuple[StageRow, int]]) -> list[StageRow]:
        """Count rows with their identities; returns the rows."""
        self.messages += len(rows)
        self.checksum = sum_of_checksums((self.checksum, *(identity for _, identity in rows)))
        return [row for row, _ in rows]


class ClusterRowMaker(RowMaker):
    """A RowMaker for several brokers. `find_queues` gives BrokerQueues; rows go through `by_broker` to their stages.

    Rows with a key go where a producer with the same list of brokers would send them. A column `broker` restricts the
    choice to queues of this broker.
    """

    def __init__(
        self,
        columns: Columns,
        options: SinkOptions,
        find_queues: Callable[[str], tuple[BrokerQueue, ...]],
        write_id: UUID,
        brokers: tuple[str, ...],
    ) -> None:
        super().__init__(columns, options.topic, options.reserved_properties, find_queues, write_id)
        self._is_numbered = columns.is_numbered
        self._brokers = brokers
        self._own: dict[tuple[str, int], tuple[BrokerQueue, ...]] = {}
        # For each topic and broker: with one common turn, rows that are assigned by hash would use the queues unevenly.
        self._turns_on = defaultdict[tuple[str, int], Iterator[int]](lambda: count(randrange(1 << 16)))

    def by_broker(self, rows: Iterable[StageRow]) -> list[list[tuple[StageRow, int]]]:
        """The rows of each broker as its stage takes them, with their identities."""
        parts: list[list[tuple[StageRow, int]]] = [[] for _ in self._brokers]
        for row in rows:
            routed: _Routed = row[_QUEUE_KEY]
            whole = (*row[:_QUEUE_KEY], routed.queue_key, *row[_QUEUE_KEY + 1 :])
            parts[routed.place].append((whole, routed.identity))
        return parts

    def topics_on(self, place: int) -> tuple[str, ...]:
        """The topics to which rows go and which the broker has."""
        return tuple(topic for topic in self.topics if self._queues_on(topic, place))

    def _choose(
        self,
        message: Message,
        queues: tuple[BrokerQueue, ...],
        sharding_key: str | None,
        queue_id: int | None,
        broker: str | None,
    ) -> _Routed:
        topic = message.topic
        place = None if broker is None else self._place(broker)
        if queue_id is not None:
            if place is None:
                place, queue_id = self._numbered(queue_id)
            own = self._queues_on(topic, place)
            if not 0 <= queue_id < len(own):
                raise QueueNotFound(topic, queue_id, len(own))
            return _Routed(*own[queue_id], _identity("queue", topic, self._brokers[place], str(queue_id)))
        if place is not None:
            queues = self._queues_on(topic, place)
            if not queues:
                raise ColumnInvalid("broker", f"is {broker!r}, which has no topic {topic!r} that takes messages")
        if sharding_key is not None:
            queue = queues[by_hash(sharding_key, len(queues))]
            return _Routed(*queue, _identity("key", topic, broker or "", sharding_key))
        if place is not None:
            return _Routed(*self._next(topic, place), _identity("broker", topic, broker or ""))
        identity = _identity_of_content(message)
        # Brokers with more queues get more rows, and all queues of a broker get equal numbers.
        return _Routed(*self._next(topic, queues[identity % len(queues)].place), identity)

    def _next(self, topic: str, place: int) -> BrokerQueue:
        """The next queue of a broker in turn."""
        own = self._queues_on(topic, place)
        return own[next(self._turns_on[topic, place]) % len(own)]

    def _queues_on(self, topic: str, place: int) -> tuple[BrokerQueue, ...]:
        own = self._own.get((topic, place))
        if own is None:
            own = tuple(queue for queue in self._queues.get(topic, ()) if queue.place == place)
            self._own[topic, place] = own
        return own

    def _place(self, broker: str) -> int:
        if broker not in self._brokers:
            raise ColumnInvalid("broker", f"is {broker!r}, but the url names {', '.join(self._brokers)}")
        return self._brokers.index(broker)

    def _numbered(self, number: int) -> tuple[int, int]:
        """The broker and queue of a partition, numbered as in a read of these brokers."""
        if not self._is_numbered:
            raise ColumnInvalid("broker", "is null in a row with a queue_id, which names no queue without it")
        place, queue_id = divmod(number, PARTITIONS_OF_BROKER)
        if not 0 <= place < len(self._brokers):
            most = len(self._brokers) * PARTITIONS_OF_BROKER
            reason = f"{number:,} is not below {most:,}: the url names {len(self._brokers)} brokers"
            raise ColumnInvalid("partition", reason)
        return place, queue_id


@lru_cache(maxsize=65_536)
def _identity(*parts: str) -> int:
    """A hash that has the same value in all processes."""
    return _hash_of("\0".join(parts), b"")


def _identity_of_content(message: Message) -> int:
    """The hash of a message's content without times and ids, which may differ when the rows are processed again."""
    parts = [message.topic, message.tag or "", *message.keys]
    for name, value in sorted(message.properties.items()):
        if name not in _OF_TASK:
            parts += (name, value)
    return _hash_of("\0".join(parts), message.body)


def _hash_of(text: str, body: bytes) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass") + b"\0" + body, digest_size=8).digest())
