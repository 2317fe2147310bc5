"""Charts as inline SVG: bars of a few things, and stacked bars over time.

Colours are classes, `series-1` to `series-6` and `series-rest`, so that the page decides them for light and dark. Each
chart has a title and a description for those who cannot see it, each bar a title that browsers show beside the mouse.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil, log10
from typing import Final

from mqdb.pipeline.markup import Markup, element

#: Series with a colour of their own; one more is for the rest.
MOST_SERIES: Final = 6

#: In units of the drawing, about the pixels that a page has for it on a desk; it is scaled to what there is.
BARS_WIDTH: Final = 540
COLUMNS_WIDTH: Final = 1_120

_ROW: Final = 26
_BAR: Final = 18
_LABEL: Final = 220
_VALUE: Final = 70
_PLOT_HEIGHT: Final = 260
_AXIS_LEFT: Final = 56
_AXIS_BOTTOM: Final = 24
_TOP: Final = 10
_LEGEND_ROW: Final = 22
_LEGEND_COLUMNS: Final = 3

#: Of text at 13 units, on average; a label that is longer than its place is cut.
_CHARACTER: Final = 7.8


@dataclass(frozen=True, slots=True)
class Bar:
    """A thing and how much there is of it."""

    label: str
    value: int


@dataclass(frozen=True, slots=True)
class Column:
    """A span of time and how much there is of each series in it."""

    label: str
    values: tuple[int, ...]


def horizontal_bars(name: str, title: str, bars: Sequence[Bar]) -> Markup:
    """A bar for each thing, from above, its label before it and its value behind. `name` is the chart's id."""
    most = max((bar.value for bar in bars), default=0) or 1
    room = BARS_WIDTH - _LABEL - _VALUE
    rows = []
    for number, bar in enumerate(bars):
        y = number * _ROW + (_ROW - _BAR) / 2
        middle = number * _ROW + _ROW / 2
        width = max(bar.value / most * room, 1)
        rows.append(
            element(
                "g",
                element("title", f"{bar.label}: {bar.value:,}"),
                element("text", shortened(bar.label, _LABEL - 10), x=_LABEL - 8, y=middle, class_="label end middle"),
                element("rect", x=_LABEL, y=y, width=f"{width:.1f}", height=_BAR, rx=2, class_="series-1"),
                element("text", f"{bar.value:,}", x=f"{_LABEL + width + 6:.1f}", y=middle, class_="value middle"),
            )
        )
    described = "; ".join(f"{bar.label}: {bar.value:,}" for bar in bars)
    return _drawing(name, title, described, BARS_WIDTH, max(len(bars), 1) * _ROW, rows)


def stacked_columns(name: str, title: str, series: Sequence[str], columns: Sequence[Column]) -> Markup:
    """A column for each span of time, the first series at its foot, with a scale, grid lines and a legend.

    More series than MOST_SERIES + 1 are not for the eye; the one behind MOST_SERIES is drawn as the rest.
    """
    step, top = scale(max((sum(column.values) for column in columns), default=0))
    slot = (COLUMNS_WIDTH - _AXIS_LEFT) / max(len(columns), 1)
    parts = [_grid_line(value, top) for value in range(0, top + 1, step)]
    every = max(ceil(len(columns) * _longest_label(columns) / (COLUMNS_WIDTH - _AXIS_LEFT)), 1)
    for number, column in enumerate(columns):
        x = _AXIS_LEFT + number * slot
        parts.append(_stack(x, slot, column, series, top))
        middle = x + slot / 2
        # A label that would stand out of the drawing is left out.
        if number % every == 0 and middle + len(column.label) * _CHARACTER / 2 <= COLUMNS_WIDTH:
            y = _TOP + _PLOT_HEIGHT + 16
            parts.append(element("text", column.label, x=f"{middle:.1f}", y=y, class_="axis centre"))
    below = _TOP + _PLOT_HEIGHT + _AXIS_BOTTOM
    parts += [_legend_entry(number, each, below) for number, each in enumerate(series)]
    described = "; ".join(f"{column.label}: {sum(column.values):,}" for column in columns if any(column.values))
    height = below + ceil(len(series) / _LEGEND_COLUMNS) * _LEGEND_ROW + 4
    return _drawing(name, title, described, COLUMNS_WIDTH, height, parts)


def scale(most: int) -> tuple[int, int]:
    """The step between grid lines and the topmost of them, for values up to `most`: round numbers, five lines or so."""
    if most <= 5:
        return 1, max(most, 1)
    power = 10 ** int(log10(most / 5))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power * 5 >= most)
    return step, ceil(most / step) * step


def shortened(label: str, room: float) -> str:
    """The label, its middle left out where it would need more room: what tells names apart is often their end."""
    most = int(room / _CHARACTER)
    if len(label) <= most:
        return label
    tail = (most - 1) // 2
    return f"{label[: most - 1 - tail]}…{label[-tail:]}"


def _drawing(name: str, title: str, described: str, width: int, height: float, parts: Sequence[Markup]) -> Markup:
    return element(
        "svg",
        element("title", title, id=f"{name}-title"),
        element("desc", described or "nothing", id=f"{name}-description"),
        *parts,
        role="img",
        aria_labelledby=f"{name}-title {name}-description",
        viewBox=f"0 0 {width} {height:g}",
    )


def _grid_line(value: int, top: int) -> Markup:
    y = f"{_height_of(value, top):.1f}"
    return element(
        "g",
        element("line", x1=_AXIS_LEFT, x2=COLUMNS_WIDTH, y1=y, y2=y, class_="grid"),
        element("text", f"{value:,}", x=_AXIS_LEFT - 8, y=y, class_="axis end middle"),
    )


def _stack(x: float, slot: float, column: Column, series: Sequence[str], top: int) -> Markup:
    told = [f"{each}: {value:,}" for each, value in zip(series, column.values, strict=True) if value]
    parts = [element("title", "\n".join([f"{column.label}: {sum(column.values):,}", *told]))]
    gap = min(slot * 0.2, 3)
    for number, (foot, head) in enumerate(pairwise(accumulate(column.values, initial=0))):
        if head > foot:
            y, height = _height_of(head, top), _height_of(foot, top) - _height_of(head, top)
            place = {
                "x": f"{x + gap / 2:.1f}",
                "y": f"{y:.1f}",
                "width": f"{slot - gap:.1f}",
                "height": f"{height:.1f}",
            }
            parts.append(element("rect", **place, class_=_series_class(number)))
    return element("g", *parts)


def _height_of(value: int, top: int) -> float:
    return _TOP + _PLOT_HEIGHT * (1 - value / top)


def _legend_entry(number: int, label: str, below: float) -> Markup:
    room = (COLUMNS_WIDTH - _AXIS_LEFT) / _LEGEND_COLUMNS
    x, y = _AXIS_LEFT + number % _LEGEND_COLUMNS * room, below + number // _LEGEND_COLUMNS * _LEGEND_ROW + 8
    return element(
        "g",
        element("title", label),
        element("rect", x=f"{x:.1f}", y=y, width=12, height=12, rx=2, class_=_series_class(number)),
        element("text", shortened(label, room - 24), x=f"{x + 18:.1f}", y=y + 6, class_="label middle"),
    )


def _series_class(number: int) -> str:
    return f"series-{number + 1}" if number < MOST_SERIES else "series-rest"


def _longest_label(columns: Sequence[Column]) -> float:
    return max(len(column.label) for column in columns) * _CHARACTER + 8 if columns else 1
