"""A send inside the caller's own transaction: what is there after it, and what it does to the transaction."""

import asyncio
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.adapt import Dumper, Loader
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from psycopg.types.numeric import Int8
from sqlalchemy import event
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from mqdb.errors import (
    BrokerUnavailable,
    IllegalState,
    ParameterInvalid,
    QueueNotFound,
    SchemaMissing,
    SchemaTooNew,
    StorageRefused,
    TopicNotFound,
    TopicNotWritable,
)
from mqdb_client import Message, MessageQueue, Producer
from tests.fixtures.consumers import Inbox, Member
from tests.fixtures.log import Connection, create_topic, dispatch_all, scalar
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import producer_of


@dataclass
class Caller:
    """Somebody in the middle of a transaction, with what they use for it."""

    connection: Any
    execute: Callable[[str], Any]
    commit: Callable[[], None]
    rollback: Callable[[], None]
    savepoint: Callable[[], AbstractContextManager[Any]]


def url_of(database: Database) -> sqlalchemy.URL:
    return sqlalchemy.make_url(database.dsn).set(drivername="postgresql+psycopg")


@pytest.fixture
def app(database: Database) -> Iterator[sqlalchemy.Engine]:
    """The engine of an application, which knows nothing of mqdb."""
    engine = sqlalchemy.create_engine(url_of(database), pool_size=1, max_overflow=0)
    yield engine
    engine.dispose()


def of_sqlalchemy(connection: sqlalchemy.Connection) -> Caller:
    execute = connection.exec_driver_sql
    return Caller(connection, execute, connection.commit, connection.rollback, connection.begin_nested)


def of_session(connection: "Session | scoped_session[Session]") -> Caller:
    def execute(text: str) -> Any:
        return connection.execute(sqlalchemy.text(text))

    return Caller(connection, execute, connection.commit, connection.rollback, connection.begin_nested)


def of_psycopg(connection: Connection) -> Caller:
    execute: Callable[[str], Any] = connection.execute
    return Caller(connection, execute, connection.commit, connection.rollback, connection.transaction)


KINDS = ("Connection", "Session", "scoped_session", "psycopg")


@pytest.fixture(params=KINDS)
def caller(request: pytest.FixtureRequest, database: Database, app: sqlalchemy.Engine) -> Iterator[Caller]:
    """One of each kind; none has begun its transaction."""
    match request.param:
        case "Connection":
            with app.connect() as connection:
                yield of_sqlalchemy(connection)
        case "Session":
            with Session(app) as session:
                yield of_session(session)
        case "scoped_session":
            registry = scoped_session(sessionmaker(app))
            yield of_session(registry)
            registry.remove()
        case _:
            yield of_psycopg(database.connect(autocommit=False))


@pytest.fixture
def producer(log: Connection, database: Database) -> Iterator[Producer]:
    """A producer, two topics of four queues, and a table of the application's."""
    create_topic(log, "orders", 4)
    create_topic(log, "invoices", 4)
    log.execute("CREATE TABLE account (id integer)")
    with producer_of(database.dsn) as producer:
        yield producer


def texts(log: Connection) -> list[str]:
    """The bodies that are there now, in the order of the log."""
    return [row[0] for row in log.execute("SELECT convert_from(body, 'UTF8') FROM mqdb.commit_log ORDER BY log_pos")]


def accounts(log: Connection) -> list[int]:
    return [row[0] for row in log.execute("SELECT id FROM account ORDER BY id")]


# -- commit and rollback ----------------------------------------------------------------------


def test_a_message_is_there_when_its_transaction_commits_and_not_before(
    log: Connection, producer: Producer, caller: Caller
) -> None:
    producer.send(Message("orders", "x"), connection=caller.connection)
    before = texts(log)
    caller.commit()

    assert (before, texts(log)) == ([], ["x"])


def test_a_message_vanishes_with_its_transaction(log: Connection, producer: Producer, caller: Caller) -> None:
    producer.send(Message("orders", "x"), connection=caller.connection)
    caller.rollback()
    producer.send(Message("orders", "y"), connection=caller.connection)
    caller.commit()

    assert texts(log) == ["y"]


def test_messages_and_rows_are_one_transaction(log: Connection, producer: Producer, caller: Caller) -> None:
    for number, end in enumerate([caller.commit, caller.rollback, caller.commit]):
        caller.execute(f"INSERT INTO account VALUES ({number})")
        producer.send(Message("orders", str(number)), connection=caller.connection)
        end()

    assert accounts(log) == [0, 2]
    assert texts(log) == ["0", "2"]


