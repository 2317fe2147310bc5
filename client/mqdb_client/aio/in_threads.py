"""Blocking methods as coroutine functions: they run in threads, and mypy sees the same parameters and results."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing
from functools import wraps
from itertools import islice
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, Self, TypeVar, cast

S = TypeVar("S", covariant=True)
T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

#: The number of items that a thread reads at once.
_READ_AT_ONCE: Final = 100


class ThreadClient(Protocol):
    """A synchronous client."""

    def start(self) -> None:
        """Connect and join the group."""

    def shutdown(self) -> None:
        """Leave the group. If a start is under way, waits for it first."""


async def start_in_thread(client: ThreadClient) -> None:
    """Start a client.

    If the task is cancelled, the client is shut down after its start, which continues in the thread.
    """
    try:
        await asyncio.to_thread(client.start)
    except asyncio.CancelledError:
        asyncio.get_running_loop().run_in_executor(None, client.shutdown)
        raise


class Wrapper(Generic[S]):
    """Wraps an object: coroutine functions replace its methods."""

    def __init__(self, below: S) -> None:
        self._below = below


def in_thread(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[Wrapper[S], P], Coroutine[Any, Any, T]]:
    """Wrap a blocking method as a coroutine function with the same parameters.

    If the task is cancelled, the thread still runs to its end.
    """

    @wraps(method)
    async def call(self: Wrapper[S], /, *arguments: P.args, **options: P.kwargs) -> T:
        return await asyncio.to_thread(method, self._below, *arguments, **options)

    return call


def iterated(
    method: Callable[Concatenate[S, P], Iterator[T]],
) -> Callable[Concatenate[Wrapper[S], P], AsyncGenerator[T, None]]:
    """Wrap a generator method as an asynchronous generator, which reads ahead a little."""

    @wraps(method)
    async def call(self: Wrapper[S], /, *arguments: P.args, **options: P.kwargs) -> AsyncGenerator[T, None]:
        generator = cast("Generator[T, None, None]", method(self._below, *arguments, **options))
        async with Entered(closing(generator)) as entered:
            while some := await entered.run(lambda: list(islice(generator, _READ_AT_ONCE))):
                for each in some:
                    yield each

    return call


class Entered(Generic[T]):
    """A context manager entered, used and left in a separate thread, in this order, even if tasks are cancelled."""

    value: T

    def __init__(self, manager: AbstractContextManager[T]) -> None:
        self._manager = manager
        self._thread = ThreadPoolExecutor(1, "mqdb-admin")
        self._stack = ExitStack()

    async def run(self, work: Callable[[], R]) -> R:
        """Run a function in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def __aenter__(self) -> Self:
        try:
            self.value = await self.run(lambda: self._stack.enter_context(self._manager))
        except BaseException:
            self._leave()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(asyncio.wrap_future(self._leave()))

    def _leave(self) -> "Future[None]":
        left = self._thread.submit(self._stack.close)
        self._thread.shutdown(wait=False)  # after it has done so
        return left
