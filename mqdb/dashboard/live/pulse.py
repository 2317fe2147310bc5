"""The pulse of a broker: the live part of the overview, made from samples in the memory of this process.

The pulse does not query the database. A sample is rendered once for all viewers.
"""

import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from statistics import fmean
from typing import Final, NamedTuple

from markupsafe import Markup

from mqdb.dashboard.rendering import render
from mqdb.drawing.charts import Point, area_chart, spark_line
from mqdb.drawing.templating import path
from mqdb.web.live_figures import LiveFigures
from mqdb.web.time_series import OTHERS, RATES, TOTAL, BrokerFigure, SeriesSpan, TimeSeries

_HOUR: Final = 3_600.0

#: Charts show the shortest of these spans that has all points: five minutes for a process that is two minutes old.
_SPANS: Final = (300.0, 900.0, _HOUR)

#: The limit of topics with their own area in the chart.
_MOST_AREAS: Final = 8

#: Lines of the list of groups.
_MOST_GROUPS: Final = 12

#: The time over which the trend of a lag is measured.
_TREND_SECONDS: Final = 120.0

#: If two points are farther apart, the time between them is unknown.
_GAP_SECONDS: Final = 150.0

_MINUTE: Final = 60.0

#: A group with a younger backlog keeps up: a message is in the lag until its offset is committed, every 5 s.
_FRESH_SECONDS: Final = 10.0


class GroupPulse(NamedTuple):
    """A group with a lag."""

    name: str
    members: int
    lag: int
    lag_seconds: float
    drain_seconds: float | None
    """The time until the lag is 0 at the pace of the last two minutes; None if the lag does not shrink."""

    @property
    def keeps_up(self) -> bool:
        """Whether the group has a member, and the oldest unconsumed message is only a few seconds old."""
        return self.members > 0 and self.lag_seconds < _FRESH_SECONDS


class LateTime(NamedTuple):
    """The time since which a group is late."""

    since: datetime
    seconds: float
    is_cut: bool
    """Whether the group was late in the first known sample, and so perhaps before."""


class CauseOfLag(NamedTuple):
    """The reason why a group is late, as shown by samples. Rates are means of the last two minutes."""

    late: LateTime | None
    consumed: float
    """Messages per second that the group has consumed."""
    arriving: float
    """Messages per second that have arrived: those consumed, and those by which the lag has grown."""
    failed: float
    """Failed deliveries per second: retries and dead letters."""


class PulseParts(NamedTuple):
    """The two live parts of the overview as HTML. The page has other parts between them."""

    now: Markup
    charts: Markup

    @property
    def text(self) -> str:
        """Both parts with their names, as the stream sends them."""
        named = Markup('<div data-part="{}">{}</div>')
        return "".join(named.format(name, part) for name, part in self._asdict().items())


