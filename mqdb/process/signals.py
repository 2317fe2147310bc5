"""Signals that ask a process to end. Everything here is for the main thread."""

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

#: Ctrl-C, and how a supervisor ends a process.
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

_LOOK_SECONDS: Final = 0.1


@contextmanager
def handled(numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Have these signals call `handler` in the block."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def deferred(*numbers: int) -> Iterator[None]:
    """Have these signals wait for the end of the block. Then the first one does what it would have done at once.

    By a handler, not a signal mask: any other thread would take the signal for the main one.
    """
    heard: list[int] = []
    with handled(numbers, lambda number, _frame: heard.append(number)):
        yield
    if heard:
        signal.raise_signal(heard[0])


class Interruption:
    """Whether a signal has asked this process to end. No lock is taken: a handler may run while it is held."""

    def __init__(self) -> None:
        self._was_asked = False

    def is_set(self) -> bool:
        """Whether a signal has come."""
        return self._was_asked

    def wait(self, meanwhile: Callable[[], object] = lambda: None, until: Callable[[], bool] = lambda: False) -> None:
        """Wait for a signal, or until a condition holds; both are called ten times a second."""
        # No sleep without end: a signal in the instant before it only sets a flag in C, and wakes nobody.
        while not self._was_asked and not until():
            time.sleep(_LOOK_SECONDS)
            meanwhile()

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self._was_asked = True


@contextmanager
def interruption() -> Iterator[Interruption]:
    """A block that SIGINT, SIGTERM and SIGHUP interrupt; not SIGHUP if it was ignored at the start, as by nohup."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    interrupted = Interruption()
    with handled(STOP_SIGNALS if is_ignored else (*STOP_SIGNALS, signal.SIGHUP), interrupted._interrupt):
        yield interrupted
