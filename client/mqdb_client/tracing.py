"""OpenTelemetry traces of producers and consumers. Needs `mqdb[otel]`.

    MqdbInstrumentor().instrument()

covers all existing and future producers and consumers of the process; so does `opentelemetry-instrument`.
docs/tracing.md lists the spans.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import mqdb
from mqdb.broker.consumers.send_back import SentBack
from mqdb.common.compression import COMPRESSED_FLAG
from mqdb.common.message import Message, SendStatus, check_message
from mqdb.common.property import Property
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.user_error import describe
from mqdb.errors import ExtraMissing, MqdbError
from mqdb_client import process_hooks
from mqdb_client.consumer.listeners.consume_hooks import ConsumeMessageContext, ConsumeReturnType
from mqdb_client.process_hooks import ClientOperation, OperationContext
from mqdb_client.producer.sends.send_hooks import SendMessageContext

try:
    from opentelemetry.context import Context, attach, detach, get_current
    from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]
    from opentelemetry.propagate import get_global_textmap
    from opentelemetry.propagators.textmap import Setter
    from opentelemetry.trace import (
        Link,
        Span,
        SpanKind,
        Status,
        StatusCode,
        Tracer,
        TracerProvider,
        get_current_span,
        get_tracer,
        set_span_in_context,
    )
except ImportError as missing:
    raise ExtraMissing("opentelemetry-instrumentation", "otel") from missing

__all__ = ["MqdbInstrumentor"]

#: The semantic conventions for the names of spans and attributes. Those for messaging are not stable yet.
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"

#: The key in the attributes of a hook context.
_SPAN: Final = "mqdb.tracing.span"
_PARENT: Final = "mqdb.tracing.parent"
_TOKEN: Final = "mqdb.tracing.token"
_BEGUN: Final = "mqdb.tracing.begun"

#: This many characters always fit into the properties of a message.
_SURELY_FITTING: Final = 4_096

_Attributes = dict[str, Any]


class MqdbInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # untyped
    """Switches the traces of this process on and off. While traces are off, clients have no tracing hook."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return no packages, because mqdb itself is the traced package."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        """Switch tracing on, with `tracer_provider` or the global provider."""
        provider: TracerProvider | None = kwargs.get("tracer_provider")
        self._tracing = Tracing(get_tracer("mqdb_client", mqdb.__version__, provider, SCHEMA_URL))
        process_hooks.register(self._tracing)

    def _uninstrument(self, **kwargs: Any) -> None:
        process_hooks.unregister(self._tracing)


