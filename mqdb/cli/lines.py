"""Lines of a file or a pipe, and batches of the lines that are available.

A batch never waits for more input: behind `tail -f` each line goes at once, from a file they go by the thousand.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

#: The size of one read. A pipe gives what it has.
READ_BYTES: Final = 1 << 20

T = TypeVar("T")


class Lines:
    """The lines of a file descriptor, without their ends (LF or CR LF).

    `is_file` says that a read never has to wait. `read_bytes` says how much has been read, for a progress bar.
    """

    def __init__(self, descriptor: int, *, is_file: bool = False, read: Callable[[int, int], bytes] = os.read) -> None:
        self._descriptor = descriptor
        self._is_file = is_file
        self._read = read
        self._ready: Iterator[bytes] = iter(())
        self._left = 0
        self._rest = b""
        self._at_end = False
        self.read_bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while not self._left:
            if self._at_end:
                raise StopIteration
            self._fill()
        self._left -= 1
        return next(self._ready).removesuffix(b"\r")

    def has_more_at_hand(self) -> bool:
        """Whether the next line comes without a wait."""
        return self._left > 0 or (self._is_file and not self._at_end)

    def rest(self) -> bytes:
        """All that is left, as it is."""
        parts = []
        while chunk := self._read(self._descriptor, READ_BYTES):
            parts.append(chunk)
        return b"".join(parts)

    def _fill(self) -> None:
        parts = [self._rest]
        while chunk := self._read(self._descriptor, READ_BYTES):
            parts.append(chunk)
            self.read_bytes += len(chunk)
            if b"\n" in chunk:
                break
        else:
            self._at_end = True
        lines = b"".join(parts).split(b"\n")
        self._rest = b"" if self._at_end else lines.pop()
        if self._at_end and lines[-1] == b"":
            lines.pop()
        self._ready, self._left = iter(lines), len(lines)


def batches(items: Iterable[T], has_more_at_hand: Callable[[], bool], max_size: int) -> Iterator[list[T]]:
    """The items in lists: as many as come without a wait, `max_size` at most, one at least."""
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) >= max_size or not has_more_at_hand():
            yield batch
            batch = []
    if batch:
        yield batch