def test_a_message_vanishes_with_a_rollback_to_a_savepoint(log: Connection, producer: Producer, caller: Caller) -> None:
    producer.send(Message("orders", "before"), connection=caller.connection)
    with suppress(ZeroDivisionError), caller.savepoint():
        producer.send(Message("orders", "inside"), connection=caller.connection)
        _ = 1 / 0
    producer.send(Message("orders", "after"), connection=caller.connection)
    caller.commit()

    assert texts(log) == ["before", "after"]


def test_a_nested_transaction_ends_with_the_outer_one(log: Connection, producer: Producer, caller: Caller) -> None:
    with suppress(ZeroDivisionError), caller.savepoint():
        with caller.savepoint():
            producer.send(Message("orders", "kept by the inner one"), connection=caller.connection)
        _ = 1 / 0
    with caller.savepoint(), caller.savepoint():
        producer.send(Message("orders", "kept by both"), connection=caller.connection)
    caller.commit()

    assert texts(log) == ["kept by both"]


def test_a_block_that_begins_the_transaction_commits_it(
    log: Connection, producer: Producer, app: sqlalchemy.Engine
) -> None:
    with app.begin() as connection:
        producer.send(Message("orders", "engine"), connection=connection)
    with Session(app) as session, session.begin():
        producer.send(Message("orders", "session"), connection=session)
    with psycopg.connect(url_of_psycopg(app)) as psycopg_connection:
        producer.send(Message("orders", "psycopg"), connection=psycopg_connection)

    assert texts(log) == ["engine", "session", "psycopg"]


def url_of_psycopg(app: sqlalchemy.Engine) -> str:
    return app.url.set(drivername="postgresql").render_as_string(hide_password=False)


def test_nothing_is_begun_committed_or_rolled_back_on_the_way(
    log: Connection, producer: Producer, caller: Caller
) -> None:
    caller.execute("SELECT set_config('mqdb_test.mark', 'mine', true)")
    transaction = caller.execute("SELECT pg_current_xact_id()::text").fetchone()

    producer.send(Message("orders", "x"), connection=caller.connection)
    with pytest.raises(TopicNotFound):
        producer.send(Message("strangers", "x"), connection=caller.connection)

    now = caller.execute("SELECT pg_current_xact_id()::text, current_setting('mqdb_test.mark')").fetchone()
    assert tuple(now) == (transaction[0], "mine")


@pytest.mark.parametrize("kind", ["sqlalchemy", "psycopg"])
def test_on_an_autocommit_connection_a_message_is_there_at_once(
    log: Connection, producer: Producer, database: Database, app: sqlalchemy.Engine, kind: str
) -> None:
    if kind == "psycopg":
        producer.send(Message("orders", "x"), connection=database.connect())
        assert texts(log) == ["x"]
    else:
        with app.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            producer.send(Message("orders", "x"), connection=connection)
            assert texts(log) == ["x"]


def test_a_message_of_a_prepared_transaction_is_there_when_that_is_committed(
    log: Connection, producer: Producer, database: Database
) -> None:
    connection = database.connect(autocommit=False)
    for number in range(2):
        connection.tpc_begin(f"transfer {number}")
        producer.send(Message("orders", str(number)), connection=connection)
        connection.tpc_prepare()
        prepared = texts(log)
        connection.tpc_rollback() if number == 0 else connection.tpc_commit()

        assert prepared == []

    assert texts(log) == ["1"]


def test_a_prepared_transaction_of_sqlalchemy_commits_its_message(
    log: Connection, producer: Producer, app: sqlalchemy.Engine
) -> None:
    with app.connect() as connection:
        transaction = connection.begin_twophase()
        producer.send(Message("orders", "x"), connection=connection)
        transaction.prepare()
        prepared = texts(log)
        transaction.commit()

    assert (prepared, texts(log)) == ([], ["x"])


def test_a_transaction_at_a_stricter_isolation_level_sends(log: Connection, producer: Producer, caller: Caller) -> None:
    caller.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
    producer.send(Message("orders", "x"), connection=caller.connection)
    producer.send_batch([Message("orders", "y"), Message("invoices", "z")], connection=caller.connection)
    caller.commit()

    assert texts(log) == ["x", "y", "z"]


# -- nobody waits -----------------------------------------------------------------------------


