"""The record of a message."""

import json
import uuid
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from mqdb.broker.log.send import record
from mqdb.common.message import Message, stored_properties
from mqdb.selector.tags import tag_code

ID = uuid.UUID("C0A80102-1234-5678-9ABC-DEF001020304")
NOW = datetime(2024, 5, 1, 12, tzinfo=UTC)


@given(st.dictionaries(st.text(min_size=1), st.text(min_size=1)), st.text(min_size=1))
def test_properties_become_json_that_says_the_same(properties: dict[str, str], tag: str) -> None:
    message = Message("orders", "x", tag, properties=properties)

    assert json.loads(record(message, 1, ID, NOW, "here").properties) == stored_properties(message)


def test_a_record_holds_what_the_columns_take() -> None:
    made = record(Message("orders", b"body", "paid", ["k1", "k2"], {"p": "1"}, 9), 7, ID, NOW, "10.0.0.1")

    assert made._asdict() == {
        "queue_key": 7,
        "tags_code": tag_code("paid"),
        "born_time": NOW,
        "msg_id": ID,
        "born_host": "10.0.0.1",
        "tags": "paid",
        "keys": "k1 k2",
        "properties": '{"p": "1"}',
        "body": b"body",
        "flag": 9,
        "sys_flag": 0,
        "reconsume_times": 0,
        "wait": None,
        "history": None,
    }


def test_without_tag_and_keys_their_columns_are_empty() -> None:
    made = record(Message("orders", "x"), 1, ID, NOW, "here")

    assert (made.tags, made.tags_code, made.keys) == (None, 0, None)


def test_a_body_to_store_instead_of_the_own_takes_its_sys_flag_along() -> None:
    message = Message("orders", b"plain", flag=9)

    made = record(message, 1, ID, NOW, "here", *(b"compressed", 0x301))

    assert (made.body, made.sys_flag, made.flag) == (b"compressed", 0x301, 9)
    assert message.body == b"plain"
