"""Popped queue: the messages of one queue that a member has popped and not acknowledged yet."""

from collections.abc import Callable

from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb_client.consumer.queues.process_queue import FlowLimits, ProcessQueue


class PoppedQueue(ProcessQueue):
    """A process queue without an owner in the database: its offset is never committed.

    `on_done` is called with messages that the listener has consumed, and `on_lost` with messages that this process will
    no longer consume. A failed message is finished by `forget` after the failure is stored in the broker. Finishing a
    message again later has no effect.
    """

    def __init__(
        self,
        queue: MessageQueue,
        limits: FlowLimits,
        on_done: Callable[[list[ReceivedMessage]], None],
        on_lost: Callable[[list[ReceivedMessage]], None],
    ) -> None:
        super().__init__(queue, OwnedQueue(queue_key=0, epoch=0, next_offset=0, segment=0), limits)
        self._on_done = on_done
        self._on_lost = on_lost
        self._held: dict[int, ReceivedMessage] = {}

    def add(self, messages: list[ReceivedMessage]) -> None:
        """Add popped messages, ascending. Messages of a dropped queue are lost."""
        self._held.update((message.queue_offset, message) for message in messages)
        if not self.put(messages, messages[-1].queue_offset + 1, 0):
            self._lose(messages)

    def finish(self, messages: list[ReceivedMessage]) -> None:
        """Mark taken messages as done."""
        self._on_done(self.forget(messages))

    def forget(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Drop taken messages without consuming them; returns the messages that were in hand."""
        held = [message for message in messages if self._held.get(message.queue_offset) is message]
        for message in held:
            del self._held[message.queue_offset]
        if held:
            super().finish(held)
        return held

    def fail(self, messages: list[ReceivedMessage]) -> None:
        """Keep taken messages in hand until `retry`. Messages of a dropped queue are lost."""
        super().fail(messages)
        if self.is_dropped:
            self._lose(messages)

    def retry(self, messages: list[ReceivedMessage]) -> bool:
        """Make failed messages available again. Returns False if the queue was dropped: the messages are then lost."""
        is_retried = super().retry(messages)
        if not is_retried:
            self._lose(messages)
        return is_retried

    def drop(self, *, is_lost: bool = False) -> None:
        """Start no further messages. Messages not yet started are lost; running messages may finish."""
        unstarted = self.give_up()
        super().drop(is_lost=is_lost)
        self._on_lost(unstarted)

    def give_up(self) -> list[ReceivedMessage]:
        """Give up and return the messages in hand that were not started."""
        return self.forget(self.take(len(self)))

    def _lose(self, messages: list[ReceivedMessage]) -> None:
        for message in messages:
            self._held.pop(message.queue_offset, None)
        self._on_lost(messages)