def test_others_send_and_consume_while_the_transaction_is_open(
    producer: Producer, caller: Caller, member: Member
) -> None:
    inbox = Inbox()
    member(inbox, consume_thread_nums=1)  # of several threads one may overtake the other
    queue = MessageQueue("orders", "broker-a", 0)

    producer.send(Message("orders", "held"), queue=queue, connection=caller.connection)
    for number in range(20):
        producer.send(Message("orders", f"sent {number}"), queue=queue)
    inbox.wait_for(20)
    meanwhile = inbox.bodies
    caller.commit()
    inbox.wait_for(21)

    assert meanwhile == [f"sent {number}" for number in range(20)]
    assert inbox.bodies[20:] == ["held"]


def test_messages_get_their_offsets_in_the_order_of_the_commits(
    log: Connection, producer: Producer, caller: Caller
) -> None:
    queue = MessageQueue("orders", "broker-a", 2)
    first = producer.send(Message("orders", "first sent"), queue=queue, connection=caller.connection)
    second = producer.send(Message("orders", "first committed"), queue=queue)
    dispatch_all(log)
    caller.commit()
    dispatch_all(log)

    assert first.log_pos < second.log_pos
    assert (second.queue_offset, first.queue_offset) == (0, 1)


def test_a_message_that_is_not_committed_has_no_offset_and_nobody_waits_for_one(
    producer: Producer, caller: Caller
) -> None:
    result = producer.send(Message("orders", "x"), connection=caller.connection)

    with pytest.raises(IllegalState, match="its transaction is open, or was rolled back"):
        _ = result.queue_offset
    caller.rollback()
    with pytest.raises(IllegalState, match="its transaction is open, or was rolled back"):
        _ = result.queue_offset


def test_an_open_send_holds_no_lock_that_another_could_wait_for(
    log: Connection, producer: Producer, database: Database
) -> None:
    connection = database.connect(autocommit=False)
    producer.send_batch([Message("orders", "x"), Message("invoices", "y")], connection=connection)

    held = log.execute(
        "SELECT locktype, mode FROM pg_locks WHERE pid = %s AND locktype NOT IN ('virtualxid', 'transactionid')",
        [connection.info.backend_pid],
    ).fetchall()
    assert set(held) == {("relation", "AccessShareLock"), ("relation", "RowExclusiveLock")}


def test_a_topic_can_be_changed_and_deleted_while_the_transaction_is_open(
    log: Connection, producer: Producer, caller: Caller
) -> None:
    producer.send(Message("orders", "x"), connection=caller.connection)
    log.execute("SET lock_timeout = '2s'")
    log.execute("UPDATE mqdb.topic SET perm = 4 WHERE topic = 'orders'")
    log.execute("DELETE FROM mqdb.topic WHERE topic = 'orders'")
    caller.commit()

    dispatch_all(log)
    assert scalar(log, "SELECT count(*) FROM mqdb.message") == 0


# -- several messages -------------------------------------------------------------------------


def test_one_call_sends_to_several_topics(log: Connection, producer: Producer, caller: Caller) -> None:
    names = ["orders", "invoices", "orders", "invoices", "invoices"]
    messages = [Message(name, f"{number}", tag=name) for number, name in enumerate(names)]

    results = producer.send_batch(messages, connection=caller.connection)
    caller.commit()

    assert texts(log) == ["0", "1", "2", "3", "4"]
    rows = log.execute(
        """SELECT log_pos, upper(replace(msg_id::text, '-', '')), topic, queue_id, tags
           FROM mqdb.commit_log JOIN mqdb.queue USING (queue_key) JOIN mqdb.topic USING (topic_id) ORDER BY log_pos"""
    ).fetchall()
    assert rows == [
        (result.log_pos, result.message_id, result.queue.topic, result.queue.queue_id, name)
        for result, name in zip(results, names, strict=True)
    ]


def test_the_messages_of_a_topic_stay_in_one_queue_and_in_order(
    log: Connection, producer: Producer, caller: Caller
) -> None:
    messages = [Message(("orders", "invoices")[number % 2], f"{number:04}") for number in range(2_000)]

    results = producer.send_batch(messages, connection=caller.connection)
    caller.commit()

    assert Counter(result.queue for result in results).most_common() == [
        (results[0].queue, 1_000),
        (results[1].queue, 1_000),
    ]
    assert texts(log) == [f"{number:04}" for number in range(2_000)]


