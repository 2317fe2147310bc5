"""Queue ownership: the queues that this member owns, from taking them to giving them back.

A queue is taken when it is free. A queue is given back after it was dropped and has settled. The offset is committed
before the queue is given back, so the next owner gets no message twice. If another member takes the queue, by force or
because this member was considered dead, the epoch rises. The next commit of this member notices this: the queue is then
lost, and the results of its messages are ignored. All queues are lost when the log no longer has the history under
which they were taken, because their offsets are meaningless in another history. The queues are then retaken at the
offsets committed in the new history. RocketMQ: RebalanceImpl.updateProcessQueueTableInRebalance,
RemoteBrokerOffsetStore.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from sqlalchemy import Connection

from mqdb.broker.log.proofs import proven
from mqdb.common.group import StartingPoint
from mqdb.common.message import MessageQueue
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb.store.engine import translated
from mqdb.store.log import history as histories
from mqdb.store.log.history import History
from mqdb_client.consumer.offsets.offset_store import OffsetStore
from mqdb_client.consumer.queues.process_queue import FlowLimits, ProcessQueue

logger = logging.getLogger(__name__)


class QueueOwnership:
    """The owned queues of one consumer. Not thread-safe: only the rebalance service uses it.

    If a method raises, any change it made is also in the database, so the method can be called again.
    """

    def __init__(
        self,
        group: str,
        store: OffsetStore,
        limits: FlowLimits,
        make_queue: Callable[[MessageQueue, OwnedQueue, FlowLimits], ProcessQueue] = ProcessQueue,
    ) -> None:
        self._group = group
        self._store = store
        self._limits = limits
        self._make_queue = make_queue
        self._lease_seconds = store.lease.client_expiry.total_seconds() if store.lease else math.inf
        self._held: dict[int, ProcessQueue] = {}
        self._committed: dict[int, OwnedQueue] = {}
        self._history: History | None = None
        #: Queues lost to another history whose listeners still run.
        self._unsettled: list[ProcessQueue] = []

    @property
    def keys(self) -> set[int]:
        """The keys of all owned queues, including dropped queues that have to settle."""
        return set(self._held)

    @property
    def held(self) -> list[ProcessQueue]:
        """The process queues of all owned queues. Other threads may call this method too."""
        return list(self._held.values())

    @property
    def unsettled(self) -> set[int]:
        """The keys of queues that were lost to another history and whose listeners still run."""
        return {held.queue_key for held in self._unsettled if not held.is_settled}

    @property
    def is_settled(self) -> bool:
        """Whether no queue is read and no listener runs."""
        return all(held.is_settled for held in self._held.values())

    @property
    def active(self) -> list[ProcessQueue]:
        """The queues that are read."""
        return [held for held in self._held.values() if not held.is_dropped]

    def meet(self, connection: Connection) -> list[ProcessQueue]:
        """Drop and return the queues whose history differs from that of this connection's log. Call this method first.

        The history is queried each time: behind a pooler, an old connection may lead to another server by now.
        """
        with translated(connection):
            self._history = histories.find(connection)
        lost = [held for held in self._held.values() if held.history != self._history]
        if lost:
            self._tell(connection, lost)
        for held in lost:
            held.drop(is_lost=True)
            self._forget(held)
        self._unsettled = [held for held in (*self._unsettled, *lost) if not held.is_settled]
        return lost

    def _tell(self, connection: Connection, lost: Sequence[ProcessQueue]) -> None:
        """Log the lost queues, with a warning if the new history lacks a message that was read from them."""
        fields = {"group": self._group, "count": len(lost)}
        claims = {held.queue_key: held.newest for held in lost if held.newest}
        missing = claims.keys() - proven(connection, claims)
        if not missing:
            logger.info("the server was restarted: queues are taken again, from the committed offsets", extra=fields)
            return
        proof = claims[min(missing)]
        fields |= {
            "history": lost[0].history,
            "history_now": self._history,
            "queue": str(self._held[min(missing)].queue),
        }
        fields |= {"queue_offset": proof.queue_offset, "msg_id": str(proof.msg_id)}
        logger.warning(
            "group %(group)s lost %(count)s queues: the log has another history, without message %(msg_id)s, which was "
            "read at offset %(queue_offset)s of queue %(queue)s",
            fields,
            extra=fields,
        )

    def take(
        self,
        connection: Connection,
        wanted: Mapping[int, MessageQueue],
        start: StartingPoint,
        *,
        force: bool = False,
    ) -> list[ProcessQueue]:
        """Take the wanted queues that are free or, with `force`, all wanted queues.

        This member must not own any of these yet.
        """
        if not wanted:
            return []
        asked_at = time.monotonic()
        owned = self._store.take(connection, wanted, start, force=force)
        taken = [queue._replace(history=self._history) for queue in owned]
        return [self._hold(wanted[queue.queue_key], queue, asked_at) for queue in taken]

    def take_again(self, connection: Connection) -> list[ProcessQueue]:
        """Retake queues that the broker took away because it considered this member dead; returns the lost queues.

        If a queue's epoch rises by one, no other member has owned the queue, and its messages in hand stay valid.
        """
        if not self._held:
            return []
        known = self._store.epochs(connection)
        doubtful = [held for held in self._held.values() if known.get(held.queue_key) != held.epoch]
        if not doubtful:
            return []
        found = self._store.take_again(connection, {held.queue_key: held.queue for held in doubtful})
        epochs = {queue.queue_key: queue.epoch for queue in found}
        lost = [held for held in doubtful if epochs.get(held.queue_key) != held.epoch + 1]
        self._lose(lost)
        for held in doubtful:
            if held not in lost:
                held.renew(held.epoch + 1)
        # A queue that another member owned in between is given back, and then taken with its current offset.
        between = [queue._replace(history=self._history) for queue in found if queue.queue_key not in self._held]
        self._store.release(connection, between)
        return lost

    def give_back(self, connection: Connection, *, unsettled: bool = False) -> None:
        """Commit and release the dropped queues that have settled, or all dropped queues with `unsettled`."""
        dropped = [held for held in self._held.values() if held.is_dropped and (unsettled or held.is_settled)]
        positions = {held.queue_key: held.position() for held in dropped}
        lost_keys = {own.queue_key for own in self._store.commit(connection, list(positions.values()))}
        self._lose([self._held[key] for key in lost_keys])
        kept = [held for held in dropped if held.queue_key not in lost_keys]
        self._store.release(connection, [positions[held.queue_key] for held in kept])
        for held in kept:
            self._forget(held)

    def commit(self, connection: Connection) -> list[ProcessQueue]:
        """Commit the offsets that have advanced; returns the queues that were lost to another owner."""
        positions = [held.position() for held in self._held.values()]
        changed = [own for own in positions if own != self._committed[own.queue_key]]
        lost_keys = {own.queue_key for own in self._store.commit(connection, changed)}
        self._committed.update((own.queue_key, own) for own in changed)
        lost = [self._held[key] for key in lost_keys]
        self._lose(lost)
        return lost

    def correct(self, connection: Connection, illegal: ProcessQueue, next_offset: int) -> ProcessQueue | None:
        """Continue a queue at another offset, which may be lower than the committed offset.

        Returns the new process queue, or None if the queue was lost.
        """
        if self._held.get(illegal.queue_key) is not illegal:
            return None
        # The messages may also be in an older segment.
        corrected = illegal.position()._replace(next_offset=next_offset, segment=0)
        if not self._store.correct(connection, corrected):
            self._lose([illegal])
            return None
        fields = {
            "group": self._group,
            "queue": str(illegal.queue),
            "queue_offset": illegal.next_offset,
            "next_offset": next_offset,
        }
        logger.warning(
            "group %(group)s continues queue %(queue)s at offset %(next_offset)s: offset %(queue_offset)s does not "
            "exist",
            fields,
            extra=fields,
        )
        return self._hold(illegal.queue, corrected, illegal.lease_ends - self._lease_seconds)

    def renew(self, connection: Connection) -> list[ProcessQueue]:
        """Renew the lease of all queues; returns the queues that were lost to another owner. RocketMQ: lockAll."""
        asked_at = time.monotonic()
        renewed = self._store.renew(connection, [held.position() for held in self._held.values()])
        lost = [held for held in self._held.values() if held.queue_key not in renewed]
        self._lose(lost)
        for held in self._held.values():
            held.lease_ends = asked_at + self._lease_seconds
        return lost

    def share_limits(self) -> None:
        """Divide the limits of each topic among its queues."""
        counts = Counter(held.queue.topic for held in self.active)
        for held in self.active:
            held.limits = self._limits.shared_by(counts[held.queue.topic])

    def _hold(self, queue: MessageQueue, owned: OwnedQueue, asked_at: float) -> ProcessQueue:
        process_queue = self._make_queue(queue, owned, self._limits)
        process_queue.lease_ends = asked_at + self._lease_seconds
        self._held[owned.queue_key] = process_queue
        self._committed[owned.queue_key] = owned
        return process_queue

    def _lose(self, lost: Collection[ProcessQueue]) -> None:
        for held in lost:
            held.drop(is_lost=True)
            self._forget(held)
            fields = {"group": self._group, "queue": str(held.queue)}
            logger.warning(
                "group %(group)s lost queue %(queue)s here: another member has it, or its offset was set",
                fields,
                extra=fields,
            )

    def _forget(self, held: ProcessQueue) -> None:
        del self._held[held.queue_key]
        del self._committed[held.queue_key]
