"""Transactions: half messages that have not ended yet, and ways to end them by hand."""

from typing import Final

from starlette.responses import Response

from mqdb.dashboard.endpoint import Page
from mqdb.dashboard.visit import Visit
from mqdb.errors import ParameterInvalid
from mqdb_client import HalfState, Resolution

_MOST: Final = 100

#: The words of the notice about a half message, by its new state.
_NOW: Final = {
    HalfState.COMMITTED: "is committed",
    HalfState.ROLLED_BACK: "is rolled back",
    HalfState.PREPARED: "is asked about again",
}


def transactions(visit: Visit) -> Response:
    """Half messages that are open or were given up, oldest first. Ending a half message needs a confirmation."""
    if visit.is_post:
        return _resolve(visit)
    group, given_up = visit.query.text("group"), visit.query.has("given_up")
    states = (HalfState.DISCARDED,) if given_up else (HalfState.PREPARED, HalfState.DISCARDED)
    halves = visit.broker.transactions.list(states, group, _MOST)
    return visit.page(
        "transactions.html",
        halves=halves,
        now=visit.broker.retention.log().now,
        is_full=len(halves) == _MOST,
        group=group,
        given_up=given_up,
        operated=visit.rights.among([each.topic for each in halves], "operate"),
    )


def _resolve(visit: Visit) -> Response:
    form = visit.form
    transaction_id, wanted = form.text("id"), form.text("to") or ""
    if transaction_id is None:
        raise ParameterInvalid("id", None, "name a half message")
    if wanted not in tuple(Resolution):
        raise ParameterInvalid("to", wanted, "write commit, rollback or resume")
    resolution = Resolution(wanted)
    # Senders choose ids, so several half messages may have this id. The person needs the right on all their topics.
    copies = visit.broker.messages.trace(transaction_id).copies
    for half_topic in {each.half.topic for each in copies if each.half} or {""}:
        actor = visit.rights.require(half_topic, "operate")
    if not form.has("do"):
        return visit.page(
            "transaction_resolve.html",
            transaction_id=transaction_id,
            resolution=resolution,
            topic=form.text("topic"),
            group=form.text("group"),
        )
    half = visit.broker.transactions.resolve(transaction_id, resolution, actor=actor)
    return visit.go("transactions", notice=f"Half message {half.transaction_id} {_NOW[HalfState(half.state)]}.")


PAGES: Final = (Page("transactions", transactions, acts=True),)
