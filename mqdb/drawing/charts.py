"""Charts: the lag of a group as lines, rates as stacked areas and small lines, and counts over time as columns.

The drawing is stretched to the width of the page. Its labels are therefore text of the page, next to the drawing.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from math import ceil
from typing import Final, NamedTuple

WIDTH: Final = 720
HEIGHT: Final = 160
_SPAN_SECONDS: Final = 3_600.0

#: If there is no sample for this long, the line is interrupted. Samples come every 5 to 15 s.
_GAP_SECONDS: Final = 60.0


class Point(NamedTuple):
    """The value of a metric at a time of the monotonic clock."""

    at: float
    value: float


class LagChart(NamedTuple):
    """The lag of a group, in the form that a page draws."""

    lines: list[str]
    """The points of each line in SVG notation: "x,y x,y"."""
    top: int
    """The lag at the upper edge."""
    most: int
    last: int
    last_seconds: float
    """The age of the last sample."""
    seconds: float
    """The age of the first sample."""


def lag_chart(points: Sequence[Point], now: float, span_seconds: float = _SPAN_SECONDS) -> LagChart | None:
    """The chart of the samples, given oldest first, in a span that ends now; None if the span has no samples.

    `now` is a time by the clock of the samples.
    """
    shown = [point for point in points if now - point.at <= span_seconds]
    if not shown:
        return None
    most = int(max(point.value for point in shown))
    top = _rounded_up(most)
    lines: list[list[str]] = []
    last_at = None
    for point in shown:
        if last_at is None or point.at - last_at > _GAP_SECONDS:
            lines.append([])
        last_at = point.at
        x, y = WIDTH * (1 - (now - point.at) / span_seconds), HEIGHT * (1 - point.value / top)
        lines[-1].append(f"{x:.1f},{y:.1f}")
    # A line with a single point is drawn as a dot if it has an end.
    drawn = [" ".join(line if len(line) > 1 else line * 2) for line in lines]
    return LagChart(drawn, top, most, int(shown[-1].value), now - shown[-1].at, now - shown[0].at)


class Area(NamedTuple):
    """A series in a stacked chart."""

    name: str
    path: str
    """The outline of the area in SVG notation: "M", points as "x,y" with "L" between them, and "Z"."""
    last: float
    mean: float
    most: float


class AreaChart(NamedTuple):
    """Stacked series, the first at the bottom, over a span that ends now."""

    areas: list[Area]
    top: int
    """The value at the upper edge."""


def area_chart(
    series: Mapping[str, Sequence[Point]], now: float, span_seconds: float, columns: int = 120
) -> AreaChart | None:
    """The chart of several series; None if the span has no points. Each column is the mean of its points."""
    means = {name: in_columns(points, now, span_seconds, columns) for name, points in series.items()}
    known = [number for number in range(columns) if any(values[number] is not None for values in means.values())]
    if not known:
        return None
    feet = [0.0] * columns
    heads: list[tuple[str, list[float], list[float]]] = []
    for name, values in means.items():
        head = [foot + (value or 0.0) for foot, value in zip(feet, values, strict=True)]
        heads.append((name, feet, head))
        feet = head
    top = _rounded_up(ceil(max(feet)))
    areas = []
    for name, foot, head in heads:
        shown = [value for value in means[name] if value is not None] or [0.0]
        outline = [*((number, head[number]) for number in known), *((number, foot[number]) for number in known[::-1])]
        points = " L".join(
            f"{WIDTH * (number + 0.5) / columns:.1f},{HEIGHT * (1 - value / top):.1f}" for number, value in outline
        )
        areas.append(Area(name, f"M{points} Z", shown[-1], sum(shown) / len(shown), max(shown)))
    return AreaChart(areas, top)


def spark_line(points: Sequence[Point], now: float, span_seconds: float, columns: int = 60) -> str:
    """A small line for SVG, scaled to its highest value: "x,y x,y"; empty without points."""
    values = in_columns(points, now, span_seconds, columns)
    most = max((value for value in values if value is not None), default=0.0) or 1.0
    shown = [(number, value) for number, value in enumerate(values) if value is not None]
    shown = shown * 2 if len(shown) == 1 else shown
    return " ".join(
        f"{WIDTH * (number + 0.5) / columns:.1f},{HEIGHT * (1 - value / most):.1f}" for number, value in shown
    )


def in_columns(points: Sequence[Point], now: float, span_seconds: float, columns: int) -> list[float | None]:
    """The mean of the points in each of `columns` equal parts of a span that ends now; None without points."""
    sums, counts = [0.0] * columns, [0] * columns
    for at, value in points:
        number = columns - 1 - int((now - at) * columns / span_seconds)
        if 0 <= number < columns:
            sums[number] += value
            counts[number] += 1
    return [total / count if count else None for total, count in zip(sums, counts, strict=True)]


class Column(NamedTuple):
    """A span of time, with the count of each series in it."""

    label: str
    values: tuple[int, ...]


class Block(NamedTuple):
    """The rectangle of a series in a column."""

    series: int
    x: float
    y: float
    width: float
    height: float


def stacked(columns: Sequence[Column]) -> tuple[int, list[list[Block]]]:
    """The count at the upper edge, and the blocks of each column, with the first series at the bottom."""
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
    """Round up to the next of 2, 4, 10, 20, 40, 100 and so on, all of which have whole halves."""
    if most <= 2:
        return 2
    unit = int("1" + "0" * (len(str(most - 1)) - 1))
    return next(factor * unit for factor in (1, 2, 4, 10) if factor * unit >= most)
