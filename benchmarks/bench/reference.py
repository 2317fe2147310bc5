"""Reference points: the least work that PostgreSQL has to do for the same rows, for comparison with mqdb's figures.

    INSERT              one row per statement, into a table without index, sequence or default
    unnest              a batch of rows per statement, passed as arrays
    COPY                the same batch in binary form
    hand-off            many threads that share one connection, which inserts their rows with `unnest`
    SELECT              a range of a queue by its index, with the records it refers to
    INSERT ... SELECT   the entries that dispatch writes, copied into a table without index

The references are strict: the values that mqdb computes for a record (position, transaction, time) are constants here.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any, Final

import psycopg
from psycopg.types.json import Jsonb
from psycopg.types.numeric import Int8BinaryLoader
from psycopg.types.string import ByteaBinaryLoader

from benchmarks.bench.wire import copied, prepared, session
from benchmarks.bench.workers import Operation, per_connection
from mqdb.common.dsn import BrokerDsn
from mqdb.store.log.commit_log import Record

_CREATE = """
CREATE SCHEMA mqdb_bench;
CREATE TABLE mqdb_bench.plain (LIKE mqdb.commit_log);
CREATE TABLE mqdb_bench.entries (
    queue_offset bigint, log_pos bigint, tags_code bigint, queue_key integer, segment integer
);
"""

_TYPES: Final = {
    "queue_key": "integer",
    "tags_code": "bigint",
    "born_time": "timestamptz",
    "msg_id": "uuid",
    "born_host": "text",
    "tags": "text",
    "keys": "text",
    "properties": "text",
    "body": "bytea",
    "flag": "integer",
    "sys_flag": "integer",
    "reconsume_times": "integer",
}

#: All columns of a record: three that mqdb computes, and those that it is given.
_COLUMNS: Final = "xid, log_pos, store_time, " + ", ".join(_TYPES)
_COMPUTED: Final = "'5'::xid8, 1::bigint, '2026-01-01 00:00+00'::timestamptz, "
_CONSTANTS: Final = (5, 1, datetime(2026, 1, 1, tzinfo=UTC))

INSERT_ONE: Final = (
    f"INSERT INTO mqdb_bench.plain ({_COLUMNS}) VALUES ({_COMPUTED} {', '.join(f'%({name})s' for name in _TYPES)})"
)

_ROWS: Final = (
    f"SELECT {_COMPUTED} {', '.join(_TYPES).replace('properties', 'properties::jsonb')} "
    f"FROM unnest({', '.join(f'%({name})s::{type_}[]' for name, type_ in _TYPES.items())}) "
    f"AS given ({', '.join(_TYPES)})"
)

INSERT_MANY: Final = f"INSERT INTO mqdb_bench.plain ({_COLUMNS}) {_ROWS}"

_COPY_OUT: Final = f"COPY ({_ROWS}) TO STDOUT (FORMAT binary)"
_COPY_IN: Final = f"COPY mqdb_bench.plain ({_COLUMNS}) FROM STDIN (FORMAT binary)"

#: An xid8 looks like a bigint there, and psycopg knows that one.
_COPY_TYPES: Final = ("bigint", "bigint", "timestamptz", *(_TYPES | {"properties": "jsonb"}).values())


def create(connection: "psycopg.Connection[Any]") -> None:
    """Create the tables in a separate schema."""
    drop(connection)
    # Several statements in one text are not for the server to prepare.
    connection.execute(_CREATE, prepare=False)


def drop(connection: "psycopg.Connection[Any]") -> None:
    """Drop the tables, including those left by a killed benchmark."""
    connection.execute("DROP SCHEMA IF EXISTS mqdb_bench CASCADE")


def clear(connection: "psycopg.Connection[Any]") -> None:
    """Empty the tables, so that the rounds do not fill the disk."""
    connection.execute("TRUNCATE mqdb_bench.plain, mqdb_bench.entries")


def columns_of(records: Sequence[Record]) -> dict[str, list[Any]]:
    """The records as one array for each column."""
    columns = [record.columns() for record in records]
    return {name: [each[name] for each in columns] for name in columns[0]}


# -- loads that are about the database ----------------------------------------------------------


@per_connection
def insert(broker: BrokerDsn, record: Record) -> Iterator[Operation]:
    """Insert one row with one statement."""
    with session(broker) as connection:
        yield prepared(connection, INSERT_ONE, record.columns(), 1)


@per_connection
def copy(broker: BrokerDsn, records: Sequence[Record]) -> Iterator[Operation]:
    """Insert a batch with a binary COPY, committed each time."""
    with session(broker) as connection:
        with connection.cursor().copy(_COPY_OUT, columns_of(records)) as rows:
            payload = b"".join(bytes(part) for part in rows)
        yield copied(connection, _COPY_IN, payload, len(records))


# -- loads that are about the client ------------------------------------------------------------


@per_connection
def driver_insert(broker: BrokerDsn, record: Record) -> Iterator[Operation]:
    """Insert one row with one statement, like a program that uses psycopg."""
    values = record.columns()
    with session(broker) as connection:

        def operation() -> int:
            connection.execute(INSERT_ONE, values)
            return 1

        yield operation


@per_connection
def driver_insert_many(broker: BrokerDsn, records: Sequence[Record]) -> Iterator[Operation]:
    """Insert a batch of rows passed as arrays, like a program that uses psycopg."""
    values = columns_of(records)
    with session(broker) as connection:

        def operation() -> int:
            connection.execute(INSERT_MANY, values)
            return len(records)

        yield operation


@per_connection
def driver_copy(broker: BrokerDsn, records: Sequence[Record]) -> Iterator[Operation]:
    """Insert a batch of rows with a binary COPY, row by row, like a program that uses psycopg; committed each time."""
    rows = [
        (*_CONSTANTS, *record._replace(properties=_jsonb(record.properties)).columns().values()) for record in records
    ]
    with session(broker) as connection:
        cursor = connection.cursor()

        def operation() -> int:
            with cursor.copy(_COPY_IN) as copy:
                copy.set_types(_COPY_TYPES)
                for row in rows:
                    copy.write_row(row)
            return len(rows)

        yield operation


def _jsonb(text: str) -> Any:
    return Jsonb(text, dumps=str.encode)


@contextmanager
def hand_off(broker: BrokerDsn, threads: int, *, record: Record) -> Iterator[Sequence[Operation]]:
    """Threads that each hand over a row and wait; one more inserts all gathered rows at once, and wakes them.

    This is the least that a shared connection costs in Python: nothing is checked, created or recorded.
    """
    with session(broker) as connection:
        handed = _HandOff(connection)
        inserter = threading.Thread(target=handed.insert_all, daemon=True)
        inserter.start()
        try:
            yield [handed.over(record) for _ in range(threads)]
        finally:
            handed.end()
            inserter.join()


class _HandOff:
    """A hand-off of rows from many threads to the thread that has the connection."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self._connection = connection
        # Each row with a lock that is released when it is stored.
        self._queue: SimpleQueue[tuple[Record, threading.Lock] | None] = SimpleQueue()
        self._error: psycopg.Error | None = None

    def over(self, record: Record) -> Operation:
        """An operation that hands over a row, and waits until the row is stored."""
        stored = threading.Lock()
        stored.acquire()
        row = record, stored

        def operation() -> int:
            self._queue.put(row)
            stored.acquire()
            if self._error is not None:
                raise self._error
            return 1

        return operation

    def insert_all(self) -> None:
        """Insert the rows handed over, until the end."""
        queue = self._queue
        while (row := queue.get()) is not None:
            rows = [row]
            while not queue.empty() and (row := queue.get()) is not None:
                rows.append(row)
            try:
                self._connection.execute(INSERT_MANY, columns_of([record for record, _ in rows]))
            except psycopg.Error as error:
                self._error = error
            for _, stored in rows:
                stored.release()

    def end(self) -> None:
        """End `insert_all` after the last row, once no thread is waiting."""
        self._queue.put(None)


