"""Reading a topic without a group: no registration, and no commits.

The queues are read in parallel and merged by position in the commit log, so the messages are returned in roughly the
order in which they were sent, and in exact order within each queue.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace

from sqlalchemy import Connection

from mqdb.broker.consumers.horizon import UNKNOWN_HORIZON
from mqdb.broker.consumers.pull import PullRequest, PullResult, PullStatus, pull
from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import TopicNotFound
from mqdb.selector.subscription import MessageFilter
from mqdb_client.admin.broker_access import tend_dispatch

_LIMIT = 500
_LEAST_LIMIT = 8


class _Queue:
    """The next offset to read in one queue, and the messages that were read but not returned yet."""

    def __init__(self, queue: MessageQueue, queue_key: int, offset: int) -> None:
        self.request = PullRequest(queue, queue_key, offset)
        self.ready: deque[ReceivedMessage] = deque()
        self.is_at_end = False

    def take_over(self, result: PullResult, message_filter: MessageFilter) -> None:
        self.request = PullRequest(self.request.queue, self.request.queue_key, result.next_begin_offset, result.segment)
        self.is_at_end = result.status is PullStatus.NO_NEW_MSG
        # Two tags may have the same code.
        self.ready.extend(message for message in result.messages if message_filter.matches(message.tag))


class TopicReader:
    """Reads queues of a topic. Iteration ends when no message is left."""

    def __init__(
        self,
        connection: Connection,
        queues: Sequence[tuple[MessageQueue, int, int]],
        message_filter: MessageFilter,
        wanted: int | None = None,
    ) -> None:
        """`queues` has each queue with its key and the first offset to read.

        `wanted` is the number of messages needed.
        """
        self._connection = connection
        self._filter = message_filter
        self._horizon = UNKNOWN_HORIZON
        # Per queue: with many queues, a few messages from each are enough to find the first ones overall.
        share = _LIMIT if wanted is None else 2 * wanted // max(len(queues), 1)
        self._limit = min(max(share, _LEAST_LIMIT), _LIMIT)
        self._queues = [_Queue(*queue) for queue in queues]

    @property
    def offsets(self) -> list[int]:
        """The next offset to read in each queue."""
        return [queue.request.offset for queue in self._queues]

    def read(self) -> list[ReceivedMessage]:
        """The next messages; [] once all queues have been read to the end.

        Raises TopicNotFound once the topic is deleted.
        """
        while True:
            self._pull()
            if messages := list(self._merged()):
                return messages
            if all(queue.is_at_end for queue in self._queues):
                return []

    def __iter__(self) -> Iterator[ReceivedMessage]:
        while messages := self.read():
            yield from messages

    def dispatch(self) -> None:
        """Dispatch messages that were sent since the last read, unless an `mqdb serve` does so."""
        tend_dispatch(self._connection)

    def _pull(self) -> None:
        asked = {queue.request.queue_key: queue for queue in self._queues if not queue.ready}
        results, self._horizon = pull(
            self._connection,
            [queue.request for queue in asked.values()],
            limit=self._limit,
            filter=self._filter,
            horizon=self._horizon,
        )
        if not results and asked:
            raise TopicNotFound(self._queues[0].request.queue.topic)  # deleted in the meantime
        for result in results:
            asked[result.request.queue_key].take_over(result, self._filter)

    def _merged(self) -> Iterator[ReceivedMessage]:
        """Yield messages in order of position, until a queue has to be read that may contain an earlier message."""
        if not all(queue.ready or queue.is_at_end for queue in self._queues):
            return
        first = [(queue.ready[0].log_pos, number) for number, queue in enumerate(self._queues) if queue.ready]
        heapify(first)
        while first:
            _, number = first[0]
            queue = self._queues[number]
            yield queue.ready.popleft()
            if queue.ready:
                heapreplace(first, (queue.ready[0].log_pos, number))
            elif queue.is_at_end:
                heappop(first)
            else:
                return
