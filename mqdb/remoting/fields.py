"""The fields of a request, as values. A name that is not there, or says nothing, is a ParameterInvalid."""

from datetime import UTC, datetime, timedelta
from typing import Final

from mqdb.errors import ParameterInvalid
from mqdb.remoting.frame import Frame

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

#: Bits of Java's int and long.
_INTEGER: Final = 32
_LONG: Final = 64

_PAST_ALL_PLACES: Final = 2**62


def text(frame: Frame, name: str) -> str:
    """A field that has to be there."""
    value = frame.fields.get(name)
    if not value:
        raise ParameterInvalid(name, value, "is missing")
    return value


def number(frame: Frame, name: str, default: int | None = None) -> int:
    """A whole number of 64 bits; without a default it has to be there."""
    return _number(frame, name, default, _LONG)


def position(frame: Frame, name: str) -> int:
    """An offset in a queue, or a position in the log, which has to be there.

    All that are beyond 2**62 are that: there is nothing, and PostgreSQL can still reckon with it.
    """
    return min(number(frame, name), _PAST_ALL_PLACES)


def integer(frame: Frame, name: str, default: int | None = None) -> int:
    """A whole number of 32 bits; without a default it has to be there."""
    return _number(frame, name, default, _INTEGER)


def _number(frame: Frame, name: str, default: int | None, bits: int) -> int:
    value = frame.fields.get(name)
    if value is None and default is not None:
        return default
    try:
        found = int(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ParameterInvalid(name, value, "is no whole number") from None
    if not -(1 << bits - 1) <= found < 1 << bits - 1:
        raise ParameterInvalid(name, value, f"has more than {bits} bits")
    return found


def moment(frame: Frame, name: str, *, later_ms: int = 0) -> datetime:
    """The time of a field that tells milliseconds since 1970, and has to be there; or one so much later."""
    milliseconds = number(frame, name) + later_ms
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        raise ParameterInvalid(name, milliseconds, "is beyond all times") from None


def milliseconds_of(time: datetime | None) -> int:
    """Milliseconds since 1970, as fields and bodies tell a time; 0 for none."""
    return 0 if time is None else (time - _EPOCH) // timedelta(milliseconds=1)


def truth(frame: Frame, name: str) -> bool:
    """Whether a field says true."""
    return frame.fields.get(name) == "true"
