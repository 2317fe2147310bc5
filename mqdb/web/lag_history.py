"""The lag of each group at the samples of the last hour, in memory: for a chart, and gone with the process.

A monitor that scrapes /metrics keeps it for as long as one likes.
"""

import threading
from array import array
from collections.abc import Iterable
from typing import Final

from mqdb.drawing.charts import LagPoint
from mqdb.store.consumers.groups import TopicLag
from mqdb.web.bounds import MOST_SERIES

#: An hour, at one every 15 s.
SAMPLES: Final = 240

_UNKNOWN: Final = -1


class LagHistory:
    """The lag of each group at the last samples. Any thread may use it."""

    def __init__(self, samples: int = SAMPLES, most_groups: int = MOST_SERIES) -> None:
        """Groups beyond `most_groups` are not kept, those that come last."""
        self._guard = threading.Lock()
        self._samples = samples
        self._most_groups = most_groups
        self._count = 0
        # Rings: the sample of number n stands at n % samples.
        self._times = array("d", [0.0] * samples)
        self._by_group: dict[str, array[int]] = {}

    def add(self, taken_at: float, lags: Iterable[TopicLag]) -> None:
        """Keep one more sample. A group that is not in it is gone."""
        by_group: dict[str, int] = {}
        for each in lags:
            by_group[each.group] = by_group.get(each.group, 0) + each.lag
        with self._guard:
            place = self._count % self._samples
            self._count += 1
            self._times[place] = taken_at
            kept = {group: ring for group, ring in self._by_group.items() if group in by_group}
            for group in by_group:
                if len(kept) == self._most_groups:
                    break
                kept.setdefault(group, array("q", [_UNKNOWN] * self._samples))
            for group, ring in kept.items():
                ring[place] = by_group[group]
            self._by_group = kept

    def of(self, group: str) -> list[LagPoint]:
        """The samples of a group, the oldest first; [] if there are no samples."""
        with self._guard:
            ring = self._by_group.get(group)
            if ring is None:
                return []
            places = [number % self._samples for number in range(max(self._count - self._samples, 0), self._count)]
            return [LagPoint(self._times[place], ring[place]) for place in places if ring[place] != _UNKNOWN]
