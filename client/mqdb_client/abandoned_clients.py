"""Abandoned clients: members that nobody can use any more leave their groups.

A consumer keeps its queues as long as its process lives. But its event loop can be closed before: `asyncio.run` ends,
and a notebook or a test run goes on. Or a program drops a consumer that only polls. Messages of its queues would wait
for ever. Python announces neither, so one thread of the process looks at all such clients every 0.5 s.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from mqdb.errors import ShutdownTimedOut

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.5

#: Why nobody can use a client any more; None as long as somebody can.
Reason = str | None


class _Watched(NamedTuple):
    client: str
    find_reason: Callable[[], Reason]
    leave: Callable[[], None]


class _Looks:
    """The thread that looks, from the first client to the last one."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mqdb-abandoned-clients", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Return when the thread has ended, unless it asks for that itself."""
        self._end.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(_LOOK_SECONDS):
            with _guard:
                watched = list(_watched.items())
            for key, each in watched:
                # Another thread noted a loop during the look, or there are no new threads: look again soon.
                with suppress(RuntimeError):
                    _look_at(key, each)


_guard = threading.Lock()
_watched: Final[dict[object, _Watched]] = {}
_looks: _Looks | None = None


def watch(client: str, find_reason: Callable[[], Reason], leave: Callable[[], None]) -> Callable[[], None]:
    """Have a client leave when `find_reason` gives a reason; returns what ends the watch.

    `client` is what the log calls it. Neither function may refer to an object whose end is waited for.
    """
    global _looks
    key = object()
    with _guard:
        _watched[key] = _Watched(client, find_reason, leave)
        _looks = _looks or _Looks()
    return partial(_forget, key)


def closed_loops(loops: Iterable[asyncio.AbstractEventLoop]) -> Reason:
    """The reason to leave if all these event loops are closed."""
    return "its event loop is closed" if all(loop.is_closed() for loop in loops) else None


def _forget(key: object) -> None:
    global _looks
    ended = None
    with _guard:
        _watched.pop(key, None)
        if not _watched:
            ended, _looks = _looks, None
    if ended is not None:
        ended.end()


def _look_at(key: object, each: _Watched) -> None:
    if (reason := each.find_reason()) is not None:
        # Not here: it may wait for the broker.
        threading.Thread(target=_leave, args=(each.leave,), name="mqdb-abandoned", daemon=True).start()
        _forget(key)
        fields = {"client": each.client, "reason": reason}
        logger.warning("a client without shutdown() leaves its group", extra=fields)


def _leave(leave: Callable[[], None]) -> None:
    with suppress(ShutdownTimedOut):  # nobody waits for listeners in a loop that is closed
        leave()


def _forget_in_child() -> None:
    global _guard, _looks
    _guard, _looks = threading.Lock(), None
    _watched.clear()


os.register_at_fork(after_in_child=_forget_in_child)
