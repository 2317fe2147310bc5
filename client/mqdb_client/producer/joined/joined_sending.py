"""Joined sending: the producer's part of a send that joins the caller's transaction.

This module makes the records, and finds the queues in advance for hooks and selectors; `joined_send.py` appends.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

from mqdb.broker.log.send import record
from mqdb.common.clock import Clock
from mqdb.common.compression import compressed
from mqdb.common.message import Message, MessageQueue, check_message
from mqdb.common.unique_id import UniqueIdGenerator, format_unique_id
from mqdb_client.producer.config import ProducerConfig
from mqdb_client.producer.joined.callers_connection import CallersConnection
from mqdb_client.producer.joined.joined_send import JoinedSend
from mqdb_client.producer.queues.queue_choice import QueueChooser, Target
from mqdb_client.producer.queues.queue_selector import by_hash, selected
from mqdb_client.producer.sends.batch import MessageBatch
from mqdb_client.producer.sends.send_hooks import Hooks, SendMessageContext, SendMode
from mqdb_client.producer.sends.send_result import SendResult

T = TypeVar("T")


class JoinedSending:
    """The joined sends of a producer. Thread-safe if each thread uses its own connection."""

    def __init__(
        self,
        config: ProducerConfig,
        hooks: Hooks,
        unique_ids: UniqueIdGenerator,
        clock: Clock,
        born_host: str,
        client_id: str,
        find_queue_offset: Callable[[MessageQueue, int, int, UUID], int],
    ) -> None:
        self._config = config
        self._hooks = hooks
        self._unique_ids = unique_ids
        self._clock = clock
        self._born_host = born_host
        self._client_id = client_id
        self._joined_send = JoinedSend(find_queue_offset)
        self._choosers: dict[str, QueueChooser] = {}

    def send(self, connection: CallersConnection, messages: Sequence[Message], target: Target) -> list[SendResult]:
        """Send all messages in one statement, or in two if a hook or a selector needs the queues.

        Hooks see one attempt per topic; all hooks are called before anything is appended. Raises the errors of
        `JoinedSend.send`, of a selector, of a CheckForbiddenHook, and of `check_message` for a message that a hook has
        changed. After an error, nothing is appended.
        """
        topics = [message.topic for message in messages]
        queues = self._queues(connection, messages, target)
        born_time = self._clock.now()
        unique_ids = self._unique_ids.take(len(messages), born_time)
        # Messages of a batch are never compressed.
        compression = None if isinstance(messages, MessageBatch) else self._config.compression
        threshold = self._config.compress_message_body_threshold_bytes

        def append(messages: Sequence[Message]) -> list[SendResult]:
            host = self._born_host
            records = [
                record(message, 0, unique_id, born_time, host, *compressed(message.body, compression, threshold))
                for message, unique_id in zip(messages, unique_ids, strict=True)
            ]
            return self._joined_send.send(connection, records, topics, target.sharding_key, queues)

        if self._hooks.is_empty:
            return append(messages)
        message_ids = list(map(format_unique_id, unique_ids))
        contexts = [
            SendMessageContext(
                self._config.group,
                _of(topic, messages, topics),
                _of(topic, message_ids, topics),
                queue,
                SendMode.SYNC,
                self._born_host,
                client_id=self._client_id,
            )
            for topic, queue in queues.items()
        ]
        return self._append_with_hooks(append, contexts, topics)

    def _append_with_hooks(
        self,
        append: Callable[[Sequence[Message]], list[SendResult]],
        contexts: Sequence[SendMessageContext],
        topics: Sequence[str],
    ) -> list[SendResult]:
        """Append between the calls of hooks.

        A hook may add properties, so the messages are checked again and encoded after the hook.
        """
        begun = []
        try:
            for context in contexts:
                self._hooks.begin(context)
                begun.append(context)
            of_topics = {context.message.topic: iter(context.messages_to_store()) for context in contexts}
            messages = [next(of_topics[topic]) for topic in topics]
            for message in messages:
                check_message(message, self._config.max_message_size_bytes)
            sent = append(messages)
        except Exception as error:  # errors of hooks, too; they reach the caller
            for context in begun:
                self._hooks.end(context, error=error)
            raise
        for context in contexts:
            self._hooks.end(context, _of(context.queue.topic, sent, topics))
        return sent

    def _queues(
        self, connection: CallersConnection, messages: Sequence[Message], target: Target
    ) -> dict[str, MessageQueue]:
        """The queue of each topic; empty if the statement may choose the queues."""
        firsts: dict[str, Message] = {}
        for message in messages:
            firsts.setdefault(message.topic, message)
        if target.queue is not None:
            return dict.fromkeys(firsts, target.queue)
        if self._hooks.is_empty and target.selector is None:
            return {}
        publish_queues = self._joined_send.publish_queues(connection, list(firsts))
        return {topic: self._choose(publish_queues[topic], first, target) for topic, first in firsts.items()}

    def _choose(self, queues: Sequence[MessageQueue], message: Message, target: Target) -> MessageQueue:
        if target.selector is not None:
            return selected(target.selector, queues, message, target.argument)
        if target.sharding_key is not None:
            return queues[by_hash(target.sharding_key, len(queues))]
        return self._choosers.setdefault(message.topic, QueueChooser()).choose(queues)


def _of(topic: str, items: Sequence[T], topics: Sequence[str]) -> list[T]:
    """The items of one topic."""
    return [item for item, its_topic in zip(items, topics, strict=True) if its_topic == topic]
