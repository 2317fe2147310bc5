"""The states of a half message: every existing transition, and no other."""

from datetime import timedelta
from itertools import product

import pytest

from mqdb.common.transaction import (
    EVENT_OF,
    TRANSITIONS,
    HalfEvent,
    HalfState,
    LocalTransactionState,
    first_check_age,
    immunity_of,
    source_of,
    target_of,
)

ALLOWED = {
    (HalfState.PREPARED, HalfEvent.COMMIT): HalfState.COMMITTED,
    (HalfState.PREPARED, HalfEvent.ROLLBACK): HalfState.ROLLED_BACK,
    (HalfState.PREPARED, HalfEvent.GIVE_UP): HalfState.DISCARDED,
    (HalfState.DISCARDED, HalfEvent.RESUME): HalfState.PREPARED,
}


@pytest.mark.parametrize(("state", "event"), list(product(HalfState, HalfEvent)), ids=str)
def test_an_event_leads_where_the_table_says_or_nowhere(state: HalfState, event: HalfEvent) -> None:
    assert TRANSITIONS[state].get(event) == ALLOWED.get((state, event))


@pytest.mark.parametrize("event", HalfEvent, ids=str)
def test_an_event_leads_from_one_state_to_one(event: HalfEvent) -> None:
    assert ALLOWED[source_of(event), event] == target_of(event)


def test_unknown_is_no_event() -> None:
    assert set(EVENT_OF) == set(LocalTransactionState) - {LocalTransactionState.UNKNOWN}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(None, None), ("0", 0), ("60", 60), ("007", 7), ("9" * 5_000, 259_200)]
    + [(text, None) for text in ("", "-1", "1.5", "soon", " 6", "\N{SUPERSCRIPT TWO}")],
    ids=lambda value: repr(value)[:20],
)
def test_an_immunity_is_a_whole_number_of_seconds(text: str | None, seconds: int | None) -> None:
    assert immunity_of(text) == (None if seconds is None else timedelta(seconds=seconds))


@pytest.mark.parametrize(("immunity", "seconds"), [(None, 6), ("60", 60), ("1", 6), ("soon", 6)], ids=str)
def test_nothing_is_asked_about_before_its_immunity_and_the_timeout(immunity: str | None, seconds: int) -> None:
    assert first_check_age(immunity, timedelta(seconds=6)) == timedelta(seconds=seconds)
