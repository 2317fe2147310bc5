"""Messages: the messages of a topic, newest first, and a single message with all its copies."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from starlette.responses import RedirectResponse, Response

from mqdb.common.topic import is_group_topic, is_system_topic
from mqdb.common.unique_id import format_unique_id, parse_unique_id
from mqdb.dashboard.endpoint import Page
from mqdb.dashboard.live.tail import MOST_SHOWN
from mqdb.dashboard.views.bodies import show_body
from mqdb.dashboard.views.copies import copies_of
from mqdb.dashboard.views.message_filters import selector_of
from mqdb.dashboard.visit import PageNotFound, Visit
from mqdb.errors import ParameterInvalid
from mqdb_client import MessageTrace, ReceivedMessage

_A_PAGE: Final = 50
#: Rows that the page of a live tail keeps; dashboard.js has the same number.
_MOST_KEPT: Final = 200
#: Messages that one step of a search reads.
_A_LOOK: Final = 5_000
#: The limit of queues whose offsets fit into a link of 16 kB, and that are searched for a time.
_MOST_QUEUES: Final = 1_000


def browse(visit: Visit) -> Response:
    """The messages of a topic before an offset or a time, with a key, or matching a filter."""
    query, topic = visit.query, visit.part("topic")
    if (wanted := query.text("id")) is not None:
        return RedirectResponse(visit.url("messages", wanted), 303)
    visit.rights.require(topic, "read")
    key, selector = query.text("key"), selector_of(query)
    queue_id, offset = query.number("queue"), query.number("offset")
    looked_at, before = query.number("looked") or 0, None
    messages: Sequence[ReceivedMessage]
    if key is not None:
        found = visit.broker.messages.find(topic, key=key, queue_id=queue_id, limit=_A_PAGE)
        messages = found[::-1]
    else:
        page = visit.broker.messages.latest(
            topic,
            before=_offsets(visit, topic, queue_id, offset),
            until=None if query.has("before") or offset is not None else _time(visit, topic, queue_id),
            queue_id=queue_id,
            selector=selector,
            limit=_A_PAGE,
            scan_limit=_A_LOOK,
        )
        messages, before, looked_at = page.messages, page.before, looked_at + page.looked_at
    is_wide = before is not None and queue_id is None and len(before) > _MOST_QUEUES
    return visit.page(
        "messages.html",
        topic=topic,
        messages=messages,
        bodies=[show_body(each.stored_body, each.sys_flag) for each in messages] if query.has("bodies") else None,
        is_search=selector is not None,
        by_key=key is not None,
        looked_at=looked_at,
        is_wide=is_wide,
        rest=None if before is None or is_wide else _place(before, queue_id),
    )


def tail(visit: Visit) -> Response:
    """The page of a live tail. A stream adds the new messages of the topic to the page."""
    topic = visit.part("topic")
    visit.rights.require(topic, "read")
    return visit.page("topic_tail.html", topic=topic, most_shown=MOST_SHOWN, most_kept=_MOST_KEPT)


def message(visit: Visit) -> Response:
    """The copies of a message with their properties and, on demand, with their bodies."""
    wanted = visit.part("message")
    message_id = format_unique_id(parse_unique_id(wanted))
    copies = visit.broker.messages.show(wanted)
    if not copies:
        _trace(visit, wanted)  # a timer may outlive its record in the log
    with_body = visit.query.has("body")
    readable = visit.rights.among([each.queue.topic for each in copies], "read")
    shown = []
    for each in copies:
        is_shown = with_body and each.queue.topic in readable
        # Copies in system topics and topics of groups are made by the broker. A user does not send such a message.
        is_own = is_shown and not (is_system_topic(each.topic) or is_group_topic(each.topic))
        body = show_body(each.stored_body, each.sys_flag) if is_shown else None
        shown.append((each, body, copies_of(each) if is_own else None))
    return visit.page("message.html", message_id=message_id, copies=shown, with_body=with_body, readable=readable)


def trace(visit: Visit) -> Response:
    """The history of each copy of a message, including copies that wait."""
    found = _trace(visit, visit.part("message"))
    topics = [(each.wait and each.wait.topic) or each.topic or "" for each in found.copies]
    readable = visit.rights.among(topics, "read")
    rows = [(each, topic in readable) for each, topic in zip(found.copies, topics, strict=True)]
    return visit.page("message_trace.html", copies=rows)


def _trace(visit: Visit, message_id: str) -> MessageTrace:
    found = visit.broker.messages.trace(message_id)
    if not found.copies:
        raise PageNotFound(f"message {message_id}, or its segment has been dropped")
    return found


def find(visit: Visit) -> Response:
    """Redirect to the page of a message, by the id from the field that each page has."""
    wanted = visit.query.text("id")
    if wanted is None:
        raise ParameterInvalid("id", wanted, "write the unique id of a message")
    return RedirectResponse(visit.url("messages", wanted), 303)


def _place(before: Sequence[int], queue_id: int | None) -> dict[str, object]:
    """The query fields of the link to the next page."""
    if queue_id is not None:
        return {"offset": before[queue_id] - 1}
    return {"before": ",".join(map(str, before))}


def _time(visit: Visit, topic: str, queue_id: int | None) -> datetime | timedelta | None:
    time = visit.query.time("time")
    if time is not None and queue_id is None and len(visit.broker.messages.end_of(topic)) > _MOST_QUEUES:
        reason = f"choose a queue, too: the topic has more than {_MOST_QUEUES:,}, and a time is searched in each queue"
        raise ParameterInvalid("time", visit.query.text("time"), reason)
    return time


def _offsets(visit: Visit, topic: str, queue_id: int | None, offset: int | None) -> list[int] | None:
    """The exclusive upper offset for each queue: from the previous page, or from the offset given for one queue."""
    text = visit.query.text("before")
    if text is not None:
        if not all(part.isdecimal() and len(part) < 20 for part in text.split(",")):
            raise ParameterInvalid("before", text, "is not a list of offsets")
        return [min(int(part), 2**63 - 1) for part in text.split(",")]
    if offset is None:
        return None
    if queue_id is None:
        raise ParameterInvalid("offset", offset, "choose a queue, too")
    return [offset + 1] * len(visit.broker.messages.end_of(topic))


PAGES: Final = (
    Page("topics/{topic}/messages", browse),
    Page("topics/{topic}/tail", tail),
    Page("messages", find),
    Page("messages/{message}", message),
    Page("messages/{message}/trace", trace),
)
