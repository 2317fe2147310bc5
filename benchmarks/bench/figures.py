"""Figures: measurements, with their references and goals.

    Measurement   one round: a value and its details
    Series        the rounds of one side, and its goals
    Figure        the measured side, and the reference points from the same rounds

A ratio is the median of the ratios of the rounds, not the ratio of the medians: a machine that slows down for a while
slows both sides of the same round.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

#: The name of what is measured, among the names of its details.
VALUE: Final = "value"

_PERCENTS: Final = (50, 99)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One round. `details` are further numbers of the round by name, such as the CPU time of each message."""

    value: float
    details: Mapping[str, float] = field(default_factory=dict)

    def get(self, name: str) -> float | None:
        """The value or a detail; None if the round does not have this detail."""
        return self.value if name == VALUE else self.details.get(name)


@dataclass(frozen=True, slots=True)
class Goal:
    """The limit that a number should reach: the value, or the detail that `of` names."""

    bound: float
    of: str = VALUE
    at_least: bool = True

    def is_reached(self, value: float) -> bool:
        """Whether a value reaches the goal."""
        return value >= self.bound if self.at_least else value <= self.bound


@dataclass(frozen=True, slots=True)
class Series:
    """The rounds of one side.

    Goals of the measured side apply to its numbers; goals of a reference apply to the ratio of the measured side to it.
    """

    label: str
    rounds: Sequence[Measurement]
    goals: Sequence[Goal] = ()

    @property
    def median(self) -> float:
        """The median of the values."""
        return median(each.value for each in self.rounds)

    @property
    def details(self) -> list[str]:
        """The names of all details."""
        return sorted({name for each in self.rounds for name in each.details})

    def number(self, name: str) -> float | None:
        """The median of the values, or of a detail; None if a round does not have this detail."""
        numbers = [number for each in self.rounds if (number := each.get(name)) is not None]
        return median(numbers) if len(numbers) == len(self.rounds) else None

    def as_json(self) -> dict[str, Any]:
        """The series as JSON."""
        details = {name: _rounded(self.number(name)) for name in self.details}
        values = [_rounded(each.value) for each in self.rounds]
        return {"label": self.label, "median": _rounded(self.median), "rounds": values, "details": details}


@dataclass(frozen=True, slots=True)
class Figure:
    """One part of a report. With `lower_is_better`, ratios of the value are inverted: above 1 is always better."""

    name: str
    unit: str
    measured: Series
    references: Sequence[Series] = ()
    lower_is_better: bool = False

    def ratio_to(self, reference: Series, name: str = VALUE) -> float | None:
        """The ratio of measured side to reference, for the value or a detail.

        None if a round does not have this detail.
        """
        ratios = []
        for ours, theirs in zip(self.measured.rounds, reference.rounds, strict=True):
            numbers = ours.get(name), theirs.get(name)
            if numbers[0] is None or numbers[1] is None:
                return None
            ratios.append(_quotient(numbers[0], numbers[1]))
        if name == VALUE and self.lower_is_better:
            ratios = [1 / ratio if ratio else ratio for ratio in ratios]
        return median(ratios)

    def as_json(self) -> dict[str, Any]:
        """The figure as JSON."""
        goals = [_goal_as_json(goal, self.measured.number(goal.of), None) for goal in self.measured.goals]
        for reference in self.references:
            goals += [_goal_as_json(goal, self.ratio_to(reference, goal.of), reference) for goal in reference.goals]
        return {
            "name": self.name,
            "unit": self.unit,
            "measured": self.measured.as_json(),
            "references": [each.as_json() | {"ratio": _rounded(self.ratio_to(each))} for each in self.references],
            "goals": [goal for goal in goals if goal is not None],
        }


def durations(seconds: Sequence[float]) -> dict[str, float]:
    """The durations of a round's operations as details: percentiles in milliseconds."""
    ranked = sorted(seconds)
    return {f"p{percent}_ms": percentile(ranked, percent) * 1e3 for percent in _PERCENTS} if ranked else {}


def percentile(ranked: Sequence[float], percent: float) -> float:
    """The smallest of the ascending values that `percent` percent of them do not exceed."""
    return ranked[max(math.ceil(len(ranked) * percent / 100), 1) - 1]


def _goal_as_json(goal: Goal, number: float | None, reference: Series | None) -> dict[str, Any] | None:
    if number is None:
        return None
    of = {"of": goal.of} if reference is None else {"ratio_of": goal.of, "to": reference.label}
    bound = {"at_least" if goal.at_least else "at_most": goal.bound}
    return {**of, **bound, "found": _rounded(number), "reached": goal.is_reached(number)}


def _quotient(ours: float, theirs: float) -> float:
    return ours / theirs if theirs else 0.0


def _rounded(value: float | None) -> float | None:
    """A number with four decimal places, because people read JSON as well."""
    return None if value is None else round(value, 4)
