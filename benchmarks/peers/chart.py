"""The chart as SVG: a group of bars for each kind of work, one for each side. A line shows the range of the rounds.

The chart has its own colours for light and dark pages, a title for screen readers, and a title on each bar.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from benchmarks.peers.markup import Markup, element
from benchmarks.peers.results import BASE_SIDE, Row, Spread

_WIDTH: Final = 860
_LABEL: Final = 220
_VALUE: Final = 150
_ROW: Final = 20
_BAR: Final = 13
_HEADING: Final = 34

_STYLE: Final = Markup(
    "text{font:12px sans-serif;fill:#333}.heading{font-weight:bold}.ours{fill:#1f77b4}.theirs{fill:#a9b4c0}"
    ".range{stroke:#333;stroke-width:1.5}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.range{stroke:#ddd}.theirs{fill:#6b7683}.ours{fill:#5aa9e6}}"
)


def chart(rows: Sequence[Row]) -> str:
    """Rates of all kinds of work, p50 of the latencies, and bytes if only bytes were measured."""
    parts: list[Markup] = []
    y = 8
    for (stage, work), found in groupby(rows, key=lambda row: (row.stage, row.work)):
        name, unit = ("p50", "ms, p50") if stage == "latency" else ("rate", "messages/s")
        if stage == "disk" and work == "store":
            name, unit = "disk", "bytes on disk for each message"
        bars = [(row, spread) for row in found if (spread := row.figures.get(name)) is not None]
        if not bars:
            continue
        parts.append(element("text", f"{stage}, {work}: {unit}", x=8, y=y + 20, class_="heading"))
        y += _HEADING
        most = max(spread.most for _, spread in bars) or 1.0
        for row, spread in bars:
            parts.append(_bar(row, spread, most, y, digits=1 if name == "p50" else 0))
            y += _ROW
    title = element("title", "mqdb beside other brokers: median of the rounds, and their range")
    return element(
        "svg",
        title,
        element("style", _STYLE),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        role="img",
        viewBox=f"0 0 {_WIDTH} {y + 8}",
    )


def _bar(row: Row, spread: Spread, most: float, y: int, digits: int) -> Markup:
    room = _WIDTH - _LABEL - _VALUE

    def place(value: float) -> str:
        return f"{_LABEL + value / most * room:.1f}"

    label = f"{row.side} {row.way}".strip()
    value = f"{spread.median:,.{digits}f}"
    middle = y + _ROW / 2
    width = f"{max(spread.median / most * room, 1):.1f}"
    side = "ours" if row.side == BASE_SIDE else "theirs"
    return element(
        "g",
        element("title", f"{label}: {value} ({spread.least:,.{digits}f} to {spread.most:,.{digits}f})"),
        element("text", label, x=_LABEL - 8, y=middle + 4, text_anchor="end"),
        element("rect", x=_LABEL, y=y + (_ROW - _BAR) / 2, width=width, height=_BAR, class_=side),
        element("line", x1=place(spread.least), x2=place(spread.most), y1=middle, y2=middle, class_="range"),
        element("text", value, x=_WIDTH - _VALUE + 12, y=middle + 4),
    )
