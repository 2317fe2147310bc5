"""Receipt handles of popped messages. Those of one pop can be put together, which saves the database work.

A handle is 80 hexadecimal digits. The last 16 have a bit for each message of its batch that is meant; the others say
which batch that is, and until when the handle counts. Made and read in `mqdb/sql/consumers/pop.sql`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

_HEAD: Final = 64
_HANDLE: Final = re.compile("[0-9a-f]{80}")
#: The end of the handle of a single message, by its place in the batch.
_TAILS: Final = tuple(f"{1 << place:016x}" for place in range(64))


def is_handle(text: str) -> bool:
    """Whether a text has the form of a handle. The database takes no text with U+0000."""
    return _HANDLE.fullmatch(text) is not None


def expires_ms(handle: str) -> int:
    """The time at which a handle expires, in milliseconds since 1970 by the clock of the database."""
    return int(handle[48:_HEAD], 16) // 1_000


def each(handle: str) -> Iterator[tuple[int, str]]:
    """The place in the batch, and the handle, of each message that a handle means."""
    head, messages = handle[:_HEAD], int(handle[_HEAD:], 16)
    for place, tail in enumerate(_TAILS):
        if messages >> place & 1:
            yield place, head + tail


def of_place(handle: str, place: int) -> str:
    """The handle of one message, of a handle of its batch."""
    return handle[:_HEAD] + _TAILS[place]


def together(handles: Iterable[str]) -> dict[str, str]:
    """One handle for each batch that the handles name, by its head. A text that is not a handle is kept unchanged."""
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
    """The new handle of a message, where those of whole batches are given; None if the message is not among theirs."""
    new = by_head[head_of(handle)]
    if new is None or not int(new[_HEAD:], 16) & int(handle[_HEAD:], 16):
        return None
    return new[:_HEAD] + handle[_HEAD:]
