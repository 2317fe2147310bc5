"""Calls of coroutine functions by threads: they run in an event loop, and the thread waits."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class LoopCalls:
    """The calls that the threads of one client make."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any] | None] = set()

    def in_loop(self, function: Callable[P, Coroutine[Any, Any, T]], loop: asyncio.AbstractEventLoop) -> Callable[P, T]:
        """The function for threads. Where it is cancelled, and where the loop is closed, they get an Exception."""

        def call(*arguments: P.args, **options: P.kwargs) -> T:
            work = self._run(function, *arguments, **options)
            try:
                future = asyncio.run_coroutine_threadsafe(work, loop)
            except RuntimeError:  # the loop is closed
                work.close()
                raise
            return future.result()

        return call

    async def _run(self, function: Callable[P, Coroutine[Any, Any, T]], *arguments: P.args, **options: P.kwargs) -> T:
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            return await function(*arguments, **options)
        finally:
            self._tasks.discard(task)

    def is_own_task(self) -> bool:
        """Whether one of the calls is asking."""
        return asyncio.current_task() in self._tasks

    def cancel(self) -> None:
        """Cancel those that run. In their loop."""
        for task in list(self._tasks):
            if task is not None:
                task.cancel()
