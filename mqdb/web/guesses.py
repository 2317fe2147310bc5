"""Guesses: slows down clients that guess passwords.

After 5 wrong passwords in a minute, from all addresses together, each check of a password is delayed by a second. A
correct password is delayed, too: otherwise a client could give up after a few milliseconds without an answer, and try
the next password. With the delay, a client can try one password per second on each connection, and the server limits
the number of connections.
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
    """Remembers the times of the latest wrong passwords. Only the web server's thread uses this class."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._pause = pause
        self._wrong: deque[float] = deque(maxlen=_MOST_WRONG)

    async def wait(self) -> None:
        """Wait for a second if there were many wrong passwords. Call this method before each check of a password."""
        if len(self._wrong) == _MOST_WRONG and self._clock() - self._wrong[0] < _WITHIN_SECONDS:
            await self._pause(_WAIT_SECONDS)

    def note_wrong(self) -> None:
        """Remember that a password was wrong."""
        self._wrong.append(self._clock())
