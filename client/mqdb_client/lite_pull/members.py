"""All that a lite pull consumer is while it runs: what it is to each broker, and the buffer that its polls read.

    broker-a ── lite pull member ──┐
                                   ├──▶ poll buffer ──▶ poll
    broker-b ── lite pull member ──┘

Subscribed, it enters the group, whose members share the queues. With queues that the user has chosen it does not: it
reads them beside whoever is in the group, and commits only where no member has the queue.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from typing import Any

import mqdb
from mqdb.broker.filters import check_filters
from mqdb.errors import BrokerUnavailable, MqdbError, NotSupported
from mqdb.message import MessageQueue, ReceivedMessage
from mqdb.selector.subscription import ExpressionType, MessageFilter, stored_form
from mqdb.store.clients import ClientKind, Registration
from mqdb_client.cluster import Cluster
from mqdb_client.consumer.direct_consumption import ConsumeMessageDirectlyResult
from mqdb_client.consumer.request_answers import RequestAnswers
from mqdb_client.consumer.share import Shares, TopicPresence, starting_point
from mqdb_client.instance import ClientInstance
from mqdb_client.lite_pull.assigned_queue import AssignedQueue
from mqdb_client.lite_pull.lite_pull_config import LitePullConsumerConfig
from mqdb_client.lite_pull.member import LitePullMember
from mqdb_client.lite_pull.offset_stores import PolledOffsetStore, UnownedOffsetStore
from mqdb_client.lite_pull.poll_buffer import Agreed, PollBuffer


class LitePullMembers:
    """Started once, then left once. The cluster is given back when it has left, or when the start has failed."""

    def __init__(
        self,
        cluster: Cluster,
        config: LitePullConsumerConfig,
        filters: Mapping[str, MessageFilter],
        chosen: frozenset[MessageQueue] | None,
    ) -> None:
        """`filters` are those of the topics that are read; `chosen` are the queues, None where it subscribes."""
        self.cluster = cluster
        self._config = config
        self._chosen = chosen
        self._filters = filters
        self._registration = Registration(
            client_id=cluster.instances[0].client_id,
            kind=ClientKind.CONSUMER,
            group=config.group,
            version=mqdb.__version__,
            subscriptions=stored_form(filters),
            subscription_version=config.subscription_version,
        )
        self._start = starting_point(config.consume_from_where, config.consume_timestamp)
        self.buffer = PollBuffer(
            config.group,
            auto_commit=config.auto_commit,
            threshold_for_all=config.pull_threshold_for_all,
            on_progress=self._on_progress,
            on_room=self._on_room,
        )
        presence = TopicPresence(config.group, len(cluster.instances))
        self._members = {
            instance.broker_name: self._member(instance, filters, presence) for instance in cluster.instances
        }
        self._answers = [RequestAnswers(instance, config.group, self) for instance in cluster.instances]
        self._undo = ExitStack()

    def _member(
        self, instance: ClientInstance, filters: Mapping[str, MessageFilter], presence: TopicPresence
    ) -> LitePullMember:
        config, group, client_id = self._config, self._config.group, instance.client_id
        is_member = self._chosen is None
        shares = Shares(
            group,
            client_id,
            instance.broker_name,
            self._start,
            presence=presence,
            strategy=config.allocate_message_queue_strategy if is_member else self._allocate,
            is_member=is_member,
        )
        store = PolledOffsetStore(group, client_id, self.buffer)
        if not is_member:
            store = UnownedOffsetStore(group, client_id, self.buffer, config.auto_commit)
        leave = partial(instance.unregister, group, ClientKind.CONSUMER)
        on_left = leave if is_member else _do_nothing
        return LitePullMember(instance, config, filters, shares, store, self.buffer, on_left)

    def _allocate(
        self, _group: str, _client_id: str, queues: Sequence[MessageQueue], _client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """As an allocation strategy: those of the queues that were chosen, whatever others read."""
        return sorted((self._chosen or frozenset()).intersection(queues))

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that are read, in order."""
        return tuple(sorted(queue for member in self._members.values() for queue in member.rebalance.assignment))

    def start(self) -> None:
        """Begin to read. Raises what keeps it from that, and has left nothing behind then."""
        with ExitStack() as undo:
            undo.callback(self.cluster.release)
            if self._chosen is None:
                self.cluster.register(self._registration)
                for answers in self._answers:
                    answers.start()
                    undo.callback(answers.stop)
            else:
                self._check(self._filters)
                self.buffer.choose(self._chosen)
                for instance in self.cluster.instances:
                    undo.enter_context(instance.awaiting_arrivals())
            starting = undo.enter_context(ExitStack())
            for member in self._members.values():
                member.start(may_be_down=not self.cluster.is_single)
                starting.callback(member.leave)
                starting.callback(member.begin_to_leave)
            starting.pop_all()
            self._undo = undo.pop_all()

    def leave(self) -> None:
        """Commit what is done, and leave the group. Polls return at once."""
        self.buffer.close()
        for member in self._members.values():
            member.begin_to_leave()
        for member in self._members.values():
            member.leave()
        self._undo.close()

    def subscribe_to(self, filters: Mapping[str, MessageFilter], version: int) -> None:
        """Read these topics from now on, and no others. Raises what `Cluster.change` raises."""
        before = self._registration
        changed = before._replace(
            subscriptions=stored_form(filters), subscription_version=max(version, before.subscription_version)
        )
        self.cluster.change(changed)
        self._registration = changed
        for member in self._members.values():
            member.read(filters)

    def choose(self, queues: frozenset[MessageQueue], filters: Mapping[str, MessageFilter]) -> None:
        """Read these queues from now on, and no others. Raises FilterDisabled."""
        self._check(filters)
        self._chosen = queues
        self.buffer.choose(queues)
        for member in self._members.values():
            member.read(filters)

    def _check(self, filters: Mapping[str, MessageFilter]) -> None:
        """What a broker checks of who enters a group. One that is down is not asked, unless it is the only one."""
        types = {each.expression_type for each in filters.values()}
        if types <= {ExpressionType.TAG}:
            return
        for instance in self.cluster.instances:
            if instance.is_met or self.cluster.is_single:
                try:
                    with instance.connect() as connection:
                        check_filters(connection, types)
                except BrokerUnavailable:
                    if self.cluster.is_single:
                        raise

    def seek(self, queue: MessageQueue, queue_key: int, offset: int) -> None:
        """Read a queue from an offset on. Raises IllegalState for one that is not assigned."""
        self.buffer.seek(queue, offset)
        self._members[queue.broker_name].pull.on_arrival([queue_key])

    def commit(self, agreed: Sequence[Agreed]) -> None:
        """Commit on all brokers, and return when it is done. Raises the first of the errors."""
        errors: list[MqdbError] = []
        by_broker = sorted(agreed, key=_broker_name)
        for broker_name, group in groupby(by_broker, key=_broker_name):
            try:
                self._members[broker_name].commit(list(group))
            except MqdbError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    # -- what people ask ------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """The queues that are held. There are no listeners."""
        queues = sorted(
            (held for member in self._members.values() for held in member.rebalance.held), key=lambda held: held.queue
        )
        return {
            "state": "running",
            "group": self._config.group,
            "auto_commit": self._config.auto_commit,
            "subscriptions": [each._asdict() for each in self._registration.subscriptions],
            "queues": [held.describe() for held in queues],
            "listeners": [],
        }

    def consume_directly(self, message: ReceivedMessage) -> ConsumeMessageDirectlyResult:
        """Raises NotSupported: nobody is called with messages here."""
        raise NotSupported("consuming a message directly in a lite pull consumer, which has no listener")

    def _on_progress(self, assigned: AssignedQueue) -> None:
        self._members[assigned.queue.broker_name].on_progress(assigned)

    def _on_room(self) -> None:
        for member in self._members.values():
            member.pull.on_room()


def _do_nothing() -> None:
    """It has not entered the group."""


def _broker_name(agreed: Agreed) -> str:
    return agreed.queue.broker_name
