"""Selectors: expressions that parse but are refused, the SQL clause, and the bound values."""

import pickle
import random
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from mqdb.errors import ResponseCode, SelectorSyntaxError
from mqdb.selector import Selector, compile_selector
from mqdb.selector.check import MAX_PARTS, count_parts
from mqdb.selector.subscription import ExpressionType
from mqdb.selector.syntax import In, PropertyNode
from mqdb.store.engine import text_of
from mqdb.store.tables import commit_log
from tests.fixtures.fuzz import fuzz_cases, fuzz_random

DIALECT = PGDialect_psycopg()  # type: ignore[no-untyped-call]
LOG = commit_log.alias("cl")


def sql(expression: str) -> str:
    """The clause with its values inserted for the parameters, without type names."""
    compiled = (
        compile_selector(expression)
        .where(LOG.c.properties)
        .compile(dialect=DIALECT, compile_kwargs={"literal_binds": True})
    )
    return str(compiled).replace("cl.properties", "p")


def parameters(expression: str) -> list[Any]:
    return list(compile_selector(expression).where(LOG.c.properties).compile(dialect=DIALECT).params.values())


# -- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "position"),
    [
        ("1", 0),
        ("'x'", 0),
        ("-a", 0),
        ("a = 1 OR (1.5)", 10),
        ("NOT 'x'", 4),
        ("'x' AND a", 0),
        ("a = NULL", 4),
        ("(NULL) <> a", 1),
        ("TRUE = 1", 0),
        ("FALSE <> 'x'", 0),
        ("a > 'x'", 4),
        ("'5' < a", 0),
        ("a > TRUE", 4),
        ("a > NULL", 4),
        ("a > (b = 1)", 5),
        ("1 < a < 5", 0),
        ("a BETWEEN '1' AND 5", 10),
        ("a BETWEEN 1 AND NULL", 16),
        ("TRUE BETWEEN 1 AND 5", 0),
        ("a NOT BETWEEN 1 AND 'x'", 20),
        ("a BETWEEN 5 AND 1", 10),
        ("a BETWEEN 1.5 AND 1", 10),
        ("a BETWEEN (+5) AND 4.5", 12),
        ("'x' IN ('x')", 0),
        ("-a NOT IN ('x')", 0),
        ("NOT a IN ('x')", 0),
    ],
)
def test_operands_that_rocketmq_refuses_are_refused(expression: str, position: int) -> None:
    with pytest.raises(SelectorSyntaxError) as caught:
        compile_selector(expression)

    assert caught.value.code is ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert (caught.value.expression, caught.value.position) == (expression, position)


@pytest.mark.parametrize(
    "expression",
    [
        "1 = TRUE",
        "TRUE = -1",
        "a BETWEEN 10 AND -10",
        "a NOT BETWEEN 10 AND 1",
        "a BETWEEN 9007199254740993 AND 9007199254740992.0",
        "-TRUE IS NULL",
        "123 CONTAINS '2'",
        "NULL CONTAINS 'x'",
        "a = NOT NULL",
        "+a IN ('x')",
    ],
)
def test_odd_operands_that_rocketmq_accepts_are_accepted(expression: str) -> None:
    assert compile_selector(expression).expression == expression


def test_the_place_is_shown_by_a_caret() -> None:
    with pytest.raises(SelectorSyntaxError) as caught:
        compile_selector("a = 1\r\n\tAND 价格 > 'x'")

    _, line, caret, expected = str(caught.value).splitlines()
    assert line == "     AND 价格 > 'x'"
    assert caret.index("^") == line.index("价")
    assert expected.startswith("expected: a property name")


def test_a_caret_stands_below_its_place_behind_wide_characters() -> None:
    with pytest.raises(SelectorSyntaxError) as caught:
        compile_selector("a = '价格' b")

    _, line, caret, _ = str(caught.value).splitlines()
    assert caret.index("^") == line.index(" b") + 1 + len("价格")


def test_of_a_long_line_only_the_place_is_shown() -> None:
    with pytest.raises(SelectorSyntaxError) as caught:
        compile_selector("a = 1 OR " * 3_000 + "! " + "a = 1 OR " * 3_000)

    _, line, caret, *_ = str(caught.value).splitlines()
    assert len(line) < 120
    assert line[caret.index("^")] == "!"


