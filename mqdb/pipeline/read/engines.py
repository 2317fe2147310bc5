"""The connection of a worker to PostgreSQL: with ADBC, which turns a COPY into Arrow, or with psycopg, row by row.

A Python worker keeps one idle connection: connecting by ADBC takes 52 ms, ten times as long as reading a small task.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from mqdb.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    DatabaseMissing,
    ExtraMissing,
    MqdbError,
    StorageRefused,
)
from mqdb.pipeline.read.source_options import ReadOptions
from mqdb.store.session_settings import SESSION_SETTINGS, startup_options

if TYPE_CHECKING:
    import pyarrow as pa

#: A statement uses one core, returns all its rows, and keeps the hash of a slice's entries in memory. A DSN may
#: override these settings.
_SETTINGS: Final = {
    "default_transaction_read_only": "on",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    "work_mem": "32MB",
    "cursor_tuple_fraction": "1",
}

_CONNECTING: Final = {
    "application_name": "mqdb-spark",
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "3",
    "keepalives_count": "3",
}

_UNDEFINED_TABLE: Final = "42P01"

#: Refused connections have no SQLSTATE, only a message. These two kinds are not temporary.
_MISSING_DATABASE: Final = re.compile(r'FATAL:  database ".*" does not exist')
_WRONG_PASSWORD: Final = re.compile(r"password authentication failed|no password supplied")


class UndefinedTable(MqdbError):
    """A partition used in a statement is gone."""

    reason: str
    sentence = "{reason}"


class ReadSession(ABC):
    """A connection that is in a transaction from its first statement on. A session raises mqdb's errors."""

    @abstractmethod
    def batches(self, statement: str, columns: tuple[str, ...], size: int) -> "Iterator[pa.RecordBatch]":
        """The rows of a statement with these message columns, in batches of about `size` bytes."""

    @abstractmethod
    def rows(self, statement: str) -> list[Any]:
        """The few rows of a statement."""

    @abstractmethod
    def rollback(self) -> None:
        """End the transaction."""

    @abstractmethod
    def close(self) -> None:
        """End the connection, even in the middle of a statement."""


class AdbcSession(ReadSession):
    """A session that uses ADBC."""

    def __init__(self, uri: str) -> None:
        try:
            from adbc_driver_postgresql import dbapi
        except ImportError as error:
            raise ExtraMissing("adbc-driver-postgresql", "spark") from error
        self._target = _target(uri)
        self._error: type[Exception] = dbapi.Error
        with self._translated():
            self._connection = dbapi.connect(uri, autocommit=True)
        self._is_idle = True

    def batches(self, statement: str, columns: tuple[str, ...], size: int) -> "Iterator[pa.RecordBatch]":
        self._begin()
        with self._translated(), self._connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(size)})
            cursor.execute(statement)
            yield from cursor.fetch_record_batch()

    def rows(self, statement: str) -> list[Any]:
        self._begin()
        with self._translated(), self._connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def _begin(self) -> None:
        if self._is_idle:
            with self._translated():
                self._connection.adbc_connection.set_autocommit(False)
            self._is_idle = False

    def rollback(self) -> None:
        if not self._is_idle:
            with self._translated():
                self._connection.rollback()
                # ADBC has immediately begun another transaction.
                self._connection.adbc_connection.set_autocommit(True)
            self._is_idle = True

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            raise _translate(getattr(error, "sqlstate", None), str(error), self._target) from error
        except OSError as error:
            # An error in the middle of a COPY comes through Arrow, without an SQLSTATE: the text distinguishes a
            # refusal by the server from its loss.
            raise _translate("-----" if "ERROR:" in str(error) else None, str(error), self._target) from error


class PsycopgSession(ReadSession):
    """A session that uses psycopg, for platforms without ADBC. Reading takes twice as long."""

    def __init__(self, uri: str) -> None:
        import psycopg

        self._target = _target(uri)
        self._error = psycopg.Error
        with self._translated():
            self._connection = psycopg.connect(uri)

    def batches(self, statement: str, columns: tuple[str, ...], size: int) -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        from mqdb.pipeline.read.rows import arrow_types

        schema = pa.schema(arrow_types(columns))
        rows = _FIRST_FETCH
        with self._translated(), self._connection.cursor(name="mqdb_read", binary=True) as cursor:
            cursor.execute(statement.encode())
            while found := cursor.fetchmany(rows):
                columns_found = zip(*found, strict=True)
                arrays = [pa.array(values, type_) for values, type_ in zip(columns_found, schema.types, strict=True)]
                batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
                yield batch
                rows = max(1, min(size * batch.num_rows // max(batch.nbytes, 1), rows * 8, _LARGEST_FETCH))

    def rows(self, statement: str) -> list[Any]:
        with self._translated():
            return self._connection.execute(statement.encode()).fetchall()

    def rollback(self) -> None:
        with self._translated():
            self._connection.rollback()

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            raise _translate(error.sqlstate, str(error), self._target) from error


#: The number of rows in the first fetch, while the size of a row is unknown, and in the largest fetch.
_FIRST_FETCH: Final = 16
_LARGEST_FETCH: Final = 20_000

_ENGINES: Final[dict[str, type[AdbcSession] | type[PsycopgSession]]] = {"adbc": AdbcSession, "psycopg": PsycopgSession}

# Keyed by process, engine and URI: a forked child must not use its parent's connection.
_idle: dict[tuple[int, str, str], ReadSession] = {}


def take(reading: ReadOptions) -> ReadSession:
    """The idle connection of this worker if it still works, otherwise a new one."""
    session = _idle.pop(_key(reading), None)
    if session is not None:
        try:
            session.rows("SELECT 1")
            session.rollback()
            return session
        except MqdbError:
            session.close()
    return _ENGINES[reading.engine](session_uri(reading.url))


def give_back(reading: ReadOptions, session: ReadSession) -> None:
    """Keep a connection for the next task; it must not be in a transaction."""
    other = _idle.pop(_key(reading), None)
    _idle[_key(reading)] = session
    if other is not None:
        other.close()


def close_idle() -> None:
    """Close the connections that this process keeps."""
    for key in [key for key in _idle if key[0] == os.getpid()]:
        _idle.pop(key).close()


def _key(reading: ReadOptions) -> tuple[int, str, str]:
    return os.getpid(), reading.engine, reading.url


def session_uri(url: str) -> str:
    """The URI with the settings of a reading session; the user's `options` are kept, and override them if possible."""
    parts = urlsplit(url)
    # As libpq parses it, for which + is not a blank.
    given = dict(parse_qsl(parts.query.replace("+", "%2B"), keep_blank_values=True))
    settings = f"{startup_options(_SETTINGS)} {given.pop('options', '')} {startup_options(SESSION_SETTINGS)}"
    query = urlencode({**_CONNECTING, **given, "options": settings}, quote_via=quote)
    return urlunsplit(parts._replace(query=query))


def _target(uri: str) -> str:
    parts = urlsplit(uri)
    return f"{parts.netloc.rpartition('@')[2]}{parts.path}"


def _translate(sqlstate: str | None, text: str, target: str) -> MqdbError:
    reason = (text.strip() or "no reason given").splitlines()[0]
    if sqlstate == _UNDEFINED_TABLE:
        return UndefinedTable(reason)
    if not sqlstate and _WRONG_PASSWORD.search(text):
        return AuthenticationFailed(target, reason)
    if not sqlstate and _MISSING_DATABASE.search(text):
        return DatabaseMissing(target, reason)
    if not sqlstate or sqlstate.startswith(("08", "57P")):
        return BrokerUnavailable(target, reason)
    return StorageRefused(sqlstate, reason)
