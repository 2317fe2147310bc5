"""Stop signals of an event loop."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def on_loop_stop_signal(stop: Callable[[], object]) -> Iterator[None]:
    """Have SIGINT and SIGTERM call `stop`, where this loop may: in the main thread, on Unix."""
    loop, heard = asyncio.get_running_loop(), []
    for number in (signal.SIGINT, signal.SIGTERM):
        # Neither Windows nor another thread than the main one may.
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, stop)
            heard.append(number)
    try:
        yield
    finally:
        for number in heard:
            loop.remove_signal_handler(number)
