"""Metrics of producers and consumers, for the Prometheus registry of your own process. Needs `mqdb[metrics]`.

    hook = MetricsHook()
    producer.register_send_message_hook(hook)
    consumer.register_consume_message_hook(hook)

One hook can serve all producers and consumers of a process. docs/metrics.md lists its metrics.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from mqdb.errors import ExtraMissing, ParameterInvalid
from mqdb_client.broker_metrics import BrokerMetrics
from mqdb_client.consumer.listeners.consume_hooks import ConsumeMessageContext
from mqdb_client.producer.sends.send_hooks import SendMessageContext

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Histogram

__all__ = ["MetricsHook"]

#: Bucket bounds in seconds: OpenTelemetry's for messaging, and two smaller ones for a nearby database.
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

_BEGUN: Final = "mqdb.metrics.begun"

_Child = TypeVar("_Child")


class MetricsHook:
    """Measures each attempt to send, and each call of a listener. Thread-safe.

    The hook also measures outages of all brokers that the process uses, even if it is not registered with their
    clients.
    """

    hook_name = "metrics"

    def __init__(self, registry: "CollectorRegistry | None" = None) -> None:
        """The default `registry` is prometheus-client's own.

        Raises ExtraMissing without `mqdb[metrics]`, and ParameterInvalid for a registry that already has these metrics.
        """
        try:
            from prometheus_client import REGISTRY, Counter, Histogram
        except ImportError as error:
            raise ExtraMissing("prometheus-client", "metrics") from error
        to = REGISTRY if registry is None else registry

        def histogram(name: str, words: str, *labels: str) -> "_Children[Histogram]":
            return _Children(Histogram(name, words, labels, registry=to, buckets=BUCKETS).labels)

        def counter(name: str, words: str, *labels: str) -> "_Children[Counter]":
            return _Children(Counter(name, words, labels, registry=to).labels)

        sent, consumed = ("topic", "result"), ("consumer_group", "topic", "result")
        try:
            self._send = histogram("mqdb_client_send_seconds", "Durations of attempts to send.", *sent)
            self._sent = counter("mqdb_client_sent_messages", "Messages that attempts to send were for.", *sent)
            self._process = histogram("mqdb_client_process_seconds", "Durations of calls of the listener.", *consumed)
            self._consumed = counter("mqdb_client_consumed_messages", "Messages given to the listener.", *consumed)
            words = "From the storing of a message to the call of the listener."
            self._delivery = histogram("mqdb_client_delivery_seconds", words, "consumer_group", "topic")
            self._brokers = BrokerMetrics(to)
        except ValueError as error:
            reason = "has these metrics already; use one MetricsHook for all producers and consumers"
            raise ParameterInvalid("registry", to, reason) from error

    # -- of a producer ------------------------------------------------------------------------

    def send_message_before(self, context: SendMessageContext) -> None:
        """Note the time at which an attempt begins."""
        context.attributes[_BEGUN] = time.perf_counter()

    def send_message_after(self, context: SendMessageContext) -> None:
        """Count the sent messages, and observe how long the attempt took."""
        labels = context.queue.topic, _result(context)
        self._send.of(labels).observe(time.perf_counter() - context.attributes[_BEGUN])
        self._sent.of(labels).inc(len(context.messages))

    # -- of a consumer ------------------------------------------------------------------------

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        """Called before the listener."""
        delivery = self._delivery.of((context.group, context.queue.topic))
        now = datetime.now(UTC)
        for message in context.messages:
            # The database's clock may be ahead of ours.
            delivery.observe(max((now - message.store_time).total_seconds(), 0.0))
        context.attributes[_BEGUN] = time.perf_counter()

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        """Count the consumed messages, and observe how long the call of the listener took."""
        result = "" if context.return_type is None else context.return_type.value
        labels = context.group, context.queue.topic, result
        self._process.of(labels).observe(time.perf_counter() - context.attributes[_BEGUN])
        self._consumed.of(labels).inc(len(context.messages))


class _Children(Generic[_Child]):
    """A cache of a metric's children by labels, because a lookup in the metric costs more than observing a value."""

    def __init__(self, make: Callable[..., _Child]) -> None:
        self._make = make
        self._children: dict[tuple[str, ...], _Child] = {}

    def of(self, labels: tuple[str, ...]) -> _Child:
        """The child with these labels, the same object each time."""
        child = self._children.get(labels)
        if child is None:
            child = self._children[labels] = self._make(*labels)
        return child


def _result(context: SendMessageContext) -> str:
    """The outcome of an attempt: the status of its result, the class of its error, or ONEWAY.

    The number of possible outcomes is bounded.
    """
    if context.error is not None:
        return type(context.error).__name__
    return context.mode.value if context.result is None else context.result.status.value
