"""Log lines: the messages that mqdb logs, and their fields.

A warning or an error includes its most important fields in the message, so that each formatter shows them:

    fields = {"group": group, "topic": topic, "reason": str(error)}
    logger.warning("could not pull topic %(topic)s for group %(group)s: %(reason)s", fields, extra=fields)

Passed as `extra`, the fields become attributes of the record, which the formatters of this module show.
"""

import json
import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from mqdb.common.printable import printable

#: The attributes of every record; all others are the caller's `extra`.
_COMMON = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

#: A field in a message.
_NAMED: Final = re.compile(r"%\((\w+)\)")


class FieldFormatter(logging.Formatter):
    """`12:00:01 INFO mqdb.service.leadership: became leader epoch=3`.

        handler = logging.StreamHandler()
        handler.setFormatter(FieldFormatter())
        logging.basicConfig(handlers=[handler])

    Fields are the `extra` of a logging call. Fields already in the message are not repeated. Control characters, for
    instance from a broker message, are shown as their numbers.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """The line, followed by the lines of a traceback."""
        return printable(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The message and the other fields; a traceback follows on the next lines."""
        named = _NAMED.findall(str(record.msg)) if isinstance(record.args, Mapping) else []
        fields = [f"{name}={_shown(value)}" for name, value in _fields(record).items() if name not in named]
        return " ".join([super().formatMessage(record), *fields])


class JsonFormatter(logging.Formatter):
    """`{"ts": "2026-03-01T12:00:01.250Z", "level": "INFO", "logger": "mqdb.server", "msg": ..., "epoch": 3}`.

    One line per record, for programs that collect logs. The fields follow the four that every record has; a traceback
    is in `exception`. A field with one of these names is written with the prefix `field_`. Values that JSON does not
    support are written as text.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "ts": moment.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "msg": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        for name, value in _fields(record).items():
            line[f"field_{name}" if name in line else name] = value
        return json.dumps(line, default=str)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _COMMON}


def _shown(value: object) -> str:
    text = str(value)
    return repr(text) if not text or any(map(str.isspace, text)) else text