def test_messages_for_a_topic_that_is_missing_take_all_others_with_them(
    log: Connection, producer: Producer, caller: Caller
) -> None:
    messages = [Message("orders", "x"), Message("strangers", "y"), Message("invoices", "z")]
    with pytest.raises(TopicNotFound) as refused:
        producer.send_batch(messages, connection=caller.connection)
    caller.commit()

    assert refused.value.topic == "strangers"
    assert texts(log) == []


def test_no_messages_are_no_error(log: Connection, producer: Producer, caller: Caller) -> None:
    assert producer.send_batch([], connection=caller.connection) == []


# -- which queue ------------------------------------------------------------------------------


def test_messages_without_a_key_go_to_all_queues_in_turn(producer: Producer, caller: Caller) -> None:
    queues = [producer.send(Message("orders", "x"), connection=caller.connection).queue.queue_id for _ in range(8)]

    assert [(number - queues[0]) % 4 for number in queues] == [0, 1, 2, 3] * 2


def test_batches_go_to_all_queues_in_turn(producer: Producer, caller: Caller) -> None:
    batch = [Message("orders", "x")] * 4
    queues = [producer.send_batch(batch, connection=caller.connection)[0].queue.queue_id for _ in range(8)]

    assert [(number - queues[0]) % 4 for number in queues] == [0, 1, 2, 3] * 2


@pytest.mark.parametrize("key", ["N14228", "", "schlüssel", "polygenelubricants"])  # the last one has hash -2**31
def test_a_sharding_key_chooses_the_queue_that_it_chooses_everywhere(
    producer: Producer, caller: Caller, key: str
) -> None:
    joined = producer.send(Message("orders", "x"), key, connection=caller.connection)
    batch = producer.send_batch([Message("orders", "x"), Message("invoices", "x")], key, connection=caller.connection)

    queue = producer.send(Message("orders", "x"), key).queue
    assert [joined.queue, batch[0].queue] == [queue, queue]
    assert batch[1].queue.queue_id == queue.queue_id


def test_only_write_queues_take_messages(log: Connection, producer: Producer, caller: Caller) -> None:
    log.execute("UPDATE mqdb.topic SET write_queue_nums = 2 WHERE topic = 'orders'")

    results = [producer.send(Message("orders", "x"), connection=caller.connection) for _ in range(6)]

    assert {result.queue.queue_id for result in results} == {0, 1}


def test_a_selector_chooses_among_the_queues_that_the_transaction_sees(
    log: Connection, producer: Producer, caller: Caller
) -> None:
    caller.execute("UPDATE mqdb.topic SET write_queue_nums = 3 WHERE topic = 'orders'")
    seen: list[MessageQueue] = []

    def last(queues: Any, message: Message, argument: object) -> Any:
        seen.extend(queues)
        return queues[-1]

    result = producer.send(Message("orders", "x"), selector=last, connection=caller.connection)

    assert seen == [MessageQueue("orders", "broker-a", number) for number in range(3)]
    assert result.queue == seen[-1]


@pytest.mark.parametrize("queue_id", [4, 2**31 - 1])
def test_a_queue_that_the_topic_does_not_have_leaves_the_transaction_usable(
    log: Connection, producer: Producer, caller: Caller, queue_id: int
) -> None:
    caller.execute("INSERT INTO account VALUES (1)")
    queue = MessageQueue("orders", "broker-a", queue_id)
    with pytest.raises(QueueNotFound):
        producer.send(Message("orders", "x"), queue=queue, connection=caller.connection)
    caller.commit()

    assert (accounts(log), texts(log)) == ([1], [])


@pytest.mark.parametrize(
    "queue",
    [
        MessageQueue("orders", "broker-b", 0),
        MessageQueue("invoices", "broker-a", 0),
        MessageQueue("orders", "broker-a", -1),
        MessageQueue("orders", "broker-a", 2**31),
    ],
    ids=str,
)
def test_a_queue_of_another_broker_or_topic_is_refused(producer: Producer, caller: Caller, queue: MessageQueue) -> None:
    with pytest.raises(ParameterInvalid, match="queue"):
        producer.send(Message("orders", "x"), queue=queue, connection=caller.connection)


# -- topics -----------------------------------------------------------------------------------


