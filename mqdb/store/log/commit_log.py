"""The commit log: records in order of arrival, written once.

An append is one INSERT: no lock, no counter, no NOTIFY but to a dispatcher that sleeps. Its position comes from a
sequence; its offset in the queue comes later, from dispatch. RocketMQ: CommitLog.

Records that wait are appended by a statement of their own, which asks the database where each goes: the time of
delivery is by its clock, and the levels are those of this moment. It takes others along.
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
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
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

    One with a `wait` goes to the system queue for it first, and `queue_key` is the queue that it is for. `history` is
    that of the log in which the key was found; None: whichever it is.
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
        """What goes into the log as it is, by the names of its columns."""
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


@cache
def append_one() -> PreparedStatement:
    """One record. It is refused if its queue is gone, or of another history."""
    values: dict[str, Any] = {name: bindparam(name, type_=type_) for name, type_ in _TYPES.items()}
    values["queue_key"] = _queue_that_is_there(values["queue_key"], bindparam("history", type_=BigInteger))
    return PreparedStatement(insert(commit_log).values(values).returning(commit_log.c.log_pos), Record._fields)


#: Columns that often have one value in all records of a batch.
SHARABLE: Final = ("queue_key", "born_time", "born_host", "flag", "sys_flag", "reconsume_times", "history")

#: What is given for each record, and what of that is stored.
_GIVEN: Final = _TYPES | {"history": BigInteger()}


@cache
def append_many(shared: tuple[str, ...] = ()) -> PreparedStatement:
    """Any number of records, in the order given: as fast as COPY, and it says where each went.

    What they share is given once: fewer arrays, and one look at the queue.
    """
    own = {name: type_ for name, type_ in _GIVEN.items() if name not in shared}
    given = _arrays(own).table_valued(*own, name="given").render_derived()
    queue_key, *columns, history = (
        cast(given.c[name] if name in own else bindparam(name, type_=type_), type_) for name, type_ in _GIVEN.items()
    )
    rows = select(_queue_that_is_there(queue_key, history), *columns).select_from(given)
    append_them = insert(commit_log).from_select(list(_TYPES), rows).returning(commit_log.c.log_pos)
    return PreparedStatement(append_them, Record._fields)


@cache
def append_waiting() -> PreparedStatement:
    """Any number of records in the order given, of which some wait."""
    types = _GIVEN | WAIT_TYPES
    given = _arrays(types).table_valued(*types).render_derived("given")
    now = clock()
    columns: dict[str, ColumnElement[Any]] = {name: cast(given.c[name], type_) for name, type_ in types.items()}
    columns["queue_key"] = case((is_current(columns.pop("history")), columns["queue_key"]))
    place, values = placed(columns, now)
    rows = select(*values.values()).select_from(now.join(given, true()).join(place, true()))
    append_them = insert(commit_log).from_select(list(values), rows).returning(commit_log.c.log_pos)
    return PreparedStatement(append_them, (*Record._fields, *WAIT_TYPES))


def _arrays(types: Mapping[str, TypeEngine[Any]]) -> Function[Any]:
    """One array for each column. Properties come as texts: PostgreSQL has a type for arrays of jsonb, but no need."""
    arrays = [(name, ARRAY(Text() if name == "properties" else type_)) for name, type_ in types.items()]
    return func.unnest(*(bindparam(name, type_=array) for name, array in arrays))


def _queue_that_is_there(queue_key: ColumnElement[int], history: ColumnElement[Any]) -> ColumnElement[int]:
    """The same key, unless the queue is gone, or the log has another history than the key."""
    found = live_queue.c.queue_key
    return or_refused(select(found).where(found == queue_key, is_current(history)).scalar_subquery())


#: The log as `record_of` reads it.
cl = commit_log.alias("cl")

#: What every copy of a record keeps.
KEPT: Final = ("born_time", "msg_id", "sys_flag", "flag", "born_host", "tags", "keys", "body")


def record_of(wanted: FromClause, *columns: ColumnElement[Any]) -> LateralFromClause:
    """Columns of `cl`, of the record at `wanted.log_pos`; no row where there is none. Uses commit_log_pkey.

    Parameters: lowest_pos and past_pos, between which it is. They are parameters, so that the other partitions are not
    even opened. It is bound to the primary key by the order asked for, with a range in place of an equality, for which
    the order would say nothing: the plan may be made while a segment is empty, and costs say nothing then.
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


#: Of records that one transaction copies inside the database, but for a single one.
MAX_COPIED_BYTES: Final = 16 * 2**20

#: So few records are copied unmeasured.
UNMEASURED_RECORDS: Final = 16


def copied_bytes(record: FromClause) -> ColumnElement[int]:
    """How much a copy of a record, or of a row of `timer`, takes, about; 0 for none. Reads no body."""
    size = func.octet_length(record.c.body) + func.pg_column_size(record.c.properties)
    return cast(func.coalesce(size, literal_column("0")), BigInteger)


def fits(size: ColumnElement[int], *order: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether those before a record in an order leave room for it in one transaction; always so for the first."""
    return func.sum(size).over(order_by=order) - size < literal_column(str(MAX_COPIED_BYTES))
