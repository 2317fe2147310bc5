"""Pull schedule: decides which queues are worth a pull. The pull service waits and pulls.

A queue is marked when a pull may find messages: when it is new, when messages arrive, and when the last pull left
messages behind. Only taking the queue for a pull clears the mark, and this happens before the pull reads. Messages that
arrive during a pull mark the queue again, so they are not missed.
"""

from collections.abc import Callable, Iterable


class PullSchedule:
    """The marked queues among all queues being read, by key. Not thread-safe: the pull service holds a lock.

    The cost depends on the number of marks, not on the number of queues.
    """

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._marked: set[int] = set()

    def add(self, queue_key: int) -> None:
        """Add a queue, marked for its first pull."""
        self._known.add(queue_key)
        self._marked.add(queue_key)

    def remove(self, queue_key: int) -> None:
        """Stop pulling a queue. A pull of the queue may still be under way."""
        self._known.discard(queue_key)
        self._marked.discard(queue_key)

    def mark(self, queue_keys: Iterable[int] | None) -> bool:
        """Mark queues in which messages may have arrived; None means all queues.

        Returns True if any queue was not marked before.
        """
        fresh = (self._known if queue_keys is None else self._known.intersection(queue_keys)) - self._marked
        self._marked |= fresh
        return bool(fresh)

    def take(self, has_room: Callable[[int], bool]) -> list[int]:
        """Take the marked queues that have room, in the order of their keys; the others stay marked."""
        taken = sorted(filter(has_room, self._marked))
        self._marked.difference_update(taken)
        return taken
