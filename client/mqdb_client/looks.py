"""Looks: periodic checks for changes that are not announced, in one thread for all clients of the process.

The thread lives as long as there is something to check.
"""

import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.5


class _Thread:
    def __init__(self) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mqdb-looks", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Wait until the thread has ended, unless called in this thread."""
        self._end.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(_LOOK_SECONDS):
            with _guard:
                looks = list(_looks.values())
            for look in looks:
                try:
                    look()
                except RuntimeError:
                    # Threads cannot be started while the interpreter shuts down.
                    logger.debug("a look failed, and is repeated", exc_info=True)


_guard = threading.Lock()
_looks: Final[dict[object, Callable[[], None]]] = {}
_thread: _Thread | None = None


def look_often(look: Callable[[], None]) -> Callable[[], None]:
    """Call `look` every 0.5 s; it must not block. Returns a function that ends these calls; `look` may also call it."""
    global _thread
    key = object()
    with _guard:
        _looks[key] = look
        _thread = _thread or _Thread()
    return partial(_end, key)


def _end(key: object) -> None:
    global _thread
    ended = None
    with _guard:
        _looks.pop(key, None)
        if not _looks:
            ended, _thread = _thread, None
    if ended is not None:
        ended.end()


def _forget_in_child() -> None:
    global _guard, _thread
    _guard, _thread = threading.Lock(), None
    _looks.clear()


os.register_at_fork(after_in_child=_forget_in_child)
