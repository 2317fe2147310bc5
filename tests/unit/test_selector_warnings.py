"""Warnings of `mqdb selector explain` about legal but surprising expressions.

The verdicts behind them are RocketMQ's.
"""

import pytest

from mqdb.selector import compile_selector
from mqdb.selector.warnings import warnings_of


def reasons(expression: str) -> list[str]:
    return [warning.reason for warning in warnings_of(compile_selector(expression).tree)]


@pytest.mark.parametrize(
    ("expression", "part", "words"),
    [
        ("a", "a", "never true"),
        ("b = 'x' AND a", "a", "never true"),
        ("a OR b = 'x'", "a", "never true"),
        ("NOT a", "NOT a", "write NOT (a = TRUE)"),
        ("FALSE", "FALSE", "no message"),
        ("NULL", "NULL", "no message"),
        ("TRUE", "TRUE", "every message"),
        ("NOT a = 'x'", "NOT a = 'x'", "write NOT (a = 'x')"),
        ("NOT a <> 5", "NOT a <> 5", "write NOT (a <> 5)"),
        ("NOT a IS NULL", "NOT a IS NULL", "write a IS NOT NULL"),
        ("NOT a CONTAINS 'x'", "NOT a CONTAINS 'x'", "write NOT (a CONTAINS 'x')"),
        ("a = b > 1", "a = (b > 1)", "truth value of b > 1"),
        ("a = 'x' = b", "(a = 'x') = b", "truth value of a = 'x'"),
        ("a = FALSE", "a = FALSE", "every text of a except 'true'"),
        ("a <> TRUE", "a <> TRUE", "every text of a except 'true'"),
        ("TRUE = a", "TRUE = a", "never true; write a = TRUE"),
        ("FALSE <> a", "FALSE <> a", "true if a is missing"),
        ("'no' = FALSE", "'no' = FALSE", "same for every message"),
        ("1 < 2", "1 < 2", "same for every message"),
        ("a > 5", "a > 5", "for decimals write 5.0"),
        ("5 < a", "5 < a", "for decimals write 5.0"),
        ("a = -5", "a = -5", "for decimals write -5.0"),
        ("a > --5", "a > --5", "for decimals write 5.0"),
        ("a >= 0", "a >= 0", "for decimals write 1e-300 or -1e-300"),
        ("a = 0", "a = 0", "for decimals write a BETWEEN -1e-300 AND 1e-300"),
        ("a <> 0", "a <> 0", "for decimals write a NOT BETWEEN -1e-300 AND 1e-300"),
        ("a > 3000000000", "a > 3000000000", "as a long"),
        ("a BETWEEN 1 AND 2.5", "a BETWEEN 1 AND 2.5", "for decimals write 1.0"),
        ("a > b", "a > b", "doubles"),
        ("a BETWEEN b AND 9.5", "a BETWEEN b AND 9.5", "doubles"),
        ("a = b", "a = b", "both are missing"),
        ("a <> b", "a <> b", "if b is missing and a is not"),
        ("-a > 0.5", "-a", "null"),
        ("a BETWEEN 10 AND -1", "a BETWEEN 10 AND -1", "never true"),
        ("a NOT BETWEEN 10 AND 1", "a NOT BETWEEN 10 AND 1", "true for every number"),
        ("a CONTAINS ''", "a CONTAINS ''", "never true"),
        ("a NOT ENDSWITH ''", "a NOT ENDSWITH ''", "never true"),
        ("5 CONTAINS 'x'", "5 CONTAINS 'x'", "never true"),
        ("NOT (a CONTAINS 'x')", "NOT (a CONTAINS 'x')", "a NOT CONTAINS 'x' is not"),
        ("'x' <> a", "'x' <> a", "a <> 'x' is not"),
        ("-5 <> a", "-5 <> a", "a <> -5 is not"),
        ("a > 5 OR b = 'x'", "(a > 5) OR (b = 'x')", "write b = 'x' before it"),
        ("(a = 'x') = b OR b = 'x'", "((a = 'x') = b) OR (b = 'x')", "write b = 'x' before it"),
    ],
)
def test_what_surprises_is_told(expression: str, part: str, words: str) -> None:
    found = warnings_of(compile_selector(expression).tree)

    assert any(warning.part == part and words in warning.reason for warning in found), found


@pytest.mark.parametrize(
    "expression",
    [
        "a = 'x'",
        "a <> 'x'",
        "a = TRUE",
        "a > 5.5",
        "a BETWEEN 1.5 AND 2.5",
        "a IS NOT NULL AND NOT (a = 'x')",
        "TAGS IN ('A', 'B') OR KEYS CONTAINS 'k'",
        "b = 'x' OR a > 5.5",
        "a NOT IN ('x') AND a NOT CONTAINS 'x'",
    ],
)
def test_plain_expressions_get_no_warning(expression: str) -> None:
    assert reasons(expression) == []


def test_warnings_come_from_left_to_right() -> None:
    found = warnings_of(compile_selector("a = 1 AND (b OR NOT c = 'x') AND d CONTAINS ''").tree)

    assert [warning.position for warning in found] == sorted(warning.position for warning in found)
    assert len(found) == 4


def test_a_long_chain_is_looked_at_in_no_time() -> None:
    assert reasons(" OR ".join(["a = 'x'"] * 333)) == []