def test_a_timeout_is_refused(log: Connection, producer: Producer, caller: Caller) -> None:
    """How long the statement may take is for the caller's transaction to say."""
    second = timedelta(seconds=1)
    with pytest.raises(ParameterInvalid, match=r"timeout.*statement_timeout"):
        producer.send(Message("orders", "x"), connection=caller.connection, timeout=second)
    with pytest.raises(ParameterInvalid, match=r"timeout.*statement_timeout"):
        producer.send_batch([Message("orders", "x")], connection=caller.connection, timeout=second)
    producer.send(Message("orders", "y"), connection=caller.connection)
    caller.commit()

    assert texts(log) == ["y"]


def test_a_topic_that_is_missing_leaves_the_transaction_usable(
    log: Connection, producer: Producer, caller: Caller
) -> None:
    caller.execute("INSERT INTO account VALUES (1)")
    with pytest.raises(TopicNotFound):
        producer.send(Message("strangers", "x"), connection=caller.connection)
    producer.send(Message("orders", "y"), connection=caller.connection)
    caller.commit()

    assert (accounts(log), texts(log)) == ([1], ["y"])
    assert scalar(log, "SELECT count(*) FROM mqdb.topic WHERE topic = 'strangers'") == 0


def test_a_topic_that_takes_no_messages_leaves_the_transaction_usable(
    log: Connection, producer: Producer, caller: Caller
) -> None:
    producer.send(Message("orders", "before"), connection=caller.connection)
    log.execute("UPDATE mqdb.topic SET perm = 4 WHERE topic = 'orders'")
    with pytest.raises(TopicNotWritable) as refused:
        producer.send(Message("orders", "after"), connection=caller.connection)
    caller.commit()

    assert refused.value.perm == 4
    assert texts(log) == ["before"]


def test_a_topic_of_the_same_transaction_takes_messages(log: Connection, producer: Producer, caller: Caller) -> None:
    def create() -> None:
        caller.execute(
            """WITH made AS (INSERT INTO mqdb.topic (topic, read_queue_nums, write_queue_nums, perm)
                             VALUES ('young', 1, 1, 6) RETURNING topic_id)
               INSERT INTO mqdb.queue (topic_id, queue_id) SELECT topic_id, 0 FROM made"""
        )

    create()
    producer.send(Message("young", "first"), connection=caller.connection)
    caller.rollback()
    with pytest.raises(TopicNotFound):
        producer.send(Message("young", "between"), connection=caller.connection)
    create()
    producer.send(Message("young", "second"), connection=caller.connection)
    caller.commit()

    assert texts(log) == ["second"]


def test_a_topic_that_was_made_again_takes_messages(log: Connection, producer: Producer, caller: Caller) -> None:
    producer.send(Message("orders", "x"), connection=caller.connection)
    log.execute("DELETE FROM mqdb.topic WHERE topic = 'orders'")
    create_topic(log, "orders", 2)
    producer.send(Message("orders", "y"), connection=caller.connection)
    caller.commit()

    dispatch_all(log)
    assert [row[0] for row in log.execute("SELECT text FROM mqdb.message")] == ["y"]


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
    log.execute("UPDATE mqdb.alembic_version SET version_num = '9999'")
    caller.execute("INSERT INTO account VALUES (1)")
    with pytest.raises(SchemaTooNew):
        producer.send(Message("orders", "x"), connection=caller.connection)
    caller.commit()

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
    """Also when the connection is lost, and the block cannot even roll back."""

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


# -- what is no connection that can be joined -------------------------------------------------


class AsyncConnection:
    """Has what tells SQLAlchemy's AsyncConnection and AsyncSession; to import those takes greenlet."""

    async def run_sync(self, function: object) -> None: ...


class Psycopg2Connection:
    """It has all the methods, and other ways."""

    closed = 0
    autocommit = False

    def cursor(self) -> None: ...

    def execute(self, *_: object) -> None: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...


@pytest.mark.parametrize(
    ("connection", "remedy"),
    [
        (AsyncConnection(), "run_sync"),
        (Psycopg2Connection(), r"mqdb\.send"),
        ("postgresql://localhost/app", r"mqdb\.send"),
        (sqlalchemy.create_engine("postgresql+psycopg://"), r"mqdb\.send"),
        (sessionmaker(), r"mqdb\.send"),
        (Session(), "bind_arguments"),
        (Session(sqlalchemy.create_engine("sqlite://")), r"postgresql\+psycopg://"),
    ],
    ids=["AsyncConnection", "psycopg2", "DSN", "Engine", "sessionmaker", "unbound", "SQLite"],
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
