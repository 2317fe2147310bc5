"""Process queue: the messages of one queue that this member has in hand, and its progress with them.

Messages are started in the order of their offsets and finish in any order. The offset to commit is the lowest
unfinished offset, or, if all are finished, the next offset to pull. For example, with 10, 20, 21 and 23 in hand: when
20 and 21 finish, the offset to commit is 10; when 10 finishes, 23; when 23 finishes, 24 or the offset that the last
pull has reached.

A dropped queue starts no further messages, so the offsets of the started messages have no gaps. The next owner waits
until the queue has settled, so it gets no message twice. RocketMQ: ProcessQueue.
"""

import math
import threading
from collections import deque
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Protocol

from mqdb.broker.consumers.pull import PullRequest
from mqdb.common.message import MessageQueue
from mqdb.common.proof import Proof, place_of, proof
from mqdb.common.received_message import ReceivedMessage
from mqdb.store.consumers.consumer_offsets import OwnedQueue


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """The limits for a queue's messages in hand. Pulling pauses at a limit; the last pull may exceed it.

    Source: DefaultMQPushConsumer.pullThresholdForQueue, pullThresholdSizeForQueue, consumeConcurrentlyMaxSpan.
    """

    messages: int
    body_bytes: int
    span: int
    #: Limits for all queues of a topic together; None: no limit.
    topic_messages: int | None = None
    topic_body_bytes: int | None = None

    def shared_by(self, queues: int) -> "FlowLimits":
        """The limits for each queue of a topic with this many queues. Source: RebalancePushImpl.messageQueueChanged."""
        messages, body_bytes = self.messages, self.body_bytes
        if self.topic_messages is not None:
            messages = max(self.topic_messages // queues, 1)
        if self.topic_body_bytes is not None:
            body_bytes = max(self.topic_body_bytes // queues, 1)
        return replace(self, messages=messages, body_bytes=body_bytes)


# A paused queue is pulled again when a quarter of the messages is done: one pull per message would cost more.
_RESUME_NUMERATOR, _RESUME_DENOMINATOR = 3, 4


class QueueOwner(Protocol):
    """The owner of process queues. The owner's methods are thread-safe."""

    def on_progress(self, process_queue: "ProcessQueue") -> None:
        """Note that a process queue has room again, or has settled."""

    def correct(self, process_queue: "ProcessQueue", next_offset: int) -> None:
        """Continue an already dropped process queue at another offset, because its offset does not exist."""


class ProcessQueue:
    """One queue under one epoch. All methods may be called by any thread."""

    def __init__(self, queue: MessageQueue, owned: OwnedQueue, limits: FlowLimits) -> None:
        self.queue = queue
        self.queue_key = owned.queue_key
        #: Set before it is read.
        self.owner: QueueOwner | None = None
        #: Until when it may be consumed without a renewal by its owner, in seconds of time.monotonic().
        self.lease_ends = math.inf
        #: The history of the log in which its key, its offsets and the positions of its messages are valid.
        self.history: Final = owned.history
        #: May be replaced at any time.
        self.limits = limits
        self._lock = threading.Lock()
        self._epoch = owned.epoch
        self._next_offset = owned.next_offset
        self._in_hand: dict[int, int] = {}  # offset -> bytes of the stored body; put in, and kept, ascending
        self._body_bytes = 0
        self._unstarted: deque[ReceivedMessage] = deque()
        self._running = 0  # messages
        self._is_dropped = False
        self._is_lost = False
        self._is_full = False
        self._newest: tuple[int, int, str, datetime] | None = None
        # The offsets from which on no message is in an older segment, ascending; the first one is committed.
        self._segments: deque[tuple[int, int]] = deque([(owned.next_offset, owned.segment)])
        #: The last result of `position`, until it changes.
        self._position: OwnedQueue | None = None

    @property
    def epoch(self) -> int:
        """The epoch under which the queue is owned."""
        return self._epoch

    @property
    def next_offset(self) -> int:
        """The offset at which the next pull begins."""
        return self._next_offset

    @property
    def newest(self) -> Proof | None:
        """A proof of the last message added, or None."""
        return self._newest and proof(*self._newest)

    @property
    def is_dropped(self) -> bool:
        """Whether the queue was dropped."""
        return self._is_dropped

    @property
    def is_lost(self) -> bool:
        """Whether the queue has another owner; in that case the results of its messages are ignored."""
        return self._is_lost

    @property
    def is_settled(self) -> bool:
        """Whether the queue was dropped and no listener has any of its messages."""
        return self._is_dropped and not self._running

    def describe(self) -> dict[str, object]:
        """The state of the queue, as shown to people."""
        position = self.position()
        return {
            "queue": str(self.queue),
            "next_offset": self._next_offset,
            "commit_offset": position.next_offset,
            "in_hand": len(self._in_hand),
            "running": self._running,
            "body_bytes": self._body_bytes,
            "epoch": position.epoch,
            "is_dropped": self._is_dropped,
        }

    def __len__(self) -> int:
        """The number of messages in hand."""
        return len(self._in_hand)

    # -- pulling --------------------------------------------------------------------------------

    def has_room(self) -> bool:
        """Whether to pull the queue now.

        After a result of False, `finish` notifies the owner when there is room again, unless the queue was dropped.
        """
        with self._lock:
            self._is_full = not self._has_room()
            return not self._is_full and not self._is_dropped

    def pull_request(self) -> PullRequest:
        """The request of the next pull."""
        with self._lock:
            return PullRequest(self.queue, self.queue_key, self._next_offset, self._segments[-1][1], self.history)

    def put(self, messages: list[ReceivedMessage], next_offset: int, segment: int) -> bool:
        """Add pulled messages, ascending, with the offset of the next pull.

        Returns False if the queue was already dropped.
        """
        with self._lock:
            if self._is_dropped:
                return False
            self._unstarted.extend(messages)
            for message in messages:
                size = len(message.stored_body)
                self._in_hand[message._queue_offset] = size  # the property is slower, and this runs for each message
                self._body_bytes += size
            if messages:
                self._newest = place_of(messages[-1])
            self._position = None
            self._next_offset = next_offset
            if segment > self._segments[-1][1]:
                self._segments.append((next_offset, segment))
            return True

    def _has_room(self) -> bool:
        messages, body_bytes = self.limits.messages, self.limits.body_bytes
        if self._is_full:
            messages = messages * _RESUME_NUMERATOR // _RESUME_DENOMINATOR
            body_bytes = body_bytes * _RESUME_NUMERATOR // _RESUME_DENOMINATOR
        return len(self._in_hand) <= messages and self._body_bytes <= body_bytes and self._span() <= self.limits.span

    def _span(self) -> int:
        return next(reversed(self._in_hand)) - next(iter(self._in_hand)) if self._in_hand else 0

    # -- consuming ------------------------------------------------------------------------------

    def take(self, limit: int) -> list[ReceivedMessage]:
        """Start up to `limit` messages, the lowest offsets first; `finish` or `fail` has to follow for each message."""
        with self._lock:
            unstarted = self._unstarted  # empty once dropped
            messages = [unstarted.popleft() for _ in range(min(limit, len(unstarted)))]
            self._running += len(messages)
            return messages

    def finish(self, messages: list[ReceivedMessage]) -> None:
        """Mark taken messages as done. The owner is notified if there is room again, or if the queue has settled."""
        with self._lock:
            self._running -= len(messages)
            self._position = None
            for message in messages:
                self._body_bytes -= self._in_hand.pop(message._queue_offset)
            is_awaited = self.is_settled
            if self._is_full and not self._is_dropped and self._has_room():
                self._is_full = False
                is_awaited = True
        if is_awaited:
            self.tell_owner()

    def fail(self, messages: list[ReceivedMessage]) -> None:
        """Keep taken messages in hand until `retry`. The owner is notified if the queue has settled."""
        with self._lock:
            self._running -= len(messages)
            is_awaited = self.is_settled
        if is_awaited:
            self.tell_owner()

    def tell_owner(self) -> None:
        """Notify the owner of a change."""
        if self.owner is not None:
            self.owner.on_progress(self)

    def finish_failed(self, messages: list[ReceivedMessage]) -> None:
        """Mark failed messages as done instead of retrying them. Also works if the queue was dropped."""
        with self._lock:
            self._position = None
            for message in messages:
                self._body_bytes -= self._in_hand.pop(message._queue_offset)

    def retry(self, messages: list[ReceivedMessage]) -> bool:
        """Make failed messages available again, before all other messages.

        Returns False if the queue was already dropped.
        """
        with self._lock:
            if not self._is_dropped:
                self._unstarted.extendleft(reversed(messages))
            return not self._is_dropped

    # -- owning ---------------------------------------------------------------------------------

    def drop(self, *, is_lost: bool = False) -> None:
        """Start and add no further messages. Running messages may finish, which has no effect in a lost queue."""
        with self._lock:
            self._is_dropped = True
            self._is_lost |= is_lost
            self._unstarted.clear()

    def renew(self, epoch: int) -> None:
        """Note that the owner has retaken the queue under another epoch."""
        with self._lock:
            self._position = None
            self._epoch = epoch

    def position(self) -> OwnedQueue:
        """The position that can be committed now; the same object until the position changes."""
        if (known := self._position) is not None:  # most queues are idle most of the time
            return known
        with self._lock:
            safe = next(iter(self._in_hand), self._next_offset)
            segments = self._segments
            while len(segments) > 1 and segments[1][0] <= safe:
                segments.popleft()
            self._position = OwnedQueue(self.queue_key, self._epoch, safe, segments[0][1], self.history)
            return self._position
