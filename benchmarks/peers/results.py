"""Results of a run: medians, ranges, and ratios to mqdb in the same round. This module measures nothing."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

BASE_SIDE: Final = "mqdb"

#: The figures of a measurement, in the order of the table.
FIGURES: Final = (
    "rate",
    "sent_rate",
    "late",
    "p50",
    "p99",
    "server_us",
    "client_us",
    "wal",
    "wal_records",
    "disk",
    "foreign",
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One side in one round, and whether the measurement was kept."""

    stage: str
    work: str
    side: str
    way: str
    round: int
    #: Thrown away: the machine was busy with something else.
    is_kept: bool
    figures: Mapping[str, float | None]

    def as_json(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "work": self.work,
            "side": self.side,
            "way": self.way,
            "round": self.round,
            "kept": self.is_kept,
            **{name: _rounded(value) for name, value in self.figures.items()},
        }

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> "Measurement":
        figures = {name: line[name] for name in ("count", *FIGURES) if name in line}
        return cls(line["stage"], line["work"], line["side"], line["way"], line["round"], line["kept"], figures)


@dataclass(frozen=True, slots=True)
class Spread:
    """The median and the range of the rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Spread | None":
        known = [value for value in values if value is not None]
        return cls(statistics.median(known), min(known), max(known)) if known else None


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: all rounds of one side and one kind of work."""

    stage: str
    work: str
    side: str
    way: str
    kept: int
    discarded: int
    figures: Mapping[str, Spread | None]
    #: mqdb's rate through this one's, and the same of the latencies' medians; each within one round.
    rate_ratio: Spread | None
    latency_ratio: Spread | None


def until_quiet(
    measure: Callable[[], Mapping[str, float | None]], most_foreign: float, tries: int
) -> Sequence[tuple[bool, Mapping[str, float | None]]]:
    """Measure until other programs use at most `most_foreign` CPUs, but at most `tries` times.

    Returns each try, and whether to keep it.

    The last try is the quiet one. If no try was quiet, none is kept.
    """
    found: list[tuple[bool, Mapping[str, float | None]]] = []
    while len(found) < tries:
        figures = measure()
        is_quiet = (figures.get("foreign") or 0.0) <= most_foreign
        found.append((is_quiet, figures))
        if is_quiet:
            break
    return found


def summarise(measurements: Sequence[Measurement]) -> list[Row]:
    """A row for each side and way, in the order in which stages and kinds of work were first measured.

    Mqdb comes first.
    """
    groups: dict[tuple[str, str], dict[tuple[str, str], list[Measurement]]] = {}
    for each in measurements:
        groups.setdefault((each.stage, each.work), {}).setdefault((each.side, each.way), []).append(each)
    rows = []
    for (stage, work), sides in groups.items():
        base = _base(sides)
        for (side, way), rounds in sorted(sides.items(), key=lambda item: _place(*item[0])):
            kept = [each for each in rounds if each.is_kept]
            figures = {name: Spread.of(each.figures.get(name) for each in kept) for name in FIGURES}
            ratios = [_ratios(base, kept, name) for name in ("rate", "p50")]
            rows.append(Row(stage, work, side, way, len(kept), len(rounds) - len(kept), figures, *ratios))
    return rows


def _place(side: str, way: str) -> tuple[int, int, str, str]:
    return side != BASE_SIDE, way != "push", side, way


def _base(sides: Mapping[tuple[str, str], Sequence[Measurement]]) -> Mapping[int, Measurement]:
    """mqdb's kept measurements by round, in its default way."""
    ways = sorted((key for key in sides if key[0] == BASE_SIDE), key=lambda key: _place(*key))
    return {each.round: each for each in sides[ways[0]] if each.is_kept} if ways else {}


def _ratios(base: Mapping[int, Measurement], kept: Sequence[Measurement], name: str) -> Spread | None:
    ratios = []
    for each in kept:
        ours = base[each.round].figures.get(name) if each.round in base else None
        theirs = each.figures.get(name)
        if ours is not None and theirs:
            ratios.append(ours / theirs)
    return Spread.of(ratios)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
