"""The offset store for broadcasting: each consumer reads every queue and stores its own progress.

So queues have no owners: epochs never rise, no queue is lost to another member, and the broker stores no offsets for
such a group. RocketMQ: LocalFileOffsetStore, RebalancePushImpl.computePullFromWhere.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection

from mqdb.broker.consumers.offsets import start_offsets
from mqdb.broker.log.proofs import last_proven, prove
from mqdb.common.group import FROM_FIRST_OFFSET, StartingPoint
from mqdb.common.message import MessageQueue
from mqdb.common.proof import KeptPosition, thinned
from mqdb.errors import BrokerUnavailable
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb.store.dispatch.queues import topics_created_at
from mqdb.store.engine import target_of
from mqdb.store.log import history as histories
from mqdb.store.log.history import ANOTHER_HISTORY
from mqdb_client.consumer.offsets.local_offsets import LocalOffset, LocalOffsets
from mqdb_client.consumer.offsets.offset_store import Lease

logger = logging.getLogger(__name__)

_EPOCH = 0


class _Held(NamedTuple):
    queue: MessageQueue
    topic_created_at: datetime


class LocalFileOffsetStore:
    """The offsets of one consumer on one broker, in a file that the stores of all brokers share.

    The creator of `offsets` opens and closes the file. Methods that write the file raise OffsetsUnusable.
    """

    lease: Lease | None = None

    def __init__(self, offsets: LocalOffsets) -> None:
        self._offsets = offsets
        self._held: dict[int, _Held] = {}

    def take(
        self, connection: Connection, wanted: Mapping[int, MessageQueue], start: StartingPoint, *, force: bool
    ) -> list[OwnedQueue]:
        """Take all wanted queues, which are always free.

        The first offsets of these queues are stored immediately, so that a crash cannot change them.
        """
        history = histories.find(connection)
        created_at = topics_created_at(connection, list(wanted))
        held = {key: _Held(wanted[key], time) for key, time in created_at.items()}
        known = {key: found.position for key, each in held.items() if (found := self._offsets.get(*each)) is not None}
        positions = last_proven(connection, known)
        for key, (next_offset, _) in positions.items():
            if next_offset != known[key].next_offset:
                fields = {"queue": str(wanted[key]), "queue_offset": known[key].next_offset, "next_offset": next_offset}
                logger.warning(
                    "continued queue %(queue)s at offset %(next_offset)s: offset %(queue_offset)s of the file is of "
                    "another history of the log",
                    fields,
                    extra=fields,
                )
        starts = self._starts(connection, {key: held[key] for key in held.keys() - known.keys()}, start)
        proofs = prove(connection, starts, history)
        if proofs is None:
            raise BrokerUnavailable(target_of(connection), ANOTHER_HISTORY)  # just now
        for key, offset in starts.items():
            positions[key] = KeptPosition(offset, (proofs[key],) if key in proofs else ())
        self._put({held[key]: position for key, position in positions.items()})
        self._held.update((key, held[key]) for key in positions)
        return [OwnedQueue(key, _EPOCH, each.next_offset, 0, history) for key, each in sorted(positions.items())]

    def take_again(self, connection: Connection, held: Mapping[int, MessageQueue]) -> list[OwnedQueue]:
        """Return no queues, because other members never take queues away."""
        return []

    def epochs(self, connection: Connection) -> dict[int, int]:
        """The epochs of the held queues, which are all equal."""
        return dict.fromkeys(self._held, _EPOCH)

    def commit(self, connection: Connection, owned: Sequence[OwnedQueue]) -> list[OwnedQueue]:
        """Store offsets of queues, which only move forward."""
        ahead = [each for each in owned if each.next_offset > self._known(each).next_offset]
        return ahead if ahead and not self._prove_and_put(connection, ahead) else []

    def correct(self, connection: Connection, owned: OwnedQueue) -> bool:
        """Store another offset, which may be lower than the stored offset."""
        return self._prove_and_put(connection, [owned])

    def renew(self, connection: Connection, owned: Sequence[OwnedQueue]) -> set[int]:
        """Return all queues, because nothing has to be renewed."""
        return {queue.queue_key for queue in owned}

    def release(self, connection: Connection, owned: Sequence[OwnedQueue]) -> None:
        """Forget the queues. No other member waits for the queues."""
        for queue in owned:
            del self._held[queue.queue_key]

    def _starts(self, connection: Connection, new: Mapping[int, _Held], start: StartingPoint) -> dict[int, int]:
        """The first offsets of new queues.

        A queue that was added to a topic is read from its beginning, as in clustering.
        """
        added = [key for key, held in new.items() if self._is_known(held)]
        first_met = [key for key in new if key not in added]
        return {
            **start_offsets(connection, added, FROM_FIRST_OFFSET),
            **start_offsets(connection, first_met, start),
        }

    def _is_known(self, held: _Held) -> bool:
        return self._offsets.knows(held.queue.topic, held.queue.broker_name, held.topic_created_at)

    def _known(self, owned: OwnedQueue) -> KeptPosition:
        known = self._offsets.get(*self._held[owned.queue_key])
        assert known is not None, "written down when it was taken"
        return known.position

    def _prove_and_put(self, connection: Connection, owned: Sequence[OwnedQueue]) -> bool:
        """Store offsets with their proofs. Returns False if the log now has another history."""
        found = prove(connection, {each.queue_key: each.next_offset for each in owned}, owned[0].history)
        if found is None:
            return False
        positions = {}
        for each in owned:
            older = [proof for proof in self._known(each).proofs if proof.queue_offset < each.next_offset - 1]
            own = [found[each.queue_key]] if each.queue_key in found else []
            positions[self._held[each.queue_key]] = KeptPosition(each.next_offset, thinned([*older, *own]))
        self._put(positions)
        return True

    def _put(self, positions: Mapping[_Held, KeptPosition]) -> None:
        self._offsets.put({held.queue: LocalOffset(held.topic_created_at, *each) for held, each in positions.items()})
