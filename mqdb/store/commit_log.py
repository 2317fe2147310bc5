"""The commit log: records in order of arrival, written once.

An append is one INSERT: no lock, no counter, no NOTIFY. Its position comes from a sequence; its offset in
the queue comes later, from dispatch. RocketMQ: CommitLog.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from sqlalchemy import BigInteger, DateTime, Integer, LargeBinary, Text, bindparam, cast, func, insert, select
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.dialects.postgresql import UUID as PgUUID
from sqlalchemy.types import TypeEngine

from mqdb.store.engine import text_of
from mqdb.store.tables import commit_log, queue


class Record(NamedTuple):
    """A record to append. `properties` is JSON text; `keys` are separated by blanks."""

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


def _append_one() -> str:
    """One record. A queue that is gone makes queue_key NULL, which the table refuses."""
    values: dict[str, Any] = {name: cast(bindparam(name), type_) for name, type_ in _TYPES.items()}
    values["queue_key"] = select(queue.c.queue_key).where(queue.c.queue_key == values["queue_key"]).scalar_subquery()
    return text_of(insert(commit_log).values(values).returning(commit_log.c.log_pos))


def _append_many() -> str:
    """Any number of records, in the order given: as fast as COPY, and it says where each went."""
    arrays = [cast(bindparam(name), ARRAY(Text() if name == "properties" else type_)) for name, type_ in _TYPES.items()]
    given = func.unnest(*arrays).table_valued(*_TYPES, name="given").render_derived()
    columns: list[Any] = [cast(given.c[name], type_) for name, type_ in _TYPES.items()]
    columns[0] = select(queue.c.queue_key).where(queue.c.queue_key == given.c.queue_key).scalar_subquery()
    rows = select(*columns).select_from(given)
    return text_of(insert(commit_log).from_select(list(_TYPES), rows).returning(commit_log.c.log_pos))


# What the messages of one batch of a producer have in common.
_SHARED = ("queue_key", "born_time", "born_host", "sys_flag", "reconsume_times")


def _append_alike() -> str:
    """Records that differ only in what is not shared, in the order given: one look at the queue, fewer arrays."""
    own = {name: type_ for name, type_ in _TYPES.items() if name not in _SHARED}
    arrays = [cast(bindparam(name), ARRAY(Text() if name == "properties" else type_)) for name, type_ in own.items()]
    given = func.unnest(*arrays).table_valued(*own, name="given").render_derived()
    columns: list[Any] = [cast(given.c[name] if name in own else bindparam(name), _TYPES[name]) for name in _TYPES]
    columns[0] = select(queue.c.queue_key).where(queue.c.queue_key == columns[0]).scalar_subquery()
    rows = select(*columns).select_from(given)
    return text_of(insert(commit_log).from_select(list(_TYPES), rows).returning(commit_log.c.log_pos))


APPEND_ONE = _append_one()
APPEND_MANY = _append_many()
APPEND_ALIKE = _append_alike()


def append(connection: "psycopg.Connection[Any]", records: Sequence[Record]) -> list[int]:
    """The positions of the records, in their order. One statement: all are stored, or none.

    Raises psycopg's NotNullViolation when a record's queue does not exist.
    """
    if len(records) == 1:
        return [row[0] for row in connection.execute(APPEND_ONE, records[0]._asdict())]
    columns: dict[str, Any] = dict(zip(Record._fields, map(list, zip(*records, strict=True)), strict=True))
    statement = APPEND_MANY
    if all(columns[name].count(columns[name][0]) == len(records) for name in _SHARED):
        columns.update((name, columns[name][0]) for name in _SHARED)
        statement = APPEND_ALIKE
    return [row[0] for row in connection.execute(statement, columns)]
