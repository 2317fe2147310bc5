"""What the driver hands to a task: statements with all values in their texts, and what has to hold around them.

Light on purpose: Spark's Python workers unpickle it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Read:
    """A statement that reads a part of a segment. `count` is how many rows it must give, None where nobody knows."""

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
    """What one Spark task reads. `min_offsets` and `max_offsets` are statements: keys of queues, and these offsets."""

    reads: tuple[Read, ...]
    checks: tuple[OffsetCheck, ...]
    min_offsets: str
    max_offsets: str
