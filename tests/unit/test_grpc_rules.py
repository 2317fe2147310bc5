"""Rules of the front for RocketMQ 5's SDKs, without a server: signatures, addresses, invalid settings."""

import hmac
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import SettingInvalid
from mqdb.grpc.calls import address_of, is_signed
from mqdb.grpc.wire.messages import message_for
from mqdb.serving.grpc_front import grpc_front_of
from mqdb.settings import load_settings

ANY = "127.0.0.1:0"
RIGHT = hmac.digest(b"secret", b"20260102T030405Z", "sha1").hex()


@pytest.mark.parametrize(
    ("text", "signature", "is_right"),
    [
        ("20260102T030405Z", RIGHT, True),
        ("20260102T030405Z", RIGHT.upper(), True),
        ("20260102T030406Z", RIGHT, False),
        ("20260102T030405Z", RIGHT[:-1], False),
        ("20260102T030405Z", "", False),
    ],
)
def test_who_knows_the_secret_can_sign_a_time(text: str, signature: str, is_right: bool) -> None:
    assert is_signed("secret", text, signature) is is_right


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.7:4711", "192.0.2.7:4711"),
        ("ipv6:%5B::1%5D:4711", "127.0.0.1:4711"),
        ("ipv6:%5B2001:db8::1%5D:4711", "0.0.0.0:0"),
        ("unix:", "0.0.0.0:0"),
    ],
)
def test_the_host_of_a_message_is_an_ipv4_address(peer: str, address: str) -> None:
    """The host of a message is an IPv4 address, because RocketMQ 4's clients have no room for others."""
    assert address_of(peer) == address


@pytest.mark.parametrize(
    ("name", "wrong", "reason"),
    [
        ("grpc_certificate", {"grpc": ANY, "grpc_certificate": "absent.pem", "grpc_tls": ANY}, "No such file"),
        ("grpc_tls", {"grpc_tls": ANY}, "in addition to grpc"),
    ],
)
def test_files_that_are_none_stop_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, wrong: dict[str, Any], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings(home=str(tmp_path), **wrong)

    with (
        pytest.raises(SettingInvalid, match=reason) as refused,
        grpc_front_of(settings, "postgresql://127.0.0.1:1/absent"),
    ):
        pass

    assert refused.value.name == name


@pytest.mark.parametrize("property", ["TIMER_OUT_MS", "TIMER_DELIVER_MS"])
def test_a_time_that_no_clock_shows_is_left_out(property: str) -> None:
    queue = MessageQueue("orders", "broker-a", 0)
    properties = {property: "9" * 30}
    received = ReceivedMessage(queue, 0, 1, uuid4(), None, None, properties, b"x", 0, 0, "127.0.0.1:1", 0, 0, 0, 0, 1)
    received.popped("handle")

    assert not message_for(received, "", "127.0.0.1:8081").system_properties.HasField("delivery_timestamp")
