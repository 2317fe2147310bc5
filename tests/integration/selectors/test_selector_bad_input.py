"""Selectors with bad input: any expression and message give a verdict or a SelectorSyntaxError.

Selectors never cause another error in the compiler or in PostgreSQL, and SQL in a literal is never executed.
"""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Text, cast, func, select
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from mqdb.errors import SelectorSyntaxError
from mqdb.selector import Selector, compile_selector
from mqdb.selector.check import MAX_PARTS
from mqdb.selector.parser import MAX_NESTING
from tests.fixtures.fuzz import fuzz_cases, fuzz_random

NASTY = [
    "", " ", "'", "''", '"', "\\", "\\'", "'; DROP SCHEMA mqdb CASCADE; --", "%s", "%(x)s", ":x", "$1", "{}", "--",
    "/*", "0", "-0.0", "1", "5.5", "1e400", "1e-400", "0x1p4", "0x1p-9999", "NaN", "-Infinity", "+.e1", "2147483648",
    "9223372036854775808", "\uff15", "\u0663", "\U0001d7cf", " 5 ", "true", "TRUE", "null", "\U0001f600", "e\u0301",
    "\ufeff", "\uffff", "\x01\x02", "\r\n\t",
]  # fmt: skip
LONG = ["9" * 400, "-" + "9" * 400, "0x" + "f" * 300 + "p-9999", "\u0663" * 400, "x" * 32_768, "\u4e2d" * 10_000]

NAMES = ["a", "b", "TAGS", "$_", "missing"]
STRINGS = ["'" + text.replace("'", "''") + "'" for text in NASTY]
NUMBERS = ["0", "5", "-5", "2147483648", "-2147483648", "9223372036854775807", "5.5", "-.5", "1e308", "4.9e-324"]
TOKENS = [
    *NAMES, *STRINGS, *NUMBERS, "(", ")", ",", "=", "<>", "<", "<=", ">", ">=", "+", "-", "AND", "or", "NOT", "IS",
    "NULL", "TRUE", "FALSE", "BETWEEN", "IN", "CONTAINS", "STARTSWITH", "ENDSWITH", "LIKE", "0.0", "1e999", "!", "'",
    '"', "9" * 30, "/* x */", "-- x\n", "--", "/*", ";", "\x0b", "\xa0", "\0", "\ud800", "a.b", "007",
]  # fmt: skip

#: The grammar turned loose: tokens in any order.
soups = st.lists(st.sampled_from(TOKENS), max_size=25).map(" ".join) | st.lists(st.sampled_from(TOKENS)).map("".join)

properties = st.dictionaries(
    st.sampled_from(NAMES),
    st.sampled_from(NASTY) | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
)

operands = st.sampled_from([*NAMES, *NUMBERS, "'5'", "'x'", "-a", "(a = 1)", "TRUE", "NULL"])
numbers = st.sampled_from([*NAMES, *NUMBERS, "-a", "-(a > 1)"])


def _conditions() -> st.SearchStrategy[str]:
    strings = st.sampled_from(STRINGS)
    comparisons = st.builds("{} {} {}".format, numbers, st.sampled_from(["<", "<=", ">", ">="]), numbers)
    betweens = st.builds(
        "{} {} {} AND {}".format, numbers, st.sampled_from(["BETWEEN", "NOT BETWEEN"]), numbers, numbers
    )
    contains = st.builds(
        "{} {} {}".format,
        operands,
        st.sampled_from(["CONTAINS", "NOT STARTSWITH", "ENDSWITH", "NOT CONTAINS"]),
        strings,
    )
    lists = st.lists(strings, min_size=1, max_size=4).map(", ".join)
    ins = st.builds("{} {} ({})".format, st.sampled_from(NAMES), st.sampled_from(["IN", "NOT IN"]), lists)
    equals = st.builds("{} {} {}".format, operands | strings, st.sampled_from(["=", "<>"]), operands | strings)
    return comparisons | betweens | contains | ins | equals | st.sampled_from([*NAMES, "TRUE", "a IS NULL"])


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    forms = ["({} AND {})", "({} OR {})", "(({}) = ({}))", "(({}) <> ({}))", "(({}) IS NULL OR {})", "NOT ({} OR {})"]
    return st.builds(lambda form, one, other: form.format(one, other), st.sampled_from(forms), inner, inner)


conditions = st.recursive(_conditions(), _nested, max_leaves=12)


def compiled(texts: Sequence[str]) -> list[Selector]:
    """The selectors of the legal texts. Any other error fails the test."""
    selectors = []
    for text in texts:
        try:
            selectors.append(compile_selector(text))
        except SelectorSyntaxError as refused:
            if not (0 <= refused.position <= len(text) and "^" in str(refused)):
                raise
    return selectors


def verdicts(conn: Connection, selectors: Sequence[Selector], messages: Sequence[object]) -> list[tuple[Any, ...]]:
    """One row for each message, with a column for each selector."""
    texts = cast([json.dumps(each) for each in messages], ARRAY(Text))
    stored = select(cast(func.unnest(texts), JSONB).label("properties")).subquery()
    clauses = [each.where(stored.c.properties).label(f"c{number}") for number, each in enumerate(selectors)]
    return [tuple(row)[1:] for row in conn.execute(select(stored.c.properties, *clauses))]


