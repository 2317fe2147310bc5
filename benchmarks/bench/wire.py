"""Statements as sent over the wire: prepared once, with values encoded once, so that a repetition costs little.

If a driver worked on each statement, a benchmark would show only a part of a broker's capacity. On two cores Python
uses as much CPU for an INSERT as PostgreSQL does, so two programs with this overhead would look more alike than they
are. So a load that measures the database calls libpq directly. One such call takes about 20 µs of CPU, including the
wake-up.
"""

import re
import select
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import DiagnosticField, ExecStatus, Format
from psycopg.pq.abc import PGresult

from benchmarks.bench.workers import Operation
from mqdb.broker.log.send import statement_for
from mqdb.common.dsn import BrokerDsn
from mqdb.errors import StorageRefused
from mqdb.store.engine import connected, driver
from mqdb.store.log.commit_log import Record

_NAME = b"bench"
_FINE = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK, ExecStatus.COPY_IN)


@contextmanager
def session(broker: BrokerDsn) -> "Iterator[psycopg.Connection[Any]]":
    """An autocommit connection for the load, with the session settings of every mqdb connection."""
    with connected(broker.dsn, "mqdb bench: load") as connection:
        yield driver(connection)


def prepared(
    connection: "psycopg.Connection[Any]", statement: str, values: Mapping[str, object], messages: int
) -> Operation:
    """Runs a statement with `%(name)s` parameters, with the same values each time."""
    names = list(values)
    transformer = Transformer(connection)
    # The type of the list that libpq takes knows no None, which it takes as well.
    encoded: list[Any] = [*transformer.dump_sequence(list(values.values()), [PyFormat.AUTO] * len(names))]
    text = re.sub(r"%\((\w+)\)s", lambda match: f"${names.index(match[1]) + 1}", statement)
    _check(connection.pgconn.prepare(_NAME, text.encode(), transformer.types))
    return _repeated(connection, encoded, transformer.formats, messages)


def appended(connection: "psycopg.Connection[Any]", records: Sequence[Record]) -> Operation:
    """Appends the same records each time, as a producer does."""
    statement, values = statement_for(records, places=True)
    _check(connection.pgconn.prepare(_NAME, statement.text.encode(), statement.oids))
    return _repeated(connection, statement.pack(values), statement.formats, len(records))


def _repeated(
    connection: "psycopg.Connection[Any]", encoded: list[Any], formats: Sequence[int] | None, messages: int
) -> Operation:
    execute = connection.pgconn.exec_prepared

    def operation() -> int:
        _check(execute(_NAME, encoded, formats, Format.BINARY))
        return messages

    return operation


def copied(connection: "psycopg.Connection[Any]", statement: str, payload: bytes, messages: int) -> Operation:
    """Runs a COPY FROM STDIN with the same data each time."""
    libpq = connection.pgconn
    command = statement.encode()
    poll = select.poll()
    poll.register(libpq.socket, select.POLLIN)

    def operation() -> int:
        _check(libpq.exec_(command))
        libpq.put_copy_data(payload)
        libpq.put_copy_end()
        # get_result would wait too, and keep the other threads of the interpreter waiting with it.
        poll.poll()
        while (result := libpq.get_result()) is not None:
            _check(result)
        return messages

    return operation


def _check(result: PGresult) -> None:
    if result.status not in _FINE:
        sqlstate = result.error_field(DiagnosticField.SQLSTATE) or b"-----"
        reason = result.error_field(DiagnosticField.MESSAGE_PRIMARY) or result.error_message
        raise StorageRefused(sqlstate.decode(), reason.decode(errors="replace").strip())
