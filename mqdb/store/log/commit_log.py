"""The commit log: records in order of arrival, written once.

An append is one INSERT, without a counter and without waiting for a lock. The record's position comes from a sequence.
While the dispatcher sleeps and no other session appends, the statement also gives the record its offset in the queue,
and notifies the consumers; otherwise dispatch does. In SQL: `mqdb/sql/dispatch/take_places.sql`. RocketMQ: CommitLog.

Records with a later time of delivery are appended by another statement, in which the database decides where each record
goes: the delivery time is by its clock, and the current levels apply. This statement can also append records that do
not wait.
"""

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    DateTime,
    Integer,
    LargeBinary,
    Text,
    bindparam,
    case,
    cast,
    func,
    insert,
    literal_column,
    null,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, array
from sqlalchemy.dialects.postgresql import UUID as PgUUID
from sqlalchemy.sql import FromClause
from sqlalchemy.sql.functions import Function
from sqlalchemy.sql.selectable import LateralFromClause
from sqlalchemy.types import TypeEngine

from mqdb.common.delivery_schedule import Wait
from mqdb.store.log.history import History, is_current
from mqdb.store.log.queue_fence import or_refused
from mqdb.store.prepared import PreparedStatement
from mqdb.store.schedule.placement import WAIT_TYPES, clock, placed
from mqdb.store.tables import commit_log, live_queue


class Record(NamedTuple):
    """A record to append. `properties` is JSON text; `keys` are separated by blanks.

    A record with a `wait` first goes to a system queue, and `queue_key` is its target queue. `history` is the history
    of the log in which the key was found; None means any history.
    """

    queue_key: int
    tags_code: int
    born_time: datetime
    msg_id: UUID
    born_host: str
    tags: str | None
    keys: str | None
    properties: str
    body: bytes
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    wait: Wait | None = None
    history: History | None = None

    def columns(self) -> dict[str, Any]:
        """The values of a record, by its column names in the log."""
        return dict(zip(_TYPES, self, strict=False))


_TYPES: dict[str, TypeEngine[Any]] = {
    "queue_key": Integer(),
    "tags_code": BigInteger(),
    "born_time": DateTime(timezone=True),
    "msg_id": PgUUID(),
    "born_host": Text(),
    "tags": Text(),
    "keys": Text(),
    "properties": JSONB(),
    "body": LargeBinary(),
    "flag": Integer(),
    "sys_flag": Integer(),
    "reconsume_times": Integer(),
}


class LogPlace(NamedTuple):
    """The place of a record. `queue_offset` is None if dispatch has yet to assign it."""

    log_pos: int
    queue_offset: int | None = None


_OWN_XID: Final = func.pg_current_xact_id()
_NEXT_POS: Final = func.nextval(literal_column("'mqdb.log_pos'"), type_=BigInteger)

#: The place of a single record, as text: take_places leaves it in a setting, which is cheaper than a CTE.
_PLACED_OFFSET: Final = func.nullif(
    func.current_setting(literal_column("'mqdb.placed_offset'"), true()), literal_column("''")
)


@cache
def append_one(*, places: bool) -> PreparedStatement:
    """Append one record. The record is refused if its queue is gone or from another history.

    With `places`, the statement tries to assign the offset immediately; only the owner may do this, in a transaction
    that ends with the statement.
    """
    values: dict[str, Any] = {name: bindparam(name, type_=type_) for name, type_ in _TYPES.items()}
    queue_key = values["queue_key"]
    values["queue_key"] = _queue_that_is_there(queue_key, bindparam("history", type_=BigInteger))
    if not places:
        return PreparedStatement(insert(commit_log).values(values).returning(*_UNPLACED), Record._fields)
    taken = _taken(array([queue_key]), array([values["tags_code"]]))
    all_values = {
        "xid": case((taken.is_(None), _OWN_XID)),
        "log_pos": case((_PLACED_OFFSET.is_(None), _NEXT_POS), else_=func.currval(literal_column("'mqdb.log_pos'"))),
        **values,
    }
    statement = insert(commit_log).values(all_values).returning(commit_log.c.log_pos, cast(_PLACED_OFFSET, BigInteger))
    return PreparedStatement(statement, Record._fields)


def _taken(queue_keys: ColumnElement[Any], codes: ColumnElement[Any]) -> ColumnElement[Any]:
    """The positions and offsets assigned by the function; NULL if dispatch has to assign them.

    The result is in the column `xid`, which comes before `log_pos`: PostgreSQL computes a row in the order of the
    table's columns.
    """
    lets_place = func.pg_sequence_last_value(literal_column("'mqdb.dispatcher_state'")) == literal_column("1")
    return case((lets_place, func.mqdb.take_places(queue_keys, codes, type_=ARRAY(BigInteger))))


#: The result of appending a record whose offset dispatch assigns.
_UNPLACED: Final = (commit_log.c.log_pos, cast(null(), BigInteger))


#: Columns that often have the same value in all records of a batch.
SHARABLE: Final = ("queue_key", "born_time", "born_host", "flag", "sys_flag", "reconsume_times", "history")

#: The values given for each record, and those of them that are stored.
_GIVEN: Final = _TYPES | {"history": BigInteger()}


