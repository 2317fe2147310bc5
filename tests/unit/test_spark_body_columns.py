"""JSON bodies as columns, without Spark. The values equal those of Spark's from_json, unless a test says otherwise."""

import json
import logging
import pickle
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from mqdb.pipeline.errors import BodyNotDecoded
from mqdb.pipeline.read.body_columns import BodyDecoder
from mqdb.pipeline.read.body_schema import BodyDecoding, OnBadBody, parse_schema

CET = timezone(timedelta(hours=2))


def decode(schema: str, *bodies: str | bytes | None, way: str = "fail") -> list[dict[str, Any]]:
    """The rows of a batch, of which row 0 is at offset 40."""
    plain = [body.encode() if isinstance(body, str) else body for body in bodies]
    batch = pa.record_batch(
        {
            "topic": pa.array(["orders"] * len(plain)),
            "queue_id": pa.array([3] * len(plain), pa.int32()),
            "queue_offset": pa.array(range(40, 40 + len(plain)), pa.int64()),
            "body": pa.array(plain, pa.binary()),
        }
    )
    decoder = BodyDecoder(BodyDecoding(parse_schema(schema), OnBadBody(way)))
    kept, columns = decoder.decode(batch)
    decoder.report()
    found: list[dict[str, Any]] = pa.record_batch({"n": kept.column("queue_offset"), **columns}).to_pylist()
    return found


def value(type_: str, text: str) -> Any:
    return decode(f"v {type_}", f'{{"v": {text}}}')[0]["v"]


@pytest.mark.parametrize(
    ("type_", "text", "expected"),
    [
        ("int", "2147483647", 2147483647),
        ("int", "null", None),
        ("bigint", "-9223372036854775808", -(2**63)),
        ("double", "1", 1.0),
        ("double", "12345678901234567890123", 1.2345678901234568e22),
        ("double", "1e400", float("inf")),
        ("double", '"-INF"', float("-inf")),
        ("float", "3.5e38", float("inf")),
        ("boolean", "true", True),
        ("decimal(6,2)", "1.005", Decimal("1.01")),
        ("decimal(6,2)", "-1.005", Decimal("-1.01")),
        ("decimal(6,2)", "9999.994", Decimal("9999.99")),
        ("decimal(6,2)", '"1e2"', Decimal("100.00")),
        (
            "decimal(38,20)",
            "123456789012345678.12345678901234567891",
            Decimal("123456789012345678.12345678901234567891"),
        ),
        ("string", '"\\ud83d\\ude00 ä \\ud800"', "😀 ä ?"),
        ("string", '{"a": 1, "b" : [ 1.5, "ä" ]}', '{"a":1,"b":[1.5,"ä"]}'),
        ("string", "true", "true"),
        ("string", "1.50", "1.5"),
        ("binary", '"YWJj"', b"abc"),
        ("date", '"2026-7-4"', date(2026, 7, 4)),
        ("date", '"2026"', date(2026, 1, 1)),
        ("date", '" 2026-07-14T09:30:00Z"', date(2026, 7, 14)),
        ("timestamp", '"2026-07-14T09:30:00Z"', datetime(2026, 7, 14, 9, 30, tzinfo=UTC)),
        ("timestamp", '"2026-07-14 09:30:00.123456789+02:00"', datetime(2026, 7, 14, 9, 30, 0, 123456, tzinfo=CET)),
        ("timestamp", '"2026-07-14 09:30:00 Europe/Berlin"', datetime(2026, 7, 14, 9, 30, tzinfo=CET)),
        ("timestamp", "-1", datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)),
        ("array<int>", "[1, null, 2]", [1, None, 2]),
        ("map<string,double>", '{"a": 1, "b": null}', [("a", 1.0), ("b", None)]),
        ("struct<x:int,y:string>", '{"x": 1, "z": [1]}', {"x": 1, "y": None}),
    ],
)
def test_a_value_becomes_what_from_json_makes_of_it(type_: str, text: str, expected: object) -> None:
    assert value(type_, text) == expected


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("tinyint", "128"),  # from_json makes -128 of it
        ("int", "2147483648"),
        ("int", "1.0"),
        ("int", '"5"'),
        ("int", "true"),
        ("bigint", "9223372036854775808"),
        ("double", '"1.5"'),
        ("boolean", "1"),
        ("decimal(6,2)", "9999.995"),
        ("decimal(6,2)", '" 1.5 "'),
        ("decimal(6,2)", "NaN"),
        ("binary", '"YWI"'),
        ("date", '"2026-02-30"'),
        ("date", "5"),
        ("timestamp", '"2026-07-14T09:30Z"'),
        ("timestamp", '"2026-07-14T24:00:00Z"'),
        ("timestamp", '"2026-07-14T09:30:00 Mars/Crater"'),
        ("timestamp", '"2026-07-14T09:30:00-18:30"'),
        ("timestamp", "9999999999999"),  # from_json overflows to the year -265697
        ("array<int>", '[1, "x"]'),
        ("array<int>", "1"),
        ("map<string,int>", "[]"),
        ("struct<x:int>", '{"x": "1"}'),
    ],
)
def test_a_value_that_does_not_fit_makes_a_bad_row(type_: str, text: str) -> None:
    with pytest.raises(
        BodyNotDecoded, match=r"topic 'orders', queue 3, offset 40: field '[vx]' of the body is of JSON type"
    ):
        value(type_, text)
    assert decode("v int, w int", '{"v": "x", "w": 1}', way="null") == [{"n": 40, "v": None, "w": 1}]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("{", "the body is not JSON: Expecting property name"),
        ("{'v': 1}", "the body is not JSON"),  # from_json takes it
        ('{"v": 1} x', "the body is not JSON: Extra data"),  # from_json ignores the rest
        ("null", r"the body is of JSON type null, and holds no struct<v:int>"),
        ('[{"v": 1}]', r"the body is of JSON type array"),
        ("[" * 100_000, "the body is not JSON"),
        (b'{"v": "\xff"}', "the body is not UTF-8: invalid start byte at byte 7"),
    ],
    ids=repr,
)
def test_a_body_that_is_no_object_makes_a_bad_row(body: str | bytes, reason: str) -> None:
    with pytest.raises(BodyNotDecoded, match=f"topic 'orders', queue 3, offset 41: {reason}"):
        decode("v int", '{"v": 1}', body)
    assert decode("v int", body, '{"v": 2}', way="null") == [{"n": 40, "v": None}, {"n": 41, "v": 2}]


