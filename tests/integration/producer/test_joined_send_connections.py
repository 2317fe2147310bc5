"""Connections that a send joins: the broker that they lead to, their settings, and the refused ones."""

import asyncio
import pickle
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.adapt import Dumper, Loader
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from psycopg.types.numeric import Int8
from sqlalchemy import event
from sqlalchemy.orm import Session, sessionmaker

from mqdb.errors import (
    BrokerUnavailable,
    IllegalState,
    ParameterInvalid,
    SchemaMissing,
    SchemaTooNew,
    StorageRefused,
    TopicNotFound,
)
from mqdb_client import Message, MessageQueue, Producer
from tests.fixtures.joined_sends import Caller, accounts, django_connection, texts, url_of
from tests.fixtures.log import Connection, create_topic, scalar
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until


@pytest.fixture
def database(joined_database: Database) -> Database:
    return joined_database


@pytest.fixture
def producer(joining_producer: Producer) -> Producer:
    return joining_producer


# -- which broker -----------------------------------------------------------------------------


def test_a_database_without_schema_leaves_the_transaction_usable(producer: Producer, empty_database: Database) -> None:
    connection = empty_database.connect(autocommit=False)
    connection.execute("CREATE TABLE mine (id integer)")

    with pytest.raises(SchemaMissing) as refused:
        producer.send(Message("orders", "x"), connection=connection)

    assert connection.info.transaction_status == TransactionStatus.INTRANS
    assert refused.value.target == f"{connection.info.host}:{connection.info.port}/{connection.info.dbname}"


def test_a_schema_of_another_version_leaves_the_transaction_usable(
    log: Connection, producer: Producer, caller: Caller
) -> None:
    version = scalar(log, "SELECT version_num FROM mqdb.alembic_version")
    log.execute("UPDATE mqdb.alembic_version SET version_num = '9999'")
    try:
        caller.execute("INSERT INTO account VALUES (1)")
        with pytest.raises(SchemaTooNew):
            producer.send(Message("orders", "x"), connection=caller.connection)
        caller.commit()
    finally:
        log.execute("UPDATE mqdb.alembic_version SET version_num = %s", [version])

    assert accounts(log) == [1]


def test_the_messages_go_to_the_broker_of_the_connection(
    producer: Producer, log: Connection, empty_database: Database
) -> None:
    from mqdb.store import migrations

    migrations.upgrade(empty_database.dsn, broker_name="broker-b")
    elsewhere = empty_database.connect()
    create_topic(elsewhere, "parcels")

    result = producer.send(Message("parcels", "x"), connection=elsewhere)

    assert result.queue == MessageQueue("parcels", "broker-b", 0)
    assert (texts(log), texts(elsewhere)) == ([], ["x"])


