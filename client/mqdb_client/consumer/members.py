"""The members that make up a consumer: one for each broker, and the listener's threads, which they share.

    broker-a ── member ──┐
                         ├──▶ consume_thread_nums threads ──▶ listener
    broker-b ── member ──┘

Membership, queue ownership and offsets are rows in each broker's own database, so each member rebalances for itself
with the group's other members there: a broker that is down, or slow, changes nothing on the others.
"""

import logging
import time
from contextlib import ExitStack

import mqdb
from mqdb.message import MessageQueue
from mqdb.selector.tags import TagExpression
from mqdb.store.clients import ClientKind, Registration
from mqdb_client.cluster import Cluster
from mqdb_client.consumer.config import PushConsumerConfig
from mqdb_client.consumer.consume_concurrently import ConsumeConcurrently
from mqdb_client.consumer.member import Member
from mqdb_client.consumer.message_listener import MessageListener
from mqdb_client.consumer.process_queue import ProcessQueue
from mqdb_client.consumer.share import TopicPresence

logger = logging.getLogger(__name__)


class Members:
    """Started once, then left once. The cluster is given back when it has left, or when the start has failed."""

    def __init__(
        self,
        cluster: Cluster,
        config: PushConsumerConfig,
        subscriptions: dict[str, TagExpression],
        listener: MessageListener,
    ) -> None:
        self._cluster = cluster
        self._registration = Registration(
            client_id=cluster.instances[0].client_id,
            kind=ClientKind.CONSUMER,
            group=config.group,
            version=mqdb.__version__,
            subscriptions=[(topic, expression.text) for topic, expression in subscriptions.items()],
        )
        self._consume = ConsumeConcurrently(
            config.group,
            listener,
            thread_nums=config.consume_thread_nums,
            batch_max_size=config.consume_message_batch_max_size,
            on_progress=self._on_progress,
        )
        presence = TopicPresence(config.group, len(cluster.instances))
        self._members = {
            instance.broker_name: Member(instance, config, subscriptions, presence, self._consume.submit)
            for instance in cluster.instances
        }

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that are read, in order."""
        return tuple(sorted(queue for member in self._members.values() for queue in member.rebalance.assignment))

    def is_listening_thread(self) -> bool:
        """Whether a listener is asking."""
        return self._consume.is_own_thread()

    def start(self) -> None:
        """Join the group and consume. Raises what keeps it from that, and has left nothing behind then."""
        with ExitStack() as undo:
            undo.callback(self._cluster.release)
            self._cluster.register(self._registration)
            for member in self._members.values():
                member.start(may_be_down=not self._cluster.is_single)
                undo.callback(member.leave, None)
                undo.callback(member.begin_to_leave)
            undo.pop_all()
        # Not earlier: where the start fails no listener has run.
        self._consume.start()

    def leave(self, seconds: float | None) -> None:
        """Leave the group when all running listeners have returned, or after `seconds`."""
        deadline = None if seconds is None else time.monotonic() + seconds
        for member in self._members.values():
            member.begin_to_leave()
        for member in self._members.values():
            member.leave(_seconds_until(deadline))
        running = self._consume.stop(_seconds_until(deadline))
        if running:
            logger.warning(
                "left while listeners are running", extra={"group": self._registration.group, "count": running}
            )
        self._cluster.release()

    def _on_progress(self, process_queue: ProcessQueue) -> None:
        self._members[process_queue.queue.broker_name].on_progress(process_queue)


def _seconds_until(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)
