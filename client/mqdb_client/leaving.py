"""Leaving: a shutdown logs what it waits for, and limits its wait for a silent broker.

A connection attempt cannot be interrupted, so the last requests to a broker are made in a separate thread.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final

from mqdb.errors import ShutdownTimedOut

logger = logging.getLogger(__name__)

#: The time that a broker has for all these requests: as long as a connection attempt (`mqdb.store.engine`).
LEAVE_SECONDS: Final = 5.0

#: A wait is logged if two checks in a row find it.
_LOOK_SECONDS: Final = 0.4


def leave_in_time(
    group: str, leave: Callable[[], object], listeners: Callable[[], int] = lambda: 0, seconds: float = 0.0
) -> None:
    """Run `leave`, and wait `seconds` for running listeners, then for the broker.

    `leave` may continue after this function returns.

    `listeners` returns the number of running listeners; `leave` itself must not wait longer than `seconds` for them.
    Raises ShutdownTimedOut if some listeners are still running at the end, and the errors of `leave`.
    """
    left: Future[None] = Future()
    thread = threading.Thread(target=_run, args=(leave, left), name=f"mqdb-{group}-leave", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # threads cannot be started while the interpreter shuts down
        _run(leave, left)
    _wait(group, left, listeners, seconds)
    if left.done():
        left.result()
    if running := listeners():
        raise ShutdownTimedOut(group, running, seconds)


def _run(leave: Callable[[], object], left: "Future[None]") -> None:
    try:
        leave()
        left.set_result(None)
    except BaseException as error:  # noqa: BLE001 - raised in the caller, if it still waits
        left.set_exception(error)


def _wait(group: str, left: "Future[None]", listeners: Callable[[], int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    give_up_at = time.monotonic() + LEAVE_SECONDS
    is_for_listeners: bool | None = None
    said: bool | None = None
    while not wait([left], _LOOK_SECONDS).done:
        now = time.monotonic()
        running = listeners() if now < deadline else 0
        before, is_for_listeners = is_for_listeners, running > 0
        if is_for_listeners:
            give_up_at = now + LEAVE_SECONDS
        elif now >= give_up_at:
            fields: dict[str, object] = {"group": group}
            sentence = "left group %(group)s without an answer from the broker; the registration will expire"
            logger.warning(sentence, fields, extra=fields)
            return
        if is_for_listeners != before or is_for_listeners == said:
            continue
        said = is_for_listeners
        if is_for_listeners:
            fields = {"group": group, "running": running, "seconds": round(deadline - now, 1)}
            logger.warning(
                "shutdown in group %(group)s waits for %(running)d running listeners, %(seconds).1f s at most "
                "(shutdown_timeout); a second SIGINT or SIGTERM leaves them at once",
                fields,
                extra=fields,
            )
        else:
            fields = {"group": group, "seconds": LEAVE_SECONDS}
            sentence = "shutdown in group %(group)s waits for the broker, %(seconds).0f s at most"
            logger.warning(sentence, fields, extra=fields)
