"""Stop signals: SIGINT and SIGTERM as requests for an orderly end."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_stop_signal(request_stop: Callable[[], None]) -> Iterator[None]:
    """Call `request_stop` at the first signal; a second signal has its original effect.

    A second Ctrl-C ends the process silently, and does not raise KeyboardInterrupt.
    `request_stop` runs between any two instructions of the main thread, so it must take no lock. Outside the main
    thread, signals cannot be handled, and this call has no effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def handle(_number: int, _frame: FrameType | None) -> None:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is signal.default_int_handler else handler)
        request_stop()

    for number in _SIGNALS:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
