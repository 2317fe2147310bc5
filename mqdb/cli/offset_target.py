"""The target of an offset reset: the values of `mqdb group offset reset --to`."""

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from mqdb.cli.times import parse_time
from mqdb.errors import ParameterInvalid

if TYPE_CHECKING:
    from mqdb_client import Boundary

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


#: Largest offset, as an offset is a bigint.
_MAX_OFFSET = 2**63 - 1


def parse_offset(text: str) -> int | None:
    """The number of an offset; None for any other text."""
    offset = int(text) if re.fullmatch("[0-9]{1,19}", text) else None
    return offset if offset is not None and offset <= _MAX_OFFSET else None


def parse_target(text: str) -> "Boundary | int | datetime | timedelta":
    """Parse a boundary, an offset, or a time: ISO 8601, an age, or @ and milliseconds since 1970. ParameterInvalid.

    Negative milliseconds mean the latest offset, as in RocketMQ.
    """
    from mqdb_client import Boundary

    if text.lower() in [*Boundary]:
        return Boundary(text.lower())
    if (offset := parse_offset(text)) is not None:
        return offset
    if match := re.fullmatch(r"@(-?\d{1,19})", text, re.ASCII):
        milliseconds = int(match[1])
        if milliseconds < 0:
            return Boundary.LATEST
        try:
            return _EPOCH + timedelta(milliseconds=milliseconds)
        except OverflowError as error:
            raise ParameterInvalid("to", text, "is after the year 9999; write milliseconds since 1970") from error
    try:
        return parse_time("to", text)
    except ParameterInvalid as error:
        reason = (
            "must be earliest, latest, an offset, a time such as 2026-07-14T09:30+02:00, an age such as 30m, 2h or "
            "7d, or milliseconds since 1970 such as @1784014200000"
        )
        raise ParameterInvalid("to", text, reason) from error
