"""The evaluator with which SQL92 selectors are compared agrees with RocketMQ's verdict on every recorded case.

`vectors/sql92.jsonl` holds RocketMQ's answers. If RocketMQ ignores text after a complete expression (`rest_ignored`),
mqdb refuses it, unless it is a comment.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.sql92_evaluator import ERROR, Refused, TextAfterExpression, Verdict, compile_text
from tests.fixtures.sql92_evaluator.parser import MOST_NESTED

VECTORS = Path(__file__).parent / "vectors" / "sql92.jsonl"


def cases() -> list[dict[str, Any]]:
    return [json.loads(line) for line in VECTORS.read_text(encoding="utf-8").splitlines()]


def identified(wanted: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(case, id=f"{number}: {case['why']}") for number, case in enumerate(wanted)]


def has_refused_tail(case: dict[str, Any]) -> bool:
    return "rest_ignored" in case and " --" not in case["expr"]


LEGAL = [case for case in cases() if case["compile"] == "ok" and not has_refused_tail(case)]
TAILED = [case for case in cases() if has_refused_tail(case)]
REFUSED = [case for case in cases() if case["compile"] == "error"]


def test_every_recorded_case_is_used() -> None:
    assert len(LEGAL) + len(TAILED) + len(REFUSED) == len(cases()) == 450


@pytest.mark.parametrize("case", identified(LEGAL))
def test_a_message_is_judged_as_rocketmq_judges_it(case: dict[str, Any]) -> None:
    verdict = compile_text(case["expr"]).evaluate(case["props"])

    assert verdict is (ERROR if case["value"] == "error" else case["value"])


@pytest.mark.parametrize("case", identified(TAILED))
def test_a_text_whose_rest_rocketmq_ignores_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(TextAfterExpression) as caught:
        compile_text(case["expr"])

    complete = compile_text(case["expr"][: caught.value.position])
    assert complete.evaluate(case["props"]) is case["value"]


@pytest.mark.parametrize("case", identified(REFUSED))
def test_what_rocketmq_refuses_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        compile_text(case["expr"])


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("a = 1 b # % !", 6),
        ("a = 05", 5),
        ("a = 1) OR b = 2", 5),
        ("a-b = 'x'", 1),
        ("a = 1 - -2", 6),
        ("a = 1 /* c */ 'x'", 14),
        ("a IS NULL STARTSWITH 'x'", 10),
    ],
)
def test_a_tail_is_named_by_its_first_character(text: str, position: int) -> None:
    with pytest.raises(TextAfterExpression) as caught:
        compile_text(text)

    assert caught.value.position == position


@pytest.mark.parametrize("text", ["a = 1 --", "a = 1 --5", "a = 1 -- it's #1 -- and \N{LINE SEPARATOR} more"])
def test_a_comment_at_the_end_needs_no_line_end(text: str) -> None:
    assert compile_text(text).evaluate({"a": "1"}) is True


@pytest.mark.parametrize("nest", ["({})", "+{}", "NOT {}", "a = ({})", "(a AND {})", "{} = a", "{} IS NULL"])
def test_only_so_much_is_nested(nest: str) -> None:
    nested = "a" if nest[0] != "{" else "a = a"
    for _ in range(MOST_NESTED):
        nested = nest.format(nested)
    compile_text(nested)

    with pytest.raises(Refused):
        compile_text(nest.format(nested))


def test_a_chain_may_be_long() -> None:
    chain = compile_text(" OR ".join(f"a = '{number}'" for number in range(10_000)))

    assert chain.evaluate({"a": "9999"}) is True


@pytest.mark.parametrize(
    ("text", "properties", "verdict"),
    [
        ("a > 1.5", {"a": "-NaN"}, True),
        ("a <= b", {"a": "0x1.00000000000008p0", "b": "1"}, True),
        ("a <= b", {"a": "0x1.000000000000080000000001p0", "b": "1"}, False),
        ("a > b", {"a": "0x1p-1075", "b": "0"}, False),
        ("a > b", {"a": "-0x1p-99999999999", "b": "0"}, False),
        ("a >= b", {"a": "0x1p99999999999", "b": "Infinity"}, True),
        ("a < 2.5", {"a": "\x00\x1f2\x01"}, True),
        ("a < 2.5", {"a": "\N{NO-BREAK SPACE}2"}, ERROR),
        ("a < 25", {"a": "\N{MATHEMATICAL BOLD DIGIT TWO}"}, ERROR),
        ("a < 25", {"a": "0" * 5000 + "7"}, True),
        ("a < 25", {"a": "9" * 5000}, ERROR),
        ("a < 2.5", {"a": "9" * 5000}, False),
        ("a = ('x' = 1)", {}, ERROR),
        ("a < -('x' = 1)", {}, None),
        ("a < -('x' = 1)", {"a": "1"}, ERROR),
        ("('x' = 1) CONTAINS 'x'", {}, ERROR),
        ("('x' = 1) CONTAINS ''", {}, False),
    ],
)
def test_what_no_recorded_case_shows(text: str, properties: dict[str, str], verdict: Verdict) -> None:
    assert compile_text(text).evaluate(properties) is verdict
