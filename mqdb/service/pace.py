"""Pace of a loop: at once while there is more work, quickly while there is some, slower and slower otherwise."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

#: Gentle, so that a loop is still quick when the next message comes some milliseconds after the last.
_GROWTH: Final = 1.25


@dataclass(frozen=True, slots=True)
class Pace:
    """Pauses between the rounds of a loop."""

    busy: timedelta
    """After a round that found work."""
    idle: timedelta
    """The longest pause, reached by and by."""

    def pause(self, previous: timedelta, *, has_worked: bool, has_more: bool) -> timedelta:
        """The pause after a round; `previous` is the one before it."""
        if has_more:
            return timedelta(0)
        if has_worked:
            return self.busy
        return min(max(previous * _GROWTH, self.busy), self.idle)