def test_tombstones_and_empty_bodies_are_no_bad_rows() -> None:
    assert decode("v int", None, "", " \n") == [{"n": 40, "v": None}, {"n": 41, "v": None}, {"n": 42, "v": None}]


def test_bad_rows_that_are_skipped_are_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rows = decode("v int", *['{"v": 1}', "secret"] * 12, way="skip")

    assert [row["n"] for row in rows] == list(range(40, 64, 2))
    assert len(caplog.records) == 11
    assert "skipped a bad row: topic 'orders', queue 3, offset 41: the body is not JSON" in caplog.text
    assert caplog.messages[-1] == "a task skipped bad rows: 12"
    assert "secret" not in caplog.text


def test_the_text_of_a_bad_row_is_in_a_column_of_its_own_as_with_from_json() -> None:
    rows = decode("v int, _corrupt_record string", '{"v": 1}', '{"v": "x"}', "{", way="null")

    assert [(row["v"], row["_corrupt_record"]) for row in rows] == [(1, None), (None, '{"v": "x"}'), (None, "{")]


def test_fields_are_found_by_their_exact_names_and_the_last_of_two_counts() -> None:
    assert decode("v int, w int", '{"V": 1, "w": 1, "w": 2}') == [{"n": 40, "v": None, "w": 2}]


def test_an_error_of_a_body_arrives_on_the_driver() -> None:
    error = BodyNotDecoded("orders", 3, 40, "the body is not JSON")

    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_all_columns_have_a_row_for_each_message() -> None:
    assert len(decode("v int", *(json.dumps({"v": number}) for number in range(100)))) == 100
