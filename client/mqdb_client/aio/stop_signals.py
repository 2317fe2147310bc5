"""Stop signals of an event loop."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final
from weakref import WeakKeyDictionary

#: The functions that each loop calls at a stop signal. A loop has one handler per signal, but may run several
#: consumers.
_stops: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, list[Callable[[], object]]]] = WeakKeyDictionary()


@contextmanager
def on_loop_stop_signal(stop: Callable[[], object]) -> Iterator[None]:
    """Let SIGINT and SIGTERM call `stop`, if this loop can handle signals: in the main thread, on Unix."""
    loop = asyncio.get_running_loop()
    stops = _stops.setdefault(loop, [])
    stops.append(stop)

    def stop_all() -> None:
        for each in stops:
            each()

    # Not possible on Windows or outside the main thread.
    with suppress(NotImplementedError, RuntimeError, ValueError):
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop_all)
    try:
        yield
    finally:
        stops.remove(stop)
        if not stops:
            with suppress(NotImplementedError):  # loops on Windows have no such handlers
                for number in (signal.SIGINT, signal.SIGTERM):
                    loop.remove_signal_handler(number)
