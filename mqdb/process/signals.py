"""Signals that ask a process to end. All functions here are for the main thread."""

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

#: Ctrl-C, and the signal with which a supervisor ends a process.
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

_LOOK_SECONDS: Final = 0.1


@contextmanager
def handled(numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Let these signals call `handler` within the block."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def deferred(*numbers: int) -> Iterator[None]:
    """Defer these signals to the end of the block. The first deferred signal then has its normal effect. This function
    uses a handler and not a signal mask, because another thread would receive the signal instead of the main thread.
    """
    heard: list[int] = []
    with handled(numbers, lambda number, _frame: heard.append(number)):
        yield
    if heard:
        signal.raise_signal(heard[0])


class Interruption:
    """Whether a signal has asked this process to end.

    An Interruption takes no lock, because a handler may run while the lock is held.
    """

    def __init__(self) -> None:
        self._was_asked = False

    def is_set(self) -> bool:
        """Whether a signal has arrived."""
        return self._was_asked

    def wait(self, meanwhile: Callable[[], object] = lambda: None, until: Callable[[], bool] = lambda: False) -> None:
        """Wait for a signal, or until a condition holds; both functions are called ten times a second."""
        # Not a single long sleep: a signal just before it only sets a flag in C, and wakes nothing.
        while not self._was_asked and not until():
            time.sleep(_LOOK_SECONDS)
            meanwhile()

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self._was_asked = True


@contextmanager
def interruption() -> Iterator[Interruption]:
    """A block that SIGINT, SIGTERM and SIGHUP interrupt; SIGHUP does not if it was ignored, as with nohup."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    interrupted = Interruption()
    with handled(STOP_SIGNALS if is_ignored else (*STOP_SIGNALS, signal.SIGHUP), interrupted._interrupt):
        yield interrupted
