"""Loop calls: a thread runs a coroutine in an event loop and waits for it.

The coroutine sees the context variables of the thread, such as the span that a hook has made current.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

from mqdb_client.consumer.listeners.ctrl_c import hand_on

T = TypeVar("T")

#: The tasks of running calls, by the threads that wait for them.
WaitedTasks: TypeAlias = dict[int, asyncio.Task[Any]]

# The time between checks whether the loop was closed, because closing is not announced.
_LOOK_SECONDS: Final = 0.5


class LoopClosed(Exception):
    """The event loop was closed before the coroutine ended, or before it began."""


class LoopCalls:
    """The calls of one client in one loop. Any thread except the loop's may make calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.tasks: WaitedTasks = {}
        self._kept: set[asyncio.Task[object]] = set()

    def is_closed(self) -> bool:
        """Whether the loop is closed and can no longer run anything."""
        return self._loop.is_closed()

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Create a coroutine with `make` and run it, both in the loop, and wait for its end.

        Raises the errors of the coroutine, and LoopClosed.
        """
        work = self._ended(make, threading.get_ident())
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:
            work.close()
            raise LoopClosed from error
        while True:
            try:
                ended = future.result(_LOOK_SECONDS)
            except TimeoutError as error:
                if self.is_closed():
                    raise LoopClosed from error
            else:
                return ended()

    def start(self, make: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run the coroutine in the loop without waiting for it. This has no effect if the loop is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: self._keep(self._loop.create_task(make())))

    def blocking(self, listener: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        """Wrap a coroutine function in a function that returns when the coroutine has ended."""
        return lambda *arguments: self.run(lambda: listener(*arguments))

    def is_own_thread(self) -> bool:
        """Whether the caller runs in one of these calls."""
        try:
            return asyncio.current_task() in self.tasks.values()
        except RuntimeError:  # no loop runs in this thread
            return False

    def cancel(self) -> None:
        """Cancel the calls that are still running; must be called in their loop."""
        for task in list(self.tasks.values()):
            task.cancel()

    async def _ended(self, make: Callable[[], Coroutine[Any, Any, T]], thread_id: int) -> Callable[[], T]:
        """Run the coroutine. Call the returned function in the thread for the result or the error."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks[thread_id] = task
        try:
            value = await make()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - raised in the thread; sys.exit() would end the loop
            hand_on(error)
            return partial(_raise, error)
        finally:
            del self.tasks[thread_id]
        return lambda: value

    def _keep(self, task: "asyncio.Task[object]") -> None:
        self._kept.add(task)  # closing the loop alone does not do this
        task.add_done_callback(self._kept.discard)


def _raise(error: BaseException) -> NoReturn:
    raise error
