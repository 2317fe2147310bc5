"""Groups: lag and members of each, and where they stand; reset, with a dry run before."""

from datetime import datetime, timedelta
from typing import Final

from starlette.responses import Response

from mqdb.dashboard.endpoint import Page
from mqdb.dashboard.fields import Fields
from mqdb.dashboard.permissions import Kind
from mqdb.dashboard.visit import Visit
from mqdb.errors import ParameterInvalid
from mqdb_client import Boundary

_A_PAGE: Final = 100

#: Rights on the topic, one of which a reset needs besides the right on the group; and a reset to a time.
_RIGHTS: Final[tuple[Kind, ...]] = ("read", "operate")
_RIGHTS_FOR_A_TIME: Final[tuple[Kind, ...]] = ("read",)


def groups(visit: Visit) -> Response:
    """Groups by name, those with a part of a name."""
    part, after = (visit.query.text("find") or "").lower(), visit.query.text("after") or ""
    found = [each for each in visit.broker.groups.list() if part in each.group.lower() and each.group > after]
    return visit.page("groups.html", groups=found[:_A_PAGE], has_more=len(found) > _A_PAGE)


def group(visit: Visit) -> Response:
    """Settings, members and subscriptions; the topics are loaded after the page."""
    name = visit.part("group")
    # Of no topic: a group may have thousands of queues.
    return visit.page("group.html", group=name, shown=visit.broker.groups.show(name, topic=""))


def topics(visit: Visit) -> Response:
    """What the group has yet to consume of each topic."""
    name = visit.part("group")
    part, after = (visit.query.text("find") or "").lower(), visit.query.text("after") or ""
    found = [each for each in visit.broker.groups.topics(name) if part in each.topic.lower() and each.topic > after]
    return visit.page("group_topics.html", group=name, topics=found[:_A_PAGE], has_more=len(found) > _A_PAGE)


def queues(visit: Visit) -> Response:
    """The offsets of the group in one topic, and their reset: first what it would change, then the change."""
    name, topic = visit.part("group"), visit.part("topic")
    changes = None
    if visit.is_post:
        to, queue_id, is_plan = visit.form.text("to") or "", visit.form.number("queue"), not visit.form.has("do")
        target = _target(to)
        actor = visit.rights.require(name, "operate_group")
        # A reset to a time tells when messages were stored.
        visit.rights.require(topic, *_RIGHTS_FOR_A_TIME if isinstance(target, datetime | timedelta) else _RIGHTS)
        changes = visit.broker.offsets.reset(
            name,
            topic,
            target,
            queue_id=queue_id,
            reason=visit.form.text("reason") or "",
            dry_run=is_plan,
            actor=actor,
        )
        if not is_plan:
            notice = f"Set {len(changes):,} offsets of {name} in {topic} to {to}."
            return visit.go("groups", name, "topics", topic, notice=notice)
    return visit.page(
        "group_queues.html",
        group=name,
        topic=topic,
        progress=visit.broker.offsets.show(name, topic),
        changes=changes,
        may_reset=visit.rights.may(name, "operate_group") and visit.rights.may(topic, *_RIGHTS),
    )


def _target(text: str) -> Boundary | int | datetime | timedelta:
    if text in (Boundary.EARLIEST, Boundary.LATEST):
        return Boundary(text)
    fields = Fields([("to", text)])
    if text.isdecimal():
        number = fields.number("to")
        assert number is not None
        return number
    moment = fields.time("to")
    if moment is None:
        raise ParameterInvalid("to", text, "write earliest, latest, an offset, a time, or how long ago")
    return moment


PAGES: Final = (
    Page("groups", groups),
    Page("groups/{group}", group),
    Page("groups/{group}/topics", topics),
    Page("groups/{group}/topics/{topic}", queues, acts=True),
)
