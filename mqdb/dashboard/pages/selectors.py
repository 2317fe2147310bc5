"""Selectors: the meaning of an SQL92 expression, and its matches in a topic, as in `mqdb selector explain`."""

from typing import Final

from starlette.responses import Response

from mqdb.dashboard.endpoint import Page
from mqdb.dashboard.visit import Visit
from mqdb.errors import ParameterInvalid
from mqdb_client import explain_selector

_LAST: Final = 1_000
_MOST: Final = 10_000


def selectors(visit: Visit) -> Response:
    """An expression with its explanation and a trial on the latest messages of a topic. Changes nothing."""
    query = visit.query
    expression, topic, last = query.text("sql"), query.text("topic"), query.number("last")
    last = _LAST if last is None else last
    if not 0 < last <= _MOST:
        raise ParameterInvalid("last", last, f"write a whole number from 1 to {_MOST:,}")
    explained = trial = None
    if expression is not None:
        explained = explain_selector(expression)
        if topic is not None:
            visit.rights.require(topic, "read")
            trial = visit.broker.selectors.try_on(topic, expression, last)
    return visit.page("selectors.html", explained=explained, topic=topic, last=last, trial=trial)


PAGES: Final = (Page("selectors", selectors),)
