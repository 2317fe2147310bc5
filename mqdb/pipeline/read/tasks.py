"""The tasks that the driver makes: statements with all values as literals, and checks to run with them.

This module imports little, because Spark's Python workers import it to unpickle tasks.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Read:
    """A statement that reads part of a segment. `count` is the number of rows it must return, or None if unknown."""

    statement: str
    what: str
    is_slice: bool
    count: int | None


@dataclass(frozen=True)
class OffsetCheck:
    """A check that offsets from `first` to before `past` of a queue exist."""

    queue_key: int
    queue: str
    first: int
    past: int


@dataclass(frozen=True)
class Task:
    """The work of one Spark task.

    The statements `min_offsets` and `max_offsets` return queue keys with these offsets.
    """

    reads: tuple[Read, ...]
    checks: tuple[OffsetCheck, ...]
    min_offsets: str
    max_offsets: str
