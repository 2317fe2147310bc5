"""Histograms of durations, kept as plain numbers so that adding a duration is cheap."""

from bisect import bisect_left
from typing import Final

#: Upper bounds of the buckets, in seconds. One more bucket has no bound.
BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Durations:
    """A histogram of durations. One thread adds durations; other threads only read."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """The sum of all durations."""
        self.counts = [0] * (len(BOUNDS) + 1)
        """The number of durations in each bucket, in the order of BOUNDS."""

    def add(self, seconds: float) -> None:
        """Add one duration."""
        self.seconds += seconds
        self.counts[bisect_left(BOUNDS, seconds)] += 1
