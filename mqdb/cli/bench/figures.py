"""Figures: what was measured, beside what it is compared with and what it ought to be.

    Measurement   one round: a value and its details
    Series        the rounds of one side
    Figure        the measured side, its reference points from the same rounds, and what was wanted

The ratio of a figure is the median of the ratios of its rounds, not the ratio of the medians: a machine that slows
down for a while slows both sides of the same round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Measurement:
    """One round. `details` are further numbers of it by name, such as the CPU time of each message."""

    value: float
    details: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Series:
    """The rounds of one side, and what was done in them."""

    label: str
    rounds: Sequence[Measurement]

    @property
    def median(self) -> float:
        """The middle one of the values."""
        return median(each.value for each in self.rounds)

    def detail(self, name: str) -> float | None:
        """The middle one of a detail; None where a round does not have it."""
        values = [each.details[name] for each in self.rounds if name in each.details]
        return median(values) if len(values) == len(self.rounds) else None

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        names = sorted({name for each in self.rounds for name in each.details})
        details = {name: _rounded(self.detail(name)) for name in names}
        values = [_rounded(each.value) for each in self.rounds]
        return {"label": self.label, "median": _rounded(self.median), "rounds": values, "details": details}


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure ought to come to. `of` names a detail of the measured side, or is `ratio` or `value`."""

    bound: float
    of: str = "ratio"
    at_least: bool = True

    def is_reached(self, value: float) -> bool:
        """Whether a value is good enough."""
        return value >= self.bound if self.at_least else value <= self.bound


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of a report. Where `lower_is_better`, the ratio is turned round: above 1 is always better."""

    name: str
    unit: str
    measured: Series
    reference: Series | None = None
    goals: Sequence[Goal] = ()
    lower_is_better: bool = False

    @property
    def ratio(self) -> float | None:
        """Measured to reference; None without one."""
        if self.reference is None:
            return None
        pairs = zip(self.measured.rounds, self.reference.rounds, strict=True)
        ratios = [_quotient(ours.value, theirs.value) for ours, theirs in pairs]
        return median(1 / ratio if self.lower_is_better and ratio else ratio for ratio in ratios)

    def value_of(self, goal: Goal) -> float | None:
        """What the goal is about; None where this run does not have it."""
        if goal.of == "ratio":
            return self.ratio
        return self.measured.median if goal.of == "value" else self.measured.detail(goal.of)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        goals = []
        for goal in self.goals:
            value = self.value_of(goal)
            if value is not None:
                bound = {"at_least" if goal.at_least else "at_most": goal.bound}
                goals.append({"of": goal.of, **bound, "value": _rounded(value), "reached": goal.is_reached(value)})
        return {
            "name": self.name,
            "unit": self.unit,
            "measured": self.measured.as_json(),
            "reference": self.reference.as_json() if self.reference else None,
            "ratio": _rounded(self.ratio),
            "goals": goals,
        }


def _quotient(ours: float, theirs: float) -> float:
    return ours / theirs if theirs else 0.0


def _rounded(value: float | None) -> float | None:
    """To four digits behind the point, for people read JSON as well."""
    return None if value is None else round(value, 4)
