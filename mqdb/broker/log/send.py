"""Send: turn messages into records and append them to the commit log.

In SQL: `mqdb/sql/log/send.sql`, `mqdb/sql/segments/ensure_segments.sql`.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from json.encoder import encode_basestring as quoted
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg import errors as pg
from sqlalchemy import Connection, Integer, LargeBinary, Text, cast, func, select
from sqlalchemy.dialects.postgresql import JSONB

from mqdb.common.delivery_schedule import Half, schedule_of
from mqdb.common.message import Message, stored_properties
from mqdb.common.property import KEY_SEPARATOR
from mqdb.errors import TopicNotFound
from mqdb.selector.tags import tag_code
from mqdb.store import acl
from mqdb.store.acl import Access, Resource, ResourceType
from mqdb.store.engine import commits_each, translate, translates
from mqdb.store.log import commit_log
from mqdb.store.log.commit_log import LogPlace, Record
from mqdb.store.log.history import History
from mqdb.store.prepared import PreparedStatement
from mqdb.store.schedule.placement import wait_arrays
from mqdb.store.transactions import own_halves


def record(
    message: Message,
    queue_key: int,
    unique_id: UUID,
    born_time: datetime,
    born_host: str,
    body: bytes | None = None,
    sys_flag: int = 0,
    history: History | None = None,
) -> Record:
    """The record of a message that `check_message` has passed.

    `body` replaces the message's own body, in the form given by `sys_flag`; `compression.compressed` makes both.
    `history` is the history of the log in which the queue was found.
    Raises ScheduleInvalid.
    """
    # Positional arguments, because this runs for every message sent.
    return Record(
        queue_key,
        tag_code(message.tag),
        born_time,
        unique_id,
        born_host,
        message.tag,
        KEY_SEPARATOR.join(message.keys) or None,
        json_object(stored_properties(message)),
        message.body if body is None else body,
        message.flag,
        sys_flag,
        0,
        schedule_of(message.system_properties) if message.system_properties else None,
        history,
    )


def json_object(texts: Mapping[str, str]) -> str:
    """The properties in the form stored in a record."""
    # json.dumps would make an encoder each time, and take almost three times as long.
    return "{" + ", ".join([f"{quoted(name)}: {quoted(text)}" for name, text in texts.items()]) + "}"


@translates
def send_by_sql(
    connection: Connection,
    topic: str,
    body: bytes,
    tag: str | None,
    keys: Sequence[str],
    properties: Mapping[str, str],
    sharding_key: str | None,
    delay_level: int | None,
) -> str:
    """Send one message with the SQL function `mqdb.send`, which checks it; returns its unique id."""
    call = func.mqdb.send(
        cast(topic, Text),
        cast(body, LargeBinary),
        cast(tag, Text),
        cast(KEY_SEPARATOR.join(keys) or None, Text),
        cast(dict(properties), JSONB),
        cast(sharding_key, Text),
        cast(delay_level, Integer),
    )
    return str(connection.scalar(select(call)))


def append(connection: Connection, records: Sequence[Record], topic: str = "") -> list[LogPlace]:
    """Append records to any queues; returns their places, in the given order. One statement, one round trip.

    All records are stored, or none. Raises TopicNotFound (whose message names `topic`) if a queue is gone or from
    another history; AccessDenied; MessageIllegal for a delivery time beyond the broker's limit; and StorageRefused or
    BrokerUnavailable for other errors of the database.
    """
    below = connection.connection.driver_connection  # inlined from `driver`, because this runs for every message sent
    assert isinstance(below, psycopg.Connection)
    try:
        return _append(connection, below, records)
    except psycopg.Error as error:
        if isinstance(error, pg.InsufficientPrivilege) and below.autocommit:
            acl.require(connection, Resource(Access.SEND, ResourceType.TOPIC, topic))
        refusal = translate(error, connection)
        raise (TopicNotFound(topic) if isinstance(refusal, TopicNotFound) else refusal) from error


#: A larger statement may not fit into the buffer of a socket.
_MOST_STARTED_BYTES: Final = 32 * 1024


def start_append(connection: Connection, record: Record) -> bool:
    """Send the statement that appends a record without waiting; `append` of the same record reads the answer.

    Returns False if `append` has to send it as well, and report any error. This function returns False for a large
    record, a record with a later time of delivery, and the first record on a connection.
    """
    below = connection.connection.driver_connection
    assert isinstance(below, psycopg.Connection)
    if record.wait is not None or len(record.body) + len(record.properties) > _MOST_STARTED_BYTES:
        return False
    try:
        # One of the two statements is prepared on a connection: the one chosen by `append`.
        return any(commit_log.append_one(places=places).start(below, record) for places in (True, False))
    except psycopg.Error:
        return False


def _append(connection: Connection, below: "psycopg.Connection[Any]", records: Sequence[Record]) -> list[LogPlace]:
    statement, values = statement_for(records, places=below.autocommit and _may_place(connection))
    run: Callable[[psycopg.Connection[Any], Sequence[Any]], Sequence[tuple[Any, ...]]] = statement.run
    if statement is commit_log.append_waiting() and _has_half(records) and acl.is_guest(connection):
        run, values = _append_with_halves, records
    try:
        rows = run(below, values)
    except pg.CheckViolation:
        # There is no partition for the position: producers outran a broker without keeper and consumers.
        if not below.autocommit:
            raise
        below.execute("SELECT mqdb.ensure_segments(2)")
        rows = run(below, values)
    return [LogPlace(*row) for row in rows]


#: The key in `Connection.info` of the result of `_may_place`.
_MAY_PLACE: Final = "mqdb_may_place"


def _may_place(connection: Connection) -> bool:
    """Whether appends may assign the offsets of their records.

    A role other than the owner could hold the lock of dispatch, and so could a client that sends COMMIT by itself.
    """
    known: bool | None = connection.info.get(_MAY_PLACE)
    if known is None:
        known = connection.info[_MAY_PLACE] = commits_each(connection) and not acl.is_guest(connection)
    return known


def _has_half(records: Sequence[Record]) -> bool:
    return any(isinstance(record.wait, Half) for record in records)


def _append_with_halves(connection: "psycopg.Connection[Any]", records: Sequence[Record]) -> list[tuple[Any, ...]]:
    """Append for a role that does not own the broker: it stores half messages by a function, one by one."""
    if len(records) == 1:
        return [(own_halves.send(connection, records[0]),)]
    with connection.transaction():
        others = [record for record in records if not isinstance(record.wait, Half)]
        statement, values = statement_for(others, places=False) if others else (None, ())
        rows = iter(statement.run(connection, values) if statement else ())
        return [
            (own_halves.send(connection, record),) if isinstance(record.wait, Half) else next(rows)
            for record in records
        ]


#: The position of each field in a record.
_PLACES: Final = {name: place for place, name in enumerate(Record._fields)}


def statement_for(records: Sequence[Record], *, places: bool) -> tuple[PreparedStatement, Sequence[Any]]:
    """The statement that appends records in order, with its values.

    The statement returns the fields of each record's LogPlace.

    With `places` the statement assigns the records' queue offsets immediately if possible, unless a record has a later
    time of delivery. If the queue of a record is gone, or from another history, it raises the error described in
    `queue_fence`.
    """
    if len(records) == 1 and records[0].wait is None:
        return commit_log.append_one(places=places), records[0]
    columns: list[Any] = [list(column) for column in zip(*records, strict=True)]
    waits = columns[_PLACES["wait"]]
    if waits.count(None) < len(records):
        return commit_log.append_waiting(), [*columns, *wait_arrays(waits)]
    shared = tuple(name for name in commit_log.SHARABLE if _is_shared(columns[_PLACES[name]]))
    for name in shared:
        columns[_PLACES[name]] = columns[_PLACES[name]][0]
    return commit_log.append_many(shared, places=places), columns


def _is_shared(column: Sequence[Any]) -> bool:
    return column.count(column[0]) == len(column)
