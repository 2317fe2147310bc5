"""The figures of a broker over the last hour and the last day, kept for charts in the memory of the process.

Each sample adds a point to a series: a rate since the previous sample, or a level. Only topics and groups that were
active in this time have series. A series takes 9 kB, and their number is limited. A new leader starts without points.
"""

import math
import threading
from array import array
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from mqdb.drawing.charts import Point

#: The greatest number of series; further topics and groups only count in the total. 3,000 series take 27 MB.
MOST_SERIES: Final = 3_000

#: The name of the series with the sum of all topics or groups, including those without a series.
TOTAL: Final = ""

#: The name of the sum of all series that `busiest` does not return. No topic or group can have it.
OTHERS: Final = "all others"


class BrokerFigure(StrEnum):
    """A figure, which has a series for each topic, for each group, or for the whole broker."""

    STORED = "stored"
    """Messages per second stored in a topic; there are no series for retry, dead letter and system topics."""
    CONSUMED = "consumed"
    """Messages per second by which all groups together have moved their offsets in a topic."""
    DELIVERED = "delivered"
    """Messages per second by which a group has moved its offsets."""
    RETRIED = "retried"
    """Retried messages of a group per second."""
    DEAD = "dead"
    """New dead letters of a group per second."""
    LETTERS = "letters"
    """All dead letters of a group since its creation."""
    LAG = "lag"
    """Messages that a group has yet to consume."""
    LAG_SECONDS = "lag_seconds"
    """Age of the oldest message that a group has yet to consume."""
    MEMBERS = "members"
    """The number of consumers in a group."""
    TIMERS = "timers"
    """Messages that wait for their delivery time."""
    HALVES = "halves"
    """Half messages whose producers are asked."""
    DISPATCH_P50 = "dispatch_p50"
    DISPATCH_P99 = "dispatch_p99"
    """The median and the 99th percentile of the seconds for which recent messages waited for dispatch."""
    WAL = "wal"
    """Bytes per second written to PostgreSQL's log."""
    DISK = "disk"
    """The size of the broker's tables and indexes, in bytes."""


#: Counters, whose series have the growth per second. All other figures are levels.
RATES: Final = frozenset(
    {
        BrokerFigure.STORED,
        BrokerFigure.CONSUMED,
        BrokerFigure.DELIVERED,
        BrokerFigure.RETRIED,
        BrokerFigure.DEAD,
        BrokerFigure.WAL,
    }
)

Key: TypeAlias = tuple[BrokerFigure, str]


class SeriesSpan(StrEnum):
    """The time that a series covers. Its points are 5 s apart for an hour, and a minute apart for a day."""

    HOUR = "hour"
    DAY = "day"


class _Size(NamedTuple):
    points: int
    seconds: float


_SIZES: Final = {SeriesSpan.HOUR: _Size(720, 3_600.0), SeriesSpan.DAY: _Size(1_440, 86_400.0)}

#: The seconds between two points of a day.
_MINUTE: Final = 60.0


class TimeSeries:
    """The series of one broker. One thread adds samples, any thread may read."""

    def __init__(self, most_series: int = MOST_SERIES) -> None:
        self._guard = threading.Lock()
        self._rings = {span: _Rings(size.points, most_series) for span, size in _SIZES.items()}
        self._counters: dict[Key, float] = {}
        self._counted_at: float | None = None
        self._minute = _Minute()

    def add(self, at: float, counters: Mapping[Key, float], levels: Mapping[Key, float]) -> None:
        """Add the figures of one sample; `at` is its time by the monotonic clock.

        The first sample gives no rates. If the count of stored messages is lower than before, the topic was recreated,
        and its growth is the whole count. If another counter is lower, such as offsets after a reset, its growth is 0.
        """
        values = dict(levels)
        before, seconds = self._counters, 0.0 if self._counted_at is None else at - self._counted_at
        if seconds > 0:
            for key, count in counters.items():
                growth = count - before.get(key, 0)
                if growth < 0:
                    growth = count if key[0] is BrokerFigure.STORED else 0
                values[key] = growth / seconds
        self._counters, self._counted_at = dict(counters), at
        for figure in {figure for figure, name in values if name != TOTAL}:
            each = [value for (of, name), value in values.items() if of is figure and name != TOTAL]
            values.setdefault((figure, TOTAL), max(each) if figure is BrokerFigure.LAG_SECONDS else sum(each))
        with self._guard:
            self._rings[SeriesSpan.HOUR].add(at, values)
            for minute_at, of_minute in self._minute.add(at, values):
                self._rings[SeriesSpan.DAY].add(minute_at, of_minute)

    def interrupt(self) -> None:
        """Make the next sample give no rates, because the changes since the last sample are unknown."""
        self._counters, self._counted_at = {}, None

    def of(
        self, figure: BrokerFigure, name: str = TOTAL, span: SeriesSpan = SeriesSpan.HOUR, *, since: float = -math.inf
    ) -> list[Point]:
        """The points of one series from the time `since` on, oldest first; [] without points."""
        with self._guard:
            return self._rings[span].of((figure, name), since)

    def last(self, figure: BrokerFigure, name: str = TOTAL) -> float | None:
        """The value of a series in the newest sample; None if that sample lacks it."""
        with self._guard:
            return self._rings[SeriesSpan.HOUR].last((figure, name))

    def names(self, figure: BrokerFigure) -> list[str]:
        """The names of the series of a figure, without the total."""
        with self._guard:
            return [name for of, name in self._rings[SeriesSpan.HOUR].keys if of is figure and name != TOTAL]

    def busiest(self, figure: BrokerFigure, most: int, span: SeriesSpan = SeriesSpan.HOUR) -> dict[str, list[Point]]:
        """The `most` series with the greatest sums, greatest first, and OTHERS if there are further series."""
        with self._guard:
            rings = self._rings[span]
            names = [name for of, name in rings.keys if of is figure and name != TOTAL]
            ranked = sorted(names, key=lambda name: -rings.sum_of((figure, name)))
            shown = {name: rings.of((figure, name)) for name in ranked[:most]}
            total = rings.of((figure, TOTAL))
        if len(ranked) > most:
            by_time: dict[float, float] = {}
            for points in shown.values():
                for point in points:
                    by_time[point.at] = by_time.get(point.at, 0.0) + point.value
            shown[OTHERS] = [Point(at, max(value - by_time.get(at, 0.0), 0.0)) for at, value in total]
        return shown


