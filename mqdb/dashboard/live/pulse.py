"""The pulse of a broker: the live part of the overview, made of samples that this process has in memory.

It asks the database nothing. One rendering serves all viewers of a sample.
"""

import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from statistics import fmean
from typing import Final, NamedTuple

from mqdb.dashboard.rendering import render
from mqdb.drawing.charts import Point, area_chart, spark_line
from mqdb.drawing.templating import path
from mqdb.web.live_figures import LiveFigures
from mqdb.web.time_series import OTHERS, RATES, TOTAL, BrokerFigure, SeriesSpan, TimeSeries

_HOUR: Final = 3_600.0

#: Charts show the first of these that has all points: a process that is two minutes old fills a chart of five.
_SPANS: Final = (300.0, 900.0, _HOUR)

#: Topics with an area of their own.
_MOST_AREAS: Final = 8

#: Lines of the list of groups.
_MOST_GROUPS: Final = 12

#: The lag of a group grows or shrinks by this time.
_TREND_SECONDS: Final = 120.0

#: A group with a younger backlog keeps up: a message is in the lag until its offset is committed, every 5 s.
_FRESH_SECONDS: Final = 10.0


class GroupPulse(NamedTuple):
    """A group that has something to consume."""

    name: str
    members: int
    lag: int
    lag_seconds: float
    per_second: float
    drain_seconds: float | None
    """The time until nothing is left if it goes on as in the last two minutes; None if the lag does not shrink."""

    @property
    def keeps_up(self) -> bool:
        """Whether a member is about to consume the oldest message, because it is so young."""
        return self.members > 0 and self.lag_seconds < _FRESH_SECONDS


class Pulse:
    """Renders the live part, once for each sample. Any thread may use it."""

    def __init__(self, figures: LiveFigures) -> None:
        self.figures: Final = figures
        self._guard = threading.Lock()
        self._rendered: tuple[int, str, str] = (-1, "", "")

    def render(self, broker: str) -> tuple[int, str]:
        """The number of the last sample, and its part of the page; empty if this process has no sample."""
        number, sample = self.figures.latest
        with self._guard:
            if self._rendered[:2] == (number, broker):
                return number, self._rendered[2]
            text = "" if sample is None else self._part(broker)
            self._rendered = number, broker, text
            return number, text

    def _part(self, broker: str) -> str:
        series, now = self.figures.series, time.monotonic()
        span = span_of(series.of(BrokerFigure.DISK), now)
        groups = groups_by_urgency(series, now)
        letters, since = letters_today(series, now)
        return render(
            "overview_pulse.html",
            url=lambda *parts: path("b", broker, *parts),
            stored=tile_of(series, BrokerFigure.STORED, now, span),
            delivered=tile_of(series, BrokerFigure.DELIVERED, now, span),
            lag=tile_of(series, BrokerFigure.LAG, now, span),
            letters=letters,
            letters_since=since,
            letters_spark=spark_line(series.of(BrokerFigure.DEAD), now, span),
            slowest=next((each for each in groups if not each.keeps_up), None),
            groups=[
                (each, spark_line(series.of(BrokerFigure.LAG, each.name), now, span)) for each in groups[:_MOST_GROUPS]
            ],
            more=max(len(groups) - _MOST_GROUPS, 0),
            chart=area_chart(series.busiest(BrokerFigure.STORED, _MOST_AREAS), now, span),
            others=OTHERS,
            minutes=span / 60,
            dispatch=[series.last(figure) for figure in (BrokerFigure.DISPATCH_P50, BrokerFigure.DISPATCH_P99)],
            timers=series.last(BrokerFigure.TIMERS),
            halves=series.last(BrokerFigure.HALVES),
            wal=series.last(BrokerFigure.WAL),
            disk=series.last(BrokerFigure.DISK),
        )


class Tile(NamedTuple):
    """The value of a figure in the newest sample, and a small line of the values before."""

    value: float | None
    spark: str


def groups_by_urgency(series: TimeSeries, now: float) -> list[GroupPulse]:
    """All groups with a lag: first those whose lag does not shrink, then by the time that they need to drain."""
    found = (group_pulse(series, name, now) for name in series.names(BrokerFigure.LAG))
    return sorted((each for each in found if each is not None), key=_urgency)


def group_pulse(series: TimeSeries, name: str, now: float) -> GroupPulse | None:
    """A group as of the newest sample; None if it has nothing to consume."""
    lag = series.last(BrokerFigure.LAG, name)
    if not lag:
        return None
    return GroupPulse(
        name,
        int(series.last(BrokerFigure.MEMBERS, name) or 0),
        int(lag),
        series.last(BrokerFigure.LAG_SECONDS, name) or 0.0,
        series.last(BrokerFigure.DELIVERED, name) or 0.0,
        drain_seconds(series.of(BrokerFigure.LAG, name, since=now - _TREND_SECONDS)),
    )


def _urgency(group: GroupPulse) -> tuple[bool, bool, float]:
    return group.keeps_up, group.drain_seconds is not None, -(group.drain_seconds or group.lag)


def span_of(points: Sequence[Point], now: float) -> float:
    """The seconds that charts show."""
    age = now - points[0].at if points else 0.0
    return next((span for span in _SPANS if age <= span), _HOUR)


def drain_seconds(recent: Sequence[Point]) -> float | None:
    """The time until a lag is 0 if it goes on shrinking as in its recent points; None if it does not shrink.

    The mean of the newer half of the points is compared with that of the older half: a lag goes up and down with each
    burst of messages, and two single points would say either.
    """
    if len(recent) < 2:
        return None
    middle = len(recent) // 2
    older, newer = recent[:middle], recent[middle:]
    seconds = fmean(point.at for point in newer) - fmean(point.at for point in older)
    per_second = (fmean(point.value for point in older) - fmean(point.value for point in newer)) / seconds
    return recent[-1].value / per_second if per_second > 0 else None


def growth_since(
    day: Sequence[Point], hour: Sequence[Point], now: float, midnight: datetime
) -> tuple[int, datetime | None]:
    """The growth of a count since midnight, or since its first point, and that time; 0 and None without points.

    `midnight` is of today in UTC; the points have times of the monotonic clock.
    """
    clock = datetime.now(UTC)
    known = [*day, *hour]
    if not known:
        return 0, None
    since_midnight = now - (clock - midnight).total_seconds()
    before = [point for point in known if point.at <= since_midnight]
    begin = max(before, key=lambda point: point.at) if before else min(known, key=lambda point: point.at)
    last = max(known, key=lambda point: point.at)
    since = midnight if before else clock - timedelta(seconds=now - begin.at)
    return max(int(last.value - begin.value), 0), since


def letters_today(series: TimeSeries, now: float, group: str = TOTAL) -> tuple[int, datetime | None]:
    """The dead letters of a group, or of all groups, since midnight UTC or since the first sample; and that time."""
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    day, hour = (series.of(BrokerFigure.LETTERS, group, span) for span in (SeriesSpan.DAY, SeriesSpan.HOUR))
    return growth_since(day, hour, now, midnight)


def tile_of(series: TimeSeries, figure: BrokerFigure, now: float, span: float, name: str = TOTAL) -> Tile:
    """The tile of a figure, of one topic or group or of all. A topic or group without a rate of its own has 0."""
    value = series.last(figure, name)
    if value is None and figure in RATES and series.last(BrokerFigure.WAL) is not None:
        value = 0.0
    return Tile(value, spark_line(series.of(figure, name), now, span))
