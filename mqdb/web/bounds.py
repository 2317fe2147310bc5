"""Limits on the series of a metric: users create topics and groups, and a monitor keeps each series for weeks."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias, TypeVar

#: The greatest number of series of one metric.
MOST_SERIES: Final = 10_000

#: The name of a topic or a group in the series that combines the rest.
OTHER: Final = "_other"

#: The values of the labels, and the number.
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
    """The rows; if there are more than `most`, the `most` - 1 rows of the highest rank, and one row for all others.

    A row whose names are all `_other` already counts among the others.
    """
    if len(rows) <= most:
        return rows
    ranked = sorted(rows, key=lambda row: (set(names(row)) != {OTHER}, rank(row)), reverse=True)
    return [*ranked[: most - 1], merge(ranked[most - 1 :])]


def bounded_counts(counts: Iterable[Count], most: int) -> Sequence[Count]:
    """The greatest counts, and the sum of the remaining counts."""

    def merge(rest: Sequence[Count]) -> Count:
        return (OTHER,) * len(rest[0][0]), sum(number for _, number in rest)

    return bounded(list(counts), most, names=lambda row: row[0], rank=lambda row: row[1], merge=merge)
