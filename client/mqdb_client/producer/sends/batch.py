"""Batches: messages that are stored together or not at all; lists too large for one batch are split.

RocketMQ: MessageBatch, and the list splitter of its examples.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from mqdb.broker.log.send import record
from mqdb.common.delivery_schedule import schedule_of
from mqdb.common.message import MAX_BODY_BYTES, Message, check_message
from mqdb.common.topic import RETRY_PREFIX
from mqdb.errors import BatchTooLarge, NotSupported, ParameterInvalid
from mqdb.store.log.commit_log import Record
from mqdb_client.producer.append.append_plan import size_of

#: The limit for all bodies and properties of a batch together. Source: DefaultMQProducer.maxMessageSize.
MAX_BATCH_BYTES: Final = 4 * 1024 * 1024


class MessageBatch(tuple[Message, ...]):
    """Messages that are sent as a batch. Even a batch of one message is never compressed, unlike other sends."""

    __slots__ = ()


def check_batch(messages: Sequence[Message], max_body_bytes: int = MAX_BODY_BYTES) -> None:
    """Raise an error unless these messages can form a batch; `check_batch_size` checks their total size.

    Raises the errors of `check_message` for each message; ParameterInvalid for messages of several topics, and for an
    empty batch; NotSupported for a retry topic, and for messages to be delivered later.
    Source: MessageBatch.generateFromList, which checks only the delay level.
    """
    if not messages:
        raise ParameterInvalid("messages", messages, "a batch needs at least one message")
    for message in messages:
        check_message(message, max_body_bytes)
        check_unscheduled(message)
    topic = messages[0].topic
    if stranger := next((message.topic for message in messages if message.topic != topic), None):
        raise ParameterInvalid("messages", stranger, f"all messages of a batch go to one topic, here {topic!r}")
    if topic.startswith(RETRY_PREFIX):
        raise NotSupported("a batch to a retry topic")


def check_unscheduled(message: Message) -> None:
    """Raise NotSupported if a message in a batch is to be delivered later."""
    if schedule_of(message.system_properties) is not None:
        raise NotSupported("a batch with a delay or a time of delivery")


def check_batch_size(records: Sequence[Record], max_bytes: int = MAX_BATCH_BYTES) -> None:
    """Raise BatchTooLarge if a batch exceeds the limit.

    For a batch of one message, only the body is limited, as for a send.
    """
    if len(records) > 1:
        size = size_of(records)
        if size > max_bytes:
            raise BatchTooLarge(len(records), size, max_bytes)


def message_size(message: Message) -> int:
    """The record size of a message that passed `check_message`. The size does not depend on the unique id and queue."""
    return size_of([record(message, 0, _ANY_ID, _ANY_TIME, "")])


_ANY_ID: Final = UUID(int=0)
_ANY_TIME: Final = datetime(2000, 1, 1, tzinfo=UTC)


def list_of_messages(messages: Iterable[Message]) -> list[Message]:
    """The messages of a batch. Raises ParameterInvalid for a single message, and for a value that is not iterable."""
    if isinstance(messages, Message):
        raise ParameterInvalid("messages", messages, "is one message; give a list, or call send")
    if not isinstance(messages, Iterable):
        raise ParameterInvalid("messages", messages, f"is {type(messages).__name__}, not a list of messages")
    return list(messages)


def split_batches(
    messages: Iterable[Message], max_bytes: int = MAX_BATCH_BYTES, max_messages: int | None = None
) -> Iterator[list[Message]]:
    """Split messages of one topic into batches for `send_batch`, each as large as possible, in the given order.

        for batch in split_batches(messages):
            producer.send_batch(batch)

    A message that exceeds the limit only with its properties becomes a separate batch. An empty list gives no
    batches. All messages are checked before the first batch is returned, so a list with an invalid message is not sent
    in part: raises the errors of `check_batch`, with `max_bytes` as the limit of a body too; ParameterInvalid for
    limits below 1.
    """
    _check_limit("max_bytes", max_bytes)
    if max_messages is not None:
        _check_limit("max_messages", max_messages)
    given = list_of_messages(messages)
    if given:
        check_batch(given, max_bytes)
    return _split(given, max_bytes, max_messages)


def _check_limit(name: str, value: object) -> None:
    if not isinstance(value, int) or value < 1:
        raise ParameterInvalid(name, value, "must be 1 or more")


def _split(messages: Sequence[Message], max_bytes: int, max_messages: int | None) -> Iterator[list[Message]]:
    batch: list[Message] = []
    size = 0
    for message in messages:
        size_of_it = message_size(message)
        if batch and (size + size_of_it > max_bytes or len(batch) == max_messages):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += size_of_it
    if batch:
        yield batch