def test_a_send_is_one_statement_once_the_connection_is_known(producer: Producer, app: sqlalchemy.Engine) -> None:
    statements: list[str] = []

    @event.listens_for(app, "before_cursor_execute")
    def count(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    with app.begin() as connection:
        producer.send(Message("orders", "x"), connection=connection)
    statements.clear()
    with Session(app) as session:
        producer.send(Message("orders", "y"), connection=session)
        producer.send_batch([Message("orders", "z"), Message("invoices", "z")], connection=session)

    assert len(statements) == 2


def test_a_pooled_connection_that_was_replaced_is_looked_at_again(
    log: Connection, producer: Producer, app: sqlalchemy.Engine
) -> None:
    with app.connect() as connection:
        producer.send(Message("orders", "x"), connection=connection)
        connection.commit()
        connection.invalidate()
        producer.send(Message("orders", "y"), connection=connection)
        connection.commit()

    assert texts(log) == ["x", "y"]


# -- a psycopg connection as its owner likes it -----------------------------------------------


class LoudDumper(Dumper):
    def dump(self, obj: object) -> bytes:
        raise AssertionError("an adapter of the connection's owner was used")


class LoudLoader(Loader):
    def load(self, data: object) -> object:
        raise AssertionError("an adapter of the connection's owner was used")


def unusual_connections(database: Database) -> dict[str, Connection]:
    adapted = database.connect()
    for kind in (str, int, bytes, list, Int8):
        adapted.adapters.register_dumper(kind, LoudDumper)
    for name in ("int8", "int4", "int2", "text", "bool"):
        adapted.adapters.register_loader(name, LoudLoader)
    return {
        "rows as dicts": database.connect(row_factory=dict_row),
        "client-side binding": database.connect(cursor_factory=psycopg.ClientCursor),
        "never prepares": database.connect(prepare_threshold=None),
        "always prepares": database.connect(prepare_threshold=0),
        "other adapters": adapted,
    }


@pytest.mark.parametrize(
    "kind", ["rows as dicts", "client-side binding", "never prepares", "always prepares", "other adapters"]
)
def test_settings_of_the_connection_do_not_matter(
    log: Connection, producer: Producer, database: Database, kind: str
) -> None:
    connection = unusual_connections(database)[kind]
    messages = [Message("orders", "ä", "tag", "key", {"a": "ä"}, 7), Message("invoices", "b")]

    for _ in range(8):  # more often than psycopg waits before it prepares
        producer.send(Message("orders", "x"), connection=connection)
        producer.send_batch(messages, connection=connection)

    assert Counter(texts(log)) == {"x": 8, "ä": 8, "b": 8}
    stored = log.execute("SELECT DISTINCT tags, keys, properties ->> 'a', flag FROM mqdb.commit_log").fetchall()
    assert set(stored) == {("tag", "key", "ä", 7), (None, None, None, 0)}


def test_nothing_is_changed_on_the_connection(producer: Producer, database: Database) -> None:
    connection = database.connect(row_factory=dict_row)
    producer.send_batch([Message("orders", "x")] * 2, connection=connection)

    assert connection.row_factory is dict_row
    assert connection.execute("SELECT ARRAY['a'] = %s AS same", [["a"]]).fetchone() == {"same": True}
    assert connection.adapters.get_dumper(list, psycopg.adapt.PyFormat.TEXT) is psycopg.adapters.get_dumper(
        list, psycopg.adapt.PyFormat.TEXT
    )


def test_a_send_in_a_pipeline_has_its_result_at_once(log: Connection, producer: Producer, database: Database) -> None:
    connection = database.connect(autocommit=False)
    with connection.pipeline():
        connection.execute("INSERT INTO account VALUES (1)")
        results = [producer.send(Message("orders", "x"), connection=connection) for _ in range(3)]
        with pytest.raises(TopicNotFound):
            producer.send(Message("strangers", "x"), connection=connection)
        connection.execute("INSERT INTO account VALUES (2)")
    connection.commit()

    assert len({result.log_pos for result in results}) == 3
    assert (accounts(log), texts(log)) == ([1, 2], ["x"] * 3)


def test_a_pipeline_that_has_failed_is_refused(log: Connection, producer: Producer, database: Database) -> None:
    connection = database.connect(autocommit=False)
    producer.send(Message("orders", "x"), connection=connection)
    with suppress(psycopg.errors.PipelineAborted), connection.pipeline():
        connection.execute("SELECT * FROM nowhere")
        with pytest.raises(StorageRefused, match="nowhere"):  # psycopg tells the first who asks for a result
            producer.send(Message("orders", "y"), connection=connection)
        with pytest.raises(IllegalState, match="roll it back"):
            producer.send(Message("orders", "z"), connection=connection)
    connection.rollback()

    assert texts(log) == []


# -- transactions and connections that are of no use ------------------------------------------


def test_a_transaction_that_has_failed_is_refused(log: Connection, producer: Producer, caller: Caller) -> None:
    producer.send(Message("orders", "x"), connection=caller.connection)
    with pytest.raises(Exception, match="nowhere"):
        caller.execute("SELECT * FROM nowhere")

    with pytest.raises(IllegalState, match="roll it back"):
        producer.send(Message("orders", "y"), connection=caller.connection)
    caller.rollback()

    assert texts(log) == []


def test_a_transaction_that_has_failed_is_refused_on_a_connection_that_is_new_here(
    producer: Producer, caller: Caller
) -> None:
    with pytest.raises(Exception, match="nowhere"):
        caller.execute("SELECT * FROM nowhere")

    with pytest.raises(IllegalState, match="roll it back"):
        producer.send(Message("orders", "y"), connection=caller.connection)


def test_a_refusal_of_the_database_fails_the_transaction_as_any_statement_would(
    log: Connection, producer: Producer, caller: Caller
) -> None:
    caller.execute("SET TRANSACTION READ ONLY")
    with pytest.raises(StorageRefused) as refused:
        producer.send(Message("orders", "a secret"), connection=caller.connection)

    assert refused.value.sqlstate == "25006"
    assert isinstance(refused.value.__cause__, psycopg.errors.ReadOnlySqlTransaction)
    with pytest.raises(IllegalState, match="roll it back"):
        producer.send(Message("orders", "y"), connection=caller.connection)
    caller.rollback()
    producer.send(Message("orders", "z"), connection=caller.connection)
    caller.commit()
    assert texts(log) == ["z"]


def test_a_psycopg_connection_that_is_closed_is_refused(producer: Producer, database: Database) -> None:
    connection = database.connect()
    connection.close()

    with pytest.raises(IllegalState, match="closed"):
        producer.send(Message("orders", "x"), connection=connection)


def test_a_connection_of_sqlalchemy_that_is_closed_is_refused(producer: Producer, app: sqlalchemy.Engine) -> None:
    connection = app.connect()
    connection.close()

    with pytest.raises(IllegalState, match="closed"):
        producer.send(Message("orders", "x"), connection=connection)


def test_a_block_whose_transaction_is_over_is_refused(
    log: Connection, producer: Producer, app: sqlalchemy.Engine
) -> None:
    with app.begin() as connection:
        connection.rollback()
        with pytest.raises(IllegalState, match="closed transaction"):
            producer.send(Message("orders", "x"), connection=connection)

    assert texts(log) == []


def test_a_connection_that_is_lost_says_where_it_led(log: Connection, producer: Producer, caller: Caller) -> None:
    producer.send(Message("orders", "x"), connection=caller.connection)
    end_backend(log, caller.execute("SELECT pg_backend_pid()").fetchone()[0])

    with pytest.raises(BrokerUnavailable) as refused:
        producer.send(Message("orders", "y"), connection=caller.connection)

    assert refused.value.target == f"{log.info.host}:{log.info.port}/{log.info.dbname}"
    assert texts(log) == []


def end_backend(log: Connection, pid: int) -> None:
    log.execute("SELECT pg_terminate_backend(%s)", [pid])
    wait_until(lambda: scalar(log, "SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [pid]) == 0)


def test_an_error_leaves_a_block_of_sqlalchemy_as_itself(
    log: Connection, producer: Producer, app: sqlalchemy.Engine
) -> None:
    """An error leaves a SQLAlchemy block unchanged.

    This also holds if the connection is lost, and the block cannot even roll back.
    """

    def lose_the_connection() -> None:
        with app.begin() as connection:
            end_backend(log, connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())
            producer.send(Message("orders", "x"), connection=connection)

    with pytest.raises(BrokerUnavailable):
        lose_the_connection()

    with app.begin() as connection:
        producer.send(Message("orders", "y"), connection=connection)
    assert texts(log) == ["y"]


def test_a_pool_without_a_free_connection_is_no_broker(producer: Producer, database: Database) -> None:
    engine = sqlalchemy.create_engine(url_of(database), pool_size=1, max_overflow=0, pool_timeout=0.01)
    with engine.connect(), Session(engine) as session, pytest.raises(BrokerUnavailable, match="QueuePool limit"):
        producer.send(Message("orders", "x"), connection=session)
    engine.dispose()


# -- Django -------------------------------------------------------------------------------------


@pytest.fixture
def django(database: Database) -> Iterator[Any]:
    """`django.db.connection`."""
    with django_connection(database) as connection:
        yield connection


def test_in_an_atomic_block_the_connection_of_django_is_joined(
    log: Connection, producer: Producer, django: Any
) -> None:
    from django.db import transaction

    with transaction.atomic():
        django.cursor().execute("INSERT INTO account VALUES (1)")
        producer.send(Message("orders", "x"), connection=django)
        with suppress(ZeroDivisionError), transaction.atomic():
            producer.send(Message("orders", "of a savepoint"), connection=django)
            raise ZeroDivisionError
        assert texts(log) == []
    with suppress(ZeroDivisionError), transaction.atomic():
        producer.send(Message("orders", "rolled back"), connection=django)
        raise ZeroDivisionError

    assert (accounts(log), texts(log)) == ([1], ["x"])


def test_outside_of_an_atomic_block_the_connection_of_django_is_refused(
    log: Connection, producer: Producer, django: Any
) -> None:
    for _ in ("not connected", "in autocommit"):
        with pytest.raises(IllegalState, match=r"transaction\.atomic"):
            producer.send(Message("orders", "x"), connection=django)
        django.ensure_connection()

    assert texts(log) == []


def test_another_database_of_django_is_refused(producer: Producer) -> None:
    from django.db.utils import ConnectionHandler

    sqlite: Any = ConnectionHandler({"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
    with pytest.raises(ParameterInvalid, match="sqlite"):
        producer.send(Message("orders", "x"), connection=sqlite["default"])


# -- what is no connection that can be joined -------------------------------------------------


class AsyncConnection:
    """Has the attributes by which SQLAlchemy's AsyncConnection and AsyncSession are recognised.

    Importing those requires greenlet.
    """

    async def run_sync(self, function: object) -> None: ...


class Psycopg2Connection:
    """A psycopg2 connection, which has all the methods but uses them differently."""

    closed = 0
    autocommit = False

    def cursor(self) -> None: ...

    def execute(self, *_: object) -> None: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...


@pytest.mark.parametrize(
    ("connection", "remedy"),
    [
        (AsyncConnection(), "AsyncProducer"),
        (Psycopg2Connection(), r"mqdb\.send"),
        (SimpleNamespace(vendor="postgresql", in_atomic_block=True, connection=Psycopg2Connection()), "use psycopg 3"),
        ("postgresql://localhost/app", r"mqdb\.send"),
        (sqlalchemy.create_engine("postgresql+psycopg://"), r"mqdb\.send"),
        (sessionmaker(), r"mqdb\.send"),
        (Session(), "bind_arguments"),
        (Session(sqlalchemy.create_engine("sqlite://")), r"postgresql\+psycopg://"),
    ],
    ids=["AsyncConnection", "psycopg2", "psycopg2 below Django", "DSN", "Engine", "sessionmaker", "unbound", "SQLite"],
)
def test_what_cannot_be_joined_is_refused_with_a_remedy(producer: Producer, connection: Any, remedy: str) -> None:
    with pytest.raises(ParameterInvalid, match=remedy) as refused:
        producer.send(Message("orders", "x"), connection=connection)

    assert refused.value.name == "connection"
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


def test_a_connection_of_sqlalchemy_with_another_driver_is_refused(producer: Producer) -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(ParameterInvalid, match=r"mqdb\.send"):
        producer.send(Message("orders", "x"), connection=connection)
    engine.dispose()


def test_an_asynchronous_connection_of_psycopg_is_refused(producer: Producer, database: Database) -> None:
    async def send() -> None:
        async with await psycopg.AsyncConnection.connect(database.dsn) as connection:
            wrong: Any = connection
            producer.send(Message("orders", "x"), connection=wrong)

    with pytest.raises(ParameterInvalid, match="asynchronous"):
        asyncio.run(send())


def test_in_run_sync_an_asynchronous_connection_is_joined(
    log: Connection, producer: Producer, database: Database
) -> None:
    pytest.importorskip("greenlet", reason="what is asynchronous in SQLAlchemy needs it")
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    async def send() -> None:
        engine = create_async_engine(url_of(database))
        async with engine.begin() as connection:
            await connection.run_sync(lambda joined: producer.send(Message("orders", "x"), connection=joined))
        async with AsyncSession(engine) as session:
            await session.run_sync(lambda joined: producer.send(Message("orders", "y"), connection=joined))
            await session.rollback()
        await engine.dispose()

    asyncio.run(send())

    assert texts(log) == ["x"]
