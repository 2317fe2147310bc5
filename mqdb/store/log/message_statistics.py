"""The number of messages by topic, tag and hour, and the times between storing and dispatching them.

The transaction of a dispatch batch writes the batch's entries and its checkpoint, so both rows have the same xmin: it
shows exactly which batch assigned a message's offset, even for a straggler, and when. VACUUM does not change xmin. The
statistics reach back as far as checkpoints are kept (`KeeperConfig.checkpoints_kept`), and not across the adoption of a
restored database, whose rows were written by other transactions. Messages dispatched earlier have no time in these
statistics. A message that was placed by its append has no xid, and did not wait. In SQL: `mqdb/sql/dispatch/adopt.sql`.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    DateTime,
    Integer,
    Select,
    Text,
    and_,
    case,
    cast,
    func,
    literal,
    literal_column,
    select,
)
from sqlalchemy.types import TypeEngine, UserDefinedType

from mqdb.store.dispatch.entries import entries_of
from mqdb.store.fragments import array_of, given
from mqdb.store.tables import checkpoint, queue_run
from mqdb.store.topics.topic_ranges import OffsetRange, log_of, partition

#: Times to dispatch are counted in tenths of a millisecond, so that few distinct times have to be transferred.
TICKS_PER_SECOND: Final = 10_000


class _Xid(UserDefinedType[str]):
    """The type xid: the 32 bits of a transaction id in a row. A str in Python."""

    cache_ok = True

    def get_col_spec(self, **_keywords: Any) -> str:
        """The name of the type in DDL."""
        return "xid"


_TIME: Final = DateTime(timezone=True)
_BATCH: Final[dict[str, TypeEngine[Any]]] = {"xid": _Xid(), "written_at": _TIME}
_WANTED: Final[dict[str, TypeEngine[Any]]] = {
    "topic": Text(),
    "queue_key": Integer(),
    "first": BigInteger(),
    "past": BigInteger(),
}


class Batch(NamedTuple):
    """A dispatch batch: its transaction id, as shown in rows, and the broker's time just before the commit."""

    xid: str
    written_at: datetime


class Wanted(NamedTuple):
    """Offsets of a topic's queue, all of them in the counted segment."""

    topic: str
    range: OffsetRange


def batches(connection: Connection) -> dict[int, list[Batch]]:
    """The dispatch batches that are still known, by the segment to which they wrote."""
    is_dispatch = checkpoint.c.service == "dispatch"
    # Only a migration and mqdb.adopt() write such a checkpoint: between equal snapshots dispatch only has stragglers to
    # process.
    is_begin = and_(
        cast(checkpoint.c.prev, Text) == cast(checkpoint.c.cur, Text), checkpoint.c.stragglers_cur.is_(None)
    )
    begin = select(func.coalesce(func.max(checkpoint.c.seq), -1)).where(is_dispatch, is_begin).scalar_subquery()
    xid = cast(literal_column("checkpoint.xmin"), Text)
    known = select(checkpoint.c.segment, xid, checkpoint.c.written_at).where(is_dispatch, checkpoint.c.seq > begin)
    by_segment: dict[int, list[Batch]] = defaultdict(list)
    for segment, *batch in connection.execute(known):
        by_segment[segment].append(Batch(*batch))
    return by_segment


def hourly(
    segment: int,
    log_segments: Sequence[int],
    wanted: Sequence[Wanted],
    known: Sequence[Batch],
    since: datetime | None,
    until: datetime | None,
) -> Select[Any]:
    """Messages of one segment, counted by topic, tag, hour of store_time in UTC, and time to dispatch in ticks.

    The time is NULL for batches that are not in `known`. Bytes are those of the stored bodies. The statement names the
    partitions, so it neither waits for other sessions nor blocks them; `log_segments` are those to which the entries
    point.
    """
    run = partition(queue_run, segment).alias("run")
    keys = array_of([each.range.queue_key for each in wanted])
    xmin = literal_column("run.xmin", _Xid).label("xmin")
    cq = entries_of(run, run.c.queue_key == func.any(keys), columns=[xmin])
    cl = log_of(log_segments)
    queues = given(_WANTED, [(each.topic, *each.range) for each in wanted])
    batch = given(_BATCH, known).alias("batch")
    source = (
        cq.join(cl, cl.c.log_pos == cq.c.log_pos)
        .join(queues, cast(queues.c.queue_key, Integer) == cq.c.queue_key)
        .outerjoin(batch, cast(batch.c.xid, _Xid) == cq.c.xmin)
    )
    hour = func.date_trunc("hour", cl.c.store_time, literal("UTC", Text), type_=_TIME)
    seconds = func.date_part("epoch", cast(batch.c.written_at, _TIME) - cl.c.store_time)
    ticks = case(
        (cl.c.xid.is_(None), literal_column("0")), else_=cast(func.floor(seconds * TICKS_PER_SECOND), BigInteger)
    )
    groups: list[ColumnElement[Any]] = [cast(queues.c.topic, Text).label("topic"), cl.c.tags.label("tag")]
    groups += [hour.label("hour"), ticks.label("ticks")]
    conditions = [
        cq.c.queue_offset >= cast(queues.c.first, BigInteger),
        cq.c.queue_offset < cast(queues.c.past, BigInteger),
    ]
    if since is not None:
        conditions.append(cl.c.store_time >= since)
    if until is not None:
        conditions.append(cl.c.store_time < until)
    counts = func.count().label("messages"), cast(func.sum(func.octet_length(cl.c.body)), BigInteger).label("bytes")
    return select(*groups, *counts).select_from(source).where(*conditions).group_by(*groups)