class Pulse:
    """Renders the live parts, once for each sample. Any thread may use it."""

    def __init__(self, figures: LiveFigures) -> None:
        self.figures: Final = figures
        self._guard = threading.Lock()
        self._rendered: tuple[int, str, PulseParts | None] = (-1, "", None)

    def render(self, broker: str) -> tuple[int, str]:
        """The number of the last sample, and its live parts as HTML, which is empty if this process has no sample."""
        number, parts = self._latest(broker)
        return number, "" if parts is None else parts.text

    def parts(self, broker: str) -> PulseParts | None:
        """The live parts of the last sample; None if this process has no sample."""
        return self._latest(broker)[1]

    def late_groups(self, most: int) -> list[tuple[str, LateTime | None]]:
        """Up to `most` late groups, most urgent first, each with its late time; [] if this process has no sample."""
        series, now = self.figures.series, time.monotonic()
        groups = [] if self.figures.latest[1] is None else groups_by_urgency(series, now)
        late = [each.name for each in groups if not each.keeps_up][:most]
        return [(name, late_time(series, name, now)) for name in late]

    def _latest(self, broker: str) -> tuple[int, PulseParts | None]:
        number, sample = self.figures.latest
        with self._guard:
            if self._rendered[:2] == (number, broker):
                return number, self._rendered[2]
            parts = None if sample is None else self._parts(broker, sample.switched_off)
            self._rendered = number, broker, parts
            return number, parts

    def _parts(self, broker: str, switched_off: frozenset[str]) -> PulseParts:
        series, now = self.figures.series, time.monotonic()
        span = span_of(series.of(BrokerFigure.DISK), now)
        groups = groups_by_urgency(series, now)
        late = [each for each in groups if not each.keeps_up]
        letters, since = letters_today(series, now)

        def url(*parts: object) -> str:
            return path("b", broker, *parts)

        shown = render(
            "overview_now.html",
            url=url,
            off=switched_off,
            stored=tile_of(series, BrokerFigure.STORED, now, span),
            delivered=tile_of(series, BrokerFigure.DELIVERED, now, span),
            lag=tile_of(series, BrokerFigure.LAG, now, span),
            letters=letters,
            letters_since=since,
            letters_spark=spark_line(series.of(BrokerFigure.DEAD), now, span),
            groups=[
                (each, cause_of_lag(series, each, now), spark_line(series.of(BrokerFigure.LAG, each.name), now, span))
                for each in late[:_MOST_GROUPS]
            ],
            late=len(late),
            more=max(len(late) - _MOST_GROUPS, 0),
            keeping_up=len(series.names(BrokerFigure.MEMBERS)) - len(late),
            minutes=span / 60,
        )
        charts = render(
            "overview_charts.html",
            url=url,
            chart=area_chart(series.busiest(BrokerFigure.STORED, _MOST_AREAS), now, span),
            others=OTHERS,
            minutes=span / 60,
            dispatch=[series.last(figure) for figure in (BrokerFigure.DISPATCH_P50, BrokerFigure.DISPATCH_P99)],
            timers=series.last(BrokerFigure.TIMERS),
            halves=series.last(BrokerFigure.HALVES),
            wal=series.last(BrokerFigure.WAL),
            disk=series.last(BrokerFigure.DISK),
        )
        return PulseParts(Markup(shown), Markup(charts))


class Tile(NamedTuple):
    """The value of a figure in the newest sample, and a small line chart of earlier values."""

    value: float | None
    spark: str


def groups_by_urgency(series: TimeSeries, now: float) -> list[GroupPulse]:
    """All groups with a lag, most urgent first.

    Groups whose lag does not shrink come first, then groups by the time to drain, longest first. Groups that keep up
    come last.
    """
    found = (group_pulse(series, name, now) for name in series.names(BrokerFigure.LAG))
    return sorted((each for each in found if each is not None), key=_urgency)


def group_pulse(series: TimeSeries, name: str, now: float) -> GroupPulse | None:
    """A group in the newest sample; None if the group has no lag."""
    lag = series.last(BrokerFigure.LAG, name)
    if not lag:
        return None
    return GroupPulse(
        name,
        int(series.last(BrokerFigure.MEMBERS, name) or 0),
        int(lag),
        series.last(BrokerFigure.LAG_SECONDS, name) or 0.0,
        drain_seconds(series.of(BrokerFigure.LAG, name, since=now - _TREND_SECONDS)),
    )


def cause_of_lag(series: TimeSeries, group: GroupPulse, now: float) -> CauseOfLag:
    """The rates of a group in the last two minutes, and the time since which the group is late."""
    late = late_time(series, group.name, now)
    since = now - _TREND_SECONDS
    # A reset makes a group late. The step that it causes is no arrival.
    counted_since = since if late is None or late.is_cut else max(since, now - late.seconds)
    growth = lag_growth(series.of(BrokerFigure.LAG, group.name, since=counted_since)) or 0.0
    consumed, retried, dead = (
        _mean(series.of(figure, group.name, since=since))
        for figure in (BrokerFigure.DELIVERED, BrokerFigure.RETRIED, BrokerFigure.DEAD)
    )
    return CauseOfLag(late, consumed, max(consumed + growth, 0.0), retried + dead)


