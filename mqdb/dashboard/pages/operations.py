"""Operations: who has changed what."""

from typing import Final

from starlette.responses import Response

from mqdb.common.printable import json_text
from mqdb.dashboard.endpoint import Page
from mqdb.dashboard.sessions import Standing
from mqdb.dashboard.visit import Visit

_A_PAGE: Final = 100


def operations(visit: Visit) -> Response:
    """Changes, the youngest first: by topic, group, person, and since when."""
    query = visit.query
    found = visit.broker.operations.list(
        topic=query.text("topic"),
        group=query.text("group"),
        actor=query.text("actor"),
        since=query.time("since"),
        before=query.number("before"),
        limit=_A_PAGE + 1,
    )
    # The condition of a redrive may hold values of messages.
    is_principal, person = visit.session.standing is Standing.PRINCIPAL, visit.session.person
    rows = [
        (each, _changes(each.before, each.after) if not is_principal or each.actor == person else "")
        for each in found[:_A_PAGE]
    ]
    return visit.page("operations.html", operations=rows, has_more=len(found) > _A_PAGE)


def _changes(before: dict[str, object] | None, after: dict[str, object] | None) -> str:
    parts = [f"{name} {json_text(value)}" for name, value in (("before", before), ("after", after)) if value]
    return "\n".join(parts)


PAGES: Final = (Page("operations", operations),)
