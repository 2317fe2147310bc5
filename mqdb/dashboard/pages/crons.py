"""Crons: lists, pauses, resumes, removes and adds recurring sends."""

from typing import Final

from starlette.responses import Response

from mqdb.dashboard.endpoint import Page
from mqdb.dashboard.views.bodies import edited_body
from mqdb.dashboard.visit import PageNotFound, Visit
from mqdb.errors import ParameterInvalid
from mqdb_client import CatchUp, Message

_A_PAGE: Final = 100


def crons(visit: Visit) -> Response:
    """The recurring sends whose names contain the searched text, by name. A change needs a confirmation."""
    if visit.is_post:
        return _change(visit)
    part, after = (visit.query.text("find") or "").lower(), visit.query.text("after") or ""
    found = [each for each in visit.broker.crons.list() if part in each.name.lower() and each.name > after]
    now = visit.broker.retention.log().now
    topics = [each.topic for each in found[:_A_PAGE]]
    return visit.page(
        "crons.html",
        crons=found[:_A_PAGE],
        has_more=len(found) > _A_PAGE,
        now=now,
        operated=visit.rights.among(topics, "operate"),
        sent_to=visit.rights.among(topics, "send"),
        may_add=visit.rights.may_somewhere("operate"),
    )


def cron(visit: Visit) -> Response:
    """The page of one recurring send."""
    name = visit.part("cron")
    found = next((each for each in visit.broker.crons.list() if each.name == name), None)
    if found is None:
        raise PageNotFound(f"cron {name}")
    return visit.page(
        "cron.html",
        cron=found,
        now=visit.broker.retention.log().now,
        may_change=visit.rights.may(found.topic, "operate"),
        may_resume=visit.rights.may(found.topic, "send"),
    )


def _change(visit: Visit) -> Response:
    name, wanted = visit.form.text("name"), visit.form.text("to")
    if name is None:
        raise ParameterInvalid("name", None, "name a cron")
    if wanted not in ("pause", "resume", "remove"):
        raise ParameterInvalid("to", wanted, "write pause, resume or remove")
    topic = next((each.topic for each in visit.broker.crons.list() if each.name == name), "")
    actor = visit.rights.require(topic, "operate")
    if wanted == "resume":
        visit.rights.require(topic, "send")
    if not visit.form.has("do"):
        return visit.page("cron_change.html", name=name, wanted=wanted)
    if wanted == "resume":
        next_at = visit.broker.crons.resume(name, actor=actor)
        return visit.go("crons", notice=f"Cron {name} sends next at {next_at:%Y-%m-%d %H:%M:%S} UTC.")
    if wanted == "pause":
        visit.broker.crons.pause(name, actor=actor)
        return visit.go("crons", notice=f"Cron {name} is paused.")
    visit.broker.crons.remove(name, actor=actor)
    return visit.go("crons", notice=f"Cron {name} is removed.")


def add(visit: Visit) -> Response:
    """Show the next times of a recurring send, then add it."""
    form, times = visit.form, None
    if not visit.is_post:
        visit.rights.require_somewhere("operate")
    else:
        topic = form.text("topic") or ""
        actor = visit.rights.require(topic, "operate")
        visit.rights.require(topic, "send")
        text, timezone = form.text("cron") or "", form.text("timezone") or "UTC"
        if form.has("do"):
            name = form.text("name") or ""
            visit.broker.crons.add(
                name,
                text,
                _message(visit),
                timezone=timezone,
                sharding_key=form.text("sharding_key"),
                catch_up=form.choice("catch_up", CatchUp),
                actor=actor,
                principal=visit.rights.principal,
            )
            return visit.go("crons", notice=f"Cron {name} is added.")
        times = visit.broker.crons.next_times(text, timezone)
    return visit.page("cron_add.html", times=times)


def _message(visit: Visit) -> Message:
    form = visit.form
    keys = (form.text("keys") or "").split()
    body = edited_body(b"", form.raw("body") or "")
    return Message(form.text("topic") or "", body, form.text("tag"), tuple(keys))


PAGES: Final = (Page("crons", crons, acts=True), Page("crons/{cron}", cron), Page("new-cron", add, acts=True))
