"""Ctrl-C in an event loop, and listeners that raise KeyboardInterrupt or SystemExit.

If a listener raises one of these errors, its messages count as failed, both in a thread and in a loop, which asyncio
would otherwise end. But a loop often runs in the main thread, where Ctrl-C raises KeyboardInterrupt in the code that is
running, which may be a listener. So this module passes a KeyboardInterrupt on to the loop if Ctrl-C may have caused it.
"""

import asyncio
import signal
import threading
from typing import NoReturn


def hand_on(error: BaseException) -> None:
    """Make the running loop re-raise a KeyboardInterrupt that Ctrl-C may have caused.

    asyncio.run and a program's own handlers handle Ctrl-C without raising it in a listener. With asyncio.run, only a
    second Ctrl-C is raised in a listener, when the loop is already ending.
    """
    if not issubclass(type(error), KeyboardInterrupt):
        return
    is_answered_elsewhere = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    if threading.current_thread() is threading.main_thread() and not is_answered_elsewhere:
        asyncio.get_running_loop().call_soon(_interrupt)


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt
