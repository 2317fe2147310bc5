"""Poll buffer: the queues that a lite pull consumer reads, and the messages that its polls return.

    pull threads ──▶ assigned queues ──▶ poll ──▶ handed out ──▶ next poll or commit: done

RocketMQ: AssignedMessageQueue, DefaultLitePullConsumerImpl.poll.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import IllegalState, QueueLost
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb_client.consumer.queues.process_queue import FlowLimits, ProcessQueue
from mqdb_client.lite_pull.assigned_queue import AssignedQueue, Reached

logger = logging.getLogger(__name__)


class Handed(NamedTuple):
    """Messages that a poll has returned and that are not yet marked as done."""

    assigned: AssignedQueue
    messages: list[ReceivedMessage]


class Agreed(NamedTuple):
    """A position of a queue to commit."""

    queue: MessageQueue
    position: OwnedQueue
    #: Whether the user gave the offset.
    is_named: bool


class PollBuffer:
    """The queues of all brokers. Thread-safe."""

    def __init__(
        self,
        group: str,
        *,
        auto_commit: bool,
        threshold_for_all: int,
    ) -> None:
        self._group = group
        self._auto_commit = auto_commit
        self._threshold_for_all = threshold_for_all
        self._wake = threading.Condition()
        #: The wake functions of pollers that do not wait on the condition.
        self._waiting: set[Callable[[], None]] = set()
        self._current: dict[MessageQueue, AssignedQueue] = {}
        self._newest: dict[int, AssignedQueue] = {}  # of each queue, also after it is no longer read
        #: Kept while a queue is assigned, even if it is lost to another history of its log.
        self._last: dict[MessageQueue, AssignedQueue] = {}
        #: The process queue from which the user got the last message, for each queue.
        self._last_handed: dict[MessageQueue, AssignedQueue] = {}
        self._ready: dict[AssignedQueue, None] = {}  # in the order of their turns
        #: The queues that may have messages in hand.
        self._filled: dict[AssignedQueue, None] = {}
        #: The queues that may have advanced since their last commit. A pull adds to it without the lock.
        self._moved: dict[AssignedQueue, None] = {}
        self._handed: list[Handed] = []
        self._paused: frozenset[MessageQueue] = frozenset()
        #: The queues that the user has chosen; None if rebalance chooses.
        self._chosen: frozenset[MessageQueue] | None = None
        #: Positions in chosen queues that do not exist yet.
        self._starts: dict[MessageQueue, int] = {}
        self._is_full = False
        self._is_closed = False

    # -- rebalance and pulling -------------------------------------------------------------------

    def make_queue(self, queue: MessageQueue, owned: OwnedQueue, limits: FlowLimits) -> AssignedQueue:
        """Make the process queue for a queue that is not read yet."""
        return AssignedQueue(
            queue, owned, limits, auto_commit=self._auto_commit, may_pull=self._may_pull, moved=self._note_move
        )

    def _note_move(self, assigned: AssignedQueue) -> None:
        self._moved[assigned] = None

    def add(self, assigned: ProcessQueue) -> None:
        """Read a queue from now on. The process queue must have been made by `make_queue`."""
        assert isinstance(assigned, AssignedQueue)
        queue = assigned.queue
        with self._wake:
            before = self._newest.get(assigned.queue_key)
            # Its offset did not exist, so it has started again at another one; the user's settings for it are kept.
            is_corrected = before is not None and (before.epoch, before.history) == (assigned.epoch, assigned.history)
            if queue in self._starts:
                offset = self._starts.pop(queue)
                if self._is_of_another_history(assigned):
                    fields = {"group": self._group, "queue": str(queue), "queue_offset": offset}
                    logger.warning(
                        "ignored the seek of group %(group)s in queue %(queue)s to offset %(queue_offset)s: the log "
                        "has another history now",
                        fields,
                        extra=fields,
                    )
                else:
                    assigned.seek(offset)
            elif before is not None and is_corrected and before.is_moved:
                assigned.seek(before.next_offset)
            if self._chosen is None and not is_corrected:
                self._paused -= {queue}
            self._current[queue] = self._newest[assigned.queue_key] = self._last[queue] = assigned
            self._note_move(assigned)

    def remove(self, assigned: ProcessQueue) -> None:
        """Stop reading a queue."""
        with self._wake:
            if (current := self._current.get(assigned.queue)) is assigned:
                del self._current[assigned.queue]
                self._filled.pop(current, None)
                self._moved.pop(current, None)

    def deliver(self, assigned: ProcessQueue, _count: int) -> None:
        """Wake waiting polls, because messages were added to a queue."""
        with self._wake:
            if (current := self._current.get(assigned.queue)) is assigned:
                self._ready[current] = self._filled[current] = None
                self._wake_all()

    def latest(self, owned: OwnedQueue) -> OwnedQueue:
        """The position of a queue that can be committed now; `owned` may be outdated."""
        newest = self._newest.get(owned.queue_key)
        if newest is None or (newest.epoch, newest.history) != (owned.epoch, owned.history):
            return owned
        return newest.position()

    def reached(self, queue: MessageQueue) -> Reached | None:
        """The user's progress in a queue that is assigned, or that rebalance has just taken away."""
        last = self._last.get(queue)
        return None if last is None else last.reached

    def _is_of_another_history(self, assigned: AssignedQueue) -> bool:
        """Whether the last message that the user got from this queue belongs to another history of the log."""
        handed = self._last_handed.get(assigned.queue)
        return handed is not None and handed.history != assigned.history

    def _may_pull(self, queue: MessageQueue) -> bool:
        # Without the lock: other threads hold it when they wake the polling thread.
        if queue in self._paused:
            return False
        self._is_full = sum(map(len, list(self._filled))) > self._threshold_for_all
        return not self._is_full

    # -- calls by the user -----------------------------------------------------------------------

    def poll(self, limit: int, seconds: float) -> list[ReceivedMessage]:
        """Return up to `limit` messages; [] after `seconds`, or when the buffer is closed.

        First marks the previously returned messages as done.
        """
        deadline = time.monotonic() + seconds
        with self._wake:
            self.acknowledge(self._handed)
            while not self._is_closed:
                messages = self._take(limit)
                seconds_left = deadline - time.monotonic()
                if messages or seconds_left <= 0:
                    return messages
                self._wake.wait(seconds_left)
            return []

    def take(self, limit: int, wake: Callable[[], None]) -> list[ReceivedMessage] | None:
        """The messages that a waiting poll returns now.

        Returns None if there are no messages yet. In this case `wake` is called once when there may be messages, in any
        thread, with the lock held.
        """
        with self._wake:
            messages = [] if self._is_closed else self._take(limit)
            if messages or self._is_closed:
                return messages
            self._waiting.add(wake)
            return None

    def forget(self, wake: Callable[[], None]) -> None:
        """Stop calling `wake`."""
        with self._wake:
            self._waiting.discard(wake)

    @property
    def handed(self) -> Sequence[Handed]:
        """The messages that polls have returned and that are not done yet."""
        with self._wake:
            return tuple(self._handed)

    def acknowledge(self, done: Sequence[Handed]) -> None:
        """Mark messages returned by polls as done. Calling it twice has no effect."""
        with self._wake:
            mine = [handed for handed in self._handed if any(handed is each for each in done)]
            self._handed = [handed for handed in self._handed if not any(handed is each for each in mine)]
            for assigned, messages in mine:
                assigned.finish(messages)
                if not len(assigned):
                    self._filled.pop(assigned, None)
            if self._is_full and mine:
                self._tell_owners()

    def agree(self) -> list[Agreed]:
        """Allow the commit of all messages that polls have returned.

        The messages do not count as done, so this member keeps their queues.
        """
        with self._wake:
            moved = (assigned for assigned in list(self._moved) if self._current.get(assigned.queue) is assigned)
            concerned = dict.fromkeys([*moved, *(assigned for assigned, _ in self._handed)])
            return [Agreed(assigned.queue, assigned.agree(), is_named=False) for assigned in concerned]

    def note_commit(self, agreed: Sequence[Agreed]) -> None:
        """Note a commit, which need not be repeated until polls return more messages."""
        with self._wake:
            for _, position, _ in agreed:
                newest = self._newest.get(position.queue_key)
                if newest is not None:
                    self._moved.pop(newest, None)
                    if not newest.is_agreed_on(position):  # a pull may have moved it in the meantime, without the lock
                        self._note_move(newest)

    def agree_on(self, offsets: Mapping[MessageQueue, int]) -> list[Agreed]:
        """Allow the commit of these offsets. Raises IllegalState for a queue that is not assigned."""
        with self._wake:
            # A queue that rebalance has taken away but that is not given back yet also counts.
            held = {assigned.queue: assigned for assigned, _ in self._handed} | self._current
            found = [held[queue] if queue in held else self._find(queue) for queue in offsets]
            # The broker refuses an offset from another history.
            found = [self._last_handed[each.queue] if self._is_of_another_history(each) else each for each in found]
            for assigned in found:  # replaced by a commit of everything that polls have returned
                self._note_move(assigned)
            return [Agreed(each.queue, each.agree_on(offsets[each.queue]), is_named=True) for each in found]

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Make polls return the messages of a queue from an offset on.

        Raises IllegalState if the queue is not assigned. Raises QueueLost, one time only, if the log's history has
        changed since polls last returned messages from the queue.
        """
        with self._wake:
            if queue not in self._current and queue in (self._chosen or ()):
                self._starts[queue] = offset
                return
            assigned = self._find(queue)
            if self._is_of_another_history(assigned):
                del self._last_handed[queue]
                raise QueueLost(self._group, str(queue), assigned.epoch)
            self.acknowledge([handed for handed in self._handed if handed.assigned is assigned])
            assigned.seek(offset)
            self._filled.pop(assigned, None)
            self._note_move(assigned)

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Stop returning messages of these queues; queues that are not assigned are ignored."""
        with self._wake:
            self._paused |= {queue for queue in queues if queue in self._current or queue in (self._chosen or ())}

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Resume returning messages of these queues."""
        with self._wake:
            self._paused -= set(queues)
            self._look_at(queues)
            self._tell_owners()

    def choose(self, queues: frozenset[MessageQueue]) -> None:
        """Read exactly these queues."""
        with self._wake:
            self._chosen = queues
            self._paused &= queues
            for known in (self._last, self._last_handed):
                for queue in known.keys() - queues:
                    del known[queue]
            self._starts = {queue: offset for queue, offset in self._starts.items() if queue in queues}
            self._look_at(queues)  # a queue that was chosen, removed, and chosen again within a moment

    def close(self) -> None:
        """Make polls return without messages. Returned messages that are not done count as not returned."""
        with self._wake:
            self._is_closed = True
            for assigned, messages in self._handed:
                assigned.fail(messages)
            self._handed = []
            self._wake_all()

    def _take(self, limit: int) -> list[ReceivedMessage]:
        taken: list[ReceivedMessage] = []
        while self._ready and len(taken) < limit:
            assigned = next(iter(self._ready))
            del self._ready[assigned]
            if assigned.queue in self._paused or not self._is_read(assigned):
                continue
            wanted = limit - len(taken)
            messages = assigned.take(wanted)
            if messages:
                self._last_handed[assigned.queue] = assigned
                self._note_move(assigned)
                self._handed.append(Handed(assigned, messages))
                taken += messages
            if len(messages) == wanted:
                self._ready[assigned] = None  # there may be more messages
        return taken

    def _tell_owners(self) -> None:
        """Notify the owners that there is room again; one process queue per owner is enough."""
        for assigned in {
            assigned.owner: assigned for assigned in self._current.values() if not assigned.is_dropped
        }.values():
            assigned.tell_owner()

    def _look_at(self, queues: Collection[MessageQueue]) -> None:
        self._ready.update(dict.fromkeys(self._current[queue] for queue in queues if queue in self._current))
        self._wake_all()

    def _wake_all(self) -> None:
        self._wake.notify_all()
        while self._waiting:
            self._waiting.pop()()

    def _is_read(self, assigned: AssignedQueue) -> bool:
        is_chosen = self._chosen is None or assigned.queue in self._chosen
        return is_chosen and self._current.get(assigned.queue) is assigned

    def _find(self, queue: MessageQueue) -> AssignedQueue:
        assigned = self._current.get(queue)
        if assigned is None or not self._is_read(assigned):
            raise IllegalState(f"queue {queue}", "not assigned to this consumer now")
        return assigned
