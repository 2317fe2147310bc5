"""Unread queues: the queues, among many, with messages that a reader has not seen.

A reader of many queues runs two cheap queries before it pulls: whether dispatch has made progress at all, and then, in
one statement, which of its queues have changed.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    and_,
    bindparam,
    case,
    cast,
    exists,
    func,
    literal_column,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY

from mqdb.store.engine import NumberedStatement, numbered, raw_cursor, translates
from mqdb.store.log.history import History
from mqdb.store.tables import checkpoint, commit_log, dispatch_lane, queue, queue_run


class Progress(NamedTuple):
    """The progress of dispatch in a history of the log.

    As long as it does not change, no queue has received a message. `seq` is None while this is uncertain: a lane is
    open, or the record at `placed_pos`, the last one placed by its append, is not visible yet.
    """

    history: History
    seq: int | None
    segment: int
    placed_pos: int | None


@translates
def progress(connection: Connection) -> Progress:
    """Read the progress: one row of the index of checkpoints, whatever the number of queues.

    Uses checkpoint_pkey and commit_log_pkey.
    """
    statement = _progress()
    row = raw_cursor(connection).execute(statement.text, [statement.literals[name] for name in statement.names])
    found = row.fetchone()
    assert found is not None
    return Progress(*found)


@cache
def _progress() -> NumberedStatement:
    # A lane has its own checkpoints, and ends without another checkpoint of dispatch.
    history = func.mqdb.history(type_=BigInteger)
    placed_pos = func.pg_sequence_last_value(literal_column("'mqdb.placed'"), type_=BigInteger).bitwise_xor(history)
    placed = select(placed_pos.label("log_pos")).cte("placed").prefix_with("MATERIALIZED")
    log_pos = select(placed.c.log_pos).scalar_subquery()
    is_visible = exists(
        select(commit_log.c.log_pos).where(commit_log.c.log_pos >= log_pos, commit_log.c.log_pos <= log_pos)
    )
    knows = and_(~exists(select(dispatch_lane.c.service)), or_(log_pos.is_(None), is_visible))
    newest = select(history, case((knows, checkpoint.c.seq)), checkpoint.c.segment, log_pos).where(
        checkpoint.c.service == literal_column("'dispatch'")
    )
    return numbered(newest.order_by(checkpoint.c.seq.desc()).limit(literal_column("1")))


@translates
def unread(
    connection: Connection, queue_keys: Sequence[int], offsets: Sequence[int], newest_segment: int
) -> frozenset[int]:
    """The keys of the queues that do not end at the given offset, or start after it.

    `newest_segment` comes from a `Progress` read before. Uses queue_run_offset.
    """
    statement = unread_statement()
    values: dict[str, object] = {
        **statement.literals,
        # As text, because the driver's dumper for lists is slow.
        "queue_keys": "{" + ",".join(map(str, queue_keys)) + "}",
        "offsets": "{" + ",".join(map(str, offsets)) + "}",
        "newest_segment": newest_segment,
    }
    rows = raw_cursor(connection).execute(statement.text, [values[name] for name in statement.names])
    return frozenset(key for (key,) in rows)


@cache
def unread_statement() -> NumberedStatement:
    """Parameters: queue_keys, offsets (arrays of the same length, as text) and newest_segment."""
    keys, offsets = cast(bindparam("queue_keys"), ARRAY(Integer)), cast(bindparam("offsets"), ARRAY(BigInteger))
    known = func.unnest(keys, offsets).table_valued("queue_key", "known_offset", name="known").render_derived("known")
    last = (
        select(queue_run.c.last_offset + literal_column("1"))
        .where(
            queue_run.c.queue_key == queue.c.queue_key,
            queue_run.c.segment >= cast(bindparam("newest_segment"), Integer),
        )
        .order_by(queue_run.c.last_offset.desc())
        .limit(literal_column("1"))
        .correlate(queue)
        .scalar_subquery()
    )
    its_offset = cast(known.c.known_offset, BigInteger)
    has_moved = or_(func.coalesce(last, queue.c.end_offset) != its_offset, queue.c.base_offset > its_offset)
    return numbered(
        select(queue.c.queue_key).join_from(known, queue, queue.c.queue_key == known.c.queue_key).where(has_moved)
    )
