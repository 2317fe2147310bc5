"""Charts: the lag of a group over an hour as lines, and counts over time as columns.

The drawing is stretched to the width that a page has. So its labels stand beside it, as text of the page.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

WIDTH: Final = 720
HEIGHT: Final = 160
_SPAN_SECONDS: Final = 3_600.0

#: Without a sample for so long, the line is interrupted. They come every 15 s.
_GAP_SECONDS: Final = 60.0


class LagPoint(NamedTuple):
    """What a group had yet to consume, and when."""

    taken_at: float
    """By the monotonic clock."""
    lag: int


class LagChart(NamedTuple):
    """The lag of a group, as a page draws it."""

    lines: list[str]
    """Of each line its points, as SVG writes them: "x,y x,y"."""
    top: int
    """The lag at the upper edge."""
    most: int
    last: int
    last_seconds: float
    """How long ago the last sample was taken."""
    seconds: float
    """How long ago the first one was taken."""


def lag_chart(points: Sequence[LagPoint], now: float) -> LagChart | None:
    """The chart of the samples of the last hour, the oldest first; None without any. `now` is by their clock."""
    shown = [point for point in points if now - point.taken_at <= _SPAN_SECONDS]
    if not shown:
        return None
    most = max(point.lag for point in shown)
    top = _rounded_up(most)
    lines: list[list[str]] = []
    last_at = None
    for point in shown:
        if last_at is None or point.taken_at - last_at > _GAP_SECONDS:
            lines.append([])
        last_at = point.taken_at
        x, y = WIDTH * (1 - (now - point.taken_at) / _SPAN_SECONDS), HEIGHT * (1 - point.lag / top)
        lines[-1].append(f"{x:.1f},{y:.1f}")
    # A line of one point is drawn as a dot if it has an end.
    drawn = [" ".join(line if len(line) > 1 else line * 2) for line in lines]
    return LagChart(drawn, top, most, shown[-1].lag, now - shown[-1].taken_at, now - shown[0].taken_at)


class Column(NamedTuple):
    """A span of time, and how much there is of each series in it."""

    label: str
    values: tuple[int, ...]


class Block(NamedTuple):
    """A series in a column: a rectangle."""

    series: int
    x: float
    y: float
    width: float
    height: float


def stacked(columns: Sequence[Column]) -> tuple[int, list[list[Block]]]:
    """The count at the upper edge, and the blocks of each column, the first series at its foot."""
    top = _rounded_up(max((sum(column.values) for column in columns), default=0))
    slot = WIDTH / max(len(columns), 1)
    gap = min(slot * 0.2, 3)
    return top, [
        [
            Block(series, number * slot + gap / 2, HEIGHT * (1 - head / top), slot - gap, HEIGHT * (head - foot) / top)
            for series, (foot, head) in enumerate(pairwise(accumulate(column.values, initial=0)))
            if head > foot
        ]
        for number, column in enumerate(columns)
    ]


def _rounded_up(most: int) -> int:
    """The next of 2, 4, 10, 20, 40, 100 and so on, whose half is a whole number."""
    if most <= 2:
        return 2
    unit = int("1" + "0" * (len(str(most - 1)) - 1))
    return next(factor * unit for factor in (1, 2, 4, 10) if factor * unit >= most)