class Tracing:
    """The hook that makes the spans. Thread-safe."""

    hook_name = "tracing"

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    # -- sends ----------------------------------------------------------------------------------

    def send_message_before(self, context: SendMessageContext) -> None:
        """Start a span for the attempt.

        The context of this span goes into each message that does not carry a context of the user.

        The parent is the current span of the thread that calls `send`. A retry may run in another thread.
        """
        topic, messages = context.queue.topic, context.messages
        parent: Context = context.attributes.setdefault(_PARENT, get_current())
        users = [_context_in(message.properties) if message.properties else None for message in messages]
        attributes = _attributes("send", "send", topic, context.client_id, context.broker_name)
        kind = SpanKind.PRODUCER if None in users else SpanKind.CLIENT
        span = self._tracer.start_span(f"send {topic}", parent, kind, attributes, _links(users))
        context.attributes[_SPAN] = span
        if span.is_recording():
            span.set_attributes(_sent(context))
        carrier: dict[str, str] = {}
        get_global_textmap().inject(carrier, set_span_in_context(span, parent), _SETTER)
        for message, users_own, extra in zip(messages, users, context.extra_properties, strict=True):
            if users_own is None and _fits(message, carrier):
                extra.update(carrier)

    def send_message_after(self, context: SendMessageContext) -> None:
        """End the span of the attempt."""
        span: Span = context.attributes.pop(_SPAN)
        result = context.result
        if result is not None and result.status is not SendStatus.SEND_OK:
            span.set_attribute("messaging.mqdb.send.status", result.status.value)
        _end(span, context.error)

    # -- calls of a listener --------------------------------------------------------------------

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        """Start a span for the call, and make it the current span during the call."""
        topic, messages = context.topic, context.messages
        attributes = _attributes("process", "process", topic, context.client_id, context.queue.broker_name)
        attributes["messaging.consumer.group.name"] = context.group
        attributes["messaging.destination.partition.id"] = str(context.queue.queue_id)
        self._start_current(f"process {topic}", attributes, messages, context.attributes)

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        """End the span of the call."""
        status, return_type = context.status, context.return_type
        failed = "" if return_type in (None, ConsumeReturnType.SUCCESS) else str(return_type)
        if return_type is ConsumeReturnType.FAILED and isinstance(status, StrEnum):
            failed = status.value  # other values are anything that a listener may return
        _end_current(context.attributes, context.error, failed)

    # -- other operations of a client ------------------------------------------------------------

    def operation_before(self, context: OperationContext) -> None:
        """Start a span, except for operations whose messages or outcome are known only afterwards."""
        operation = context.operation
        if operation in _KNOWN_AFTERWARDS:
            context.attributes[_BEGUN] = time.time_ns()
        elif operation is ClientOperation.CHECK_TRANSACTION:
            self._start_current(_name(context), _operation_attributes(context), context.messages, context.attributes)
        else:
            parent, links = _origins(context.messages) if context.messages else (get_current(), [])
            attributes = _operation_attributes(context) | _received(context.messages)
            span = self._tracer.start_span(_name(context), parent, SpanKind.CLIENT, attributes, links)
            context.attributes[_SPAN] = span

    def operation_after(self, context: OperationContext) -> None:
        """End the span of the operation. A poll without messages has no span."""
        kept, operation = context.attributes, context.operation
        if operation is ClientOperation.RECEIVE and not context.messages:
            return
        if operation in _KNOWN_AFTERWARDS:
            attributes = _operation_attributes(context) | _received(context.messages)
            links = _origins(context.messages)[1]
            kept[_SPAN] = self._tracer.start_span(
                _name(context), None, SpanKind.CLIENT, attributes, links, kept[_BEGUN]
            )
        kept[_SPAN].set_attributes(_outcome(context.outcome))
        if operation is ClientOperation.CHECK_TRANSACTION:
            _end_current(kept, context.error)
        else:
            _end(kept[_SPAN], context.error)

    def _start_current(
        self, name: str, attributes: _Attributes, messages: Sequence[ReceivedMessage], kept: dict[str, Any]
    ) -> None:
        parent, links = _origins(messages)
        kept[_SPAN] = span = self._tracer.start_span(name, parent, SpanKind.CONSUMER, attributes, links)
        if span.is_recording():
            span.set_attributes(_received(messages))
        kept[_TOKEN] = attach(set_span_in_context(span, parent))


# -- spans ----------------------------------------------------------------------------------------


def _end(span: Span, error: BaseException | None, failed: str = "") -> None:
    message = None
    if error is not None:
        failed, message, traceback, _ = describe(error)
        # As `record_exception` names them, which fails for an error that cannot be shown.
        exception = {"type": failed, "message": message, "stacktrace": traceback}
        span.add_event("exception", {f"exception.{name}": text for name, text in exception.items()})
    if failed:
        span.set_attribute("error.type", failed)
        span.set_status(Status(StatusCode.ERROR, message))
    span.end()


def _end_current(kept: dict[str, Any], error: BaseException | None, failed: str = "") -> None:
    detach(kept[_TOKEN])
    _end(kept[_SPAN], error, failed)


def _origins(messages: Sequence[ReceivedMessage]) -> tuple[Context, list[Link]]:
    """The context in which a single message was sent, as the parent, and links to the contexts of all messages."""
    found = [_context_in(_properties_of(message)) for message in messages]
    parent = found[0] if len(found) == 1 else None
    return Context() if parent is None else parent, _links(found)


def _links(contexts: Iterable[Context | None]) -> list[Link]:
    """One link for each distinct span; the messages of a batch share a span."""
    spans = [get_current_span(context).get_span_context() for context in contexts if context is not None]
    return [Link(span) for span in {span.span_id: span for span in spans}.values()]


# -- contexts in messages -------------------------------------------------------------------------


class _PropertySetter(Setter[dict[str, str]]):
    """Leaves out blank values, which properties must not have."""

    def set(self, carrier: dict[str, str], key: str, value: str) -> None:
        if value.strip():
            carrier[key] = value


_SETTER: Final = _PropertySetter()


def _context_in(properties: Mapping[str, str]) -> Context | None:
    """The span context in these properties."""
    propagator = get_global_textmap()
    if propagator.fields.isdisjoint(properties):
        return None
    context = propagator.extract(properties, Context())
    return context if get_current_span(context).get_span_context().is_valid else None


