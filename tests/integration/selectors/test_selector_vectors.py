"""Selectors in PostgreSQL agree with RocketMQ's verdict on every recorded case.

`vectors/sql92.jsonl` holds RocketMQ's answers for an expression (`compile`) and for a message with these properties
(`value`, and `match`: whether it would be delivered).
"""

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, cast, func, literal, select, union_all
from sqlalchemy.dialects.postgresql import JSONB

from mqdb.errors import SelectorSyntaxError
from mqdb.selector import compile_selector
from mqdb.selector.parser import blank_comments

VECTORS = Path(__file__).parents[2] / "unit" / "vectors" / "sql92.jsonl"
CASES: list[dict[str, Any]] = list(map(json.loads, VECTORS.read_text(encoding="utf-8").splitlines()))

#: One statement judges so many cases: all literals are parameters of it.
BATCH = 150


def is_legal(case: dict[str, Any]) -> bool:
    """Whether mqdb accepts a case. mqdb refuses text that RocketMQ ignores, unless it is a comment."""
    if "rest_ignored" in case:
        return "--" in case["expr"]
    return bool(case["compile"] == "ok")


def judged(broker: Connection, cases: list[dict[str, Any]], form: str = "{}") -> list[bool]:
    """Whether each message is delivered to a subscription with its expression, rewritten in the given form."""
    verdicts = []
    for start in range(0, len(cases), BATCH):
        questions = [
            select(literal(number), func.coalesce(clause, False))
            for number, case in enumerate(cases[start : start + BATCH])
            for properties in [cast(literal(json.dumps(case["props"])), JSONB)]
            for clause in [compile_selector(form.format(case["expr"])).where(properties)]
        ]
        rows = dict(broker.execute(union_all(*questions)).fetchall())
        verdicts += [rows[number] for number in range(len(questions))]
    return verdicts


def different(cases: list[dict[str, Any]], found: list[bool], expected: list[bool]) -> list[object]:
    return [
        (case["expr"], case["props"], verdict)
        for case, verdict, wanted in zip(cases, found, expected, strict=True)
        if verdict is not wanted
    ]


LEGAL = list(filter(is_legal, CASES))

#: With parentheses around it an expression has to end before a comment does.
ENCLOSABLE = [case for case in LEGAL if "--" not in blank_comments(case["expr"]) or "rest_ignored" not in case]


def test_every_recorded_case_is_used() -> None:
    assert len(CASES) == 450
    assert 300 < len(LEGAL) < 400


def test_what_rocketmq_would_deliver_is_delivered_and_nothing_else(broker: Connection) -> None:
    assert different(LEGAL, judged(broker, LEGAL), [case["match"] for case in LEGAL]) == []


@pytest.mark.parametrize(
    ("form", "delivered"),
    [
        ("NOT ({})", [False]),
        pytest.param("({}) IS NULL", [None], marks=pytest.mark.long),
        ("({}) OR TRUE", [True, False, None]),
        pytest.param("(TRUE AND ({})) = FALSE", [False], marks=pytest.mark.long),
        pytest.param("(({}) IS NOT NULL) = TRUE", [True, False], marks=pytest.mark.long),
        pytest.param("FALSE OR NOT (TRUE AND ({}))", [False], marks=pytest.mark.long),
        pytest.param("(FALSE AND ({})) IS NOT NULL", [True, False, None, "error"], marks=pytest.mark.long),
    ],
)
def test_false_null_and_errors_are_told_apart(broker: Connection, form: str, delivered: list[object]) -> None:
    expected = [
        any(case["value"] is value or case["value"] == value == "error" for value in delivered) for case in ENCLOSABLE
    ]

    assert different(ENCLOSABLE, judged(broker, ENCLOSABLE, form), expected) == []


@pytest.mark.parametrize(
    "expression", [pytest.param(case["expr"], id=f"{n}") for n, case in enumerate(CASES) if not is_legal(case)]
)
def test_what_rocketmq_refuses_or_ignores_is_refused(expression: str) -> None:
    with pytest.raises(SelectorSyntaxError):
        compile_selector(expression)
