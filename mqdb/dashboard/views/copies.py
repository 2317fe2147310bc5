"""A message as a command, as Python and as SQL, each of which sends the message again."""

import base64
import json
import shlex
from typing import Final, NamedTuple

from mqdb.common.property import KEY_SEPARATOR, RESERVED_PROPERTIES
from mqdb.common.received_message import ReceivedMessage
from mqdb.dashboard.views.bodies import editable_text, plain_body

#: Commands with larger bodies are too long to paste.
_MOST_BYTES: Final = 16 * 1024


class MessageCopies(NamedTuple):
    """Three pieces of code, each of which sends a message with the same body, tag, keys and properties."""

    command: str
    python: str
    sql: str


def copies_of(message: ReceivedMessage) -> MessageCopies | None:
    """The code for a message; None if its body is too large or cannot be decompressed."""
    body, fault = plain_body(message.stored_body, message.sys_flag)
    if fault is not None or len(body) > _MOST_BYTES:
        return None
    properties = {name: value for name, value in message.properties.items() if name not in RESERVED_PROPERTIES}
    text = editable_text(body)
    return MessageCopies(
        _command(message, body, text, properties),
        _python(message, body, text, properties),
        _sql(message, body, text, properties),
    )


def _command(message: ReceivedMessage, body: bytes, text: str | None, properties: dict[str, str]) -> str:
    words = ["mqdb", "send", message.topic]
    # One argument is one message, whatever lines it has; but "-" stands for standard input.
    is_argument = bool(text) and not text.startswith("-") if text is not None else False
    words += [text or ""] if is_argument else ["--format", "raw"]
    words += ["--tag", message.tag] if message.tag else []
    words += [word for key in message.keys for word in ("--key", key)]
    words += [word for name, value in properties.items() for word in ("--property", f"{name}={value}")]
    command = shlex.join(words)
    return command if is_argument else f"echo {base64.b64encode(body).decode()} | base64 -d | {command}"


def _python(message: ReceivedMessage, body: bytes, text: str | None, properties: dict[str, str]) -> str:
    arguments = [repr(message.topic), repr(body if text is None else text)]
    arguments += [f"tag={message.tag!r}"] if message.tag else []
    arguments += [f"keys={list(message.keys)!r}"] if message.keys else []
    arguments += [f"properties={properties!r}"] if properties else []
    return f"producer.send(Message({', '.join(arguments)}))"


def _sql(message: ReceivedMessage, body: bytes, text: str | None, properties: dict[str, str]) -> str:
    arguments = [_literal(message.topic), f"'\\x{body.hex()}'::bytea" if text is None else f"{_literal(text)}::text"]
    arguments += [f"tag => {_literal(message.tag)}"] if message.tag else []
    arguments += [f"keys => {_literal(KEY_SEPARATOR.join(message.keys))}"] if message.keys else []
    arguments += [f"properties => {_literal(json.dumps(properties, ensure_ascii=False))}"] if properties else []
    return f"SELECT mqdb.send({', '.join(arguments)});"


def _literal(text: str) -> str:
    """A string literal of SQL. A backslash stands for itself, as with standard_conforming_strings."""
    return "'" + text.replace("'", "''") + "'"
