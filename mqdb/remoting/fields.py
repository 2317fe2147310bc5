"""The fields of a request, as values. A name that is not there, or says nothing, is a ParameterInvalid."""

from typing import Final

from mqdb.errors import ParameterInvalid
from mqdb.remoting.frame import Frame

#: Java's long.
_LOWEST: Final = -(2**63)
_HIGHEST: Final = 2**63 - 1


def text(frame: Frame, name: str) -> str:
    """A field that has to be there."""
    value = frame.fields.get(name)
    if not value:
        raise ParameterInvalid(name, value, "is missing")
    return value


def number(frame: Frame, name: str, default: int | None = None) -> int:
    """A whole number of 64 bits; without a default it has to be there."""
    value = frame.fields.get(name)
    if value is None and default is not None:
        return default
    try:
        found = int(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ParameterInvalid(name, value, "is no whole number") from None
    if not _LOWEST <= found <= _HIGHEST:
        raise ParameterInvalid(name, value, "has more than 64 bits")
    return found


def truth(frame: Frame, name: str) -> bool:
    """Whether a field says true."""
    return frame.fields.get(name) == "true"