def _properties_of(message: ReceivedMessage) -> Mapping[str, str]:
    try:
        return message.properties
    except MqdbError:  # broken properties, for which the listener gets the error itself
        return {}


def _fits(message: Message, carrier: Mapping[str, str]) -> bool:
    """Whether a message can be sent with these additional properties: a trace must not make a send fail."""
    words: list[str] = [message.tag or "", *message.keys]
    for properties in (message.properties, message.system_properties, carrier):
        words += [*properties, *properties.values()]
    if sum(map(len, words)) < _SURELY_FITTING:
        return True
    try:
        check_message(message.with_properties(carrier), len(message.body))
    except MqdbError:
        return False
    return True


# -- attributes -----------------------------------------------------------------------------------


def _attributes(name: str, kind: str, topic: str, client_id: str, broker_name: str) -> _Attributes:
    attributes = {"messaging.system": "mqdb", "messaging.operation.name": name, "messaging.client.id": client_id}
    optional = {
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
        "messaging.mqdb.broker.name": broker_name,
    }
    return attributes | {attribute: value for attribute, value in optional.items() if value}


#: Operations whose messages, or whose types, are known only at the end.
_KNOWN_AFTERWARDS: Final = (ClientOperation.RECEIVE, ClientOperation.RECALL)

#: The type of each operation, in the words of the conventions; a recall has none.
_TYPES: Final = {
    ClientOperation.RECEIVE: "receive",
    ClientOperation.SEND_BACK: "settle",
    ClientOperation.CHECK_TRANSACTION: "process",
    ClientOperation.END_TRANSACTION: "settle",
    ClientOperation.RECALL: "",
}


def _name(context: OperationContext) -> str:
    """The name of the span, without the topic if the messages have several topics."""
    return f"{context.operation.value} {context.topic}".rstrip()


def _operation_attributes(context: OperationContext) -> _Attributes:
    operation = context.operation
    attributes = _attributes(operation.value, _TYPES[operation], context.topic, context.client_id, context.broker_name)
    is_consumer = operation in (ClientOperation.RECEIVE, ClientOperation.SEND_BACK)
    attributes["messaging.consumer.group.name" if is_consumer else "messaging.mqdb.producer.group"] = context.group
    if len(context.message_ids) == 1:
        attributes["messaging.message.id"] = context.message_ids[0]
    return attributes


def _sent(context: SendMessageContext) -> _Attributes:
    attributes: _Attributes = {
        "messaging.mqdb.producer.group": context.producer_group,
        "messaging.destination.partition.id": str(context.queue.queue_id),
    }
    if len(context.messages) > 1:
        return attributes | {"messaging.batch.message_count": len(context.messages)}
    message, waits = context.message, context.message.system_properties
    attributes["messaging.message.id"] = context.message_ids[0]
    attributes["messaging.message.body.size"] = len(message.body)
    if Property.DELAY in waits:
        attributes["messaging.mqdb.message.delay_time_level"] = int(waits[Property.DELAY])
    if Property.TIMER_DELIVER_MS in waits:
        attributes["messaging.mqdb.message.delivery_timestamp"] = int(waits[Property.TIMER_DELIVER_MS])
    return attributes | _words(message.tag, message.keys)


def _received(messages: Sequence[ReceivedMessage]) -> _Attributes:
    if not messages:
        return {}
    if len(messages) > 1:
        return {"messaging.batch.message_count": len(messages)}
    [message] = messages
    attributes: _Attributes = {"messaging.message.id": message.message_id}
    if not message.sys_flag & COMPRESSED_FLAG:
        attributes["messaging.message.body.size"] = len(message.stored_body)
    if message.reconsume_times:
        attributes["messaging.mqdb.message.reconsume_times"] = message.reconsume_times
    return attributes | _words(message.tag, message.keys)


def _words(tag: str | None, keys: tuple[str, ...]) -> _Attributes:
    attributes: _Attributes = {} if tag is None else {"messaging.mqdb.message.tag": tag}
    return attributes | {"messaging.mqdb.message.keys": keys} if keys else attributes


def _outcome(outcome: object) -> _Attributes:
    """The outcome as attributes: the number of dead letters, or the state or status of the operation."""
    if isinstance(outcome, list):
        dead = sum(isinstance(each, SentBack) and each.is_dead for each in outcome)
        return {"messaging.mqdb.dead_letter.count": dead}
    return {} if outcome is None else {"messaging.mqdb.outcome": str(outcome)}
