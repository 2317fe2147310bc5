"""The pace of a loop: no pause while work remains, a short one after a round with work, then growing pauses."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

#: Small, so that a loop is still quick if the next message arrives a few milliseconds after the last.
_GROWTH: Final = 1.25


@dataclass(frozen=True, slots=True)
class Pace:
    """The pauses between the rounds of a loop."""

    busy: timedelta
    """The pause after a round that found work."""
    idle: timedelta
    """The maximum pause, which is reached gradually."""

    def pause(self, previous: timedelta, *, has_worked: bool, has_more: bool) -> timedelta:
        """The pause after a round; `previous` is the previous pause."""
        if has_more:
            return timedelta(0)
        if has_worked:
            return self.busy
        return min(max(previous * _GROWTH, self.busy), self.idle)
