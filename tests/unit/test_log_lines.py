"""Log lines: the sentence of a record and its fields."""

import json
import logging
import sys
from datetime import timedelta

from mqdb.common.log_lines import FieldFormatter, JsonFormatter


def test_a_line_ends_with_the_fields_of_its_record() -> None:
    record = logging.makeLogRecord(
        {"name": "mqdb.server", "levelname": "INFO", "msg": "started %s", "args": ("it",), "port": 5432, "who": "a b"}
    )

    line = FieldFormatter().format(record)

    assert line.partition(" ")[2] == "INFO mqdb.server: started it port=5432 who='a b'"


def test_a_field_that_the_sentence_names_is_not_repeated() -> None:
    fields = {"group": "billing", "count": 3}
    record = logging.makeLogRecord({"name": "mqdb", "levelname": "INFO", "msg": "group %(group)s failed"})
    record.args = fields
    vars(record).update(fields)

    line = FieldFormatter().format(record)

    assert line.partition(" ")[2] == "INFO mqdb: group billing failed count=3"


def test_no_control_character_of_a_message_reaches_the_terminal() -> None:
    hostile = "\x1b]0;mine\x07\x9b31m"
    try:
        raise ValueError(hostile)
    except ValueError:
        trace = sys.exc_info()
    record = logging.makeLogRecord({"name": "a", "levelname": "INFO", "msg": "%s", "args": (hostile,), "key": hostile})
    record.exc_info = trace

    line, *traceback = FieldFormatter().format(record).splitlines()

    assert line.partition(" ")[2] == r"INFO a: \x1b]0;mine\x07\x9b31m key=\x1b]0;mine\x07\x9b31m"
    assert traceback[-1] == r"ValueError: \x1b]0;mine\x07\x9b31m"


def test_a_line_of_json_has_the_time_in_utc_and_the_fields_beside_the_sentence() -> None:
    record = logging.makeLogRecord({"name": "mqdb.server", "levelname": "INFO", "msg": "started %s", "args": ("it",)})
    record.created = 1_772_366_401.25
    vars(record).update(port=5432, after=timedelta(seconds=2), msg_id="\x9b", level="its own")

    line = JsonFormatter().format(record)

    assert line.isascii()
    assert json.loads(line) == {
        "ts": "2026-03-01T12:00:01.250Z",
        "level": "INFO",
        "logger": "mqdb.server",
        "msg": "started it",
        "port": 5432,
        "after": "0:00:02",
        "msg_id": "\x9b",
        "field_level": "its own",
    }


def test_a_traceback_is_part_of_its_line_of_json() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        record = logging.makeLogRecord({"name": "a", "levelname": "ERROR", "msg": "failed", "exc_info": sys.exc_info()})

    [line] = JsonFormatter().format(record).splitlines()

    assert json.loads(line)["exception"].endswith("ValueError: first\nsecond")
