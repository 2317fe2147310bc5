"""Read ahead: answers to pulls that are expected next. The file system's cache does that for RocketMQ's broker."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

#: Of all answers; the oldest go first. A queue of the default limits has some 50 KiB.
_MOST_BYTES: Final = 16 * 1024 * 1024


class ReadAhead(Generic[T]):
    """Each answer is given once. For one thread at a time."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._bytes = 0

    def keep(self, key: Hashable, answer: T, size: int) -> None:
        """Remember an answer of so many bytes."""
        self.take(key)
        self._kept[key] = answer, size
        self._bytes += size
        while self._bytes > self._most_bytes:
            self.take(next(iter(self._kept)))

    def take(self, key: Hashable) -> T | None:
        """The answer, if it is kept; it is forgotten."""
        if (found := self._kept.pop(key, None)) is None:
            return None
        self._bytes -= found[1]
        return found[0]
