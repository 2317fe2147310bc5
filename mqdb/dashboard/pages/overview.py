"""Overview: the pulse of the broker, its health, dead letters and lags. Parts that query the database load later."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from starlette.responses import Response

from mqdb.common.topic import dlq_topic
from mqdb.dashboard.endpoint import Page
from mqdb.dashboard.live.pulse import LateTime
from mqdb.dashboard.pages.dead_letters import LetterRow, letter_row
from mqdb.dashboard.visit import Visit
from mqdb.drawing.templating import age
from mqdb.errors import TopicNotFound
from mqdb_client import FindingStatus, GroupLetters, Operation

#: The limit of lines in a list on this page.
_MOST: Final = 10

#: Slightly more than the time between two samples.
_SAMPLE: Final = timedelta(seconds=10)

#: The number of newest changes that are searched for changes on late groups.
_MOST_CHANGES: Final = 100

#: Checks whose problems have a list on this page.
_LISTED: Final = frozenset({"lag", "dead-letters"})


def overview(visit: Visit) -> Response:
    """The frame of the page, with the pulse if this process samples the broker. Does not query the database."""
    return visit.page("overview.html", pulse=visit.brokers.pulse.parts(visit.broker_name))


def late(visit: Visit) -> Response:
    """Changes on late groups and their topics: for each group, its newest and its last change before it became late.

    The groups and their topics come from the samples in memory.
    """
    sample = visit.brokers.figures.latest[1]
    groups = visit.brokers.pulse.late_groups(_MOST)
    known = visit.broker.operations.list(limit=_MOST_CHANGES) if groups else []
    changes = []
    for group, begin in groups:
        topics = {each.topic for each in sample.lags if each.group == group} if sample is not None else set()
        mine = [each for each in known if _concerns(each, group, topics)]
        changes.append((group, preceding(mine, begin)))
    return visit.page("overview_late.html", changes=changes, most=_MOST_CHANGES)


def _concerns(operation: Operation, group: str, topics: set[str]) -> bool:
    """Whether a change concerns the group, or one of its topics without naming any group.

    A creation does not count, because it makes no group late.
    """
    if operation.verb.endswith(".create"):
        return False
    return group in operation.groups or (not operation.groups and not topics.isdisjoint(operation.topics))


def preceding(operations: Sequence[Operation], late: LateTime | None) -> list[tuple[Operation, str]]:
    """The newest change and the last change before the group became late, each with its distance from that time.

    The changes are sorted, newest first. A sample shows a lag some seconds after the change that caused it. If the
    beginning of the lag is not known, returns only the newest change, without a distance.
    """
    if late is None or late.is_cut or not operations:
        return [(each, "") for each in operations[:1]]
    begin = late.since + _SAMPLE
    before = next((each for each in operations if each.occurred_at <= begin), None)
    found = [operations[0]] if before is None or before == operations[0] else [operations[0], before]
    return [(each, _distance((late.since - each.occurred_at).total_seconds())) for each in found]


def _distance(seconds: float) -> str:
    if abs(seconds) <= _SAMPLE.total_seconds():
        return "when the group became late"
    return f"{age(abs(seconds))} {'before' if seconds > 0 else 'after'} the group became late"


def health(visit: Visit) -> Response:
    """The problems that the doctor finds, and whether the broker is a standby.

    If problems have their own list below, only the names of their checks are shown.
    """
    found = visit.broker.doctor.examine(visit.brokers.thresholds)
    wrong = [each for each in found if each.status not in (FindingStatus.OK, FindingStatus.INFO)]
    return visit.page(
        "overview_health.html",
        findings=[each for each in wrong if each.check not in _LISTED],
        listed=sorted({each.check for each in wrong if each.check in _LISTED}),
        checks=len(visit.broker.doctor.checks()),
        standby=next((each.seen for each in found if each.figures.get("is_standby") and each not in wrong), None),
    )


def attention(visit: Visit) -> Response:
    """Groups with dead letters, and groups with a lag if no pulse shows them."""
    broker = visit.broker
    has_pulse = visit.brokers.figures.latest[1] is not None
    groups = [] if has_pulse else broker.groups.list()
    lagging = sorted((each for each in groups if each.lag), key=lambda each: -each.lag_seconds)
    letters = sorted(broker.dead_letters.groups(), key=lambda each: -each.letters)
    return visit.page(
        "overview_attention.html",
        has_pulse=has_pulse,
        groups=len(groups),
        lagging=lagging[:_MOST],
        lagging_more=max(len(lagging) - _MOST, 0),
        letters=_with_newest(visit, letters[:_MOST]),
        letters_more=max(len(letters) - _MOST, 0),
    )


def _with_newest(visit: Visit, groups: Sequence[GroupLetters]) -> list[tuple[GroupLetters, LetterRow | None]]:
    """Each group with the visible part of its newest dead letter; None if retention has removed the letter."""
    names = [each.group for each in groups]
    readable = visit.rights.among([dlq_topic(name) for name in names], "read")
    redrivable = visit.rights.among(names, "operate_group")
    rows: list[tuple[GroupLetters, LetterRow | None]] = []
    for each in groups:
        topic = dlq_topic(each.group)
        try:
            found = visit.broker.messages.latest(topic, limit=1).messages
        except TopicNotFound:
            found = []
        newest = letter_row(found[0], None, topic in readable, each.group in redrivable) if found else None
        rows.append((each, newest))
    return rows


PAGES: Final = (Page("", overview), Page("late", late), Page("health", health), Page("attention", attention))
