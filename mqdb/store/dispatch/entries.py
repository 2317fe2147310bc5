"""The entries of the consume queues, for use in statements. A row of `queue_run` holds up to 100 entries.

An entry gives the record at an offset of a queue, and the code of its tag. RocketMQ: ConsumeQueue.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Integer,
    Label,
    Subquery,
    TableValuedAlias,
    column,
    func,
    literal_column,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY

#: Above all offsets, and all segments.
LAST_OFFSET: Final = literal_column("9223372036854775807", BigInteger)
LAST_SEGMENT: Final = literal_column("2147483647", Integer)

#: Above all offsets that there will ever be, but small enough for additions without overflow.
_FAR: Final = literal_column("(1::bigint << 62)", BigInteger)

#: The maximum number of entries in a run.
_LONGEST: Final = literal_column("100", Integer)
_ONE: Final = literal_column("1", Integer)
_NONE: Final = literal_column("0", Integer)


def entries(
    queue_key: ColumnElement[int],
    first: ColumnElement[int],
    past: ColumnElement[int] = LAST_OFFSET,
    first_segment: ColumnElement[int] = _NONE,
    last_segment: ColumnElement[int] = LAST_SEGMENT,
    *codes: ColumnElement[Any],
    name: str = "entry",
) -> TableValuedAlias:
    """The entries of a queue from one offset to before another: queue_offset, log_pos, tags_code, segment, last_offset.

    With `codes`, an array, only entries with one of these codes are returned. A statement that orders by last_offset
    and joins only LATERAL gets the entries in the order of offsets (`mqdb/sql/dispatch/consume_queue.sql`). Uses
    queue_run_offset. PostgreSQL inlines the function as long as no argument is a sub-select: a limit reads no further
    than necessary, and partitions are pruned.
    """
    columns = (
        column("queue_offset", BigInteger),
        column("log_pos", BigInteger),
        column("tags_code", BigInteger),
        column("segment", Integer),
        column("last_offset", BigInteger),
    )
    return func.mqdb.entries(queue_key, first, past, first_segment, last_segment, *codes).table_valued(
        *columns, name=name
    )


def entries_of(
    run: FromClause, *conditions: ColumnElement[bool], columns: Sequence[Label[Any]] = (), is_ordered: bool = False
) -> Subquery:
    """The entries of the runs that meet the conditions, in the order of their offsets, or in no order.

    Columns: queue_offset, log_pos, tags_code, queue_key, last_offset, and others of `run`, which is a partition. This
    is for statements that read many entries and may sort or hash them: without an order their rows are narrow, because
    they do not contain the arrays.
    """
    steps_back = func.mqdb.steps_back(type_=ARRAY(Integer))[_LONGEST + _ONE - _length(run) : _LONGEST]
    rows = select(*run.c, *columns, func.unnest(steps_back, type_=Integer).label("back")).where(*conditions)
    row = (rows.order_by(run.c.last_offset) if is_ordered else rows).subquery("row_of_run")

    def at_step(array: ColumnElement[Any], lone: ColumnElement[int]) -> ColumnElement[int]:
        return func.coalesce(array[func.cardinality(array) - row.c.back], lone)

    entry = select(
        (row.c.last_offset - row.c.back).label("queue_offset"),
        at_step(row.c.positions, row.c.log_pos).label("log_pos"),
        at_step(row.c.codes, row.c.tags_code).label("tags_code"),
        row.c.queue_key,
        row.c.last_offset,
        *(row.c[each.key] for each in columns),
    )
    return (entry if is_ordered else entry.offset(_NONE)).subquery("cq")


def first_offset(run: FromClause) -> ColumnElement[int]:
    """The offset of the first entry of a run."""
    return run.c.last_offset - _length(run) + _ONE


def _length(run: FromClause) -> ColumnElement[int]:
    return func.coalesce(func.cardinality(run.c.positions), _ONE)


def holds(run: FromClause, first: ColumnElement[int], past: ColumnElement[int]) -> list[ColumnElement[bool]]:
    """Conditions for whether a run has entries from one offset to before another; two of them are for the index."""
    return [
        run.c.last_offset >= first,
        run.c.last_offset < func.least(past, _FAR) + _LONGEST - _ONE,
        first_offset(run) < past,
    ]
