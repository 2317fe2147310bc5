"""The output of `mqdb consume`."""

import base64
import json
import uuid

from mqdb.cli.formats import as_json, as_text
from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage


def received(body: bytes, tag: str | None = "new") -> ReceivedMessage:
    return ReceivedMessage(
        queue=MessageQueue("orders", "broker-a", 3),
        queue_offset=17,
        log_pos=4711,
        msg_id=uuid.UUID(int=255),
        tag=tag,
        keys="k1 k2",
        properties={"origin": "Zürich"},
        body=body,
        born_time=0,
        store_time=1_500_000,
        born_host="127.0.0.1",
        reconsume_times=0,
        flag=5,
        sys_flag=0,
        min_offset=0,
        max_offset=18,
    )


def test_text_is_the_body_byte_by_byte_and_a_line_end() -> None:
    assert as_text(received(b"\xffone")) == b"\xffone\n"


def test_json_is_one_line_with_all_that_is_known() -> None:
    printed = as_json(received("Grüezi\n".encode()))

    assert printed.count(b"\n") == 1
    assert printed.endswith(b"\n")
    assert json.loads(printed) == {
        "topic": "orders",
        "broker_name": "broker-a",
        "queue_id": 3,
        "queue_offset": 17,
        "log_pos": 4711,
        "message_id": "000000000000000000000000000000FF",
        "tag": "new",
        "keys": ["k1", "k2"],
        "properties": {
            "origin": "Zürich",
            "TAGS": "new",
            "KEYS": "k1 k2",
            "UNIQ_KEY": "000000000000000000000000000000FF",
        },
        "born_time": "2000-01-01T00:00:00+00:00",
        "store_time": "2000-01-01T00:00:01.500000+00:00",
        "born_host": "127.0.0.1",
        "reconsume_times": 0,
        "flag": 5,
        "sys_flag": 0,
        "body": "Grüezi\n",
    }


def test_a_body_that_is_no_text_is_printed_in_base64() -> None:
    printed = json.loads(as_json(received(b"\xff\x00", tag=None)))

    assert printed["tag"] is None
    assert base64.b64decode(printed["body_base64"]) == b"\xff\x00"
    assert "body" not in printed
