"""Topics: the list of topics, and the page of a topic with its queues and groups."""

from itertools import groupby
from operator import attrgetter
from typing import Final

from markupsafe import Markup
from starlette.responses import Response

from mqdb.common.topic import DLQ_PREFIX, RETRY_PREFIX, Perm, is_group_topic, is_system_topic, max_queues_by_right
from mqdb.dashboard.endpoint import Page
from mqdb.dashboard.live.subject_figures import topic_figures
from mqdb.dashboard.login_sessions import PersonStanding
from mqdb.dashboard.views.bodies import edited_body
from mqdb.dashboard.views.queue_bars import queue_bars, skewed
from mqdb.dashboard.visit import Visit
from mqdb.errors import ParameterInvalid

_A_PAGE: Final = 100
#: The number of newest messages from which the mean size of all messages is estimated.
_SAMPLE: Final = 50


def topics(visit: Visit) -> Response:
    """The topics whose names contain the searched text, by name; topics of groups and of the broker only on demand."""
    part, after = (visit.query.text("find") or "").lower(), visit.query.text("after") or ""
    with_internal = visit.query.has("all")
    found = [
        each
        for each in visit.broker.topics.list()
        if part in each.name.lower() and each.name > after and (with_internal or not _is_internal(each.name))
    ]
    return visit.page(
        "topics.html",
        topics=found[:_A_PAGE],
        has_more=len(found) > _A_PAGE,
        with_internal=with_internal,
        may_make=visit.rights.may_somewhere("admin"),
    )


def topic(visit: Visit) -> Response:
    """A topic, with its rates if this process samples the broker. Its queues and groups are loaded after the page."""
    name = visit.part("topic")
    return visit.page(
        "topic.html",
        topic=name,
        group=_group_of(name),
        is_dlq=name.startswith(DLQ_PREFIX),
        may_send=not _is_internal(name) and visit.rights.may(name, "send"),
        figures=Markup(topic_figures(visit.brokers.figures, name)[1]),
    )


def details(visit: Visit) -> Response:
    """The settings, size and queues of a topic, and the progress of each group in the topic."""
    name = visit.part("topic")
    shown = visit.broker.topics.show(name)
    progress = sorted(shown.progress, key=attrgetter("group"))
    groups = [
        (group, sum(each.lag for each in rows), max((each.lag_seconds or 0 for each in rows), default=0.0), len(rows))
        for group, rows in ((group, list(rows)) for group, rows in groupby(progress, attrgetter("group")))
    ]
    bars = queue_bars(shown.queues, progress)
    is_readable = bool(shown.config.perm & Perm.READ)
    newest = visit.broker.messages.latest(name, limit=_SAMPLE).messages if is_readable else []
    oldest = visit.broker.messages.find(name, limit=1) if is_readable else []
    return visit.page(
        "topic_details.html",
        topic=name,
        config=shown.config,
        bars=bars,
        skew=skewed(bars),
        groups=groups,
        messages=sum(bar.messages for bar in bars),
        mean_bytes=sum(len(each.stored_body) for each in newest) / len(newest) if newest else 0,
        oldest=oldest[0].store_time if oldest else None,
    )


def send(visit: Visit) -> Response:
    """Send a message to a topic, for example to test a consumer."""
    name = visit.part("topic")
    visit.rights.require(name, "send")
    if not visit.is_post:
        return visit.page("topic_send.html", topic=name)
    form = visit.form
    message_id = visit.broker.messages.send(
        name,
        edited_body(b"", form.raw("body") or ""),
        tag=form.text("tag"),
        keys=(form.text("keys") or "").split(),
        properties=_properties(form.text("properties") or ""),
        sharding_key=form.text("sharding_key"),
        delay_level=form.number("delay_level"),
    )
    return visit.go("messages", message_id, notice=f"Message {message_id} is sent to {name}.")


def _properties(text: str) -> dict[str, str]:
    """Parse properties from a text with a line NAME=VALUE for each property. Raises ParameterInvalid."""
    found = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, value = line.partition("=")
        if not (equals and name.strip()):
            raise ParameterInvalid("properties", line, "write NAME=VALUE, each property on its own line")
        found[name.strip()] = value.strip()
    return found


def create(visit: Visit) -> Response:
    """Create a topic."""
    if not visit.is_post:
        visit.rights.require_somewhere("admin")
        return visit.page("topic_create.html")
    name = visit.form.text("name") or ""
    given = visit.form.number("queues")
    queues = 8 if given is None else given
    actor = visit.rights.require(name, "admin")
    most = max_queues_by_right(name)
    if visit.session.standing is PersonStanding.PRINCIPAL and queues > most:
        raise ParameterInvalid("queues", queues, f"a person with rights may give a topic at most {most:,} queues")
    visit.broker.topics.create(name, queues=queues, actor=actor)
    return visit.go("topics", name, notice=f"Topic {name} is created.")


def _is_internal(name: str) -> bool:
    return is_system_topic(name) or is_group_topic(name)


def _group_of(name: str) -> str | None:
    prefix = next((each for each in (RETRY_PREFIX, DLQ_PREFIX) if name.startswith(each)), None)
    return None if prefix is None else name.removeprefix(prefix)


PAGES: Final = (
    Page("topics", topics),
    Page("new-topic", create, acts=True),
    Page("topics/{topic}", topic),
    Page("topics/{topic}/details", details),
    Page("topics/{topic}/send", send, acts=True),
)
