"""Reads lines from a file or a pipe, and collects available lines into batches.

A batch never waits for more input: lines from `tail -f` are sent immediately, lines of a file in thousands.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

#: Size of one read. A read from a pipe returns the bytes that are available.
READ_BYTES: Final = 1 << 20

T = TypeVar("T")


class Lines:
    """The lines of a file descriptor, without their line ends (LF or CR LF).

    If `is_file` is true, reads never block. `read_bytes` is the number of bytes read so far, for a progress bar.
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
        """Whether the next line is available without waiting."""
        return self._left > 0 or (self._is_file and not self._at_end)

    def rest(self) -> bytes:
        """All remaining bytes, unchanged."""
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
    """Yield the items in lists: at least one, at most `max_size`, and only as many as come without waiting."""
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) >= max_size or not has_more_at_hand():
            yield batch
            batch = []
    if batch:
        yield batch
