"""Access to the database from the event loop: verbs block, so they run in threads, each with a connection."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar

from sqlalchemy import Connection

from mqdb.errors import BrokerUnavailable
from mqdb.store.engine import translates
from mqdb_client.instance import ClientInstance

T = TypeVar("T")

_THREADS: Final = 8

#: Pause between attempts while the database is unavailable.
AGAIN_SECONDS: Final = 1.0


class Database:
    """The database of one broker, for one event loop. Create it and close it in the loop."""

    def __init__(self, instance: ClientInstance, protocol: str) -> None:
        """`protocol` is the protocol of the front, after which the threads are named."""
        self.instance = instance
        self.loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"mqdb-{protocol}")
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, work: Callable[[Connection], T]) -> T:
        """The result of `work` with a connection in AUTOCOMMIT.

        Raises the errors of `work`, with those of the driver translated.
        """
        return await self.loop.run_in_executor(self._threads, self._run, work)

    async def call(self, work: Callable[[], T]) -> T:
        """The result of `work`, which connects by itself."""
        return await self.loop.run_in_executor(self._threads, work)

    async def patiently(self, work: Callable[[], Awaitable[T]], until: float) -> T:
        """The result of `work`.

        While the database is unavailable, it is tried again until the given time of the event loop.
        """
        while True:
            try:
                return await work()
            except BrokerUnavailable as error:
                if not error.may_pass or self.loop.time() + AGAIN_SECONDS >= until:
                    raise
            await asyncio.sleep(AGAIN_SECONDS)

    def _run(self, work: Callable[[Connection], T]) -> T:
        with self.instance.connect() as connection:
            return translates(work)(connection)  # some work reads stored data without a verb

    def in_loop(self, work: Callable[[T], None]) -> Callable[[T], None]:
        """A function for other threads that calls `work` in the event loop, as long as the loop runs."""

        def call(value: T) -> None:
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(work, value)

        return call

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that lives until it ends or the front stops."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Cancel all spawned tasks, and wait for the verbs in progress."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._threads.shutdown)
