"""Popped queue: the messages of one queue that a member has popped and not acknowledged yet."""

from collections.abc import Callable

from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb_client.consumer.queues.process_queue import FlowLimits, ProcessQueue


class PoppedQueue(ProcessQueue):
    """A process queue without an owner in the database: no offset of it is committed.

    `on_done` is called with messages that the listener has consumed, and `on_lost` with those that nobody in this
    process consumes any longer.
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

    def finish(self, messages: list[ReceivedMessage]) -> None:
        """Messages that were taken are done."""
        super().finish(messages)
        self._on_done(messages)

    def fail(self, messages: list[ReceivedMessage]) -> None:
        """Messages that were taken stay in hand, until `retry`; of a dropped queue they are lost."""
        super().fail(messages)
        if self.is_dropped:
            self._on_lost(messages)

    def give_up(self) -> list[ReceivedMessage]:
        """Drop the queue; returns the messages that were not started."""
        messages = self.take(len(self))
        self.drop()
        super().finish(messages)
        return messages
