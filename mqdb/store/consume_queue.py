"""Consume queues: which record stands at which offset of a queue. Read here, written by `mqdb.dispatch`.

Offsets are dense, so counting entries is subtracting offsets. RocketMQ: ConsumeQueue.
"""

from typing import Any

import psycopg
from psycopg.types.numeric import Int8BinaryLoader
from psycopg.types.string import ByteaBinaryLoader
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Select,
    and_,
    bindparam,
    cast,
    exists,
    func,
    literal_column,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY

from mqdb.store.engine import driver, text_of
from mqdb.store.tables import checkpoint, commit_log, consume_queue, queue

#: Short names in the text as well: psycopg parses one of more than 4,096 characters anew each time, 63 µs a pull.
cl = commit_log.alias("cl")
cq = consume_queue.alias("cq")

#: Constants of the text, not parameters: with LIMIT $1 the planner would expect a tenth of the table.
ZERO: ColumnElement[int] = literal_column("0", Integer)
ONE: ColumnElement[int] = literal_column("1", Integer)

_RECORD = (
    "log_pos",
    "msg_id",
    "tags",
    "keys",
    "properties",
    "body",
    "born_time",
    "store_time",
    "born_host",
    "reconsume_times",
    "flag",
    "sys_flag",
)


def _pull(tag_filter: bool) -> Select[Any]:
    """Entries of several queues with their records, and where each queue begins and ends. Uses consume_queue_offset.

    Parameters: queue_keys, offsets (arrays of one length); limit, scan_limit (entries looked at) and max_bytes (of
    bodies; the first is always given), each per queue; tag_codes; newest_segment (as the last answer said, 0 at
    first); and the window: first_segment, last_segment, lowest_pos, past_pos.
    A row for each entry, ordered by request and offset; a queue without any has one row with NULL entries.
    `is_covered` says that the entries to look at lie in the window: with a filter all of them, else the first, for
    then the answer shows itself how far it goes. The window is made of parameters, not of sub-selects, so that
    partitions are pruned before the executor opens them: each open partition costs time for each record.
    """
    keys, offsets = (cast(bindparam(name), ARRAY(type_)) for name, type_ in _REQUEST.items())
    request = (
        func.unnest(keys, offsets)
        .table_valued("queue_key", "first_offset", with_ordinality="ordinal", name="request")
        .render_derived("request")
    )
    # Core correlates one level deep; the entries stand two below the request.
    queue_key = literal_column("request.queue_key", Integer)
    first_offset = literal_column("request.first_offset", BigInteger)
    scan_limit = cast(bindparam("scan_limit"), BigInteger)
    in_window = and_(
        cq.c.queue_key == queue_key,
        cq.c.segment >= cast(bindparam("first_segment"), Integer),
        cq.c.segment <= cast(bindparam("last_segment"), Integer),
    )
    last = (
        select(cq.c.queue_offset + ONE)
        .where(cq.c.queue_key == queue_key, cq.c.segment >= cast(bindparam("newest_segment"), Integer))
        .order_by(cq.c.queue_offset.desc())
        .limit(ONE)
        .scalar_subquery()
    )
    # OFFSET 0 is a fence: pulled up, the sub-selects would run once for each entry.
    max_offset = func.coalesce(last, literal_column("queue.end_offset", BigInteger))
    end = select(max_offset.label("max_offset")).offset(ZERO).lateral("end")
    newest = (
        select(checkpoint.c.segment)
        .where(checkpoint.c.service == literal_column("'dispatch'"))
        .order_by(checkpoint.c.seq.desc())
        .limit(ONE)
        .scalar_subquery()
    )

    wanted = [in_window, cq.c.queue_offset >= first_offset, cq.c.queue_offset < first_offset + scan_limit]
    if tag_filter:
        wanted.append(cq.c.tags_code == func.any(cast(bindparam("tag_codes"), ARRAY(BigInteger))))
    # Bound to the primary key by the order asked for, with a range in place of an equality, for which the order would
    # say nothing: the plan is made while a segment is empty, and by cost alone might take the index that begins with
    # xid, and read all of it for each record.
    record = (
        select(*(cl.c[name] for name in _RECORD))
        .where(
            cl.c.log_pos >= cq.c.log_pos,
            cl.c.log_pos <= cq.c.log_pos,
            cl.c.log_pos >= cast(bindparam("lowest_pos"), BigInteger),
            cl.c.log_pos < cast(bindparam("past_pos"), BigInteger),
        )
        .order_by(cl.c.log_pos)
        .limit(ONE)
        .correlate(cq)
        .lateral("r")
    )
    found = (
        select(
            cq.c.queue_offset,
            cq.c.segment,
            cq.c.log_pos.label("entry_pos"),
            *(record.c[name] for name in _RECORD),
            func.coalesce(func.octet_length(record.c.body), ZERO).label("body_bytes"),
        )
        .select_from(cq.outerjoin(record, true()))
        .where(*wanted)
        .order_by(cq.c.queue_offset)
        .limit(cast(bindparam("limit"), BigInteger))
        .subquery("f")
    )
    before = func.sum(found.c.body_bytes).over(order_by=found.c.queue_offset, rows=(None, 0)) - found.c.body_bytes
    measured = select(found, before.label("bytes_before")).subquery("m")
    entry = select(measured).where(measured.c.bytes_before < cast(bindparam("max_bytes"), BigInteger)).lateral("e")
    its_queue = queue.alias("queue")
    sources = request.join(its_queue, its_queue.c.queue_key == request.c.queue_key).join(end, true())
    is_covered: ColumnElement[bool] = entry.c.queue_offset.is_not(None)
    if tag_filter:
        last_looked_at = func.least(first_offset + scan_limit, literal_column('"end".max_offset', BigInteger)) - ONE
        covered = exists(select(ONE).select_from(cq).where(in_window, cq.c.queue_offset == last_looked_at))
        cover = select(covered.label("is_covered")).offset(ZERO).lateral("cover")
        sources, is_covered = sources.join(cover, true()), cover.c.is_covered
    return (
        select(
            request.c.ordinal,
            its_queue.c.base_offset,
            end.c.max_offset,
            newest.label("newest_segment"),
            is_covered.label("is_covered"),
            entry.c.segment,
            entry.c.entry_pos,
            entry.c.queue_offset,
            *(entry.c[name] for name in _RECORD),
        )
        .select_from(sources.outerjoin(entry, true()))
        .order_by(request.c.ordinal, entry.c.queue_offset)
    )


