"""Guesses: whoever tries passwords is slowed down, and so is everybody else who gives one meanwhile.

After some wrong passwords in a minute, from whatever addresses, each password waits before anybody looks at it. The
right one waits as well: were it answered at once, those who guess would not wait for the answers that come late. So
they try one password a second on each of the connections that the server takes.
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
    """The wrong passwords of the last minute. Only the thread of the web server calls it."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._pause = pause
        self._wrong: deque[float] = deque(maxlen=_MOST_WRONG)

    async def wait(self) -> None:
        """Call it before a password is looked at."""
        if len(self._wrong) == _MOST_WRONG and self._clock() - self._wrong[0] < _WITHIN_SECONDS:
            await self._pause(_WAIT_SECONDS)

    def note_wrong(self) -> None:
        """A password was wrong."""
        self._wrong.append(self._clock())
