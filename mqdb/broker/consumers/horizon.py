"""Horizon: what a reader remembers of the log's segments, so that a pull opens only the partitions it needs.

Opening a partition costs 10 to 20 µs per statement, and each open partition costs again for every joined record: with
60 segments a pull of 32 messages took 2,100 µs; with a window of two segments it takes as long as with one segment. The
window is a guess. The pull checks whether it covered the request, and repeats the query without a window if not.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from mqdb.store.log.history import History


class SegmentBounds(NamedTuple):
    """The positions to which the entries of one segment's consume queue point, `past_pos` excluded."""

    lowest_pos: int
    past_pos: int


class Window(NamedTuple):
    """The first and last segment of entries, both included, and the positions of their records."""

    first_segment: int
    last_segment: int
    lowest_pos: int
    past_pos: int


def open_window(first_segment: int) -> Window:
    """The window from a segment to the end."""
    return Window(first_segment, 2**31 - 1, 0, 2**63 - 1)


class Horizon(NamedTuple):
    """The segment to which dispatch wrote, and the bounds of the segments, as of the last answer.

    A horizon is valid only for logs of the same history.
    """

    newest_segment: int = 0
    segments: Mapping[int, SegmentBounds] = MappingProxyType({})
    history: History | None = None

    def window(self, hints: Iterable[int]) -> Window | None:
        """The window from the oldest of the readers' segments to the segment after the newest; None if unknown.

        A late committer may lower the lowest position of a segment afterwards. The pull also checks for this.
        """
        known = set(hints)
        first, last = min(known), max(known) + 1
        try:
            bounds = [self.segments[number] for number in range(first, last + 1)]
        except KeyError:
            return None
        return Window(first, last, min(b.lowest_pos for b in bounds), max(b.past_pos for b in bounds))


UNKNOWN_HORIZON = Horizon()
