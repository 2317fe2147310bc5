"""Consume queues: the record at each offset of a queue. This module reads consume queues; `mqdb.dispatch` writes them.

Offsets are dense, so the difference between two offsets is the number of entries between them. RocketMQ: ConsumeQueue.
"""

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any, TypeAlias

import psycopg
from psycopg.pq import Format
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
    func,
    literal_column,
    or_,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql import FromClause

from mqdb.selector import Selector
from mqdb.selector.subscription import MessageFilter
from mqdb.selector.tags import TagExpression
from mqdb.store.dispatch.entries import entries, holds
from mqdb.store.engine import NumberedStatement, numbered, raw_cursor
from mqdb.store.filters.retry_filter import RetryFilter
from mqdb.store.log.history import is_current
from mqdb.store.log.properties import of_columns
from mqdb.store.tables import checkpoint, commit_log, queue, queue_run

cl = commit_log.alias("cl")
run = queue_run.alias("run")

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


Where: TypeAlias = Callable[[ColumnElement[Any], Mapping[str, ColumnElement[Any]]], ColumnElement[bool]]


def _pull(of_properties: Where | None = None, *, by_tags: bool = False) -> Select[Any]:
    """A pull of queues given by arrays of the same length: queue_keys, offsets, histories."""
    request = (
        func.unnest(*(cast(bindparam(name), ARRAY(type_)) for name, type_ in _REQUEST.items()))
        .table_valued("queue_key", "first_offset", "history", with_ordinality="ordinal", name="request")
        .render_derived("request")
    )
    return pull_from(request, of_properties, by_tags=by_tags)


def pull_from(request: FromClause, of_properties: Where | None = None, *, by_tags: bool = False) -> Select[Any]:
    """The entries of several queues with their records, and the ends of each queue. Uses queue_run_offset.

    `request` is a table with this name: queue_key, first_offset, history, ordinal. Parameters: limit, scan_limit
    (examined entries) and max_bytes (of bodies; the first is always returned), each per queue; newest_segment (from the
    last answer, 0 at first); and the window: first_segment, last_segment, lowest_pos, past_pos. Returns one row per
    entry, ordered by request and offset; a queue without entries has one row with NULL values. A queue that is gone, or
    from another history than the log's, has no row. The window may end before the scan limit. Without a filter the rows
    show how far the answer goes; with a filter of either kind, `looked_at` is the last examined entry, or NULL without
    entries in the window. The window consists of parameters, not sub-selects, so that partitions are pruned before the
    executor opens them: each open partition costs time for each record.
    """
    # Core correlates only one level deep, but the entries are two levels below the request.
    queue_key = literal_column("request.queue_key", Integer)
    first_offset = literal_column("request.first_offset", BigInteger)
    scan_limit = cast(bindparam("scan_limit"), BigInteger)
    first_segment = cast(bindparam("first_segment"), Integer)
    last_segment = cast(bindparam("last_segment"), Integer)
    last = (
        select(run.c.last_offset + ONE)
        .where(run.c.queue_key == queue_key, run.c.segment >= cast(bindparam("newest_segment"), Integer))
        .order_by(run.c.last_offset.desc())
        .limit(ONE)
        .scalar_subquery()
    )
    # OFFSET 0 is a fence: if pulled up, the sub-selects would run once per entry.
    max_offset = func.coalesce(last, literal_column("queue.end_offset", BigInteger))
    end = select(max_offset.label("max_offset")).offset(ZERO).lateral("end")
    newest = (
        select(checkpoint.c.segment)
        .where(checkpoint.c.service == literal_column("'dispatch'"))
        .order_by(checkpoint.c.seq.desc())
        .limit(ONE)
        .scalar_subquery()
    )

    past_offset = first_offset + scan_limit
    codes = [cast(bindparam("tag_codes"), ARRAY(BigInteger))] if by_tags else []
    cq = entries(queue_key, first_offset, past_offset, first_segment, last_segment, *codes, name="cq")
    # The order forces the primary key, and needs a range instead of an equality, for which it would have no effect: the
    # plan is made while a segment is empty, and by cost alone might use the index that starts with xid and read all of
    # it for each record.
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
    # An entry without its record is not a mismatch. The caller must see it, because its window may have been too small.
    wanted = (
        true()
        if of_properties is None
        else or_(record.c.log_pos.is_(None), of_properties(record.c.properties, of_columns(record)))
    )
    found = (
        select(
            cq.c.last_offset,
            cq.c.queue_offset,
            cq.c.segment,
            cq.c.log_pos.label("entry_pos"),
            *(record.c[name] for name in _RECORD),
            func.coalesce(func.octet_length(record.c.body), ZERO).label("body_bytes"),
        )
        .select_from(cq.outerjoin(record, true()))
        .where(wanted)
        .order_by(cq.c.last_offset)
        .limit(cast(bindparam("limit"), BigInteger))
        .subquery("f")
    )
    before = func.sum(found.c.body_bytes).over(order_by=found.c.last_offset, rows=(None, 0)) - found.c.body_bytes
    measured = select(found, before.label("bytes_before")).subquery("m")
    entry = select(measured).where(measured.c.bytes_before < cast(bindparam("max_bytes"), BigInteger)).lateral("e")
    its_queue = queue.alias("queue")
    is_there = and_(its_queue.c.queue_key == request.c.queue_key, is_current(request.c.history))
    sources = request.join(its_queue, is_there).join(end, true())
    how_far: tuple[ColumnElement[Any], ...] = ()
    if by_tags or of_properties is not None:
        looked_at = (
            select(func.least(run.c.last_offset, past_offset - ONE).label("queue_offset"), run.c.segment)
            .where(run.c.queue_key == queue_key, run.c.segment >= first_segment, run.c.segment <= last_segment)
            .where(*holds(run, first_offset, past_offset))
            .order_by(run.c.last_offset.desc())
            .limit(ONE)
            .lateral("looked_at")
        )
        sources = sources.outerjoin(looked_at, true())
        how_far = looked_at.c.queue_offset.label("looked_at"), looked_at.c.segment.label("looked_at_segment")
    return (
        select(
            request.c.ordinal,
            its_queue.c.base_offset,
            end.c.max_offset,
            newest.label("newest_segment"),
            entry.c.segment,
            entry.c.entry_pos,
            entry.c.queue_offset,
            *(entry.c[name] for name in _RECORD),
            *how_far,
        )
        .select_from(sources.outerjoin(entry, true()))
        .order_by(request.c.ordinal, entry.c.queue_offset)
    )