_REQUEST = {"queue_keys": Integer(), "offsets": BigInteger()}
_ARRAYS = (*_REQUEST, "tag_codes")

PULL = text_of(_pull(tag_filter=False))
PULL_TAGS = text_of(_pull(tag_filter=True))

_CURSOR = "mqdb_pull_cursor"


def pull(connection: Connection, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Rows as `_pull` describes them, in the binary forms that ReceivedMessage works out when asked."""
    # Arrays as text: the driver's dumper of lists takes 8 µs for one number.
    arrays = {name: "{" + ",".join(map(str, parameters[name])) + "}" for name in _ARRAYS if name in parameters}
    statement = PULL_TAGS if "tag_codes" in parameters else PULL
    return _cursor(connection).execute(statement, parameters | arrays).fetchall()


def _cursor(connection: Connection) -> "psycopg.Cursor[tuple[Any, ...]]":
    """The cursor for pulls on a connection, made once: it takes 25 µs to make, a sixth of a pull of 32."""
    cursor: psycopg.Cursor[tuple[Any, ...]] | None = connection.info.get(_CURSOR)
    if cursor is None:
        cursor = connection.info[_CURSOR] = driver(connection).cursor(binary=True)
        for type_name in ("uuid", "jsonb"):
            cursor.adapters.register_loader(type_name, ByteaBinaryLoader)
        cursor.adapters.register_loader("timestamptz", Int8BinaryLoader)
    return cursor
