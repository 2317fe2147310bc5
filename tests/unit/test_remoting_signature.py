"""Signatures of RocketMQ's library are accepted, and any signature that differs is refused."""

from typing import Any

import pytest

from mqdb.remoting.wire.signature import sign, verify
from tests.fixtures.remoting_vectors import bytes_of, each

SECRET = "12345678"
FIELDS = {"AccessKey": "rocketmq", "topic": "orders", "key": "x"}


@pytest.mark.parametrize("line", each("signature"))
def test_a_signature_is_that_of_rocketmq(line: dict[str, Any]) -> None:
    secret, fields, body = line["secret"], line["fields"], bytes_of(line["body"])

    assert sign(secret, fields, body) == sign(secret.encode(), fields, body) == line["signature"]
    assert verify(secret, {**fields, "Signature": line["signature"]}, body)


@pytest.mark.parametrize(
    "changed",
    [
        {"topic": "payments"},
        {"topic": ""},
        {"more": "y"},
        {"Signature": ""},
        {"Signature": "grüße"},
        {"Signature": sign("another", FIELDS, b"hello")},
        {"Signature": sign(SECRET, FIELDS, b"hello").rstrip("=")},
    ],
    ids=str,
)
def test_what_differs_has_another_signature(changed: dict[str, str]) -> None:
    assert not verify(SECRET, {**FIELDS, "Signature": sign(SECRET, FIELDS, b"hello"), **changed}, b"hello")


def test_a_request_without_a_signature_or_with_another_body_is_refused() -> None:
    assert not verify(SECRET, FIELDS, b"hello")
    assert not verify(SECRET, {**FIELDS, "Signature": sign(SECRET, FIELDS, b"hello")}, b"hell")


def test_old_clients_do_not_sign_that_they_ask_for_a_unique_id() -> None:
    added_later = {**FIELDS, "Signature": sign(SECRET, FIELDS, b""), "_UNIQUE_KEY_QUERY": "true"}
    signed = {**FIELDS, "_UNIQUE_KEY_QUERY": "true"}

    assert verify(SECRET, added_later, b"")
    assert verify(SECRET, {**signed, "Signature": sign(SECRET, signed, b"")}, b"")
    assert not verify("another", added_later, b"")
