"""Rebalance service: the thread that takes and gives back queues, and commits the offsets of this member.

Queues that rebalance takes away are dropped, and given back when their running listeners have returned. Added queues
are taken as soon as they are free. A queue that is not free after 30 s, because its owner hangs, is taken by force. To
leave, the service drops all queues. RocketMQ: RebalanceService, RebalanceImpl.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Connection

from mqdb.broker.clients import membership
from mqdb.common.message import MessageQueue
from mqdb.common.topic import retry_topic
from mqdb.errors import MqdbError
from mqdb_client.consumer.consumer_strategy import ConsumerStrategy
from mqdb_client.consumer.queues.process_queue import ProcessQueue
from mqdb_client.consumer.queues.pull_service import PullService
from mqdb_client.consumer.queues.queue_ownership import QueueOwnership
from mqdb_client.consumer.queues.share import Share, Shares
from mqdb_client.duty import Duty
from mqdb_client.leaving import LEAVE_SECONDS
from mqdb_client.outage import Outage

logger = logging.getLogger(__name__)

#: The pause while a topic does not exist or a queue has another owner. Source: RebalanceService.minInterval.
UNBALANCED_SECONDS = 1.0

#: The time between checks for dead members, if no broker process does this.
REAP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class RebalanceTimes:
    """The intervals of the rebalance service."""

    #: The time between rebalances without a trigger. Source: RebalanceService.waitInterval.
    rebalance_interval: timedelta
    #: The time between commits. Source: ClientConfig.persistConsumerOffsetInterval.
    persist_interval: timedelta
    #: The time that the owner of a queue has to give it back.
    hand_over_grace: timedelta
    #: The time between renewals of the queues' leases; None without leases.
    renew_interval: timedelta | None = None


class RebalanceService:
    """Rebalances and commits for one consumer on one broker, and owns its process queues.

    The service's thread notifies the strategy and the pull service of added and removed queues.
    `is_attended` tells whether a broker process checks for dead members.
    `on_left` is called at the end of the service, when all queues are given back.
    """

    def __init__(
        self,
        group: str,
        *,
        connect: Callable[[], Connection],
        is_attended: Callable[[], bool],
        topics: Collection[str],
        shares: Shares,
        ownership: QueueOwnership,
        times: RebalanceTimes,
        strategy: ConsumerStrategy,
        pull: PullService,
        outage: Outage,
        on_left: Callable[[], None],
    ) -> None:
        self._group = group
        self._retry_topic = retry_topic(group)
        self._connect = connect
        self._is_attended = is_attended
        #: The topics of the subscriptions; may be replaced at any time.
        self.topics = topics
        self._shares = shares
        self._ownership = ownership
        self._times = times
        self._strategy = strategy
        self._pull = pull
        self._on_left = on_left
        self._wanted_since: dict[int, float] = {}
        self._corrections: deque[tuple[ProcessQueue, int]] = deque()
        self._assignment: tuple[MessageQueue, ...] = ()
        self._told_assignment: tuple[MessageQueue, ...] = ()
        #: While suspended, it neither takes queues nor gives them back.
        self.is_suspended = False
        self._is_leaving = False
        self._is_abandoning = False
        self._patience_ends: float | None = None
        self._leaving = Duty(f"drop queues of group {group}", self._drop_all, due=False)
        self._correcting = Duty(f"correct offsets of group {group}", self._correct, outage, due=False)
        self._giving_back = Duty(f"give back queues of group {group}", self._give_back, outage, due=False)
        self._rebalancing = Duty(f"rebalance group {group}", self._rebalance, outage)
        self._renewing = Duty(f"renew leases of group {group}", self._renew, outage, due=False)
        self._committing = Duty(f"commit offsets of group {group}", self._commit, outage, due=False)
        self._reaping = Duty(f"reap members of group {group}", self._reap, outage)
        self._duties = (
            self._leaving,
            self._correcting,
            self._giving_back,
            self._renewing,
            self._rebalancing,
            self._committing,
            self._reaping,
        )
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"mqdb-{group}-rebalance", daemon=True)

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that this member reads, in order, without the group's retry queues."""
        return self._assignment

    @property
    def held(self) -> list[ProcessQueue]:
        """All queues that are owned right now, including dropped queues that have to settle."""
        return self._ownership.held

    # -- requests by other threads ------------------------------------------------------------

    def balance(self) -> None:
        """Rebalance for the first time, before the start. Raises the error if this fails."""
        self._rebalancing.run()

    def start(self) -> None:
        """Start the thread, which first rebalances unless `balance` has done so."""
        self._committing.in_seconds(self._times.persist_interval.total_seconds())
        if self._times.renew_interval is not None:
            self._renewing.in_seconds(self._times.renew_interval.total_seconds())
        self._thread.start()

    def begin_to_leave(self) -> None:
        """Drop all queues, and give back each queue when its listeners have returned."""
        self._is_leaving = True
        self._ask(self._leaving)

    def leave(self, seconds: float | None = None) -> None:
        """Wait until all queues are given back.

        After `seconds`, they are given back even if listeners are still running.
        """
        self._thread.join(seconds)
        self._is_abandoning = True
        self._wake.set()
        self._thread.join()

    def rebalance(self) -> None:
        """Rebalance, because members or queues changed or an unreachable broker may have removed this member."""
        self._ask(self._rebalancing)

    def on_progress(self, process_queue: ProcessQueue) -> None:
        """Note that a process queue has room again, or has settled."""
        if process_queue.is_dropped:
            self._ask(self._giving_back)
        else:
            self._pull.on_room()

    def correct(self, process_queue: ProcessQueue, next_offset: int) -> None:
        """Continue an already dropped queue at another offset, because its offset does not exist."""
        self._corrections.append((process_queue, next_offset))
        self._ask(self._correcting)

    def _ask(self, duty: Duty) -> None:
        duty.in_seconds(0)
        self._wake.set()

    # -- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_done():
            self._wake.clear()
            for duty in self._duties:
                duty.run_if_due()
            if not self._is_done():
                self._wake.wait(min(duty.seconds_left() for duty in self._duties))
        if self._ownership.keys:
            self._drop(self._ownership.active)  # if no thread has waited for this
            self._abandon()
        for duty in self._duties:
            duty.end()
        self._on_left()

    def _is_done(self) -> bool:
        if self._is_abandoning or (self._is_leaving and not self._ownership.keys):
            return True
        if not self._is_leaving or not self._ownership.is_settled:
            return False
        # Only the broker is waited for. If it cannot be reached, the last commit is skipped.
        self._patience_ends = self._patience_ends or time.monotonic() + LEAVE_SECONDS
        return time.monotonic() >= self._patience_ends

    def _abandon(self) -> None:
        try:
            with self._connection() as connection:
                self._ownership.give_back(connection, unsettled=True)
        except MqdbError as error:
            fields = {"group": self._group, "reason": str(error)}
            sentence = "left group %(group)s without a last commit; messages will be redelivered: %(reason)s"
            logger.warning(sentence, fields, extra=fields)

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        """A connection to the log of all owned queues. Queues from another history are lost."""
        with self._connect() as connection:
            lost = self._ownership.meet(connection)
            if lost:
                self._wanted_since.clear()
                self._stop_reading(lost)
                self._rebalancing.in_seconds(0)
            yield connection

    # -- its duties -----------------------------------------------------------------------------

    def _drop_all(self) -> None:
        self._drop(self._ownership.active)
        self._giving_back.in_seconds(0)

    def _correct(self) -> None:
        while self._corrections:
            illegal, next_offset = self._corrections[0]
            with self._connection() as connection:
                corrected = self._ownership.correct(connection, illegal, next_offset)
            self._corrections.popleft()
            self._stop_reading([illegal])
            if corrected is not None:
                self._start_reading([corrected])
        if self._is_leaving:
            self._drop_all()
        self._rebalancing.in_seconds(0)  # it may also have been dropped for that reason

    def _give_back(self) -> None:
        # A consume service may also have dropped them.
        dropped = [held for held in self._ownership.held if held.is_dropped]
        self._stop_reading(dropped)
        with self._connection() as connection:
            self._ownership.give_back(connection)

    def _rebalance(self) -> float:
        if self._is_leaving or self.is_suspended:
            return self._times.rebalance_interval.total_seconds()
        with self._connection() as connection:
            self._stop_reading(self._ownership.take_again(connection))
            share = self._shares.find(connection, self.topics)
            self._drop([held for held in self._ownership.active if held.queue_key not in share.queues])
            self._ownership.give_back(connection)
            self._take(connection, share)
        self._tell_assignment()
        is_balanced = share.is_complete and share.queues.keys() == {held.queue_key for held in self._ownership.active}
        return self._times.rebalance_interval.total_seconds() if is_balanced else UNBALANCED_SECONDS

    def _take(self, connection: Connection, share: Share) -> None:
        missing = share.queues.keys() - self._ownership.keys
        now = time.monotonic()
        self._wanted_since = {key: self._wanted_since.get(key, now) for key in missing}
        patience = self._times.hand_over_grace.total_seconds()
        overdue = {key for key, since in self._wanted_since.items() if now - since >= patience}
        # A queue has one listener at a time. A hanging listener keeps its queue only if the queue is consumed in order.
        missing -= self._ownership.unsettled - (overdue if self._times.renew_interval is None else set())
        starts = {key: self._shares.starting_point(share.queues[key], share) for key in missing | overdue}
        for start in set(starts.values()):
            for keys, force in ((missing - overdue, False), (overdue, True)):
                wanted = {key: share.queues[key] for key in sorted(keys) if starts[key] == start}
                gained = self._ownership.take(connection, wanted, start, force=force)
                for held in gained:
                    del self._wanted_since[held.queue_key]
                self._start_reading(gained)

    def _commit(self) -> float:
        with self._connection() as connection:
            lost = self._ownership.commit(connection)
        if lost:
            self._stop_reading(lost)
            self._rebalancing.in_seconds(0)
        return self._times.persist_interval.total_seconds()

    def _renew(self) -> float | None:
        if self._times.renew_interval is None:
            return None
        with self._connection() as connection:
            lost = self._ownership.renew(connection)
        if lost:
            self._stop_reading(lost)
            self._rebalancing.in_seconds(0)
        return self._times.renew_interval.total_seconds()

    def _reap(self) -> float:
        if not self._is_attended():
            with self._connect() as connection:
                membership.reap(connection)
        return REAP_SECONDS

    # -- consequences ---------------------------------------------------------------------------

    def _drop(self, queues: Collection[ProcessQueue]) -> None:
        for held in queues:
            held.drop()
        self._stop_reading(queues)

    def _start_reading(self, queues: Collection[ProcessQueue]) -> None:
        if not queues:
            return
        self._ownership.share_limits()
        for held in queues:
            held.owner = self
            self._strategy.on_gain(held)
            self._pull.add(held)
        self._note_assignment()

    def _stop_reading(self, queues: Collection[ProcessQueue]) -> None:
        if not queues:
            return
        for held in queues:
            self._strategy.on_loss(held)
            self._pull.remove(held)
        self._ownership.share_limits()
        self._note_assignment()

    def _note_assignment(self) -> None:
        queues_read = (held.queue for held in self._ownership.active if held.queue.topic != self._retry_topic)
        self._assignment = tuple(sorted(queues_read))

    def _tell_assignment(self) -> None:
        """Report the assignment, only after a rebalance: most queues that are lost in an outage are retaken."""
        if self._assignment != self._told_assignment:
            self._told_assignment = self._assignment
            queues = ", ".join(map(str, self._assignment)) or "none"
            logger.info("queues assigned", extra={"group": self._group, "queues": queues})
