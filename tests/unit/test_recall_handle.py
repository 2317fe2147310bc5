"""Recall handles as RocketMQ encodes them for messages with a delivery time."""

import pickle
from base64 import urlsafe_b64encode
from typing import Any

import pytest

from mqdb.common.recall_handle import RecallHandle, decode_handle, encode_handle
from mqdb.errors import RecallHandleInvalid, ResponseCode

HANDLE = RecallHandle("orders", "broker-a", 1_700_000_000_123, "0A0B0C0D" * 4)
TEXT = "v1 orders broker-a 1700000000123 0A0B0C0D0A0B0C0D0A0B0C0D0A0B0C0D"


def encoded(text: str) -> str:
    return urlsafe_b64encode(text.encode()).decode()


def test_a_handle_is_url_safe_base64_of_its_fields() -> None:
    assert encode_handle(HANDLE) == encoded(TEXT)


def test_a_handle_says_what_was_put_into_it() -> None:
    assert decode_handle(encode_handle(HANDLE)) == HANDLE


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no handle",
        "é",
        "\N{SNOWMAN}",
        "abc",
        urlsafe_b64encode(b"\xff\xfe").decode(),
        encoded(TEXT.replace("v1", "v2")),
        encoded(TEXT.rpartition(" ")[0]),
        encoded(TEXT + " more"),
        encoded(TEXT.replace("1700000000123", "soon")),
        encoded(TEXT.replace("orders ", "")),
        encoded(TEXT + "\n"),
        None,
    ],
    ids=lambda text: f"{len(text or '')} characters",
)
def test_what_is_no_handle_is_refused(text: Any) -> None:
    with pytest.raises(RecallHandleInvalid) as caught:
        decode_handle(text)

    assert caught.value.code == ResponseCode.ILLEGAL_OPERATION
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
