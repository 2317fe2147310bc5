"""Log lines: the sentence of a record, and its fields."""

import logging

from mqdb.log_lines import FieldFormatter


def test_a_line_ends_with_the_fields_of_its_record() -> None:
    record = logging.makeLogRecord(
        {"name": "mqdb.server", "levelname": "INFO", "msg": "started %s", "args": ("it",), "port": 5432, "who": "a b"}
    )

    line = FieldFormatter().format(record)

    assert line.partition(" ")[2] == "INFO mqdb.server: started it port=5432 who='a b'"
