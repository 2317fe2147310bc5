"""Log lines: the sentence of a record, and its fields."""

import logging
import sys

from mqdb.common.log_lines import FieldFormatter


def test_a_line_ends_with_the_fields_of_its_record() -> None:
    record = logging.makeLogRecord(
        {"name": "mqdb.server", "levelname": "INFO", "msg": "started %s", "args": ("it",), "port": 5432, "who": "a b"}
    )

    line = FieldFormatter().format(record)

    assert line.partition(" ")[2] == "INFO mqdb.server: started it port=5432 who='a b'"


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