def test_more_parts_than_can_be_planned_in_time_are_refused() -> None:
    def ored(count: int) -> str:
        return " OR ".join(f"a = {number}" for number in range(count))

    assert count_parts(compile_selector(ored(MAX_PARTS // 3)).tree) == MAX_PARTS
    with pytest.raises(SelectorSyntaxError, match=r"more than 1,000 names, values and operators; .* IN \('x', 'y'\)"):
        compile_selector(ored(MAX_PARTS // 3 + 1))


@pytest.mark.parametrize("text", ["(", "NOT ", "-", "a = 1 OR ", "'", "/*", "--", "a IN ('x', "])
def test_a_text_that_is_too_long_is_refused_before_it_is_read(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqdb.selector.parser.parse", None)

    with pytest.raises(SelectorSyntaxError, match="has 1,000,000 characters; the limit is 65,536"):
        compile_selector((text * 1_000_000)[:1_000_000])


def test_a_list_of_texts_may_be_long() -> None:
    texts = tuple(f"{number}" for number in range(6_000))

    selector = compile_selector(f"a IN {texts}")

    assert selector.tree == In(PropertyNode("a"), texts)


def test_no_part_becomes_more_than_so_much_sql() -> None:
    """No part of a selector becomes more than a fixed amount of SQL.

    The bound on parts limits PostgreSQL's planning time, which grows with the length of the text.
    """
    chance = fuzz_random()
    for _ in range(fuzz_cases()):
        selector = compile_selector(nested_conditions(chance, chance.randrange(1, 5)))

        text = text_of(selector.where(LOG.c.properties))

        assert len(text) < 600 * count_parts(selector.tree) + 200, selector.expression


def nested_conditions(chance: random.Random, depth: int) -> str:
    """A nested condition of the forms that become the longest SQL."""

    def name() -> str:
        return f"{chance.choice('abc')}{chance.randrange(1_000)}"

    def inner() -> str:
        return f"({nested_conditions(chance, depth - 1)})"

    if depth == 0 or chance.random() < 0.15:
        forms = [
            "{} > {}",
            "{} BETWEEN {} AND {}",
            "{} NOT BETWEEN {} AND {}",
            "{} = {}",
            "{} BETWEEN 1.5 AND 2",
            "1 = {}",
        ]
        form: str = chance.choice(forms)
        return form.format(*(name() for _ in range(form.count("{}"))))
    more_forms = (
        "{} = {}|{} OR {}|{} AND {}|NOT {}|a > -{}|b BETWEEN c AND -{}|{} IS NULL|{} = 1|{} OR {} AND {}|d = {}"
    )
    form = chance.choice(more_forms.split("|"))
    return form.format(*(inner() for _ in range(form.count("{}"))))


# -- the clause ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "clause"),
    [
        ("a = 'x'", "(p ->> 'a') = 'x'"),
        ("a <> 'x' AND a IS NOT NULL", "((p ->> 'a') != 'x' AND (p ->> 'a') IS NOT NULL)"),
        (
            "a = 'x' AND b BETWEEN 0 AND 3",
            "((p ->> 'a') = 'x' AND mqdb.java_int(p ->> 'b') BETWEEN 0 AND 3)",
        ),
        (
            "TAGS IN ('A', 'B') OR price > 1.5",
            "((p ->> 'TAGS') = ANY (ARRAY['A', 'B']) OR mqdb.java_double(p ->> 'price') > 1.5)",
        ),
        ("NOT (a > 5 OR a IN ('x'))", "(mqdb.java_int(p ->> 'a') <= 5 AND (p ->> 'a') != ALL (ARRAY['x']))"),
        ("a > 9 OR a < 5", "(mqdb.java_int(p ->> 'a') > 9 OR mqdb.java_int(p ->> 'a') < 5)"),
        ("5 < a", "mqdb.java_int(p ->> 'a') > 5"),
        ("a > -2147483648", "mqdb.java_long(p ->> 'a') > -2147483648"),
        ("a CONTAINS 'x'", "strpos(p ->> 'a', 'x') > 0"),
        ("NOT (a CONTAINS 'x')", "NOT (coalesce(strpos(p ->> 'a', 'x') > 0, false))"),
        ("a", "false"),
        ("NOT a", "(p ->> 'a') IS NOT NULL"),
    ],
)
def test_everyday_filters_are_plain_sql(expression: str, clause: str) -> None:
    assert sql(expression) == clause


def test_what_can_fail_before_or_is_guarded() -> None:
    assert sql("a > 5 OR b = 'x'") == (
        "CASE WHEN mqdb.java_int(p ->> 'a') > 5 THEN true "
        "WHEN (p ->> 'a') IS NOT NULL AND mqdb.java_int(p ->> 'a') IS NULL THEN false "
        "ELSE (p ->> 'b') = 'x' END"
    )


def test_names_and_values_are_parameters_each_once() -> None:
    found = parameters(
        "a = 'x' OR b = 'x' OR a = '''; DROP TABLE x; --' OR a > 1 OR b > 1 OR a > 1.0 OR a IN ('x', 'y')"
    )

    assert sorted(map(str, found)) == sorted(["a", "x", "b", "'; DROP TABLE x; --", "1", "1.0", "['x', 'y']"])


@pytest.mark.parametrize("value", ["'; DROP TABLE x; --", "%s %(x)s", ":x", "\\", "{}"])
def test_no_value_gets_into_the_text(value: str) -> None:
    quoted = value.replace("'", "''")

    text = text_of(compile_selector(f"a = '{quoted}' OR a CONTAINS '{quoted}'").where(LOG.c.properties))

    assert text == text_of(compile_selector("a = 'x' OR a CONTAINS 'x'").where(LOG.c.properties))


def test_selectors_of_one_statement_keep_their_values_apart() -> None:
    clauses = [compile_selector(each).where(LOG.c.properties) for each in ("a = 1", "b = 2")]

    compiled = select(LOG.c.log_pos).where(*clauses).compile(dialect=DIALECT)

    assert list(compiled.params.values()) == ["a", 1, "b", 2]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("term", "operator"),
    [("a = '{n}'", " OR "), ("a <> {n}", " AND "), ("a{n} > {n}", " OR "), ("NOT (a = {n} AND b = 'x')", " AND ")],
)
def test_long_chains_become_long_clauses(term: str, operator: str) -> None:
    expression = operator.join(term.format(n=number) for number in range(MAX_PARTS // 10))

    text = text_of(compile_selector(expression).where(LOG.c.properties))

    assert len(text) < 50_000


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(b = 'x' OR (b = 'y' AND ", "))"),
        ("((", ") OR b = 1) AND b = 2"),
        ("(b = (", "))"),
        ("NOT (c = 1 OR b = (", "))"),
        ("-(", ") IS NULL"),
        ("(c BETWEEN 1 AND -(", ") OR TRUE)"),
    ],
)
def test_deep_nesting_becomes_one_piece(before: str, after: str) -> None:
    levels = 66

    text = text_of(compile_selector(before * levels + "a = 3" + after * levels).where(LOG.c.properties))

    assert len(text) < 200_000


# -- the value ----------------------------------------------------------------------------------


def test_a_selector_says_what_it_looks_at() -> None:
    selector = compile_selector("TAGS IN ('x') AND -a IS NULL OR NOT (b > c) -- and nothing else")

    assert selector.properties_used == {"TAGS", "a", "b", "c"}
    assert selector.expression == selector.canonical_text
    assert selector.expression_type is ExpressionType.SQL92
    assert not selector.matches_all
    assert selector.matches(None)


def test_selectors_are_equal_when_their_texts_are() -> None:
    assert compile_selector("a = 1") == compile_selector("a = 1")
    assert compile_selector("a = 1") != compile_selector("a  = 1")


def test_a_deep_selector_can_be_pickled_and_shown() -> None:
    selector = compile_selector("(a = 1 OR b = NOT (" * 65 + "a" + "))" * 65)

    copy: Selector = pickle.loads(pickle.dumps(selector))

    assert copy == selector
    assert selector.expression in repr(copy)
