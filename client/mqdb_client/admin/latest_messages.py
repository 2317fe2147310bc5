"""The newest messages of a topic, newest first: reading queues backwards, without a group.

Each queue is read in pieces from its end, and the queues are merged by position in the commit log. A single pull reads
all entries of a piece, so a piece costs as much as a consumer's pull, however many messages the topic has.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from sqlalchemy import Connection

from mqdb.broker.consumers.pull import DEFAULT_SCAN_LIMIT, PullRequest, PullResult, pull
from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.selector.subscription import MessageFilter

_LEAST_PIECE: Final = 8


class LatestMessages(NamedTuple):
    """The newest messages, and where to continue."""

    messages: list[ReceivedMessage]
    looked_at: int
    """The number of messages checked: both the returned messages and messages that did not match."""
    before: tuple[int, ...] | None
    """For each queue, the offset before which to continue; None if everything has been checked."""


class QueueSpan(NamedTuple):
    """The range of a queue to read: from `first` up to, but not including, `past`."""

    queue: MessageQueue
    queue_key: int
    first: int
    past: int


class _Queue:
    """The progress in one queue, which is read from its end towards its beginning."""

    def __init__(self, span: QueueSpan) -> None:
        self._span = span
        self._low = self._offset = self._high = max(span.past, span.first)
        self.ready: deque[ReceivedMessage] = deque()

    @property
    def is_hungry(self) -> bool:
        """Whether no message is at hand although the queue may have more messages."""
        return not self.ready and self._low > self._span.first

    @property
    def is_filling(self) -> bool:
        """Whether the current piece has not been read to its end yet."""
        return self._offset < self._high

    @property
    def before(self) -> int:
        """The offset before which no message has been returned yet."""
        return self.ready[0].queue_offset + 1 if self.ready else self._low

    @property
    def behind(self) -> int:
        """The number of messages that have been returned or did not match."""
        return max(self._span.past - self.before, 0)

    @property
    def request(self) -> PullRequest:
        """The pull request for the current piece."""
        return PullRequest(self._span.queue, self._span.queue_key, self._offset)

    def begin(self, most: int) -> int:
        """Begin the next piece; returns the maximum number of messages in it."""
        self._high = self._low
        self._low = self._offset = max(self._span.first, self._low - most)
        return self._high - self._low

    def take(self, result: PullResult | None, message_filter: MessageFilter) -> None:
        """Process the result of a pull; `result` is None if the topic has been deleted."""
        if result is None or result.next_begin_offset <= self._offset:
            self._offset = self._high
            return
        for message in result.messages:
            # A queue near its beginning has shorter pieces than the others, and two tags may have the same code.
            if message.queue_offset < self._high and message_filter.matches(message.tag):
                self.ready.appendleft(message)
        self._offset = result.next_begin_offset


def read_latest(
    connection: Connection, spans: Sequence[QueueSpan], message_filter: MessageFilter, limit: int, scan_limit: int
) -> LatestMessages:
    """Read up to `limit` matching messages. A started piece is read to its end, even beyond `scan_limit`."""
    found = [_Queue(span) for span in spans]
    most, wanted = (limit, limit) if message_filter.matches_all else (DEFAULT_SCAN_LIMIT, scan_limit)
    piece = max(_LEAST_PIECE, min(most, 2 * wanted // max(len(found), 1)))
    messages: list[ReceivedMessage] = []
    read = 0
    while len(messages) < limit:
        hungry = [each for each in found if each.is_hungry]
        if hungry and read < scan_limit:
            read += sum(each.begin(piece) for each in hungry)
            _fill(connection, hungry, message_filter, piece)
            continue
        ready = [each for each in found if each.ready]
        if not ready:
            break
        messages.append(max(ready, key=lambda each: each.ready[0].log_pos).ready.popleft())
    is_done = not any(each.ready or each.is_hungry for each in found)
    # Not all that was read: some of it is left for the next page.
    behind = sum(each.behind for each in found)
    return LatestMessages(messages, behind, None if is_done else tuple(each.before for each in found))


def _fill(connection: Connection, queues: Sequence[_Queue], message_filter: MessageFilter, piece: int) -> None:
    while filling := [each for each in queues if each.is_filling]:
        requests = [each.request for each in filling]
        results, _ = pull(connection, requests, limit=piece, scan_limit=piece, filter=message_filter)
        by_queue = {result.request.queue_key: result for result in results}
        for each, request in zip(filling, requests, strict=True):
            each.take(by_queue.get(request.queue_key), message_filter)
