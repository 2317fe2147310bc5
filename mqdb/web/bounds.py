"""Bounds on how many series a metric has: users make topics and groups, and a monitor keeps each series for weeks."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias, TypeVar

#: Series of one metric.
MOST_SERIES: Final = 10_000

#: The name of a topic or a group in the series that stands for the rest.
OTHER: Final = "_other"

#: A number and its names: the values of the labels.
Count: TypeAlias = tuple[tuple[str, ...], float]

_Row = TypeVar("_Row")


def bounded(
    rows: Sequence[_Row],
    most: int,
    *,
    names: Callable[[_Row], tuple[str, ...]],
    rank: Callable[[_Row], float],
    merge: Callable[[Sequence[_Row]], _Row],
) -> Sequence[_Row]:
    """The rows, or the `most` - 1 of the highest rank, and one for all others.

    A row whose names are all `_other` already is one of the others.
    """
    if len(rows) <= most:
        return rows
    ranked = sorted(rows, key=lambda row: (set(names(row)) != {OTHER}, rank(row)), reverse=True)
    return [*ranked[: most - 1], merge(ranked[most - 1 :])]


def bounded_counts(counts: Iterable[Count], most: int) -> Sequence[Count]:
    """The greatest counts, and the sum of the others."""

    def merge(rest: Sequence[Count]) -> Count:
        return (OTHER,) * len(rest[0][0]), sum(number for _, number in rest)

    return bounded(list(counts), most, names=lambda row: row[0], rank=lambda row: row[1], merge=merge)