@cache
def append_many(shared: tuple[str, ...] = (), *, places: bool) -> PreparedStatement:
    """Append any number of records, in the given order: as fast as COPY, but returns places.

    `places` is as in `append_one`.

    A value that all records share is passed only once, so the statement has fewer arrays and looks up each queue once.
    """
    own = {name: type_ for name, type_ in _GIVEN.items() if name not in shared}
    given = _arrays(own).table_valued(*own, with_ordinality="place", name="given").render_derived("given")
    columns = {
        name: cast(given.c[name] if name in own else bindparam(name, type_=type_), type_)
        for name, type_ in _GIVEN.items()
    }
    history = columns.pop("history")
    values = columns | {"queue_key": _queue_that_is_there(columns["queue_key"], history)}
    if not places:
        rows = select(*values.values()).select_from(given)
        return PreparedStatement(
            insert(commit_log).from_select(list(values), rows).returning(*_UNPLACED), Record._fields
        )
    codes = bindparam("tags_code", type_=ARRAY(BigInteger))
    queue_keys: ColumnElement[Any] = bindparam("queue_key", type_=ARRAY(Integer))
    if "queue_key" in shared:
        queue_keys = func.array_fill(bindparam("queue_key", type_=Integer), array([func.cardinality(codes)]))
    place = select(_taken(queue_keys, codes).label("taken")).cte("place").prefix_with("MATERIALIZED")
    taken = select(place.c.taken).scalar_subquery()
    first: ColumnElement[Any] = literal_column("1")
    log_pos = place.c.taken[first] + cast(given.c.place, BigInteger) - literal_column("1")
    all_values = {"xid": case((log_pos.is_(None), _OWN_XID)), "log_pos": func.coalesce(log_pos, _NEXT_POS), **values}
    offset = taken[commit_log.c.log_pos - taken[first] + literal_column("2")]
    rows = select(*all_values.values()).select_from(place.join(given, true()))
    statement = insert(commit_log).from_select(list(all_values), rows).returning(commit_log.c.log_pos, offset)
    return PreparedStatement(statement, Record._fields)


@cache
def append_waiting() -> PreparedStatement:
    """Append any number of records, some of which wait, in the given order."""
    types = _GIVEN | WAIT_TYPES
    given = _arrays(types).table_valued(*types).render_derived("given")
    now = clock()
    columns: dict[str, ColumnElement[Any]] = {name: cast(given.c[name], type_) for name, type_ in types.items()}
    columns["queue_key"] = case((is_current(columns.pop("history")), columns["queue_key"]))
    place, values = placed(columns, now)
    rows = select(*values.values()).select_from(now.join(given, true()).join(place, true()))
    append_them = insert(commit_log).from_select(list(values), rows).returning(*_UNPLACED)
    return PreparedStatement(append_them, (*Record._fields, *WAIT_TYPES))


def _arrays(types: Mapping[str, TypeEngine[Any]]) -> Function[Any]:
    """One array per column. Properties are passed as text, because an array of jsonb is not needed."""
    arrays = [(name, ARRAY(Text() if name == "properties" else type_)) for name, type_ in types.items()]
    return func.unnest(*(bindparam(name, type_=array) for name, array in arrays))


def _queue_that_is_there(queue_key: ColumnElement[int], history: ColumnElement[Any]) -> ColumnElement[int]:
    """The given key, or NULL if the queue is gone or the log has another history than the key."""
    found = live_queue.c.queue_key
    return or_refused(select(found).where(found == queue_key, is_current(history)).scalar_subquery())


#: The log under the alias that `record_of` uses.
cl = commit_log.alias("cl")

#: The columns that every copy of a record keeps.
KEPT: Final = ("born_time", "msg_id", "sys_flag", "flag", "born_host", "tags", "keys", "body")


def record_of(wanted: FromClause, *columns: ColumnElement[Any]) -> LateralFromClause:
    """Columns of `cl` for the record at `wanted.log_pos`; no row if it does not exist. Uses commit_log_pkey.

    Parameters: lowest_pos and past_pos, which enclose the position. They are parameters, so that other partitions are
    not even opened. The ORDER BY forces the use of the primary key, because the plan may be made while a segment is
    empty, when costs are meaningless. It needs a range: with an equality the order would have no effect.
    """
    return (
        select(*columns)
        .where(
            cl.c.log_pos >= wanted.c.log_pos,
            cl.c.log_pos <= wanted.c.log_pos,
            cl.c.log_pos >= cast(bindparam("lowest_pos"), BigInteger),
            cl.c.log_pos < cast(bindparam("past_pos"), BigInteger),
        )
        .order_by(cl.c.log_pos)
        .limit(literal_column("1", Integer))
        .lateral("r")
    )


#: The maximum bytes of records that one transaction copies in the database; a single larger record is allowed.
MAX_COPIED_BYTES: Final = 16 * 2**20

#: Up to this number, records are copied without measuring them.
UNMEASURED_RECORDS: Final = 16


def copied_bytes(record: FromClause) -> ColumnElement[int]:
    """The approximate size of a copy of a record, or of a row of `timer`; 0 without a record. Does not read bodies."""
    size = func.octet_length(record.c.body) + func.pg_column_size(record.c.properties)
    return cast(func.coalesce(size, literal_column("0")), BigInteger)


def fits(size: ColumnElement[int], *order: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a record still fits into a transaction after all records before it in this order; true for the first."""
    return func.sum(size).over(order_by=order) - size < literal_column(str(MAX_COPIED_BYTES))
