"""Scheduled: messages that wait for their delivery time, their recall, and the delay levels."""

from typing import Final

from starlette.responses import Response

from mqdb.common.recall_handle import RecallHandle, encode_handle
from mqdb.common.topic import RETRY_PREFIX
from mqdb.common.unique_id import format_unique_id, parse_unique_id
from mqdb.dashboard.endpoint import Page
from mqdb.dashboard.visit import Visit
from mqdb.errors import ParameterInvalid

_MOST: Final = 100


def scheduled(visit: Visit) -> Response:
    """The timers that are due first or last, and the messages in each delay level. A recall needs a confirmation."""
    if visit.is_post:
        return _recall(visit)
    topic, last = visit.query.text("topic"), visit.query.has("last")
    timers = visit.broker.timers.list(topic, _MOST, last=last)
    rows = [(format_unique_id(each.msg_id), each) for each in timers]
    topics = [each.topic for each in timers]
    return visit.page(
        "scheduled.html",
        timers=rows,
        is_full=len(rows) == _MOST,
        topic=topic,
        last=last,
        known=visit.rights.among(topics, "read", "operate", "admin"),
        recalled=visit.rights.among([each for each in topics if not each.startswith(RETRY_PREFIX)], "send", "operate"),
    )


def levels(visit: Visit) -> Response:
    """The delay levels and their waiting messages."""
    return visit.page("delay_levels.html", levels=visit.broker.delays.list())


def _recall(visit: Visit) -> Response:
    message_id, topic = visit.form.text("id"), visit.form.text("topic")
    if message_id is None or topic is None:
        raise ParameterInvalid("id", message_id, "name a message and its topic")
    actor = visit.rights.require(topic, "send", "operate")
    if not visit.form.has("do"):
        return visit.page("recall.html", message_id=message_id, topic=topic)
    # The handle contains the checked topic, so a message to another topic is not found.
    handle = encode_handle(RecallHandle(topic, visit.broker.name, 0, format_unique_id(parse_unique_id(message_id))))
    status = visit.broker.timers.recall(handle, actor=actor)
    return visit.go("scheduled", notice=f"Recall of {message_id}: {status}.")


PAGES: Final = (Page("scheduled", scheduled, acts=True), Page("scheduled/levels", levels))
