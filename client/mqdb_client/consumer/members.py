"""The members that make up a consumer, one per broker. The consumer's strategy handles the messages.

    broker-a ── member ──┐
                         ├──▶ strategy ──▶ listener or polls
    broker-b ── member ──┘

Membership, queue ownership and offsets are rows in each broker's own database, so each member rebalances on its own
with the group's other members on the same broker. A broker that is down, or slow, does not affect the other brokers.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import mqdb
from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.selector.subscription import MessageFilter, stored_form
from mqdb.store.clients.clients import ClientKind, Registration
from mqdb_client.client_config import ConsumerConfig
from mqdb_client.consumer.consumer_strategy import ConsumerStrategy
from mqdb_client.consumer.listeners.direct_consumption import ConsumeMessageDirectlyResult
from mqdb_client.consumer.member import Member, MemberParts
from mqdb_client.consumer.queues.process_queue import ProcessQueue
from mqdb_client.consumer.queues.share import TopicPresence, starting_point
from mqdb_client.consumer.request_answers import RequestAnswers


class BrokerMember(Protocol):
    """A `Member`, a `PopMember`, or a `FollowingMember`, which contains one of these two depending on the group."""

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues being read, in order."""

    @property
    def held(self) -> Sequence[ProcessQueue]:
        """The queues of which the member has messages in hand."""

    def start(self, *, may_be_down: bool) -> None:
        """Start to consume. If this fails, nothing keeps running."""

    def read(self, filters: Mapping[str, MessageFilter]) -> None:
        """Read only these topics from now on."""

    def suspend(self) -> None:
        """Stop getting messages. Messages in hand are consumed."""

    def resume(self) -> None:
        """Get messages again after `suspend`."""

    def look_again(self) -> None:
        """Check again which queues to read, because the assignment may have changed."""

    def on_arrival(self, queue_keys: Sequence[int]) -> None:
        """Note that these queues have messages."""

    def begin_to_leave(self) -> None:
        """Start no further messages."""

    def leave(self, seconds: float | None = None) -> None:
        """Wait until the messages in hand are settled, or for `seconds`, then leave the group."""


class Members:
    """The members of one consumer. The members are started once and leave their group once.

    The cluster is released after leaving, or if the start fails.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        filters: Mapping[str, MessageFilter],
        strategy: ConsumerStrategy,
        make_member: Callable[[MemberParts[Any]], BrokerMember] = Member,
    ) -> None:
        """`filters` are the filters of the topics to read."""
        self._strategy = strategy
        self._filters = filters
        self._registration = Registration(
            client_id=strategy.cluster.instances[0].client_id,
            kind=ClientKind.CONSUMER,
            group=config.group,
            version=mqdb.__version__,
            message_model=strategy.message_model,
            subscriptions=stored_form(filters),
            subscription_version=config.subscription_version,
            consume_mode=strategy.consume_mode,
        )
        start = starting_point(config.consume_from_where, config.consume_timestamp)
        presence = TopicPresence(config.group, len(strategy.cluster.instances))
        topics = strategy.topics(filters)
        self.by_broker: dict[str, BrokerMember] = {
            instance.broker_name: make_member(MemberParts(instance, config, strategy, topics, start, presence))
            for instance in strategy.cluster.instances
        }
        askable = strategy.cluster.instances if strategy.is_member else ()
        self._answers = [RequestAnswers(instance, config.group, self) for instance in askable]

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues being read, in order."""
        return tuple(sorted(queue for member in self.by_broker.values() for queue in member.assignment))

    def start(self) -> None:
        """Join the group and consume. If this fails, nothing keeps running."""
        strategy = self._strategy
        with ExitStack() as undo:
            undo.callback(strategy.cluster.release)
            undo.callback(strategy.close, None)
            strategy.open()
            strategy.enter(self._registration, self._filters)
            for answers in self._answers:
                answers.start()
                undo.callback(answers.stop)
            for member in self.by_broker.values():
                member.start(may_be_down=not strategy.cluster.is_single)
                undo.callback(member.leave, None)
                undo.callback(member.begin_to_leave)
            # Not earlier: if the start fails, no listener has run.
            strategy.begin()
            undo.pop_all()

    def read(self, filters: Mapping[str, MessageFilter], version: int) -> None:
        """Read only these topics from now on. Raises the errors of the strategy's `topics` and `change`."""
        wanted = self._strategy.topics(filters)
        before = self._registration
        self._registration = before._replace(
            subscriptions=stored_form(filters), subscription_version=max(version, before.subscription_version)
        )
        try:
            self._strategy.change(self._registration)
        except BaseException:
            self._registration = before
            raise
        for member in self.by_broker.values():
            member.read(wanted)

    def suspend(self) -> None:
        """Stop pulling on all brokers, and keep the queues."""
        for member in self.by_broker.values():
            member.suspend()

    def resume(self) -> None:
        """Get messages again on all brokers after `suspend`."""
        for member in self.by_broker.values():
            member.resume()

    def leave(self, seconds: float | None = None) -> None:
        """Leave the group when all listeners have returned, or after `seconds`."""
        deadline = None if seconds is None else time.monotonic() + seconds
        self._strategy.begin_to_close()
        for answers in self._answers:
            answers.stop()
        for member in self.by_broker.values():
            member.begin_to_leave()
        for member in self.by_broker.values():
            member.leave(_seconds_left(deadline))
        self._strategy.close(_seconds_left(deadline))
        self._strategy.cluster.release()

    # -- requests by people ----------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Describe the held queues and the strategy."""
        held = sorted((held for member in self.by_broker.values() for held in member.held), key=lambda held: held.queue)
        return {
            "state": "running",
            "group": self._registration.group,
            **self._strategy.describe(),
            "subscriptions": [each._asdict() for each in self._registration.subscriptions],
            "queues": [process_queue.describe() for process_queue in held],
        }

    def consume_directly(self, message: ReceivedMessage) -> ConsumeMessageDirectlyResult:
        """Have the listener consume a message, without an effect on offsets and retries."""
        return self._strategy.consume_directly(message)


def _seconds_left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)