class _Rings:
    """The points of one span of time: sample number n is stored at index n % `points`."""

    def __init__(self, points: int, most: int) -> None:
        self._points = points
        self._most = most
        self._count = 0
        self._times = array("d", [0.0] * points)
        self._values: dict[Key, array[float]] = {}
        #: The sum of the points of each series, so that `busiest` does not read all points.
        self._sums: dict[Key, float] = {}
        #: The number of the last sample in which a series was active. A series is dropped after an idle span.
        self._last_active: dict[Key, int] = {}

    def add(self, at: float, values: Mapping[Key, float]) -> None:
        number, place = self._count, self._count % self._points
        self._count += 1
        self._times[place] = at
        for key, value in values.items():
            # A rate of 0 is normal and does not count as activity; a level of 0 does.
            if value or key[0] not in RATES:
                self._last_active[key] = number
                if key not in self._values and (key[1] == TOTAL or len(self._values) < self._most):
                    self._values[key] = array("f", [math.nan] * self._points)
        for key in [key for key, last in self._last_active.items() if number - last >= self._points]:
            del self._last_active[key]
            self._values.pop(key, None)
            self._sums.pop(key, None)
        for key, ring in self._values.items():
            gone = ring[place]
            ring[place] = values.get(key, math.nan)
            self._sums[key] = self._sums.get(key, 0.0) + _counted(ring[place]) - _counted(gone)

    @property
    def keys(self) -> Iterable[Key]:
        return self._values.keys()

    def of(self, key: Key, since: float = -math.inf) -> list[Point]:
        ring = self._values.get(key)
        if ring is None:
            return []
        found = []
        for number in range(self._count - 1, max(self._count - self._points, 0) - 1, -1):
            place = number % self._points
            if self._times[place] < since:
                break
            if not math.isnan(ring[place]):
                found.append(Point(self._times[place], ring[place]))
        return found[::-1]

    def last(self, key: Key) -> float | None:
        ring = self._values.get(key)
        if ring is None:
            return None
        value = ring[(self._count - 1) % self._points]
        return None if math.isnan(value) else value

    def sum_of(self, key: Key) -> float:
        return self._sums[key]


def _counted(value: float) -> float:
    """A value as a part of a sum: 0 if the value is missing."""
    return 0.0 if math.isnan(value) else value


class _Minute:
    """Combines the samples of a minute into a point of the day: the mean of a rate, the maximum of a level."""

    def __init__(self) -> None:
        self._begun: float | None = None
        self._values: dict[Key, list[float]] = {}

    def add(self, at: float, values: Mapping[Key, float]) -> list[tuple[float, dict[Key, float]]]:
        """Add a sample; returns the point of the minute that this sample ends, if it ends a minute."""
        if self._begun is None:
            self._begun = at
        for key, value in values.items():
            self._values.setdefault(key, []).append(value)
        if at - self._begun < _MINUTE:
            return []
        point = {key: sum(found) / len(found) if key[0] in RATES else max(found) for key, found in self._values.items()}
        self._begun, self._values = at, {}
        return [(at, point)]
