"""Holds: pulls that wait for messages. RocketMQ: PullRequestHoldService.

A hold is registered before the pull looks for messages: if a message arrives between the look and the wait, the wait
ends at once.
"""

import asyncio
from collections.abc import Callable, Iterable
from enum import Enum, auto

from mqdb.common.wake_limit import WakeLimit
from mqdb.remoting.consuming.readings import Reading


class Wake(Enum):
    """The reason why a wait ended."""

    ARRIVED = auto()
    """There may be messages."""
    TIME_OVER = auto()
    """The client should pull again."""
    LOST = auto()
    """The client has lost the queue, or its offset was reset."""


class Hold:
    """A pull that may have to wait."""

    __slots__ = ("reading", "reason", "waiter")

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.reason: Wake | None = None
        self.waiter: asyncio.Future[None] | None = None

    def wake(self, reason: Wake) -> None:
        """End the current wait, or the next one. A reason that leads to an answer takes precedence over an arrival."""
        if self.reason is None or self.reason is Wake.ARRIVED:
            self.reason = reason
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def wait(self, until: float) -> Wake:
        """Wait for `wake`, or until a time of the loop; returns the reason."""
        if self.reason is None:
            loop = asyncio.get_running_loop()
            self.waiter = loop.create_future()
            timer = loop.call_at(until, self.wake, Wake.TIME_OVER)
            try:
                await self.waiter
            finally:
                timer.cancel()
                self.waiter = None
        reason, self.reason = self.reason, None
        assert reason is not None
        return reason


class Holds:
    """All holds of a front, by queue key. Use it in the front's event loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._holds: dict[int, set[Hold]] = {}
        self._wake_limit = WakeLimit()
        self._late: set[int] | None = set()  # None stands for all queues
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, reading: Reading) -> Hold:
        """Register a hold before looking for messages. Every call needs a call of `leave`."""
        hold = Hold(reading)
        self._holds.setdefault(reading.queue_key, set()).add(hold)
        return hold

    def leave(self, hold: Hold) -> None:
        """Remove the hold of a pull that is answered."""
        key = hold.reading.queue_key
        holds = self._holds[key]
        holds.discard(hold)
        if not holds:
            del self._holds[key]

    def wake(self, reason: Wake, is_meant: "Callable[[Reading], bool]") -> None:
        """End the waits for which `is_meant` is true."""
        for holds in self._holds.values():
            for hold in holds:
                if is_meant(hold.reading):
                    hold.wake(reason)

    # -- arrivals -----------------------------------------------------------------------------

    def arrived(self, queue_keys: Iterable[int] | None) -> None:
        """Messages may have arrived in these queues, or in any queue for None.

        Every role can send such notifications, so wake-ups are limited.
        """
        if self._late is not None:
            self._late = None if queue_keys is None else self._late.union(queue_keys)
        if self._timer is None:
            seconds = self._wake_limit.seconds_left()
            if seconds:
                self._timer = self._loop.call_later(seconds, self._look)
            else:
                self._look()

    def found(self) -> None:
        """A pull that was woken has found messages."""
        self._wake_limit.regain()

    def _look(self) -> None:
        self._timer = None
        keys, self._late = self._late, set()
        for key in list(self._holds) if keys is None else keys & self._holds.keys():
            self._wake_limit.spend()
            for hold in self._holds[key]:
                hold.wake(Wake.ARRIVED)
