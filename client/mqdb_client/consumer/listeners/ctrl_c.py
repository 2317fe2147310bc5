"""Ctrl-C in an event loop, and listeners that raise KeyboardInterrupt or SystemExit.

If a listener raises one of the two, its messages have failed, in a thread as in a loop. asyncio would end the loop. But
a loop often runs in the main thread, where Python raises KeyboardInterrupt at Ctrl-C in the code that runs at that
moment, which may be a listener. So this module hands a KeyboardInterrupt on to the loop if Ctrl-C can have caused it.
"""

import asyncio
import signal
import threading
from typing import NoReturn


def hand_on(error: BaseException) -> None:
    """In a loop: have the loop raise a KeyboardInterrupt again that Ctrl-C can have caused.

    asyncio.run and handlers of a program's own answer Ctrl-C without raising it in a listener. Only a second Ctrl-C of
    asyncio.run does that, and the loop is being ended by then.
    """
    if not issubclass(type(error), KeyboardInterrupt):
        return
    is_answered_elsewhere = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    if threading.current_thread() is threading.main_thread() and not is_answered_elsewhere:
        asyncio.get_running_loop().call_soon(_interrupt)


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt
