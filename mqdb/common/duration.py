"""Durations as people write them: a number and its unit, such as 500ms, 45s, 72h or 3d."""

import re
from datetime import timedelta
from typing import Final

_UNITS: Final = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
_TEXT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smhd])", re.ASCII)


def parse_duration(text: str) -> timedelta | None:
    """Parse a duration; None for text that is not a duration, `timedelta.max` for a duration that is too long."""
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        return None
    try:
        return _UNITS[match[2]] * float(match[1])
    except OverflowError:
        return timedelta.max


def duration_text(duration: timedelta, *, fewest_days: int = 1) -> str:
    """The duration in the largest unit that gives a whole number; days are used only from `fewest_days` on."""
    fewest = {"d": fewest_days * _UNITS["d"], "h": _UNITS["h"], "m": _UNITS["m"], "s": timedelta(0)}
    for unit, least in fewest.items():
        if duration >= least and not duration % _UNITS[unit]:
            return f"{duration // _UNITS[unit]}{unit}"
    return f"{duration / _UNITS['ms']:g}ms"