_REQUEST = {"queue_keys": Integer(), "offsets": BigInteger(), "histories": BigInteger()}
_ARRAYS = (*_REQUEST, "tag_codes")


@cache
def pull_statement() -> NumberedStatement:
    """The statement of a pull without a filter.

    The parameters are numbered, for a cursor that sends the text unchanged. Other cursors parse text of more than 4,096
    characters each time, which takes 63 µs, and a selector may have any length.
    """
    return numbered(_pull())


@cache
def _pull_tags() -> NumberedStatement:
    return numbered(_pull(by_tags=True))


@lru_cache(maxsize=256)
def _pull_selected(selector: Selector | RetryFilter) -> NumberedStatement:
    return numbered(_pull(selector.where))


def statement_of(message_filter: MessageFilter | None) -> NumberedStatement:
    """The statement of a pull with a filter. A selector's literals are parameters, too."""
    match message_filter:
        case None:
            return pull_statement()
        case TagExpression():
            return _pull_tags()
        case Selector() | RetryFilter():
            return _pull_selected(message_filter)
        case _:
            raise TypeError(message_filter)


_CURSOR = "mqdb_pull_cursor"


def pull(
    connection: Connection, parameters: Mapping[str, Any], message_filter: MessageFilter | None
) -> list[tuple[Any, ...]]:
    """Rows as described in `pull_from`, in the binary forms that ReceivedMessage decodes on demand."""
    return run_statement(connection, statement_of(message_filter), parameters, message_filter)


def run_statement(
    connection: Connection,
    statement: NumberedStatement,
    parameters: Mapping[str, Any],
    message_filter: MessageFilter | None,
) -> list[tuple[Any, ...]]:
    """The rows of a statement that was made from `pull_from` with this filter."""
    values = _values(statement, parameters, message_filter)
    return _cursor(connection).execute(statement.text, values).fetchall()


def explain(connection: Connection, parameters: Mapping[str, Any], message_filter: MessageFilter | None) -> list[str]:
    """The plan and the costs of the same pull, as readable lines. The pull is executed."""
    statement = statement_of(message_filter)
    text = b"EXPLAIN (ANALYZE, BUFFERS) " + statement.text
    values = _values(statement, parameters, message_filter)
    cursor = raw_cursor(connection)
    return [line for (line,) in cursor.execute(text, values, prepare=False)]


def _values(
    statement: NumberedStatement, parameters: Mapping[str, Any], message_filter: MessageFilter | None
) -> list[Any]:
    values = {**statement.literals, **parameters}
    if isinstance(message_filter, TagExpression):
        values["tag_codes"] = message_filter.codes
    # Arrays as text, because the driver's dumper for lists takes 8 µs for one number. But NULL has no text with the
    # same meaning in every session (array_nulls).
    for name in _ARRAYS:
        if name in values and None not in values[name]:
            values[name] = "{" + ",".join(map(str, values[name])) + "}"
    return [values[name] for name in statement.names]


def _cursor(connection: Connection) -> "psycopg.RawCursor[tuple[Any, ...]]":
    """The cursor for pulls on a connection, made once: making it takes 25 µs, a sixth of a pull of 32 messages."""
    cursor: psycopg.RawCursor[tuple[Any, ...]] | None = connection.info.get(_CURSOR)
    if cursor is None:
        cursor = connection.info[_CURSOR] = raw_cursor(connection)
        cursor.format = Format.BINARY
        for type_name in ("uuid", "jsonb"):
            cursor.adapters.register_loader(type_name, ByteaBinaryLoader)
        cursor.adapters.register_loader("timestamptz", Int8BinaryLoader)
    return cursor
