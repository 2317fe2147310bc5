"""Receiving: pops from all brokers, with waits in between."""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import Final

import mqdb
from mqdb.broker.consumers.pop import change_invisible
from mqdb.common.group import ConsumeMode
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import retry_topic
from mqdb.errors import BrokerUnavailable, IllegalState, MqdbError, ParameterInvalid
from mqdb.selector.subscription import MessageFilter, stored_form
from mqdb.store.clients.clients import ClientKind, Registration
from mqdb.store.filters.retry_filter import retry_filter
from mqdb_client.cluster import Cluster
from mqdb_client.consumer.queues.broker_pops import LONGEST_WAIT_SECONDS, BrokerPops
from mqdb_client.consumer.queues.share import TopicPresence, starting_point
from mqdb_client.simple.simple_config import SimpleConsumerConfig

#: The pause while no broker answers.
_BETWEEN_TRIES_SECONDS: Final = 1.0


class PopReceiver:
    """A member of a popping group, from start to shutdown. Thread-safe."""

    def __init__(self, cluster: Cluster, config: SimpleConsumerConfig, filters: Mapping[str, MessageFilter]) -> None:
        """Join the group. If this raises, the cluster is released."""
        self.cluster = cluster
        self._wakers: set[Callable[[], None]] = set()
        self.is_left = False
        with ExitStack() as undo:
            undo.callback(cluster.release)
            self._enter(config, filters, undo)
            self._undo = undo.pop_all()

    def _enter(self, config: SimpleConsumerConfig, filters: Mapping[str, MessageFilter], undo: ExitStack) -> None:
        cluster = self.cluster
        self._group = config.group
        start = starting_point(config.consume_from_where, config.consume_timestamp)
        read = {**filters, retry_topic(config.group): retry_filter(filters)}
        presence = TopicPresence(config.group, len(cluster.instances))
        self._pops = {
            each.broker_name: BrokerPops(each, config.group, read, start, presence) for each in cluster.instances
        }
        cluster.register(
            Registration(
                client_id=cluster.instances[0].client_id,
                kind=ClientKind.CONSUMER,
                group=config.group,
                version=mqdb.__version__,
                subscriptions=stored_form(filters),
                subscription_version=config.subscription_version,
                consume_mode=ConsumeMode.POP,
            )
        )
        for pops in self._pops.values():
            undo.callback(pops.instance.on_arrival(partial(self._on_arrival, pops)).cancel)
        for pops in self._pops.values():
            if pops.instance.is_met:
                pops.begin()

    def pops_of(self, broker_name: str) -> BrokerPops:
        """The pops of a broker. Raises ParameterInvalid for a broker that is not in the settings."""
        pops = self._pops.get(broker_name)
        if pops is None:
            raise ParameterInvalid("broker_name", broker_name, f"must be one of {', '.join(self._pops)}")
        return pops

    def pop(self, limit: int, invisible: timedelta) -> tuple[list[ReceivedMessage], float]:
        """Pop up to `limit` messages from all brokers; returns them, and the longest wait for more in seconds.

        If an error occurs after some messages were popped, these messages are returned. Otherwise the error is raised,
        such as BrokerUnavailable if no broker answers.
        """
        messages: list[ReceivedMessage] = []
        seconds_to_next = LONGEST_WAIT_SECONDS
        troubles: list[BrokerUnavailable] = []
        # In random order, so that a broker with a backlog does not starve the others.
        for pops in random.sample(list(self._pops.values()), len(self._pops)):
            if len(messages) == limit:
                break
            try:
                popped = pops.pop(limit - len(messages), invisible)
            except BrokerUnavailable as trouble:
                troubles.append(trouble)
                continue
            except MqdbError:
                if not messages:
                    raise
                break
            messages += popped.messages
            if popped.seconds_to_next is not None:
                seconds_to_next = min(seconds_to_next, popped.seconds_to_next)
        if len(troubles) == len(self._pops):
            raise troubles[0]
        return messages, seconds_to_next

    def give_back(self, messages: Iterable[ReceivedMessage]) -> None:
        """Make messages that were not returned to the user visible again immediately."""
        for broker_name, of_broker in groupby(messages, lambda message: message.queue.broker_name):
            with self.pops_of(broker_name).instance.connect() as connection:
                handles = [str(message.receipt_handle) for message in of_broker]
                change_invisible(connection, self._group, handles, timedelta(0), is_unread=True)

    @contextmanager
    def woken_by(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call `wake` when there may be messages, and when the member has left. `wake` must be quick."""
        self._wakers.add(wake)
        try:
            yield
        finally:
            self._wakers.discard(wake)

    def _on_arrival(self, pops: BrokerPops, queue_keys: frozenset[int] | None) -> None:
        if pops.concerns(queue_keys):
            self._wake()

    def _wake(self) -> None:
        for wake in list(self._wakers):
            wake()

    def leave(self) -> None:
        """Leave the group."""
        self.is_left = True
        self._wake()
        self._undo.close()


class Receiving:
    """A call of `receive`: it pops until there are messages, and waits in between."""

    def __init__(self, receiver: PopReceiver, limit: int, invisible: timedelta, seconds: float) -> None:
        """`seconds` is the maximum duration of the call."""
        self._receiver = receiver
        self._limit = limit
        self._invisible = invisible
        self._deadline = time.monotonic() + seconds
        #: The time until the next pop, unless woken before.
        self.seconds = 0.0
        self.woken_by = receiver.woken_by

    def pop(self) -> list[ReceivedMessage] | None:
        """The result of the call; None if the caller should wait.

        Raises BrokerUnavailable if no broker answers in time.
        """
        if self._receiver.is_left:
            return []
        messages: list[ReceivedMessage] = []
        seconds_to_next = _BETWEEN_TRIES_SECONDS
        trouble: MqdbError | None = None
        try:
            messages, seconds_to_next = self._receiver.pop(self._limit, self._invisible)
        except (BrokerUnavailable, IllegalState) as error:
            trouble = error
        left = self._deadline - time.monotonic()
        if messages or self._receiver.is_left:
            return messages
        if left > 0 and not isinstance(trouble, IllegalState):
            self.seconds = min(left, seconds_to_next)
            return None
        if trouble is not None:
            raise trouble
        return []

    def give_back(self, messages: Iterable[ReceivedMessage]) -> None:
        """Make messages that did not reach the caller visible again. Raises BrokerUnavailable and its subclasses."""
        self._receiver.give_back(messages)
