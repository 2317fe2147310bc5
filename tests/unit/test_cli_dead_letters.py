"""The output of `mqdb dlq` for a dead letter."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from mqdb.cli.dlq.letters import describe, letter_json, letter_row, result_line
from mqdb.store.dead_letters import DeadLetter, RedriveResult, RedriveStatus, WholeDeadLetter

TIME = datetime(2026, 7, 14, 9, 30, tzinfo=UTC)


def letter(body: bytes = b"an order", **changes: Any) -> WholeDeadLetter:
    fields: dict[str, Any] = {
        "group": "billing",
        "topic": "orders",
        "msg_id": "7F000001",
        "tags": None,
        "keys": None,
        "attempts": 17,
        "failed_at": TIME,
        "exception": "ValueError",
        "error": "no price",
        "redriven_at": None,
        "host": "h@1",
        "origin_queue_id": 3,
        "origin_queue_offset": None,
        "origin_log_pos": None,
        "queue_offset": 0,
        "log_pos": 7,
        "store_time": TIME,
        "born_time": TIME,
        "born_host": "h",
        "flag": 0,
        "sys_flag": 0,
        "properties": {},
        "traceback": None,
        "body": body,
    }
    return WholeDeadLetter(**(fields | changes))


def body_lines(whole: WholeDeadLetter) -> list[str]:
    lines = list(describe(whole, None))
    return lines[next(number for number, line in enumerate(lines) if line.startswith("body, ")) :]


def test_what_is_not_known_is_left_out() -> None:
    names = [line.split()[0] for line in describe(letter(exception=None, host=None), None) if line]

    assert "exception" not in names
    assert "broker" not in names
    assert "from        queue 3" in list(describe(letter(), None))


def test_an_error_of_several_lines_stands_below_itself() -> None:
    assert "error       one\n            two" in list(describe(letter(error="one\ntwo"), None))


@pytest.mark.parametrize("body", [b"plain", "Grüße\nund\tmehr".encode(), b"of\r\nWindows"])
def test_a_body_that_is_text_is_shown_as_text(body: bytes) -> None:
    assert body_lines(letter(body)) == [f"body, {len(body)} bytes:", body.decode()]


@pytest.mark.parametrize("body", [b"\xff\xfe", b"\x00", b"\x1b[2J", "\x9b".encode()])
def test_any_other_body_is_shown_as_hex(body: bytes) -> None:
    _, line = body_lines(letter(body))

    assert line.startswith(f"00000000  {body.hex(' ')} ")
    assert line.isprintable()


def test_of_a_long_body_in_hex_there_is_a_part() -> None:
    lines = body_lines(letter(b"\x00" * 5_000))

    assert len(lines) == 1 + 64 + 1
    assert lines[-1] == "... 3,976 more bytes; mqdb dlq export writes the whole body"


def test_a_body_that_cannot_be_decompressed_is_shown_as_it_is() -> None:
    lines = body_lines(letter(b"broken", sys_flag=0x301))

    assert lines[0] == "body, 6 bytes, compressed (ZLIB) in a format that cannot be decompressed here:"
    assert lines[1].endswith("broken")


def test_a_row_has_one_line() -> None:
    row = letter_row(letter(error="line 1\n  line 2\x1b" + "x" * 100))

    assert row["error"].startswith("line 1 line 2\\x1bxxx")
    assert row["error"].endswith("…")
    assert len(row["error"]) == 80


def test_a_list_as_json_has_no_body_and_the_whole_has_it() -> None:
    of_list = DeadLetter(*(getattr(letter(), name) for name in DeadLetter.__slots__))

    assert "body" not in json.loads(letter_json(of_list, None))
    assert json.loads(letter_json(letter(), "broker-b")) | {"body": "an order", "encoding": "text"} == json.loads(
        letter_json(letter(), "broker-b")
    )


def test_a_result_of_a_message_that_is_gone_names_its_position() -> None:
    gone = RedriveResult(RedriveStatus.FAILED, None, None, None, "it is gone", 7, None, 1)

    assert result_line(gone) == "FAILED  position 7  it is gone"
