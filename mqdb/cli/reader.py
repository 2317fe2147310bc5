"""Reading a topic without a group: nothing is registered, nothing is committed.

The queues are read side by side and merged by position in the commit log, so the messages come in about the order
in which they were sent, and in exactly their order within each queue.
"""

from collections import deque
from collections.abc import Iterator

from sqlalchemy import Connection

from mqdb.broker.dispatch import dispatch, is_attended
from mqdb.broker.horizon import UNKNOWN_HORIZON
from mqdb.broker.pull import PullRequest, PullResult, PullStatus, pull
from mqdb.errors import TopicNotFound
from mqdb.message import MessageQueue, ReceivedMessage
from mqdb.selector.subscription import MessageFilter
from mqdb.store.topics import TopicRoute

_LIMIT = 500


def tend_dispatch(connection: Connection) -> None:
    """Dispatch what has been sent, where no `mqdb serve` does."""
    if not is_attended(connection):
        while dispatch(connection).more:
            pass


class _Queue:
    """Where one queue is read next, and what is read and not yet handed out."""

    def __init__(self, queue: MessageQueue, queue_key: int, offset: int) -> None:
        self.request = PullRequest(queue, queue_key, offset)
        self.ready: deque[ReceivedMessage] = deque()
        self.is_at_end = False

    def take_over(self, result: PullResult, message_filter: MessageFilter) -> None:
        self.request = PullRequest(self.request.queue, self.request.queue_key, result.next_begin_offset, result.segment)
        self.is_at_end = result.status is PullStatus.NO_NEW_MSG
        # Two tags may have one code.
        self.ready.extend(message for message in result.messages if message_filter.matches(message.tag))


class TopicReader:
    """Reads the queues of a topic from an offset on; `offsets` has one for each queue that can be read."""

    def __init__(
        self,
        connection: Connection,
        route: TopicRoute,
        broker_name: str,
        offsets: list[int],
        message_filter: MessageFilter,
    ) -> None:
        self._topic = route.config.name
        self._connection = connection
        self._filter = message_filter
        self._horizon = UNKNOWN_HORIZON
        self._queues = [
            _Queue(MessageQueue(self._topic, broker_name, queue_id), queue_key, offset)
            for queue_id, (queue_key, offset) in enumerate(zip(route.read_queue_keys, offsets, strict=True))
        ]

    def read(self) -> list[ReceivedMessage]:
        """The next messages; [] at the end of all queues. Raises TopicNotFound once the topic is deleted."""
        while True:
            self._pull()
            if messages := list(self._merged()):
                return messages
            if all(queue.is_at_end for queue in self._queues):
                return []

    def _pull(self) -> None:
        asked = {queue.request.queue_key: queue for queue in self._queues if not queue.ready}
        results, self._horizon = pull(
            self._connection,
            [queue.request for queue in asked.values()],
            limit=_LIMIT,
            filter=self._filter,
            horizon=self._horizon,
        )
        if not results and asked:
            raise TopicNotFound(self._topic)  # deleted meanwhile
        for result in results:
            asked[result.request.queue_key].take_over(result, self._filter)

    def _merged(self) -> Iterator[ReceivedMessage]:
        """By position, as long as no queue could still have an earlier one."""
        while all(queue.ready or queue.is_at_end for queue in self._queues):
            waiting = [queue for queue in self._queues if queue.ready]
            if not waiting:
                return
            yield min(waiting, key=lambda queue: queue.ready[0].log_pos).ready.popleft()
