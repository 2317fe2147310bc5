"""The live stream: server-sent events that carry the pulse to each open overview, after each sample.

A page holds one stream, and their number is bounded.
Source: https://html.spec.whatwg.org/multipage/server-sent-events.html.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from mqdb.dashboard.brokers import Brokers
from mqdb.errors import MqdbError

#: Streams of one process. A connection more is refused; the web server takes 100 in all.
MOST_STREAMS: Final = 50

#: Without a sample for so long the stream sends a comment, so that a proxy keeps it and a dead peer is noticed.
_SILENCE_SECONDS: Final = 20.0


class Live:
    """Makes the streams of a dashboard."""

    def __init__(self, brokers: Brokers, most_streams: int = MOST_STREAMS) -> None:
        self._brokers = brokers
        self._most_streams = most_streams
        self.streams = 0
        """Open streams. Only the event loop of the web server changes it."""

    async def endpoint(self, request: Request) -> Response:
        """The route of the stream."""
        if self.streams >= self._most_streams:
            return PlainTextResponse(
                f"There are {self._most_streams} live pages already.\n", 503, {"Retry-After": "30"}
            )
        name = str(request.path_params["broker"])
        try:
            is_known = await anyio.to_thread.run_sync(self._brokers.find, name) is not None
        except MqdbError as error:
            return PlainTextResponse(f"{error}\n", 503)
        if not is_known:
            return PlainTextResponse(f"There is no broker {name!r} here.\n", 404)
        return StreamingResponse(
            self._events(name), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
        )

    async def _events(self, broker: str) -> AsyncIterator[str]:
        self.streams += 1
        loop, is_new = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the web server has stopped, and its loop is closed
                loop.call_soon_threadsafe(is_new.set)

        try:
            with self._brokers.figures.watching(wake):
                last = -1
                while True:
                    number, part = await anyio.to_thread.run_sync(self._brokers.pulse.render, broker)
                    if number != last:
                        yield _event(part)
                        last = number
                    try:
                        await asyncio.wait_for(is_new.wait(), _SILENCE_SECONDS)
                    except TimeoutError:
                        yield ":\n\n"
                    is_new.clear()
        finally:
            self.streams -= 1


def _event(part: str) -> str:
    """One event. Each line of its data has a prefix of its own."""
    return "".join(f"data: {line}\n" for line in part.splitlines() or [""]) + "\n"
