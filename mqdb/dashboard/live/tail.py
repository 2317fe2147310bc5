"""The live tail: new messages of a topic, sent to an open page as they arrive.

Once a second, a tail queries the ends of the queues. If there are new messages, the tail reads the newest messages up
to a limit, and reports how many it left out. So the cost of a tail is bounded.
Unlike the live figures, a tail queries the database. So the number of tails is limited, and each ends after a while.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from mqdb.dashboard.brokers import Brokers
from mqdb.dashboard.fields import Fields
from mqdb.dashboard.live.streams import event, event_stream
from mqdb.dashboard.rendering import render
from mqdb.dashboard.views.bodies import show_body
from mqdb.dashboard.views.message_filters import selector_of
from mqdb.dashboard.visit import Visit
from mqdb.errors import MqdbError
from mqdb_client import LatestMessages

#: The limit of tails in a process; further tails are refused.
MOST_TAILS: Final = 10

#: The pause between two queries.
_PAUSE_SECONDS: Final = 1.0

#: A tail ends after this time; its page then offers to continue.
_LONGEST_SECONDS: Final = 900.0

#: The limits of messages that a call of `look` shows, and that it compares with a filter.
MOST_SHOWN: Final = 50
_MOST_COMPARED: Final = 1_000

#: The limit of characters of a body in a row.
_MOST_CHARACTERS: Final = 2_000


class Tails:
    """Serves the tails of a dashboard."""

    def __init__(self, brokers: Brokers, pause_seconds: float = _PAUSE_SECONDS) -> None:
        self._brokers = brokers
        self._pause_seconds = pause_seconds
        self.tails = 0
        """The number of open tails. Only the event loop of the web server changes the number."""

    async def endpoint(self, request: Request) -> Response:
        """The route of a tail. The query string has the filter."""
        if self.tails >= MOST_TAILS:
            return PlainTextResponse(f"There are already {MOST_TAILS} live tails.\n", 503, {"Retry-After": "30"})
        visit = Visit(request, request.state.session, self._brokers, Fields())
        return event_stream(self._events(visit))

    async def _events(self, visit: Visit) -> AsyncIterator[str]:
        self.tails += 1
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + _LONGEST_SECONDS
        try:
            tail = await anyio.to_thread.run_sync(TopicTail, visit)
            yield event("", "begun")
            while loop.time() < ends_at:
                rows = await anyio.to_thread.run_sync(tail.look)
                # A comment is sent to notice a page that was closed.
                yield event(rows) if rows else ":\n\n"
                await asyncio.sleep(self._pause_seconds)
            yield event(f"The tail has ended after {_LONGEST_SECONDS / 60:.0f} minutes.", "over")
        except MqdbError as error:
            yield event(str(error), "over")
        finally:
            self.tails -= 1


class TopicTail:
    """The messages that arrive in a topic from now on, as rows of a table. Each call may come from another thread."""

    def __init__(self, visit: Visit) -> None:
        """Raises Denied without the right to read the topic, ParameterInvalid for a bad filter, and TopicNotFound."""
        self._visit = visit
        self._topic = visit.part("topic")
        visit.rights.require(self._topic, "read")
        self._key = visit.query.text("key")
        self._selector = selector_of(visit.query)
        self._is_filtered = self._key is not None or self._selector is not None
        # A bad filter is an error now, even if no message arrives.
        self._latest([0] * len(self._ends()), 1)
        self._reached = self._ends()

    def look(self) -> str:
        """The rows of the messages since the last call, newest first; "" without new messages. Raises MqdbError."""
        ends = self._ends()
        before = [*self._reached, *[0] * (len(ends) - len(self._reached))][: len(ends)]
        arrived = sum(max(end - reached, 0) for end, reached in zip(ends, before, strict=True))
        if not arrived:
            return ""
        found = self._latest(before, MOST_SHOWN if self._key is None else _MOST_COMPARED)
        self._reached = [max(end, reached) for end, reached in zip(ends, before, strict=True)]
        messages = [each for each in found.messages if self._key is None or self._key in each.keys][:MOST_SHOWN]
        # With a filter, messages that were not compared count as left out; without a filter, all that are not shown.
        left_out = max(arrived - found.looked_at, 0)
        if not messages and not left_out:
            return ""
        return render(
            "tail_rows.html",
            url=self._visit.url,
            left_out=left_out,
            is_filtered=self._is_filtered,
            rows=[(each, show_body(each.stored_body, each.sys_flag).text[:_MOST_CHARACTERS]) for each in messages],
        )

    def _ends(self) -> list[int]:
        ends = self._visit.broker.messages.end_of(self._topic)
        return [ends[queue_id] for queue_id in sorted(ends)]

    def _latest(self, since: list[int], limit: int) -> LatestMessages:
        return self._visit.broker.messages.latest(
            self._topic, since=since, selector=self._selector, limit=limit, scan_limit=_MOST_COMPARED
        )
