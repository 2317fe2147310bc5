"""The output of `mqdb dlq` for dead letters: rows of a table, JSON objects, or text with all details.

Bodies and errors are untrusted: their control characters never reach a terminal.
"""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from mqdb.cli.rows import Row
from mqdb.cli.times import shown_time
from mqdb.common.compression import compression_of, decompress
from mqdb.common.printable import json_text, printable
from mqdb.errors import CompressedBodyBroken, CompressionUnavailable
from mqdb_client import CauseOfDeath, DeadLetter, PastRedrive, RedriveResult, WholeDeadLetter

#: Bytes of a body that are shown as hex; `mqdb dlq export` writes the whole body.
_MOST_HEX_BYTES: Final = 1_024
_HEX_LINE_BYTES: Final = 16

#: Longest text of an error in a table.
_MOST_ERROR_CHARACTERS: Final = 80

# -- a row ----------------------------------------------------------------------------------------


def cause_row(cause: CauseOfDeath) -> Row:
    """A row of the summary table."""
    return cause._asdict() | {"topic": _one_line(cause.topic), "exception": _one_line(cause.exception)}


def letter_row(letter: DeadLetter) -> Row:
    """A row of the list."""
    return {
        "died": letter.store_time,
        "message": letter.msg_id,
        "topic": _one_line(letter.topic),
        "tag": _one_line(letter.tags),
        "keys": _one_line(letter.keys),
        "attempts": letter.attempts,
        "exception": _one_line(letter.exception),
        "error": _one_line(letter.error),
        "redriven": letter.redriven_at,
    }


def past_redrive_row(past: PastRedrive) -> Row:
    """A row of the table of past redrives."""
    return {
        "when": past.redriven_at,
        "who": past.actor or past.principal,
        "status": past.status,
        "to": past.target_topic or (None if past.condition is None else "its group"),
        "body": None if past.body_edited is None else "edited" if past.body_edited else "unchanged",
        "position": past.new_log_pos,
        "error": past.error,
        "chosen by": _one_line(past.condition),
    }


def _one_line(text: str | None) -> str | None:
    if text is None:
        return None
    line = printable(" ".join(text.split()))
    return line if len(line) <= _MOST_ERROR_CHARACTERS else line[: _MOST_ERROR_CHARACTERS - 1] + "…"


# -- a JSON object --------------------------------------------------------------------------------


def letter_json(letter: DeadLetter, broker: str | None, redrives: Sequence[PastRedrive] | None = None) -> str:
    """A dead letter as JSON: the columns of the view, its past redrives and, for a whole letter, the body.

    The body is text or base64, as `encoding` says. If the body cannot be decompressed here, it is written as stored,
    and `compression` names its format; otherwise `compression` is null.
    """
    described = _fields_of(asdict(letter), broker)
    if isinstance(letter, WholeDeadLetter):
        described |= _body_fields(letter)
    if redrives is not None:
        described["redrives"] = [_fields_of(past._asdict(), None) for past in redrives]
    return json_text(described)


def record_json(record: CauseOfDeath | RedriveResult, broker: str | None) -> str:
    """A record as JSON, under the names of its fields."""
    return json_text(_fields_of(record._asdict(), broker))


def _fields_of(record: dict[str, Any], broker: str | None) -> dict[str, Any]:
    described: dict[str, Any] = {} if broker is None else {"broker": broker}
    for name, value in record.items():
        if name not in ("body", "sys_flag"):
            described[name] = value.isoformat() if isinstance(value, datetime) else value
    return described


def _body_fields(letter: WholeDeadLetter) -> dict[str, str | None]:
    body, compression = _plain_body(letter)
    try:
        if compression is None:
            return {"compression": None, "encoding": "text", "body": body.decode()}
    except UnicodeDecodeError:
        pass
    return {"compression": compression, "encoding": "base64", "body": base64.b64encode(body).decode()}


def _plain_body(letter: WholeDeadLetter) -> tuple[bytes, str | None]:
    """The body as it was sent, and None; if it cannot be decompressed, the stored body and its compression."""
    try:
        return decompress(letter.body, letter.sys_flag), None
    except (CompressedBodyBroken, CompressionUnavailable) as error:
        return letter.body, error.compression


# -- all of it ------------------------------------------------------------------------------------


def describe(letter: WholeDeadLetter, broker: str | None) -> Iterator[str]:
    """The lines about a dead letter without its redrives: its origin, the reason of its failure, its content."""
    yield from _fields(_facts(letter, broker))
    if letter.traceback is not None:
        yield ""
        yield printable(letter.traceback).rstrip("\n")
    yield ""
    yield from _body(letter)


def _facts(letter: WholeDeadLetter, broker: str | None) -> Iterator[tuple[str, object]]:
    yield "broker", broker
    yield "group", letter.group
    yield "topic", letter.topic
    yield "from", _origin(letter)
    yield "tag", letter.tags
    yield "keys", letter.keys
    yield "born", f"{shown_time(letter.born_time)} at {letter.born_host}"
    died = f"{shown_time(letter.store_time)}, after {letter.attempts:,} deliveries"
    yield "died", f"{died}; offset {letter.queue_offset:,} of the DLQ, position {letter.log_pos:,}"
    yield "failed", shown_time(letter.failed_at)
    yield "at", letter.host
    yield "exception", letter.exception
    yield "error", letter.error
    yield "redriven", shown_time(letter.redriven_at)
    for name, value in sorted(letter.properties.items()):
        yield "property", f"{name}={value}"


def _origin(letter: DeadLetter) -> str | None:
    parts = {
        "queue": letter.origin_queue_id,
        "offset": letter.origin_queue_offset,
        "position": letter.origin_log_pos,
    }
    return ", ".join(f"{name} {value:,}" for name, value in parts.items() if value is not None) or None


def _fields(facts: Iterator[tuple[str, object]]) -> Iterator[str]:
    for name, value in facts:
        if value is not None:
            # The further lines of a text are aligned with its first line.
            yield f"{name:<10}  {printable(str(value))}".replace("\n", f"\n{'':12}")


def _body(letter: WholeDeadLetter) -> Iterator[str]:
    body, compression = _plain_body(letter)
    if compression is None and letter.sys_flag & 1:
        how = f", sent compressed ({compression_of(letter.sys_flag)})"
    else:
        how = f", compressed ({compression}) in a format that cannot be decompressed here" if compression else ""
    yield f"body, {len(body):,} bytes{how}:"
    text = _readable(body) if compression is None else None
    if text is not None:
        yield text
        return
    yield from _hex_lines(body[:_MOST_HEX_BYTES])
    if len(body) > _MOST_HEX_BYTES:
        yield f"... {len(body) - _MOST_HEX_BYTES:,} more bytes; mqdb dlq export writes the whole body"


def _readable(body: bytes) -> str | None:
    """A body as text, or None if it is not printable text."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    lines = text.replace("\r\n", "\n")
    return text if printable(lines) == lines else None


def _hex_lines(body: bytes) -> Iterator[str]:
    for start in range(0, len(body), _HEX_LINE_BYTES):
        line = body[start : start + _HEX_LINE_BYTES]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in line)
        yield f"{start:08x}  {line.hex(' '):<{_HEX_LINE_BYTES * 3 - 1}}  {text}"


def result_line(result: RedriveResult) -> str:
    """The result of redriving one message, as a line."""
    parts = (result.status, result.msg_id or f"position {result.log_pos}", result.topic or "", result.error or "")
    return "  ".join(part for part in parts if part)
