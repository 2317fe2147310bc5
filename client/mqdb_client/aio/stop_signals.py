"""Stop signals of an event loop."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final
from weakref import WeakKeyDictionary

#: Each loop calls these at a stop signal. A loop keeps one handler for a signal, and may run several consumers.
_stops: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, list[Callable[[], object]]]] = WeakKeyDictionary()


@contextmanager
def on_loop_stop_signal(stop: Callable[[], object]) -> Iterator[None]:
    """Have SIGINT and SIGTERM call `stop`, if this loop can handle signals: in the main thread, on Unix."""
    loop = asyncio.get_running_loop()
    stops = _stops.setdefault(loop, [])
    stops.append(stop)

    def stop_all() -> None:
        for each in stops:
            each()

    # Neither Windows nor another thread than the main one may.
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
