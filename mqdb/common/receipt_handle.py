"""Receipt handles of popped messages. Handles of one pop can be combined, which saves the database work.

A handle is 80 hexadecimal digits. The last 16 have a bit for each selected message of a batch; the other digits
identify the batch and the expiry of the handle. Handles are made and read in `mqdb/sql/consumers/pop.sql`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

_HEAD: Final = 64
_HANDLE: Final = re.compile("[0-9a-f]{80}")
#: The end of a single message's handle, by its place in the batch.
_TAILS: Final = tuple(f"{1 << place:016x}" for place in range(64))


def is_handle(text: str) -> bool:
    """Whether a string has the form of a handle. The database does not accept U+0000 in text."""
    return _HANDLE.fullmatch(text) is not None


def expires_ms(handle: str) -> int:
    """The time at which a handle expires, in milliseconds since 1970 by the clock of the database."""
    return int(handle[48:_HEAD], 16) // 1_000


def each(handle: str) -> Iterator[tuple[int, str]]:
    """The place in the batch, and the handle, of each message that a handle selects."""
    head, messages = handle[:_HEAD], int(handle[_HEAD:], 16)
    for place, tail in enumerate(_TAILS):
        if messages >> place & 1:
            yield place, head + tail


def of_place(handle: str, place: int) -> str:
    """The handle of one message, made from a handle of its batch."""
    return handle[:_HEAD] + _TAILS[place]


def together(handles: Iterable[str]) -> dict[str, str]:
    """Combine handles into one handle per batch; the result is keyed by the head of the handles.

    A string that is not a handle is kept unchanged.
    """
    messages: dict[str, int] = {}
    for handle in handles:
        if _HANDLE.fullmatch(handle):
            head = handle[:_HEAD]
            messages[head] = messages.get(head, 0) | int(handle[_HEAD:], 16)
        else:
            messages[handle] = -1
    return {head: head if bits < 0 else f"{head}{bits:016x}" for head, bits in messages.items()}


def head_of(handle: str) -> str:
    """The key that `together` uses for the batch of a handle."""
    return handle[:_HEAD] if _HANDLE.fullmatch(handle) else handle


def moved(handle: str, by_head: Mapping[str, str | None]) -> str | None:
    """The new handle of a message, taken from new handles of batches; None if they do not include the message."""
    new = by_head[head_of(handle)]
    if new is None or not int(new[_HEAD:], 16) & int(handle[_HEAD:], 16):
        return None
    return new[:_HEAD] + handle[_HEAD:]
