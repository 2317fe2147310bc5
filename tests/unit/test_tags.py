"""Tag expressions agree with RocketMQ's verdict on every recorded case.

`vectors/tags.jsonl` holds RocketMQ's answers: `sub` lines read an expression, `hash` lines give the code of a tag,
`match` lines judge a message in two steps, by the broker and by the client.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqdb.errors import ResponseCode, TagExpressionInvalid
from mqdb.selector.tags import java_string_hash, parse_tag_expression, tag_code

VECTORS = Path(__file__).parent / "vectors" / "tags.jsonl"


def vectors(kind: str, **conditions: str) -> list[Any]:
    lines = map(json.loads, VECTORS.read_text(encoding="utf-8").splitlines())
    wanted = {"kind": kind, **conditions}
    return [pytest.param(line, id=line["why"]) for line in lines if wanted.items() <= line.items()]


def test_every_recorded_case_is_used() -> None:
    used = [*vectors("sub", compile="ok"), *vectors("sub", compile="error"), *vectors("hash"), *vectors("match")]

    assert len(used) == len(VECTORS.read_text(encoding="utf-8").splitlines()) == 124


@pytest.mark.parametrize("case", vectors("sub", compile="ok"))
def test_an_expression_is_read_as_rocketmq_reads_it(case: dict[str, Any]) -> None:
    expression = parse_tag_expression(case["expr"])

    assert expression.text == case["sub_string"]
    assert expression.matches_all is case["all"]
    assert expression.tags == set(case["tags"])
    assert list(expression.codes) == sorted(case["codes"])


@pytest.mark.parametrize("case", vectors("sub", compile="error"))
def test_an_expression_of_separators_only_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(TagExpressionInvalid) as caught:
        parse_tag_expression(case["expr"])

    assert case["expr"] in str(caught.value)
    assert caught.value.code is ResponseCode.SUBSCRIPTION_PARSE_FAILED


@pytest.mark.parametrize("character", ["\0", "\ud800"], ids=ascii)
def test_what_no_message_can_hold_is_refused(character: str) -> None:
    with pytest.raises(TagExpressionInvalid, match=f"U\\+{ord(character):04X}"):
        parse_tag_expression(f"A || b{character}")


@pytest.mark.parametrize("case", vectors("hash"))
def test_a_tag_has_the_hash_that_java_gives_it(case: dict[str, Any]) -> None:
    assert java_string_hash(case["tag"]) == case["hash"]
    assert tag_code(case["tag"]) == case["tags_code"]


@pytest.mark.parametrize("case", vectors("match"))
def test_a_message_is_judged_as_rocketmq_judges_it(case: dict[str, Any]) -> None:
    expression = parse_tag_expression(case["expr"])
    passes_broker = expression.matches_all or tag_code(case["tag"]) in expression.codes

    assert tag_code(case["tag"]) == case["tags_code"]
    assert passes_broker is case["broker"]
    # RocketMQ's client does not look again when the expression has no tags, since its broker has
    # passed nothing. `matches` is the verdict of both steps, whoever asks.
    assert expression.matches(case["tag"]) is case["delivered"]


def test_a_missing_tag_has_code_zero() -> None:
    assert tag_code(None) == tag_code("") == 0


@given(st.text(alphabet=st.characters(exclude_categories=[])))
def test_every_hash_is_a_signed_number_of_32_bits(text: str) -> None:
    assert -(2**31) <= java_string_hash(text) < 2**31


@given(st.sets(st.text(alphabet="abAB*é🚀", min_size=1).filter(lambda tag: tag != "*"), min_size=1))
def test_what_the_client_accepts_the_broker_has_passed(tags: set[str]) -> None:
    expression = parse_tag_expression(" || ".join(sorted(tags)))

    assert expression.tags == tags
    assert all(expression.matches(tag) and tag_code(tag) in expression.codes for tag in tags)


def test_an_expression_that_is_too_long_is_refused() -> None:
    with pytest.raises(TagExpressionInvalid, match="has 65,537 characters; the limit is 65,536"):
        parse_tag_expression("x" * 65_537)
