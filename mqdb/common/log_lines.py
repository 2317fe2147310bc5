"""Log lines: the fixed sentence that all code of mqdb logs, and beside it what it is about."""

import logging

from mqdb.common.printable import printable

#: What every record has, so that the rest is what the caller gave as `extra`.
_COMMON = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class FieldFormatter(logging.Formatter):
    """`12:00:01 INFO mqdb.service.leadership: became leader epoch=3`.

        handler = logging.StreamHandler()
        handler.setFormatter(FieldFormatter())
        logging.basicConfig(handlers=[handler])

    Fields are what the caller of a logger gives as `extra`. A control character, of a message perhaps, comes as its
    number.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """The line, and those of a traceback."""
        return printable(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The sentence and its fields; a traceback comes on the lines after it."""
        fields = [f"{name}={_shown(value)}" for name, value in vars(record).items() if name not in _COMMON]
        return " ".join([super().formatMessage(record), *fields])


def _shown(value: object) -> str:
    text = str(value)
    return repr(text) if not text or any(map(str.isspace, text)) else text
