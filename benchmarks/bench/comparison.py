"""Rounds: the sides are measured in turn, so that a slow period of the machine slows all of them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from benchmarks.bench.figures import Figure, Goal, Measurement, Series

#: Of mqdb with a transaction held open to mqdb without.
_GOAL_OF_PAIRS = Goal(0.9)


@dataclass(frozen=True, slots=True)
class Side:
    """A measurement that can be repeated, with its description and its goals (`Series`)."""

    label: str
    measure: Callable[[], Measurement]
    goals: Sequence[Goal] = ()


@dataclass(frozen=True, slots=True)
class SideComparison:
    """The sides of a figure: the measured side, and its references."""

    name: str
    unit: str
    measured: Side
    references: Sequence[Side] = ()
    lower_is_better: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The number of rounds, and the transaction that another session holds open during them (`holding`).

    With pairs, the measured side is compared with itself: in `rounds` rounds with an open transaction, and in as many
    rounds without one.
    """

    rounds: int
    hold: Callable[[], AbstractContextManager[None]] = nullcontext
    in_pairs: bool = False
    announce: Callable[[str], None] = lambda _text: None

    def carry_out(self, comparison: SideComparison) -> Figure:
        """The figure of a comparison."""
        measured = comparison.measured
        if self.in_pairs:
            return self._figure(comparison, self._with_hold(measured), [self._without_hold(measured)])
        with self.hold():
            return self._figure(comparison, measured, comparison.references)

    def _with_hold(self, side: Side) -> Side:
        def measure() -> Measurement:
            with self.hold():
                return side.measure()

        return Side(f"{side.label}; a transaction is held open", measure)

    @staticmethod
    def _without_hold(side: Side) -> Side:
        return Side("the same, no transaction is held open", side.measure, [_GOAL_OF_PAIRS])

    def _figure(self, comparison: SideComparison, measured: Side, references: Sequence[Side]) -> Figure:
        found = self._in_turn(comparison.name, [measured, *references])
        return Figure(comparison.name, comparison.unit, found[0], found[1:], comparison.lower_is_better)

    def _in_turn(self, name: str, sides: Sequence[Side]) -> list[Series]:
        found: list[list[Measurement]] = [[] for _ in sides]
        for number in range(1, self.rounds + 1):
            for side, measurements in zip(sides, found, strict=True):
                self.announce(f"{name}, round {number} of {self.rounds}: {side.label}")
                measurements.append(side.measure())
        return [Series(side.label, rounds, side.goals) for side, rounds in zip(sides, found, strict=True)]
