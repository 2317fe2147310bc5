"""The live streams: server-sent events that send the newest figures to open pages after each sample.

Each open overview, page of a topic and page of a group has one stream. The number of streams is limited.
Source: https://html.spec.whatwg.org/multipage/server-sent-events.html.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from mqdb.dashboard.brokers import Brokers
from mqdb.dashboard.live.subject_figures import group_figures, topic_figures
from mqdb.errors import MqdbError

#: Renders a live part; returns the number of the sample, and the part as HTML.
Render: TypeAlias = Callable[[], tuple[int, str]]

#: The limit of streams in a process; further streams are refused. The web server accepts 100 connections in all.
MOST_STREAMS: Final = 50

#: After this time without a sample, a stream sends a comment, so that proxies keep it open and dead peers are noticed.
_SILENCE_SECONDS: Final = 20.0


class Live:
    """Serves the streams of a dashboard."""

    def __init__(self, brokers: Brokers, most_streams: int = MOST_STREAMS) -> None:
        self._brokers = brokers
        self._most_streams = most_streams
        self.streams = 0
        """The number of open streams. Only the event loop of the web server changes the number."""

    async def overview(self, request: Request) -> Response:
        """The stream of the overview: the pulse of the broker."""
        broker = str(request.path_params["broker"])
        return await self._stream(broker, partial(self._brokers.pulse.render, broker))

    async def topic(self, request: Request) -> Response:
        """The stream of a topic's page: the rates of the topic."""
        topic = str(request.path_params["topic"])
        return await self._stream(
            str(request.path_params["broker"]), partial(topic_figures, self._brokers.figures, topic)
        )

    async def group(self, request: Request) -> Response:
        """The stream of a group's page: the rates, the lag and the dead letters of the group."""
        group = str(request.path_params["group"])
        return await self._stream(
            str(request.path_params["broker"]), partial(group_figures, self._brokers.figures, group)
        )

    async def _stream(self, broker: str, render: Render) -> Response:
        if self.streams >= self._most_streams:
            return PlainTextResponse(
                f"There are already {self._most_streams} live pages.\n", 503, {"Retry-After": "30"}
            )
        try:
            is_known = await anyio.to_thread.run_sync(self._brokers.find, broker) is not None
        except MqdbError as error:
            return PlainTextResponse(f"{error}\n", 503)
        if not is_known:
            return PlainTextResponse(f"There is no broker {broker!r} here.\n", 404)
        return event_stream(self._events(render))

    async def _events(self, render: Render) -> AsyncIterator[str]:
        self.streams += 1
        loop, is_new = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the web server has stopped, and its loop is closed
                loop.call_soon_threadsafe(is_new.set)

        try:
            with self._brokers.figures.watching(wake):
                last = -1
                while True:
                    number, part = await anyio.to_thread.run_sync(render)
                    if number != last:
                        yield event(part)
                        last = number
                    try:
                        await asyncio.wait_for(is_new.wait(), _SILENCE_SECONDS)
                    except TimeoutError:
                        yield ":\n\n"
                    is_new.clear()
        finally:
            self.streams -= 1


def event_stream(events: AsyncIterator[str]) -> Response:
    """The response that sends these events, each as soon as `events` yields it."""
    return StreamingResponse(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


def event(part: str, name: str = "message") -> str:
    """The text of an event with a part of a page. Each line of the part gets the prefix `data:`."""
    named = "" if name == "message" else f"event: {name}\n"
    return named + "".join(f"data: {line}\n" for line in part.splitlines() or [""]) + "\n"
