"""A Kafka record survives the conversion to a message and back: key and headers are equal byte for byte."""

import json
from collections.abc import Callable
from random import Random
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from mqdb.common.kafka_record import KafkaProperty, header_properties, read_headers, read_key
from mqdb.common.property import JSONB_VERSION
from mqdb.pipeline.write.sink_columns import find_columns
from mqdb.pipeline.write.sink_rows import RowMaker
from mqdb.selector.tags import java_string_hash
from mqdb.store.log.sink import STAGE_COLUMNS

HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
QUEUES = tuple(range(100, 107))


def random_keys(count: int) -> list[bytes]:
    """Random keys: arbitrary bytes, and texts of a few significant characters."""
    random = Random(7)
    texts = ["", "a  b ", " ", "\x00", "a\x00b", "\x01", "ü €", '{"id": 1}', "text:x", "base64:eA==", "\t", "a b"]
    keys = [text.encode() for text in texts]
    while len(keys) < count:
        length = random.randrange(12)
        alphabet: Callable[[], int] = (
            (lambda: random.randrange(256))
            if random.random() < 0.5
            else lambda: random.choice(b"ab \x00\x01\t\xc3\xa9")
        )
        keys.append(bytes(alphabet() for _ in range(length)))
    return keys


def made(**columns: Any) -> list[dict[str, Any]]:
    """The rows of the staging table, by column."""
    batch = pa.RecordBatch.from_pydict(columns)
    found = find_columns(from_arrow_schema(batch.schema), "orders")
    rows = RowMaker(found, "orders", None, lambda _: QUEUES, uuid4()).rows(batch)
    named = [dict(zip(STAGE_COLUMNS, row, strict=True)) for row in rows]
    return [row | {"properties": json.loads(row["properties"].removeprefix(JSONB_VERSION))} for row in named]


def test_keys_come_back_byte_for_byte_and_a_key_has_one_queue() -> None:
    keys = random_keys(1_000)
    rows = made(value=[b"x"] * len(keys), key=keys)

    assert [read_key(row["keys"], row["properties"].get(KafkaProperty.KEY)) for row in rows] == keys
    queues: dict[bytes, set[int]] = {}
    for key, row in zip(keys, rows, strict=True):
        queues.setdefault(key, set()).add(row["queue_key"])
    assert {len(found) for found in queues.values()} == {1}
    assert len({queue for found in queues.values() for queue in found}) == len(QUEUES)


def test_a_plain_key_is_kept_once_and_other_keys_are_found_by_their_words() -> None:
    plain, spaced, odd = made(value=[b"x"] * 3, key=["N14228", " one  two", "one \x00 two"])

    assert (plain["keys"], plain["properties"]) == ("N14228", {})
    assert (spaced["keys"], spaced["properties"]) == ("one two", {KafkaProperty.KEY: "text: one  two"})
    assert (odd["keys"], list(odd["properties"])) == ("one two", [KafkaProperty.KEY])


def test_the_queue_is_that_of_the_row_else_of_the_sharding_key_else_of_the_key() -> None:
    rows = made(
        value=[b"x"] * 4,
        key=["k", "k", "k", b"k".decode()],
        sharding_key=[None, "s", "s", None],
        partition=pa.array([None, None, 3, 4], pa.int32()),
    )

    by_text = [QUEUES[abs(java_string_hash(text)) % len(QUEUES)] for text in "ks"]
    assert [row["queue_key"] for row in rows] == [*by_text, QUEUES[3], QUEUES[4]]


def test_keys_beside_a_key_are_the_index_and_choose_no_queue() -> None:
    both, alone = made(value=[b"x"] * 2, key=["k", None], keys=["one two", "three"])

    assert (both["keys"], both["properties"]) == ("one two", {KafkaProperty.KEY: "text:k"})
    assert (alone["keys"], alone["properties"]) == ("three", {})
    assert len({row["queue_key"] for row in made(value=[b"x"] * 7, keys=["same"] * 7)}) == len(QUEUES)


def test_a_new_key_and_new_headers_replace_what_the_row_has_kept_of_others() -> None:
    old = {KafkaProperty.KEY: "text:a  b", KafkaProperty.HEADERS: '[["x",null]]', "y": "1"}
    headers = pa.array([[("x", b"2")]], HEADERS)
    (row,) = made(value=[b"x"], key=["new"], headers=headers, properties=[json.dumps(old)])

    assert (row["keys"], row["properties"]) == ("new", {"x": "2", "y": "1"})


#: Headers in the order in which they are given.
ODD_HEADERS: list[list[tuple[str, bytes | None]]] = [
    [("b", b"2"), ("a", b"1")],
    [("a", b"1"), ("a", b"2"), ("a", b"2")],
    [("a", None), ("a", b"")],
    [("a", b"1"), ("a", None)],
    [("bin", b"\xff\x00"), ("text", "ü".encode())],
    [("", b"x"), (" ", b" "), ("nul\x00", b"x")],
    [("KEYS", b"mine"), ("TTL", b"5"), ("MQDB_KAFKA_KEY", b"mine"), ("MQDB_KAFKA_HEADERS", b"[]")],
]


def test_headers_come_back_in_their_order() -> None:
    rows = made(value=[b"x"] * len(ODD_HEADERS), headers=pa.array(ODD_HEADERS, HEADERS))

    assert [read_headers(row["properties"]) for row in rows] == ODD_HEADERS


def test_headers_are_properties_where_they_can_be() -> None:
    assert header_properties([("a", b"1"), ("b", b"2")]) == {"a": "1", "b": "2"}
    assert header_properties([("b", b"2"), ("a", b"\xff"), ("b", b"3")]) == {
        "b": "3",
        KafkaProperty.HEADERS: '[["b","Mg=="],["a","/w=="],"b"]',
    }


def test_a_property_that_was_added_or_taken_away_since_counts() -> None:
    properties = header_properties([("b", b"2"), ("a", b"1")]) | {"c": "3", "KEYS": "k"}
    del properties["a"]

    assert read_headers(properties) == [("b", b"2"), ("c", b"3")]
    assert read_headers(properties, with_reserved=True) == [("b", b"2"), ("c", b"3"), ("KEYS", b"k")]


@pytest.mark.parametrize("text", ["", "[", "{}", "[1]", '["gone"]', '[["a"]]', '[["a", "?"]]', "[" * 5_000])
def test_a_property_without_the_form_of_the_sink_s_is_ignored(text: str) -> None:
    assert read_headers({KafkaProperty.HEADERS.value: text, "b": "1"}) == [("b", b"1")]
    assert read_key("k", text) == b"k"
    assert read_key(None, "base64:?") is None
