"""Stop signals: SIGINT and SIGTERM as a request to end well."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_stop_signal(request_stop: Callable[[], None]) -> Iterator[None]:
    """Have `request_stop` called by the first signal; the second one acts as it did before.

    `request_stop` runs between any two instructions of the main thread, so it must take no lock. Outside the main
    thread nobody can be told of signals, and nothing happens.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(_number: int, _frame: FrameType | None) -> None:
        restore()
        request_stop()

    for number in _SIGNALS:
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()
