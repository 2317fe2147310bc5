"""Dead letters: groups with dead letters, the letters of a group, a letter with its traceback, and redrives.

The letters of a group are the messages of its dead letter topic. A list is read from the end of the topic, so its cost
does not depend on the number of letters.
"""

from collections import defaultdict
from datetime import datetime
from typing import Final, NamedTuple

from starlette.responses import Response

from mqdb.common.property import FailureProperty, Property
from mqdb.common.topic import dlq_topic
from mqdb.dashboard.endpoint import Page
from mqdb.dashboard.pages.redrives import find_letter, redrive
from mqdb.dashboard.views.bodies import editable_text, plain_body, show_body
from mqdb.dashboard.views.tracebacks import traceback_parts
from mqdb.dashboard.visit import Visit
from mqdb.errors import TopicNotFound
from mqdb_client import CauseOfDeath, DeadLetterFilter, LatestMessages, ReceivedMessage

_A_PAGE: Final = 50

#: The limit of letters that are counted by kind, newest first: each letter is read.
_MOST_COUNTED: Final = 10_000

#: The hours of a trend.
_HOURS: Final = 24


def letter_groups(visit: Visit) -> Response:
    """Groups with dead letters."""
    found = sorted(visit.broker.dead_letters.groups(), key=lambda each: -each.letters)
    return visit.page("letter_groups.html", groups=found)


def letters(visit: Visit) -> Response:
    """The letters of a group, newest first. A POST redrives the chosen letters, after a dry run."""
    group = visit.part("group")
    if visit.is_post:
        return redrive(visit, group)
    # Not read from the list of dead letters, because its view reads every letter.
    before = visit.query.number("before")
    try:
        past = None if before is None else [before]
        found = visit.broker.messages.latest(dlq_topic(group), before=past, limit=_A_PAGE)
    except TopicNotFound:
        found = LatestMessages([], 0, None)
    redriven = visit.broker.dead_letters.redriven([each.log_pos for each in found.messages])
    may_read, may_redrive = _may(visit, group)
    rows = [letter_row(each, redriven.get(each.log_pos), may_read, may_redrive) for each in found.messages]
    return visit.page(
        "letters.html",
        group=group,
        letters=rows,
        rest=found.before and found.before[0],
        may_read=may_read,
        may_redrive=may_redrive,
    )


def _may(visit: Visit, group: str) -> tuple[bool, bool]:
    """Whether the person may read a group's letters, and may redrive them. Either right reveals their exceptions."""
    return visit.rights.may(dlq_topic(group), "read"), visit.rights.may(group, "operate_group")


class LetterRow(NamedTuple):
    """A letter in a line of the list. Texts that the person may not see are None."""

    message_id: str
    died: datetime
    topic: str | None
    exception: str | None
    error: str | None
    attempts: int
    redriven_at: datetime | None


def letter_row(message: ReceivedMessage, redriven_at: datetime | None, may_read: bool, may_redrive: bool) -> LetterRow:
    """The line of a letter for a person, who may or may not read the letters of the group and redrive them."""
    said = message.properties.get
    return LetterRow(
        message.message_id,
        message.store_time,
        said(Property.RETRY_TOPIC),
        said(FailureProperty.EXCEPTION) if may_read or may_redrive else None,
        said(FailureProperty.MESSAGE) if may_read else None,
        message.reconsume_times,
        redriven_at,
    )


def letter(visit: Visit) -> Response:
    """A dead letter: its failure, properties and redrives, and on demand its body, which can be edited."""
    group, message_id = visit.part("group"), visit.part("message")
    visit.rights.require(dlq_topic(group), "read")
    found, redrives = find_letter(visit, group, message_id)
    body, fault = plain_body(found.body, found.sys_flag)
    can_edit = fault is None and editable_text(body) is not None
    wants_body = visit.query.has("body") or visit.query.has("edit")
    return visit.page(
        "letter.html",
        group=group,
        letter=found,
        traceback=traceback_parts(found.traceback or ""),
        redrives=redrives,
        can_edit=can_edit,
        edit=editable_text(body) if can_edit and visit.query.has("edit") else None,
        body=show_body(found.body, found.sys_flag) if wants_body else None,
        may_redrive=visit.rights.may(group, "operate_group"),
    )


def kinds(visit: Visit) -> Response:
    """The newest letters of a group by exception and topic; each kind has its deaths of the last day and an example."""
    group = visit.part("group")
    may_read, may_redrive = _may(visit, group)
    if not may_redrive:
        visit.rights.require(dlq_topic(group), "read")
    try:
        [end] = visit.broker.messages.end_of(dlq_topic(group)).values()
    except TopicNotFound:
        end = 0
    newest = DeadLetterFilter(group, where=f"queue_offset >= {max(end - _MOST_COUNTED, 0)}")
    found = visit.broker.dead_letters.causes(newest) if end else []
    by_hour: defaultdict[tuple[str | None, str | None], list[int]] = defaultdict(lambda: [0] * _HOURS)
    for each in visit.broker.dead_letters.by_hour(newest, _HOURS) if found else []:
        by_hour[each.topic, each.exception][_HOURS - 1 - each.hours_ago] = each.messages
    return visit.page(
        "letter_kinds.html",
        group=group,
        kinds=[_Kind(each, by_hour[each.topic, each.exception]) for each in found],
        may_read=may_read,
        may_redrive=may_redrive,
        beyond=_MOST_COUNTED if end > _MOST_COUNTED else 0,
    )


class _Kind(NamedTuple):
    """The letters of a group with the same topic and exception."""

    cause: CauseOfDeath
    by_hour: list[int]
    """The number of deaths in each of the last 24 hours, oldest hour first."""

    @property
    def columns(self) -> list[float]:
        """The deaths of each hour, as shares of the worst hour."""
        worst = max(self.by_hour) or 1
        return [each / worst for each in self.by_hour]

    @property
    def last_day(self) -> int:
        """The number of deaths in the last 24 hours."""
        return sum(self.by_hour)


PAGES: Final = (
    Page("dead-letters", letter_groups),
    Page("dead-letters/{group}", letters, acts=True),
    Page("dead-letters/{group}/kinds", kinds),
    Page("dead-letters/{group}/{message}", letter),
)