# -- what dispatch and pull are held against ----------------------------------------------------

COPY_ENTRIES: Final = """
INSERT INTO mqdb_bench.entries (queue_offset, log_pos, tags_code, queue_key, segment)
SELECT log_pos, log_pos, tags_code, queue_key, 1 FROM mqdb.commit_log
WHERE log_pos > %(after)s AND log_pos <= %(up_to)s
"""

#: The plan that a person would choose: from an index to the next, whatever the statistics say when it is made.
_PLAN: Final = """
SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_seqscan = off; SET enable_bitmapscan = off;
SET enable_sort = off
"""

#: `segment` and `floor` say what a pull knows, too: partitions below them are not looked into.
_SELECT: Final = """
SELECT cq.queue_offset, cq.segment, cl.log_pos, cl.msg_id, cl.tags, cl.keys, cl.properties, cl.body, cl.born_time,
       cl.store_time, cl.born_host, cl.reconsume_times, cl.flag, cl.sys_flag
FROM mqdb.entries(%(queue_key)s, %(first)s::bigint, %(first)s::bigint + %(limit)s::bigint, %(segment)s) cq
JOIN mqdb.commit_log cl ON cl.log_pos = cq.log_pos AND cl.log_pos >= %(floor)s
ORDER BY cq.last_offset, cq.queue_offset
"""


@per_connection
def select(broker: BrokerDsn, queue_key: int, floor: int, limit: int) -> Iterator[Operation]:
    """Reads one range of a queue after another, and starts over at the end."""
    place = {"queue_key": queue_key, "segment": 0, "floor": floor, "first": 0, "limit": limit}
    with session(broker) as connection:
        connection.execute(_PLAN, prepare=False)
        cursor = connection.cursor(binary=True)
        # As mqdb does: what nobody looks at is not worked out.
        for type_name in ("uuid", "jsonb"):
            cursor.adapters.register_loader(type_name, ByteaBinaryLoader)
        cursor.adapters.register_loader("timestamptz", Int8BinaryLoader)

        def operation() -> int:
            rows = cursor.execute(_SELECT, place).fetchall()
            if rows:
                place["first"], place["segment"] = rows[-1][0] + 1, rows[-1][1]
            else:
                place["first"] = place["segment"] = 0
            return len(rows)

        yield operation
