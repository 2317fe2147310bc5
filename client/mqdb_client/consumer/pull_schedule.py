"""Pull schedule: which queues are worth a pull. A decision only; the pull service waits and pulls.

A queue is marked when a pull of it may find something: when it is new, when messages arrive, when its last pull
left something behind. Only taking it for a pull clears the mark, and that happens before the pull reads: what
arrives while a pull is on its way marks the queue again, and is not missed.
"""

from collections.abc import Callable, Iterable


class PullSchedule:
    """The marks of the queues, by their keys. Not safe for threads: the pull service holds a lock."""

    def __init__(self) -> None:
        self._marks: dict[int, bool] = {}

    def add(self, queue_key: int) -> None:
        """A queue to be pulled, the first time at once."""
        self._marks[queue_key] = True

    def remove(self, queue_key: int) -> None:
        """A queue not to be pulled any more. A pull of it may still be on its way."""
        self._marks.pop(queue_key, None)

    def mark(self, queue_keys: Iterable[int] | None) -> bool:
        """Messages may have arrived in these queues, None for all; True when one of them was not marked."""
        keys = self._marks.keys() if queue_keys is None else self._marks.keys() & queue_keys
        fresh = [key for key in keys if not self._marks[key]]
        for key in fresh:
            self._marks[key] = True
        return bool(fresh)

    def take(self, has_room: Callable[[int], bool]) -> list[int]:
        """The marked queues for which there is room, in the order of their keys; the others stay marked."""
        taken = sorted(key for key, is_marked in self._marks.items() if is_marked and has_room(key))
        for key in taken:
            self._marks[key] = False
        return taken
