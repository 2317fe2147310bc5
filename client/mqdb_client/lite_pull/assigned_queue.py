"""Assigned queue: a process queue in which a user polls messages and may seek.

Messages that a poll has returned count as running until the next poll, or a commit, marks them as done. So a queue that
rebalance takes away is given back once the user is done with its messages, and the next owner gets no message twice.
RocketMQ: AssignedMessageQueue.
"""

import threading
from collections import deque
from collections.abc import Callable
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from mqdb.common.message import MessageQueue
from mqdb.common.proof import Proof, place_of, proof
from mqdb.common.received_message import ReceivedMessage
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb_client.consumer.queues.process_queue import FlowLimits, ProcessQueue


class Reached(NamedTuple):
    """The user's progress in a queue: the next offset to return, and proofs of its position in the log."""

    next_offset: int
    #: The proof of the last returned message. Later messages may be in hand.
    handed: Proof | None
    #: The proof of the last message in hand. If the log has this message, it has all before it.
    pulled: Proof | None


class AssignedQueue(ProcessQueue):
    """One queue under one epoch. Thread-safe; one thread pulls it."""

    def __init__(
        self,
        queue: MessageQueue,
        owned: OwnedQueue,
        limits: FlowLimits,
        *,
        auto_commit: bool,
        may_pull: Callable[[MessageQueue], bool],
        moved: Callable[["AssignedQueue"], None] = lambda _: None,
    ) -> None:
        """`auto_commit` allows commits of all done messages. Without it, only agreed positions are committed.

        `moved` is called after a pull has advanced, perhaps past messages that did not match.
        """
        super().__init__(queue, owned, limits)
        self._auto_commit = auto_commit
        self._may_pull = may_pull
        self._moved = moved
        self._moving = threading.Lock()
        self._is_moved = False
        self._agreed = (owned.next_offset, owned.segment)
        self._handed: tuple[int, int, str, datetime] | None = None

    @property
    def is_moved(self) -> bool:
        """Whether there was a `seek` since the current pull began."""
        return self._is_moved

    def has_room(self) -> bool:
        """Whether to pull the queue now. The pulling thread calls this before each pull, so no pull is under way."""
        with self._moving:
            if self._is_dropped:
                return False
            self._is_moved = False
        return self._may_pull(self.queue) and super().has_room()

    def put(self, messages: list[ReceivedMessage], next_offset: int, segment: int) -> bool:
        """Add pulled messages, like a process queue. Also returns False if a seek has made the pull outdated."""
        with self._moving:
            is_put = not self._is_moved and super().put(messages, next_offset, segment)
        if is_put:
            self._moved(self)
        return is_put

    def seek(self, offset: int) -> None:
        """Continue the queue at an offset, and drop messages in hand and pulls under way.

        No message of the queue may be running.
        """
        with self._moving, self._lock:
            self._is_moved = True
            self._unstarted.clear()
            self._in_hand.clear()
            self._body_bytes = 0
            self._position = None
            self._next_offset = offset
            self._handed = self._newest = None
            # The messages may be in any segment.
            self._segments = deque([(offset, 0)])
            if self._auto_commit:
                self._agreed = (offset, 0)

    def take(self, limit: int) -> list[ReceivedMessage]:
        """Take messages for the user, as from a process queue."""
        messages = super().take(limit)
        if messages:
            self._handed = place_of(messages[-1])
        return messages

    @property
    def reached(self) -> Reached:
        """The user's progress: the current progress or, in a dropped queue, the progress when it was dropped."""
        with self._lock:
            return Reached(self._behind_handed(), self._handed and proof(*self._handed), self.newest)

    def position(self) -> OwnedQueue:
        """The position that can be committed now."""
        done = super().position()
        with self._lock:
            offset, segment = self._agreed
            if self._auto_commit and done.next_offset >= offset:
                return done
            return OwnedQueue(self.queue_key, self._epoch, offset, segment, self.history)

    def agree(self) -> OwnedQueue:
        """Allow the commit of all taken messages, although they still count as running."""
        with self._lock:
            offset = self._behind_handed()
            segment = max((segment for start, segment in self._segments if start <= offset), default=0)
            self._agreed = (offset, segment)
            return OwnedQueue(self.queue_key, self._epoch, offset, segment, self.history)

    def is_agreed_on(self, position: OwnedQueue) -> bool:
        """Whether no message was taken or skipped after a position under the current epoch."""
        with self._lock:
            return (position.epoch, position.next_offset) == (self._epoch, self._behind_handed())

    def _behind_handed(self) -> int:
        # Messages are taken in order, so the running ones are the first in hand.
        return next(islice(self._in_hand, self._running, None), self._next_offset)

    def agree_on(self, offset: int) -> OwnedQueue:
        """Allow the commit of this offset, until there is newer progress."""
        with self._lock:
            self._agreed = (offset, 0)
            return OwnedQueue(self.queue_key, self._epoch, offset, 0, self.history)
