"""Operations: the recorded changes and their actors."""

from collections.abc import Sequence
from typing import Final

from starlette.responses import Response

from mqdb.common.printable import json_text
from mqdb.dashboard.endpoint import Page
from mqdb.dashboard.login_sessions import PersonStanding
from mqdb.dashboard.visit import Visit
from mqdb_client import Operation

_A_PAGE: Final = 100
_LAST: Final = 5


def operations(visit: Visit) -> Response:
    """Recorded changes, newest first, filtered by topic, group, object, actor and time."""
    query = visit.query
    found = visit.broker.operations.list(
        topic=query.text("topic"),
        group=query.text("group"),
        object=query.text("object"),
        actor=query.text("actor"),
        since=query.time("since"),
        before=query.number("before"),
        limit=_A_PAGE + 1,
    )
    return visit.page("operations.html", operations=_rows(visit, found[:_A_PAGE]), has_more=len(found) > _A_PAGE)


def last(visit: Visit) -> Response:
    """The last changes of a topic, group or other object, for the page of the object."""
    topic, group, what = (visit.query.text(name) for name in ("topic", "group", "object"))
    found = visit.broker.operations.list(topic=topic, group=group, object=what, limit=_LAST)
    rest = visit.url("operations", topic=topic, group=group, object=what)
    return visit.page("operations_last.html", operations=_rows(visit, found), rest=rest)


def _rows(visit: Visit, operations: Sequence[Operation]) -> list[tuple[Operation, str]]:
    """The operations, each with a text of the values before and after the change.

    A principal sees these values only for its own operations, because the condition of a redrive may contain data.
    """
    is_principal, person = visit.session.standing is PersonStanding.PRINCIPAL, visit.session.person
    return [
        (each, _changes(each.before, each.after) if not is_principal or each.actor == person else "")
        for each in operations
    ]


def _changes(before: dict[str, object] | None, after: dict[str, object] | None) -> str:
    if before and after:
        # Of the settings of a group, those that stay are no change.
        other = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        before, after = ({name: each[name] for name in other if name in each} for each in (before, after))
    parts = [f"{name} {json_text(value)}" for name, value in (("before", before), ("after", after)) if value]
    return "\n".join(parts)


PAGES: Final = (Page("operations", operations), Page("operations/last", last))
