"""Groups: their lag, members and offsets, and resets of offsets after a dry run."""

import time
from datetime import UTC, datetime, timedelta
from typing import Final

from markupsafe import Markup
from starlette.responses import Response

from mqdb.common.retry_delays import parse_retry_delays, retry_delays_text
from mqdb.dashboard.endpoint import Page
from mqdb.dashboard.fields import Fields
from mqdb.dashboard.live.pulse import span_of
from mqdb.dashboard.live.subject_figures import group_figures
from mqdb.dashboard.permissions import Kind
from mqdb.dashboard.views.queue_bars import lag_bars, reset_bars
from mqdb.dashboard.views.retry_ladder import retry_delay, retry_ladder
from mqdb.dashboard.visit import PageNotFound, Visit
from mqdb.drawing.charts import lag_chart
from mqdb.errors import ParameterInvalid
from mqdb.web.time_series import BrokerFigure
from mqdb_client import Boundary, ConsumeFromWhere, ConsumeMode

_A_PAGE: Final = 100

#: A reset needs the right on the group and one of these rights on the topic. The second line is for a reset to a time.
_RIGHTS: Final[tuple[Kind, ...]] = ("read", "operate")
_RIGHTS_FOR_A_TIME: Final[tuple[Kind, ...]] = ("read",)


def groups(visit: Visit) -> Response:
    """The groups whose names contain the searched text, by name."""
    part, after = (visit.query.text("find") or "").lower(), visit.query.text("after") or ""
    found = [each for each in visit.broker.groups.list() if part in each.group.lower() and each.group > after]
    return visit.page("groups.html", groups=found[:_A_PAGE], has_more=len(found) > _A_PAGE)


def group(visit: Visit) -> Response:
    """The settings, members and subscriptions of a group. Its topics are loaded after the page."""
    name = visit.part("group")
    # Without the offsets in topics, because a group may have thousands of queues.
    return visit.page(
        "group.html",
        group=name,
        shown=visit.broker.groups.show(name, topic=""),
        may_set=visit.rights.may(name, "admin_group"),
        may_ask=visit.rights.may(name, "operate_group"),
        figures=Markup(group_figures(visit.brokers.figures, name)[1]),
    )


def settings(visit: Visit) -> Response:
    """Change the settings of a group."""
    name = visit.part("group")
    actor = visit.rights.require(name, "admin_group")
    if not visit.is_post:
        now = visit.broker.groups.show(name, topic="").settings
        return visit.page("group_settings.html", group=name, now=now, delays=retry_delays_text(now.retry_delays))
    form = visit.form
    delays = form.text("retry_delays")
    visit.broker.groups.update(
        name,
        consume_enable=form.has("consume"),
        consume_mode=form.choice("consume_mode", ConsumeMode),
        consume_message_orderly=form.has("orderly"),
        retry_max_times=form.number("retry_max_times"),
        retry_delays=None if delays is None else parse_retry_delays(delays),
        consume_from_where=form.choice("consume_from_where", ConsumeFromWhere),
        actor=actor,
    )
    return visit.go("groups", name, notice=f"The settings of {name} are changed.")


def lag(visit: Visit) -> Response:
    """The chart of a group's lag in the last hour, from the samples of this process."""
    name = visit.part("group")
    points, now = visit.brokers.figures.series.of(BrokerFigure.LAG, name), time.monotonic()
    span = span_of(points, now)
    return visit.page("group_lag.html", group=name, chart=lag_chart(points, now, span), minutes=span / 60)


def retries(visit: Visit) -> Response:
    """The retries of a group as a ladder: each step with its delay and waiting messages, down to the dead letters."""
    name = visit.part("group")
    settings = visit.broker.groups.show(name, topic="").settings
    levels = [] if settings.retry_delays else [each.delay for each in visit.broker.delays.list() if each.delay]
    waiting = visit.broker.groups.retries(name)
    letters = next((each.letters for each in visit.broker.dead_letters.groups() if each.group == name), 0)
    return visit.page(
        "group_retries.html",
        group=name,
        steps=retry_ladder(waiting, settings.retry_delays, levels),
        most=settings.retry_max_times,
        ends=[retry_delay(retry, settings.retry_delays, levels) for retry in (1, max(settings.retry_max_times, 1))],
        letters=letters,
        now=datetime.now(UTC),
    )


def member(visit: Visit) -> Response:
    """A member of a group. The status from the member is loaded after the page, because it may take seconds or fail."""
    name, client_id, role = visit.part("group"), visit.part("client"), visit.query.text("role")
    found = [
        each
        for each in visit.broker.consumers.list(name)
        if each.client_id == client_id and role in (None, each.principal)
    ]
    if not found:
        raise PageNotFound(f"member {client_id} of group {name}")
    may_ask = visit.rights.may(name, "operate_group")
    return visit.page("member.html", group=name, member=found[0], may_ask=may_ask)


def member_status(visit: Visit) -> Response:
    """The status that a member reports: its queues, and its running listeners with their stacks."""
    name, client_id, role = visit.part("group"), visit.part("client"), visit.query.text("role")
    visit.rights.require(name, "operate_group")
    found = visit.broker.consumers.status(client_id, group=name, principal=role)[0].details
    tables = {key: value for key, value in found.items() if isinstance(value, list) and _are_rows(value)}
    plain = {key: value for key, value in found.items() if key not in tables}
    by_stack: dict[str, list[dict[str, object]]] = {}
    for listener in tables.pop("listeners", []):
        by_stack.setdefault(str(listener.pop("stack", "")), []).append(listener)
    return visit.page("member_status.html", plain=plain, tables=tables, by_stack=by_stack)


def _are_rows(rows: list[object]) -> bool:
    """Whether all values are rows of a table. A client of another version, or another program, may send any answer."""
    return all(isinstance(row, dict) for row in rows)


def topics(visit: Visit) -> Response:
    """The lag of a group by topic."""
    name = visit.part("group")
    part, after = (visit.query.text("find") or "").lower(), visit.query.text("after") or ""
    found = [each for each in visit.broker.groups.topics(name) if part in each.topic.lower() and each.topic > after]
    return visit.page("group_topics.html", group=name, topics=found[:_A_PAGE], has_more=len(found) > _A_PAGE)


def queues(visit: Visit) -> Response:
    """The offsets of a group in one topic. A POST resets the offsets, or shows the changes that a reset would make."""
    name, topic = visit.part("group"), visit.part("topic")
    changes = None
    if visit.is_post:
        to, queue_id, is_plan = visit.form.text("to") or "", visit.form.number("queue"), not visit.form.has("do")
        target = _target(to)
        actor = visit.rights.require(name, "operate_group")
        # A reset to a time reveals when messages were stored.
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
    ends = [] if changes is None else [each.max_offset for each in visit.broker.topics.show(topic).queues]
    return visit.page(
        "group_queues.html",
        group=name,
        topic=topic,
        bars=lag_bars(visit.broker.offsets.show(name, topic)),
        changes=None if changes is None else reset_bars(changes, ends),
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
    Page("groups/{group}/lag", lag),
    Page("groups/{group}/retries", retries),
    Page("groups/{group}/settings", settings, acts=True),
    Page("groups/{group}/members/{client}", member),
    Page("groups/{group}/members/{client}/status", member_status),
    Page("groups/{group}/topics", topics),
    Page("groups/{group}/topics/{topic}", queues, acts=True),
)
