"""Joined sending: what a producer does for a send that becomes a part of the caller's transaction.

`mqdb_client.joined_send` appends; here the records are made, and hooks and selectors get the queue that they want to
know beforehand.
"""

from collections.abc import Callable, Sequence

from mqdb.broker.send import record
from mqdb.clock import Clock
from mqdb.compression import compressed
from mqdb.errors import MqdbError
from mqdb.message import Message, MessageQueue, SendResult
from mqdb.unique_id import UniqueIdGenerator
from mqdb_client.joined_send import CallersConnection, JoinedSend
from mqdb_client.producer.config import ProducerConfig
from mqdb_client.producer.delivery import Target
from mqdb_client.producer_hooks import Hooks, SendMessageContext, SendMode
from mqdb_client.queue_chooser import QueueChooser
from mqdb_client.queue_selector import by_hash, selected


class JoinedSending:
    """The joined sends of a producer. Any thread may use it, each with a connection of its own."""

    def __init__(
        self,
        config: ProducerConfig,
        hooks: Hooks,
        unique_ids: UniqueIdGenerator,
        clock: Clock,
        born_host: str,
        find_queue_offset: Callable[[MessageQueue, int, int], int],
    ) -> None:
        self._config = config
        self._hooks = hooks
        self._unique_ids = unique_ids
        self._clock = clock
        self._born_host = born_host
        self._joined_send = JoinedSend(find_queue_offset)
        self._choosers: dict[str, QueueChooser] = {}

    def send(self, connection: CallersConnection, messages: Sequence[Message], target: Target) -> list[SendResult]:
        """One statement for all of them; where hooks want to know the queue, one for each topic.

        Raises what `JoinedSend.send` raises, what a selector raises, and what a CheckForbiddenHook raises.
        """
        if self._hooks.is_empty and target.selector is None:
            return self._append(connection, messages, target.sharding_key, target.queue)
        results: dict[int, SendResult] = {}
        for topic in dict.fromkeys(message.topic for message in messages):
            numbers = [number for number, message in enumerate(messages) if message.topic == topic]
            sent = self._send_with_hooks(connection, [messages[number] for number in numbers], target)
            results.update(zip(numbers, sent, strict=True))
        return [results[number] for number in range(len(messages))]

    def _send_with_hooks(
        self, connection: CallersConnection, messages: Sequence[Message], target: Target
    ) -> list[SendResult]:
        queue = self._queue(connection, messages[0], target)
        context = SendMessageContext(self._config.group, messages, (), queue, SendMode.SYNC, self._born_host)
        self._hooks.begin(context)
        try:
            sent = self._append(connection, messages, None, queue)
        except MqdbError as error:
            self._hooks.end(context, error=error)
            raise
        self._hooks.end(context, sent)
        return sent

    def _queue(self, connection: CallersConnection, message: Message, target: Target) -> MessageQueue:
        if target.queue is not None:
            return target.queue
        queues = self._joined_send.publish_queues(connection, message.topic)
        if target.selector is not None:
            return selected(target.selector, queues, message, target.argument)
        if target.sharding_key is not None:
            return queues[by_hash(target.sharding_key, len(queues))]
        return self._choosers.setdefault(message.topic, QueueChooser()).choose(queues)

    def _append(
        self,
        connection: CallersConnection,
        messages: Sequence[Message],
        sharding_key: str | None,
        queue: MessageQueue | None,
    ) -> list[SendResult]:
        born_time = self._clock.now()
        unique_ids = self._unique_ids.take(len(messages))
        # As everywhere, the messages of a batch are not compressed.
        compression = self._config.compression if len(messages) == 1 else None
        threshold = self._config.compress_message_body_threshold
        records = [
            record(message, 0, unique_id, born_time, self._born_host, *compressed(message.body, compression, threshold))
            for message, unique_id in zip(messages, unique_ids, strict=True)
        ]
        topics = [message.topic for message in messages]
        return self._joined_send.send(connection, records, topics, sharding_key, queue)
