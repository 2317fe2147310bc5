"""Abandoned clients: members that can no longer be used leave their groups.

A consumer keeps its queues as long as its process lives. But the event loop of a consumer can be closed earlier:
`asyncio.run` ends while a notebook or a test run continues. A program can also drop its last reference to a polling
consumer. In both cases the messages of the consumer's queues would wait forever. Python announces neither event, so the
process checks all such clients every 0.5 s.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

from mqdb.errors import ShutdownTimedOut
from mqdb_client.looks import look_often

logger = logging.getLogger(__name__)

#: The reason why a client can no longer be used; None while it can.
Reason = str | None


def watch(client: str, find_reason: Callable[[], Reason], leave: Callable[[], None]) -> Callable[[], None]:
    """Make a client leave when `find_reason` returns a reason; returns a function that ends the watch.

    `client` is the client's name in the log. If `find_reason` watches for the end of an object, neither function may
    refer to that object.
    """

    def look() -> None:
        if (reason := find_reason()) is not None:
            # Not in this thread: it may wait for the broker.
            threading.Thread(target=_leave, args=(leave,), name="mqdb-abandoned", daemon=True).start()
            end()
            fields = {"client": client, "reason": reason}
            logger.warning("%(client)s leaves its group without shutdown(): %(reason)s", fields, extra=fields)

    end = look_often(look)
    return end


def closed_loops(loops: Iterable[asyncio.AbstractEventLoop]) -> Reason:
    """The reason to leave the group if all of these event loops are closed, else None."""
    return "its event loop is closed" if all(loop.is_closed() for loop in loops) else None


def _leave(leave: Callable[[], None]) -> None:
    with suppress(ShutdownTimedOut):  # listeners in a closed loop are not waited for
        leave()
