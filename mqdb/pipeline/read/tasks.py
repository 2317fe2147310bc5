"""The tasks that the driver makes: statements with all values in their texts, and checks to run around them.

This module imports little, because Spark's Python workers import it to unpickle tasks.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Read:
    """A statement that reads a part of a segment. `count` is the number of rows it must give, or None if unknown."""

    statement: str
    what: str
    is_slice: bool
    count: int | None


@dataclass(frozen=True)
class OffsetCheck:
    """Offsets `first` to before `past` of a queue have to be there."""

    queue_key: int
    queue: str
    first: int
    past: int


@dataclass(frozen=True)
class Task:
    """The work of one Spark task. `min_offsets` and `max_offsets` are statements: keys of queues, and these offsets."""

    reads: tuple[Read, ...]
    checks: tuple[OffsetCheck, ...]
    min_offsets: str
    max_offsets: str
