"""Shutdown report: the log says what a shutdown waits for, so that nobody takes it for a process that hangs."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

logger = logging.getLogger(__name__)

#: A wait is logged if two looks in a row find it.
_LOOK_SECONDS: Final = 0.4


@contextmanager
def shutdown_report(group: str, seconds: float, running: Callable[[], int]) -> Iterator[None]:
    """Say once that listeners are waited for, which ends after `seconds`, and once that a broker is.

    `running` is how many listeners run now.
    """
    is_over = threading.Event()
    arguments = (group, time.monotonic() + seconds, running, is_over)
    thread = threading.Thread(target=_report, args=arguments, name=f"mqdb-{group}-shutdown", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _report(group: str, deadline: float, running: Callable[[], int], is_over: threading.Event) -> None:
    fields = {"group": group}
    is_for_listeners: bool | None = None
    said: bool | None = None
    while not is_over.wait(_LOOK_SECONDS):
        seconds, listeners = deadline - time.monotonic(), running()
        before, is_for_listeners = is_for_listeners, listeners > 0 and seconds > 0
        if is_for_listeners != before or is_for_listeners == said:
            continue
        said = is_for_listeners
        if is_for_listeners:
            # The numbers are in the sentence: a program that has not set up logging shows nothing else.
            logger.warning(
                "shutdown waits for %d running listeners, %.0f s at most (shutdown_timeout); "
                "a second SIGINT or SIGTERM leaves them at once",
                listeners,
                seconds,
                extra=fields,
            )
        else:
            logger.warning("shutdown waits for the broker, to commit offsets and leave the group", extra=fields)
