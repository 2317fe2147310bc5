"""Dead letters: groups with dead letters, the letters of a group, one with its reason and traceback; redrive.

The letters of a group are the messages of its dead letter topic, read from the end, so the cost of a list does not
depend on their number.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from starlette.responses import Response

from mqdb.common.property import FailureProperty, Property
from mqdb.common.topic import dlq_topic
from mqdb.common.unique_id import parse_unique_id
from mqdb.dashboard.bodies import editable_text, edited_body, plain_body, show_body
from mqdb.dashboard.endpoint import Page
from mqdb.dashboard.visit import PageNotFound, Visit
from mqdb.errors import ParameterInvalid, TopicNotFound
from mqdb_client import (
    DeadLetterFilter,
    LatestMessages,
    PastRedrive,
    ReceivedMessage,
    RedriveStatus,
    WholeDeadLetter,
)

_A_PAGE: Final = 50


def letter_groups(visit: Visit) -> Response:
    """Groups with dead letters."""
    found = sorted(visit.broker.dead_letters.groups(), key=lambda each: -each.letters)
    return visit.page("letter_groups.html", groups=found)


def letters(visit: Visit) -> Response:
    """The letters of a group, the youngest first; redrives those that are chosen, with a dry run before."""
    group = visit.part("group")
    if visit.is_post:
        return _redrive(visit, group)
    # Not by the list of dead letters: the view behind it looks at each.
    before = visit.query.number("before")
    try:
        past = None if before is None else [before]
        found = visit.broker.messages.latest(dlq_topic(group), before=past, limit=_A_PAGE)
    except TopicNotFound:
        found = LatestMessages([], 0, None)
    redriven = visit.broker.dead_letters.redriven([each.log_pos for each in found.messages])
    rows = [_row(each, redriven.get(each.log_pos)) for each in found.messages]
    may_read = visit.rights.may(dlq_topic(group), "read")
    may_redrive = visit.rights.may(group, "operate_group")
    return visit.page(
        "letters.html",
        group=group,
        letters=rows,
        rest=found.before and found.before[0],
        may_read=may_read,
        may_redrive=may_redrive,
    )


class _Row(NamedTuple):
    """A letter on a line."""

    message_id: str
    died: datetime
    topic: str | None
    exception: str | None
    error: str | None
    attempts: int
    redriven_at: datetime | None


def _row(message: ReceivedMessage, redriven_at: datetime | None) -> _Row:
    said = message.properties.get
    return _Row(
        message.message_id,
        message.store_time,
        said(Property.RETRY_TOPIC),
        said(FailureProperty.EXCEPTION),
        said(FailureProperty.MESSAGE),
        message.reconsume_times,
        redriven_at,
    )


def letter(visit: Visit) -> Response:
    """One letter: why it died, what it holds, what was tried; its body to edit on demand."""
    group, message_id = visit.part("group"), visit.part("message")
    visit.rights.require(dlq_topic(group), "read")
    found, redrives = _find(visit, group, message_id)
    body, fault = plain_body(found.body, found.sys_flag)
    can_edit = fault is None and editable_text(body) is not None
    wants_body = visit.query.has("body") or visit.query.has("edit")
    return visit.page(
        "letter.html",
        group=group,
        letter=found,
        redrives=redrives,
        can_edit=can_edit,
        edit=editable_text(body) if can_edit and visit.query.has("edit") else None,
        body=show_body(found.body, found.sys_flag) if wants_body else None,
        may_redrive=visit.rights.may(group, "operate_group"),
    )


def _redrive(visit: Visit, group: str) -> Response:
    form = visit.form
    ids = list(dict.fromkeys(form.all("id")))
    if not ids:
        raise ParameterInvalid("id", None, "choose one dead letter or more")
    actor = visit.rights.require(group, "operate_group")
    is_plan, again, to_topic = not form.has("do"), form.has("again"), form.text("to_topic")
    if to_topic is not None:
        visit.rights.require(dlq_topic(group), "read")
        visit.rights.require(to_topic, "send")
    body = _edited(visit, group, ids, to_topic)
    results = visit.broker.dead_letters.redrive(
        DeadLetterFilter(group, ids=tuple(map(parse_unique_id, ids))),
        to_topic=to_topic,
        body=body,
        again=again,
        dry_run=is_plan,
        actor=actor,
    )
    ready = sum(each.status is RedriveStatus.READY for each in results)
    return visit.page(
        "redrive.html",
        group=group,
        ids=ids,
        results=results,
        is_plan=is_plan,
        ready=ready,
        redriven=sum(each.status is RedriveStatus.REDRIVEN for each in results),
        again=again,
        to_topic=to_topic,
        text=form.raw("text") if body is not None else None,
    )


def _edited(visit: Visit, group: str, ids: Sequence[str], to_topic: str | None) -> bytes | None:
    """The edited body; None if it is equal to the body of the letter."""
    text = visit.form.raw("text")
    if text is None:
        return None
    if len(ids) > 1:
        raise ParameterInvalid("text", text, "a new body is for one dead letter")
    visit.rights.require(dlq_topic(group), "read")
    found, _ = _find(visit, group, ids[0])
    visit.rights.require(to_topic or found.topic or "", "send")
    original, _ = plain_body(found.body, found.sys_flag)
    body = edited_body(original, text)
    return None if body == original else body


def _find(visit: Visit, group: str, message_id: str) -> tuple[WholeDeadLetter, list[PastRedrive]]:
    for found, redrives in visit.broker.dead_letters.show(message_id):
        if found.group == group:
            return found, redrives
    raise PageNotFound(f"dead letter {message_id} of group {group}")


PAGES: Final = (
    Page("dead-letters", letter_groups),
    Page("dead-letters/{group}", letters, acts=True),
    Page("dead-letters/{group}/{message}", letter),
)
