"""Prepared statements: their parameters arrive as psycopg would send them, and the server may drop the statements."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import (
    BigInteger,
    Boolean,
    DateTime,
    Integer,
    LargeBinary,
    Text,
    bindparam,
    cast,
    func,
    literal_column,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.dialects.postgresql import UUID as PgUUID
from sqlalchemy.types import TypeEngine

from mqdb.store.engine import create_engine, driver
from mqdb.store.prepared import PreparedStatement
from tests.fixtures.postgres import owner_dsn

VALUES: list[tuple[TypeEngine[Any], str, list[Any]]] = [
    (Boolean(), "boolean", [True, False]),
    (Integer(), "integer", [0, -(2**31), 2**31 - 1]),
    (BigInteger(), "bigint", [0, -(2**63), 2**63 - 1]),
    (Text(), "text", ["", "é \U0001f680 \\ ' {\",}", "NULL"]),
    (LargeBinary(), "bytea", [b"", bytes(range(256)), b"\\x00"]),
    (PgUUID(), "uuid", [UUID(int=0), UUID(int=2**128 - 1)]),
    (JSONB(), "jsonb", ["{}", '{"a": "é\\u0001"}']),
    (
        DateTime(timezone=True),
        "timestamptz",
        [
            datetime(2000, 1, 1, tzinfo=UTC),
            datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
            datetime(9998, 12, 31, 23, 59, 59, 999_999, tzinfo=timezone(timedelta(hours=-3, minutes=-30))),
        ],
    ),
]


@pytest.fixture(params=["prepared", "behind a pooler"])
def session(request: pytest.FixtureRequest, postgres: Any, template_database: str) -> Iterator[psycopg.Connection[Any]]:
    engine = create_engine(owner_dsn(postgres, template_database), prepared=request.param == "prepared")
    with engine.connect() as connection:
        yield driver(connection)
    engine.dispose()


def test_parameters_of_every_type_arrive(session: psycopg.Connection[Any]) -> None:
    for type_, name, values in VALUES:
        one, many = _hash_of(type_), _hash_of(ARRAY(type_))
        for value in [None, *values]:
            assert one.run(session, [value]) == [(_hash_by_psycopg(session, name, value),)], (name, value)
        for array in (None, [], values, [None, *values, None]):
            assert many.run(session, [array]) == [(_hash_by_psycopg(session, f"{name}[]", array),)], (name, array)


def test_a_statement_that_the_session_has_forgotten_is_prepared_again(session: psycopg.Connection[Any]) -> None:
    statement = _hash_of(Integer())
    before = statement.run(session, [1])

    session.execute("DEALLOCATE ALL")

    assert statement.run(session, [1]) == before


def test_a_rollback_by_the_driver_forgets_no_statement_for_good(session: psycopg.Connection[Any]) -> None:
    statement = _hash_of(Integer())
    before = statement.run(session, [1])

    for _ in range(2):  # the driver deallocates at its next statement
        with session.transaction(force_rollback=True):
            session.execute("SELECT 1")

    assert statement.run(session, [1]) == before


def _hash_of(type_: TypeEngine[Any]) -> PreparedStatement:
    """A statement that returns the hash of a value of this type as PostgreSQL formats it; -1 for NULL."""
    text = cast(bindparam("value", type_=type_), Text)
    hashed = func.hashtextextended(text, literal_column("0"))
    return PreparedStatement(select(func.coalesce(hashed, literal_column("-1"))), ["value"])


def _hash_by_psycopg(session: psycopg.Connection[Any], type_name: str, value: object) -> int:
    written = sql.SQL("SELECT coalesce(hashtextextended(CAST(CAST({} AS {}) AS text), 0), -1)")
    row = session.execute(written.format(sql.Literal(value), sql.SQL(type_name))).fetchone()
    assert row is not None
    found: int = row[0]
    return found
