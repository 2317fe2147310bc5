"""Read-ahead: answers to the pulls that are expected next. For RocketMQ's broker, the file system's cache does this."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

#: Maximum bytes of all answers; the oldest are dropped first. With the default limits, a queue has about 50 KiB.
_MOST_BYTES: Final = 16 * 1024 * 1024


class ReadAhead(Generic[T]):
    """Answers that were read ahead; each is returned once. Use it from one thread at a time."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._bytes = 0

    def keep(self, key: Hashable, answer: T, size: int) -> None:
        """Remember an answer with this size in bytes."""
        self.take(key)
        self._kept[key] = answer, size
        self._bytes += size
        while self._bytes > self._most_bytes:
            self.take(next(iter(self._kept)))

    def take(self, key: Hashable) -> T | None:
        """The answer for the key, which is then forgotten, or None."""
        if (found := self._kept.pop(key, None)) is None:
            return None
        self._bytes -= found[1]
        return found[0]
