"""Queue reader: how a consumer reads queues of one broker, with a thread that takes them and one that pulls from them.

    group changes ──▶ rebalance thread ──▶ queues ──▶ pull thread ──▶ deliver
                                                          ▲
                                             arrivals ────┘

What becomes of the messages is the affair of those that are readers: the member of a group, whose listener gets them,
and the lite pull member, whose polls do.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from datetime import timedelta

from mqdb.errors import BrokerUnavailable
from mqdb.selector.subscription import MessageFilter
from mqdb_client.consumer.process_queue import ProcessQueue
from mqdb_client.consumer.pull_service import PullService
from mqdb_client.consumer.queue_ownership import QueueOwnership
from mqdb_client.consumer.rebalance_service import RebalanceService, RebalanceTimes
from mqdb_client.consumer.share import Shares
from mqdb_client.instance import ClientInstance


class QueueReader:
    """Started once, then left once."""

    def __init__(
        self,
        group: str,
        instance: ClientInstance,
        filters: Mapping[str, MessageFilter],
        *,
        shares: Shares,
        ownership: QueueOwnership,
        times: RebalanceTimes,
        pull_batch_size: int,
        pull_interval: timedelta = timedelta(0),
        deliver: Callable[[ProcessQueue, int], None],
        on_left: Callable[[], None],
    ) -> None:
        """`filters` are those of the topics that are read.

        `deliver` gets a process queue and how many messages were put into it; `on_left` is called when all queues are
        given back.
        """
        self._group = group
        self._instance = instance
        self.rebalance = RebalanceService(
            group,
            connect=instance.connect,
            topics=filters.keys(),
            shares=shares,
            ownership=ownership,
            times=times,
            on_gain=self._on_gain,
            on_loss=self._on_loss,
            on_left=on_left,
        )
        self.pull = PullService(
            group,
            connect=instance.connect,
            subscriptions=filters,
            batch_size=pull_batch_size,
            interval=pull_interval,
            deliver=deliver,
            correct=self.rebalance.correct,
        )

    def start(self, *, may_be_down: bool) -> None:
        """Take queues and pull them. Raises what keeps it from that, and has left nothing behind then.

        With `may_be_down` a broker that cannot be reached is waited for by the threads.
        """
        with ExitStack() as undo:
            self._callbacks = (
                self._instance.on_arrival(self.pull.on_arrival),
                self._instance.on_group_change(self._on_group_change),
            )
            undo.callback(self._cancel_callbacks)
            self._balance(may_be_down)
            self.rebalance.start()
            undo.callback(self.rebalance.leave)
            undo.callback(self.rebalance.begin_to_leave)
            self.pull.start()
            undo.pop_all()

    def read(self, filters: Mapping[str, MessageFilter]) -> None:
        """Read these topics from now on, and no others."""
        self.pull.subscriptions = filters
        self.rebalance.topics = filters.keys()
        self.rebalance.rebalance()

    def begin_to_leave(self) -> None:
        """Start nothing more, and give each queue back when its messages in hand are settled."""
        self._cancel_callbacks()
        self.rebalance.begin_to_leave()

    def leave(self, seconds: float | None = None) -> None:
        """Return when all queues are given back, or after `seconds`."""
        self.rebalance.leave(seconds)
        self.pull.stop()

    def on_progress(self, process_queue: ProcessQueue) -> None:
        """A process queue has room again, or has settled."""
        if process_queue.is_dropped:
            self.rebalance.give_back()
        else:
            self.pull.on_room()

    def _on_gain(self, process_queue: ProcessQueue) -> None:
        self.pull.add(process_queue)

    def _on_loss(self, process_queue: ProcessQueue) -> None:
        self.pull.remove(process_queue)

    def _balance(self, may_be_down: bool) -> None:
        if not may_be_down:
            self.rebalance.balance()
        elif self._instance.is_met:
            with suppress(BrokerUnavailable):
                self.rebalance.balance()

    def _cancel_callbacks(self) -> None:
        for callback in self._callbacks:
            callback.cancel()

    def _on_group_change(self, group: str | None) -> None:
        if group in (None, self._group):
            self.rebalance.rebalance()
