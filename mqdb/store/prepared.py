"""Statements that run for every message: prepared once per connection, with their parameters packed here.

psycopg makes a cursor for each execution, and looks up how to write each value: 45 µs of CPU for an append of one
record. This module calls libpq directly, with each value in PostgreSQL's binary format for its parameter type: 15 µs.
Waiting is left to psycopg, which handles Ctrl-C.
"""

import struct
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from operator import attrgetter
from typing import Any, Final, TypeAlias
from weakref import WeakSet

import psycopg
from psycopg.errors import error_from_result
from psycopg.generators import execute
from psycopg.postgres import types
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.types import TypeInfo
from sqlalchemy import BigInteger, Boolean, DateTime, Integer, LargeBinary, Text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.dialects.postgresql import UUID as PgUUID
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.types import TypeEngine

from mqdb.store.engine import NUMBERING_DIALECT, raw_cursor_of

Pack: TypeAlias = Callable[[Any], bytes]

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

_int4: Final = struct.Struct("!i").pack
_int8: Final = struct.Struct("!q").pack

#: PostgreSQL's type for each SQLAlchemy type, and the binary format of its values.
_FORMATS: Final[dict[type[TypeEngine[Any]], tuple[TypeInfo, Pack]]] = {
    Boolean: (types["bool"], struct.Struct("!?").pack),
    LargeBinary: (types["bytea"], bytes),
    BigInteger: (types["int8"], _int8),
    Integer: (types["int4"], _int4),
    Text: (types["text"], str.encode),
    DateTime: (types["timestamptz"], lambda moment: _int8((moment - _EPOCH) // _MICROSECOND)),
    PgUUID: (types["uuid"], attrgetter("bytes")),
    JSONB: (types["jsonb"], lambda text: b"\x01" + text.encode()),
}

_NULL: Final = _int4(-1)

_numbers: Final = count(1)


class PreparedStatement:
    """A Core statement that returns columns of integers. Any thread may run it, each on its own connection.

    The type of each parameter has to be one of `Boolean`, `Integer`, `BigInteger`, `DateTime` with a time zone, `Text`,
    `LargeBinary`, `UUID`, `JSONB` (its text) or an ARRAY of these, and `given` names all values for `run`, in order.
    Source: Bind, https://www.postgresql.org/docs/current/protocol-message-formats.html.
    """

    def __init__(self, statement: ClauseElement, given: Sequence[str]) -> None:
        compiled = statement.compile(dialect=NUMBERING_DIALECT)
        assert isinstance(compiled, SQLCompiler)
        assert compiled.positiontup is not None
        names = compiled.positiontup
        #: The statement with $1, $2, ... for its parameters.
        self.text = compiled.string
        self._name = b"mqdb_%d" % next(_numbers)
        self._places = [given.index(name) for name in names]
        self.oids, self._packers = zip(*(_format(compiled.binds[name].type) for name in names), strict=True)
        self.formats = [Format.BINARY] * len(names)
        self._prepared_on: WeakSet[psycopg.Connection[Any]] = WeakSet()
        self._started_on: WeakSet[psycopg.Connection[Any]] = WeakSet()

    def pack(self, values: Sequence[Any]) -> list[bytes | None]:
        """The parameters in the form that libpq expects."""
        return [
            None if (value := values[place]) is None else pack(value)
            for place, pack in zip(self._places, self._packers, strict=True)
        ]

    def run(self, connection: "psycopg.Connection[Any]", values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run the statement and return its rows in order. Raises psycopg.Error."""
        if connection.prepare_threshold is None:  # behind a pooler nothing is prepared
            picked = [values[place] for place in self._places]
            return raw_cursor_of(connection).execute(self.text.encode(), picked).fetchall()
        with connection.lock:
            if connection in self._started_on:
                self._started_on.discard(connection)
            else:
                if connection not in self._prepared_on:
                    self._prepare(connection)
                self._send(connection, values)
            result = _answer(connection)
            if _is_forgotten(connection, result):
                self._prepare(connection)
                self._send(connection, values)
                result = _answer(connection)
        if result.status != ExecStatus.TUPLES_OK:
            raise error_from_result(result)
        value_of, columns = result.get_value, range(result.nfields)
        return [
            tuple(
                [
                    None if (value := value_of(row, column)) is None else int.from_bytes(value, signed=True)
                    for column in columns
                ]
            )
            for row in range(result.ntuples)
        ]

    def start(self, connection: "psycopg.Connection[Any]", values: Sequence[Any]) -> bool:
        """Send the statement without waiting for the answer, which `run` reads.

        The connection's descriptor becomes readable when the answer arrives. Returns False, and sends nothing, unless
        the statement is prepared on this connection. The values must fit into the socket's buffer.
        Raises psycopg.Error.
        """
        if connection not in self._prepared_on:
            return False
        with connection.lock:
            self._send(connection, values)
            connection.pgconn.flush()
            self._started_on.add(connection)
        return True

    def _send(self, connection: "psycopg.Connection[Any]", values: Sequence[Any]) -> None:
        connection.pgconn.send_query_prepared(self._name, self.pack(values), self.formats, Format.BINARY)

    def _prepare(self, connection: "psycopg.Connection[Any]") -> None:
        connection.pgconn.send_prepare(self._name, self.text.encode(), self.oids)
        result = _answer(connection)
        if result.status != ExecStatus.COMMAND_OK:
            raise error_from_result(result)
        self._prepared_on.add(connection)


def _answer(connection: "psycopg.Connection[Any]") -> PGresult:
    results: list[PGresult] = connection.wait(execute(connection.pgconn))
    return results[-1]


def _is_forgotten(connection: "psycopg.Connection[Any]", result: PGresult) -> bool:
    """True if the session has lost the statement: after a rollback psycopg deallocates all of them."""
    return (
        result.status == ExecStatus.FATAL_ERROR
        and connection.pgconn.transaction_status == TransactionStatus.IDLE
        and isinstance(error_from_result(result), psycopg.errors.InvalidSqlStatementName)
    )


def _format(type_: TypeEngine[Any]) -> tuple[int, Pack]:
    """The OID of a parameter's type, and the function that packs its values."""
    if isinstance(type_, ARRAY):
        element, pack = _FORMATS[type(type_.item_type)]
        return element.array_oid, _array_of(element.oid, pack)
    info, pack = _FORMATS[type(type_)]
    return info.oid, pack


def _array_of(element_oid: int, pack: Pack) -> Pack:
    def packed(values: Sequence[Any]) -> bytes:
        parts = [
            struct.pack("!5i", 1, 1, element_oid, len(values), 1)
        ]  # dimensions, may have NULL, OID, length, from 1
        for value in values:
            if value is None:
                parts.append(_NULL)
            else:
                element = pack(value)
                parts += (_int4(len(element)), element)
        return b"".join(parts)

    return packed
