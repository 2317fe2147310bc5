"""Rounds: two sides measured in turn, so that whatever slows the machine down slows both."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import psycopg

from mqdb.cli.bench.figures import Figure, Goal, Measurement, Series

#: Of mqdb with a transaction held open to mqdb without.
_GOAL_OF_PAIRS = Goal(0.9)


@dataclass(frozen=True, slots=True)
class Side:
    """Something that can be measured any number of times, and what that is."""

    label: str
    measure: Callable[[], Measurement]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What becomes a figure: the side that counts, its reference, and what is wanted of it."""

    name: str
    unit: str
    measured: Side
    reference: Side | None = None
    goals: Sequence[Goal] = ()
    lower_is_better: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """How often, and whether another session keeps a transaction open meanwhile.

    With `pairs` the measured side is compared with itself, so many times without and with such a transaction.
    """

    dsn: str
    rounds: int
    hold_transaction: bool = False
    pairs: int = 0
    announce: Callable[[str], None] = lambda _text: None

    def carry_out(self, comparison: Comparison) -> Figure:
        """The figure of a comparison."""
        if self.pairs:
            return self._carry_out_pairs(comparison)
        sides = [comparison.measured] + ([comparison.reference] if comparison.reference else [])
        with held_transaction(self.dsn) if self.hold_transaction else nullcontext():
            found = self._in_turn(comparison.name, sides, self.rounds)
        return self._figure(comparison, found, comparison.goals)

    def _carry_out_pairs(self, comparison: Comparison) -> Figure:
        measured = comparison.measured

        def measure_held() -> Measurement:
            with held_transaction(self.dsn):
                return measured.measure()

        sides = [
            Side(f"{measured.label}; a transaction is held open", measure_held),
            Side("the same, no transaction is held open", measured.measure),
        ]
        found = self._in_turn(comparison.name, sides, self.pairs)
        return self._figure(comparison, found, [_GOAL_OF_PAIRS])

    def _in_turn(self, name: str, sides: Sequence[Side], rounds: int) -> list[Series]:
        found: list[list[Measurement]] = [[] for _ in sides]
        for number in range(1, rounds + 1):
            for side, measurements in zip(sides, found, strict=True):
                self.announce(f"{name}, round {number} of {rounds}: {side.label}")
                measurements.append(side.measure())
        return [Series(side.label, measurements) for side, measurements in zip(sides, found, strict=True)]

    @staticmethod
    def _figure(comparison: Comparison, found: list[Series], goals: Sequence[Goal]) -> Figure:
        reference = found[1] if len(found) > 1 else None
        return Figure(comparison.name, comparison.unit, found[0], reference, goals, comparison.lower_is_better)


@contextmanager
def held_transaction(dsn: str) -> Iterator[None]:
    """A transaction with an id and a snapshot, open in a session that does nothing: a forgotten BEGIN."""
    with psycopg.connect(dsn, application_name="mqdb bench: holds a transaction") as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT pg_current_xact_id()")
        yield
        connection.rollback()