def _mean(points: Sequence[Point]) -> float:
    return fmean(point.value for point in points) if points else 0.0


def late_time(series: TimeSeries, name: str, now: float) -> LateTime | None:
    """The time since which a group is late; None if no sample shows that the group is late."""
    hour = series.of(BrokerFigure.LAG_SECONDS, name)
    since = late_since(hour, [])
    if since is not None and since[1]:
        since = late_since(hour, series.of(BrokerFigure.LAG_SECONDS, name, SeriesSpan.DAY))
    if since is None:
        return None
    at, is_cut = since
    return LateTime(datetime.now(UTC) - timedelta(seconds=now - at), now - at, is_cut)


def late_since(hour: Sequence[Point], day: Sequence[Point]) -> tuple[float, bool] | None:
    """The start of the late samples that include the newest sample, and whether that start is the first known sample.

    Each point has the age of the oldest waiting message, and the points are sorted, oldest first. The points of the day
    precede those of the hour. None if the newest sample is not late.
    """
    known = [*(point for point in day if not hour or point.at < hour[0].at - _MINUTE), *hour]
    first = None
    for point in reversed(known):
        is_far = first is not None and first.at - point.at > _GAP_SECONDS
        if is_far or point.value < _FRESH_SECONDS:
            return None if first is None else (first.at, is_far)
        first = point
    return None if first is None else (first.at, True)


def _urgency(group: GroupPulse) -> tuple[bool, bool, float]:
    return group.keeps_up, group.drain_seconds is not None, -(group.drain_seconds or group.lag)


def span_of(points: Sequence[Point], now: float) -> float:
    """The time span of charts, in seconds."""
    age = now - points[0].at if points else 0.0
    return next((span for span in _SPANS if age <= span), _HOUR)


def drain_seconds(recent: Sequence[Point]) -> float | None:
    """The seconds until a lag is 0 if it keeps shrinking as in its recent points; None if the lag does not shrink.

    The mean of the newer half of the points is compared with that of the older half: a lag goes up and down with each
    burst of messages, so two single points could show either.
    """
    growth = lag_growth(recent)
    return recent[-1].value / -growth if growth is not None and growth < 0 else None


def lag_growth(recent: Sequence[Point]) -> float | None:
    """The messages per second by which a lag has grown in its recent points; None for fewer than two points."""
    if len(recent) < 2:
        return None
    middle = len(recent) // 2
    older, newer = recent[:middle], recent[middle:]
    seconds = fmean(point.at for point in newer) - fmean(point.at for point in older)
    return (fmean(point.value for point in newer) - fmean(point.value for point in older)) / seconds


def growth_since(
    day: Sequence[Point], hour: Sequence[Point], now: float, midnight: datetime
) -> tuple[int, datetime | None]:
    """The growth of a count since midnight or its first point, and that starting time; 0 and None without points.

    `midnight` is the start of today in UTC; the times of points and `now` are by the monotonic clock.
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
    """The dead letters of one group or all groups since midnight UTC or the first sample, and that starting time."""
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    day, hour = (series.of(BrokerFigure.LETTERS, group, span) for span in (SeriesSpan.DAY, SeriesSpan.HOUR))
    return growth_since(day, hour, now, midnight)


def tile_of(series: TimeSeries, figure: BrokerFigure, now: float, span: float, name: str = TOTAL) -> Tile:
    """The tile of a figure of a topic, a group or the whole broker. A missing rate is 0 if the broker is sampled."""
    value = series.last(figure, name)
    if value is None and figure in RATES and series.last(BrokerFigure.WAL) is not None:
        value = 0.0
    return Tile(value, spark_line(series.of(figure, name), now, span))
