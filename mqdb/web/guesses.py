"""Guesses: slow down clients that guess passwords.

After 5 wrong passwords in a minute, from all addresses together, each password is checked a second later. The right
password waits as well. If it were answered at once, a client could give up after some milliseconds and try the next
one. With the wait a client tries one password a second on each connection, and the server bounds the connections.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

_MOST_WRONG: Final = 5
_WITHIN_SECONDS: Final = 60.0
_WAIT_SECONDS: Final = 1.0


class Guesses:
    """Remembers when the last passwords were wrong. Only the thread of the web server calls it."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._pause = pause
        self._wrong: deque[float] = deque(maxlen=_MOST_WRONG)

    async def wait(self) -> None:
        """Wait a moment if there were many wrong passwords. Call it before each check of a password."""
        if len(self._wrong) == _MOST_WRONG and self._clock() - self._wrong[0] < _WITHIN_SECONDS:
            await self._pause(_WAIT_SECONDS)

    def note_wrong(self) -> None:
        """Remember that a password was wrong."""
        self._wrong.append(self._clock())
