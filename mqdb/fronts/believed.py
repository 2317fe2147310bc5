"""Answers of the database that are cached for a while, so that frequent queries of clients cost it nothing."""

import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")

#: Push consumers query every 5 s for each topic.
_SECONDS: Final = 5.0

#: Maximum number of cached keys; beyond it, the cache is emptied.
_MOST: Final = 10_000


class Believed(Generic[KeyT, ValueT]):
    """Cached answers by key.

    An empty answer is not cached, because it may change soon. Call it from the event loop only.
    """

    def __init__(self, ask: Callable[[KeyT], Awaitable[ValueT]]) -> None:
        self._ask = ask
        self._known: dict[KeyT, tuple[ValueT, float]] = {}

    async def get(self, key: KeyT) -> ValueT:
        """The answer, at most a few seconds old. Raises the errors of `ask`."""
        known = self._known.get(key)
        if known is not None and known[0] and known[1] > time.monotonic():
            return known[0]
        if len(self._known) >= _MOST:
            self._known.clear()
        answer = await self._ask(key)
        self._known[key] = answer, time.monotonic() + _SECONDS
        return answer
