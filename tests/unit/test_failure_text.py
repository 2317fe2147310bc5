"""Errors that differ only in their values count as one cause."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqdb.pipeline.jobs.failure_text import MAX_FOLDED_CHARACTERS, folded, folded_exception


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no price for order-17", "no price for order-<n>"),
        ("flight N14228 is late by -12.5 minutes", "flight N<n> is late by <n> minutes"),
        ("took 1,234,567.89 ms", "took <n> ms"),
        ("took 1.5e-07 s", "took <n> s"),
        ("the listener has not returned after 0:15:00", "the listener has not returned after <n>"),
        ("column 'price' does not exist", "column <value> does not exist"),
        ('column "price" of "t 1" does not exist', "column <value> of <value> does not exist"),
        ("can't read user's file", "can't read user's file"),
        ("can't read 'a.txt', it isn't there", "can't read <value>, it isn't there"),
        (r"no 'it\'s' here", "no <value> here"),
        ("no “price” here", "no <value> here"),
        ("no order 8f14e45f-ceea-467f-a0e6-1b2c3d4e5f60", "no order <uuid>"),
        ("message 0A0B0C0D1E2F00000000000000000001 is gone", "message <hex> is gone"),
        ("<object at 0x7f3a2b10>", "<object at <hex>>"),
        ("commit 264d1ca9 is unknown", "commit <hex> is unknown"),
        ("a facade, decade, deadbeef", "a facade, decade, deadbeef"),
        ("charge ch_3MmlLrLkdIwHu7ix0snN0B15 was refused", "charge ch_<id> was refused"),
        ("refused by 10.0.0.17:5432", "refused by <address>"),
        ("born 2026-07-14T09:30:00.250+00:00, too old", "born <time>, too old"),
        ("since 2026-07-14 nothing", "since <time> nothing"),
        ("2026-07-14 09:30:00 UTC", "<time>"),
        ("keys [1, 2, 3] are missing", "keys [<n>, ...] are missing"),
        ("keys [4, 5] are missing", "keys [<n>, ...] are missing"),
        ("('a', 'b')", "(<value>, ...)"),
        ("first line\n  second\tline", "first line second line"),
        ("", None),
        (" \n", None),
        (None, None),
    ],
)
def test_values_leave_their_kind_behind(text: str | None, expected: str | None) -> None:
    assert folded(text) == expected


def test_a_long_text_keeps_its_beginning() -> None:
    text = folded("word " * 200)

    assert text is not None
    assert len(text) == MAX_FOLDED_CHARACTERS
    assert text.startswith("word word")
    assert text.endswith("…")


@given(st.text(max_size=200))
def test_folding_never_fails_and_leaves_no_digit_of_ascii(text: str) -> None:
    assert re.search(r"[0-9]", folded(text) or "") is None


@given(number=st.integers(), uuid=st.uuids(), quoted=st.text("abc 12", max_size=10))
def test_texts_that_differ_in_values_only_are_one(number: int, uuid: object, quoted: str) -> None:
    assert folded(f"row {number} of {uuid} has '{quoted}'") == "row <n> of <uuid> has <value>"


def test_unclosed_quotes_and_long_tokens_take_no_time() -> None:
    for part in ("'", "'a", "\\", "a1", "1,", "0x", "<n>,"):
        assert folded(part * 2_000) is not None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("TimeoutError", "TimeoutError"),
        ("oauth2.errors.Expired", "oauth2.errors.Expired"),
        ("shop.check.<locals>.NoPrice2", "shop.check.<locals>.NoPrice2"),
        ("RECONSUME_LATER", "RECONSUME_LATER"),
        ("None", "None"),
        ("42", "<n>"),
        ("'done'", "<value>"),
        ("<object at 0x7f3a2b10>", "<object at <hex>>"),
        ("", None),
        (None, None),
    ],
)
def test_names_of_exceptions_keep_their_digits(name: str | None, expected: str | None) -> None:
    assert folded_exception(name) == expected
