"""Pull schedule: which queues are worth a pull. A decision only; the pull service waits and pulls.

A queue is marked when a pull of it may find something: when it is new, when messages arrive, when its last pull
left something behind. Only taking it for a pull clears the mark, and that happens before the pull reads: what
arrives while a pull is on its way marks the queue again, and is not missed.
"""

from collections.abc import Callable, Iterable


class PullSchedule:
    """The marked queues among those that are read, by their keys. Not safe for threads: the pull service holds a lock.

    The cost depends on the number of marks, not on the number of queues.
    """

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._marked: set[int] = set()

    def add(self, queue_key: int) -> None:
        """Add a queue to pull, the first time at once."""
        self._known.add(queue_key)
        self._marked.add(queue_key)

    def remove(self, queue_key: int) -> None:
        """Stop pulling a queue. A pull of it may still be under way."""
        self._known.discard(queue_key)
        self._marked.discard(queue_key)

    def mark(self, queue_keys: Iterable[int] | None) -> bool:
        """Mark queues in which messages may have arrived, None for all. True if one of them was not marked."""
        fresh = (self._known if queue_keys is None else self._known.intersection(queue_keys)) - self._marked
        self._marked |= fresh
        return bool(fresh)

    def take(self, has_room: Callable[[int], bool]) -> list[int]:
        """The marked queues for which there is room, in the order of their keys; the others stay marked."""
        taken = sorted(filter(has_room, self._marked))
        self._marked.difference_update(taken)
        return taken
