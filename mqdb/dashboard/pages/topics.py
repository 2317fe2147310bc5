"""Topics: all of them, and one with its queues and groups."""

from itertools import groupby
from operator import attrgetter
from typing import Final

from starlette.responses import Response

from mqdb.common.topic import DLQ_PREFIX, RETRY_PREFIX, is_group_topic, is_system_topic, max_queues_by_right
from mqdb.dashboard.endpoint import Page
from mqdb.dashboard.login_sessions import PersonStanding
from mqdb.dashboard.visit import Visit
from mqdb.errors import ParameterInvalid
from mqdb_client import TopicConfig

_A_PAGE: Final = 100


def topics(visit: Visit) -> Response:
    """Topics by name, those with a part of a name; those of groups and of the broker only on demand."""
    part, after = (visit.query.text("find") or "").lower(), visit.query.text("after") or ""
    with_internal = visit.query.has("all")
    found = [
        each
        for each in visit.broker.topics.list()
        if part in each.name.lower() and each.name > after and (with_internal or not _is_internal(each))
    ]
    return visit.page(
        "topics.html",
        topics=found[:_A_PAGE],
        has_more=len(found) > _A_PAGE,
        with_internal=with_internal,
        may_make=visit.rights.may_somewhere("admin"),
    )


def topic(visit: Visit) -> Response:
    """One topic. Its queues and groups are loaded after the page."""
    name = visit.part("topic")
    return visit.page("topic.html", topic=name, group=_group_of(name), is_dlq=name.startswith(DLQ_PREFIX))


def details(visit: Visit) -> Response:
    """Settings and queues of a topic, and how far each group has read it."""
    name = visit.part("topic")
    shown = visit.broker.topics.show(name)
    progress = sorted(shown.progress, key=attrgetter("group"))
    groups = [
        (group, sum(each.lag for each in rows), max((each.lag_seconds or 0 for each in rows), default=0.0), len(rows))
        for group, rows in ((group, list(rows)) for group, rows in groupby(progress, attrgetter("group")))
    ]
    return visit.page("topic_details.html", topic=name, config=shown.config, queues=shown.queues, groups=groups)


def create(visit: Visit) -> Response:
    """Make a topic."""
    if not visit.is_post:
        visit.rights.require_somewhere("admin")
        return visit.page("topic_create.html")
    name = visit.form.text("name") or ""
    given = visit.form.number("queues")
    queues = 8 if given is None else given
    actor = visit.rights.require(name, "admin")
    most = max_queues_by_right(name)
    if visit.session.standing is PersonStanding.PRINCIPAL and queues > most:
        raise ParameterInvalid("queues", queues, f"who administers a topic gives it up to {most:,}")
    visit.broker.topics.create(name, queues=queues, actor=actor)
    return visit.go("topics", name, notice=f"Topic {name} is there.")


def _is_internal(config: TopicConfig) -> bool:
    return is_system_topic(config.name) or is_group_topic(config.name)


def _group_of(name: str) -> str | None:
    prefix = next((each for each in (RETRY_PREFIX, DLQ_PREFIX) if name.startswith(each)), None)
    return None if prefix is None else name.removeprefix(prefix)


PAGES: Final = (
    Page("topics", topics),
    Page("new-topic", create, acts=True),
    Page("topics/{topic}", topic),
    Page("topics/{topic}/details", details),
)
