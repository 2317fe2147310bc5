"""A message as a command, as Python and as SQL: what a shell, Python and PostgreSQL read out of it."""

import ast
import base64
import shlex
from uuid import UUID

import pytest

from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.dashboard.views.copies import copies_of


def message(body: bytes, tag: str | None = None, keys: str | None = None, **properties: str) -> ReceivedMessage:
    queue = MessageQueue("orders", "a", 0)
    return ReceivedMessage(queue, 0, 1, UUID(int=1), tag, keys, properties, body, 0, 0, "", 0, 0, 0, 0, 1)


def test_an_odd_text_comes_through_each_of_them() -> None:
    copies = copies_of(message(b'it\'s "$HOME"\n`x`', "paid", "a b", region="E'U"))

    assert copies is not None
    words = shlex.split(copies.command)
    assert words[:4] == ["mqdb", "send", "orders", 'it\'s "$HOME"\n`x`']
    assert words[4:] == ["--tag", "paid", "--key", "a", "--key", "b", "--property", "region=E'U"]
    call = ast.parse(copies.python, mode="eval").body
    assert isinstance(call, ast.Call)
    inner = call.args[0]
    assert isinstance(inner, ast.Call)
    assert [ast.literal_eval(each) for each in inner.args] == ["orders", 'it\'s "$HOME"\n`x`']
    assert {each.arg: ast.literal_eval(each.value) for each in inner.keywords} == {
        "tag": "paid",
        "keys": ["a", "b"],
        "properties": {"region": "E'U"},
    }
    assert copies.sql.startswith(
        "SELECT mqdb.send('orders', 'it''s \"$HOME\"\n`x`'::text, tag => 'paid', keys => 'a b'"
    )


@pytest.mark.parametrize("body", [b"\x00\xff", b"", b"-"])
def test_a_body_that_is_no_argument_goes_through_a_pipe(body: bytes) -> None:
    copies = copies_of(message(body))

    assert copies is not None
    assert copies.command == f"echo {base64.b64encode(body).decode()} | base64 -d | mqdb send orders --format raw"


def test_a_body_of_bytes_is_bytes_in_python_and_in_sql() -> None:
    copies = copies_of(message(b"\x00\xff"))

    assert copies is not None
    assert copies.python == r"producer.send(Message('orders', b'\x00\xff'))"
    assert copies.sql == r"SELECT mqdb.send('orders', '\x00ff'::bytea);"


def test_a_large_body_has_no_copies() -> None:
    assert copies_of(message(b"x" * 20_000)) is None