quick = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@settings(max_examples=200)
@given(soups | st.text(max_size=200))
def test_any_text_is_a_selector_or_refused(text: str) -> None:
    compiled([text])


def test_any_text_is_a_verdict_or_refused(conn: Connection) -> None:
    """Any text gives a verdict or is refused: the promise of the neighbouring tests, for any number of cases."""
    chance = fuzz_random()
    legal: list[Selector] = []
    for _ in range(fuzz_cases()):
        tokens = chance.choices(TOKENS, k=chance.randrange(1, 8))
        names = [chance.choice([*NAMES, *NUMBERS]) for _ in range(3)]
        forms = [
            " ".join(tokens),
            "".join(tokens),
            "{} > {} AND {} = 'x'".format(*names),
            "{} BETWEEN {} AND {}".format(*names),
        ]
        legal += compiled([chance.choice(forms)])
    messages = [{name: chance.choice([*NASTY, *LONG]) for name in NAMES if chance.random() < 0.7} for _ in range(5)]

    assert len(legal) > fuzz_cases() // 10
    for first in range(0, len(legal), 50):
        assert len(verdicts(conn, legal[first : first + 50], messages)) == len(messages)


@quick
@given(st.lists(soups, min_size=5, max_size=40), st.lists(properties, min_size=1, max_size=10))
def test_what_compiles_never_raises_for_any_message(
    conn: Connection, texts: list[str], messages: list[dict[str, str]]
) -> None:
    assert len(verdicts(conn, compiled(texts), messages)) == len(messages)


@quick
@given(st.lists(conditions, min_size=5, max_size=20), st.lists(properties, min_size=1, max_size=10))
def test_legal_selectors_never_raise_for_any_message(
    conn: Connection, texts: list[str], messages: list[dict[str, str]]
) -> None:
    assert len(verdicts(conn, compiled(texts), messages)) == len(messages)


@pytest.mark.parametrize("value", [*NASTY, *LONG], ids=lambda value: f"{value[:20]!a}-{len(value)}")
def test_a_literal_is_nothing_but_its_text(conn: Connection, value: str) -> None:
    quoted = "'" + value.replace("'", "''") + "'"
    selectors = compiled([f"a = {quoted}", f"a IN ('y', {quoted})", f"NOT (a <> {quoted})"])

    found = verdicts(conn, selectors, [{"a": value}, {"a": value + "."}, {"b": value}])

    assert found == [(True, True, True), (False, False, False), (None, None, None)]


def test_every_way_to_read_a_text_bears_every_text(conn: Connection) -> None:
    numbers = ["5", "-5", "2147483648", "5.5", "-1e308", "b", "TRUE", "'x'", "-b", "(b > 1)"]
    selectors = compiled([f"(a {each} {number}) IS NULL" for each in ("=", "<>", ">", "<=") for number in numbers])
    messages = [{"a": value, "b": other} for value in [*NASTY, *LONG] for other in ("5", "x", value)]

    assert len(selectors) == 34
    assert len(verdicts(conn, selectors, messages)) == len(messages)


def test_properties_that_are_no_texts_are_judged_too(conn: Connection) -> None:
    selectors = compiled(["a = 5", "a > 1.5", "a = TRUE", "a IS NULL"])

    found = verdicts(conn, selectors, [[], 5, "a", None, {}, {"a": 5}, {"a": None}, {"a": [1]}, {"a": True}])

    missing = (None, None, None, True)
    assert found == [missing] * 5 + [
        (True, True, False, False),
        missing,
        (None, None, False, False),
        (None, None, True, False),
    ]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("term", "operator", "expected"),
    [
        ("a = '{n}'", " OR ", True),
        ("a <> '{n}'", " AND ", False),
        ("a{n} <> {n}.5", " AND ", None),
        ("(a = {n} AND b = 'x')", " OR ", True),
    ],
)
def test_the_longest_chain_is_judged(conn: Connection, term: str, operator: str, expected: bool | None) -> None:
    parts = 7 if " AND " in term else 3
    (selector,) = compiled([operator.join(term.format(n=number) for number in range(MAX_PARTS // parts))])

    ((verdict,),) = verdicts(conn, [selector], [{"a": f"{MAX_PARTS // parts - 1}", "b": "x"}])

    assert verdict is expected


@pytest.mark.parametrize(
    ("before", "after", "levels"),
    [
        ("(", ")", MAX_NESTING),
        ("NOT ", "", MAX_NESTING),
        ("(b = 'x' OR (b = 'y' AND ", "))", MAX_NESTING // 2),
        ("((", ") OR b = 1) AND b = 2", MAX_NESTING // 2),
        ("(c = 1 OR d = 2 AND b = (", ") = (c = 2) AND d = 4 OR b = 5)", MAX_PARTS // 25),
        ("NOT (c = 1 AND d = 2 OR b = (", ") IS NULL AND d = 4 OR b = 5)", MAX_NESTING // 4),
        ("(c BETWEEN 1 AND -(", "))", MAX_NESTING // 3),
        ("", " = (b = 2)", MAX_NESTING - 1),
    ],
)
def test_the_deepest_nesting_is_judged(conn: Connection, before: str, after: str, levels: int) -> None:
    (selector,) = compiled([before * levels + ("a" if before == "NOT " else "a = 3") + after * levels])

    ((verdict,),) = verdicts(conn, [selector], [{"a": "3", "b": "5", "c": "7"}])

    assert verdict in (True, False, None)
