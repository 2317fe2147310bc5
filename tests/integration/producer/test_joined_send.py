"""A send in the caller's own transaction: the stored messages, and the effect on the transaction."""

from collections import Counter
from contextlib import suppress
from datetime import timedelta

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from mqdb.errors import IllegalState, ParameterInvalid, TopicNotFound
from mqdb_client import Message, MessageQueue, Producer
from tests.fixtures.consumers import Inbox, Member
from tests.fixtures.joined_sends import KINDS, Caller, accounts, texts
from tests.fixtures.log import Connection, dispatch_all, scalar
from tests.fixtures.postgres import Database


@pytest.fixture
def database(joined_database: Database) -> Database:
    return joined_database


@pytest.fixture
def producer(joining_producer: Producer) -> Producer:
    return joining_producer


# -- commit and rollback ----------------------------------------------------------------------


@pytest.mark.parametrize("caller", KINDS, indirect=True)
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
    log: Connection, producer: Producer, app: sqlalchemy.Engine, database: Database
) -> None:
    with app.begin() as connection:
        producer.send(Message("orders", "engine"), connection=connection)
    with Session(app) as session, session.begin():
        producer.send(Message("orders", "session"), connection=session)
    with psycopg.connect(database.dsn) as psycopg_connection:
        producer.send(Message("orders", "psycopg"), connection=psycopg_connection)

    assert texts(log) == ["engine", "session", "psycopg"]


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


def test_a_timeout_is_refused(log: Connection, producer: Producer, caller: Caller) -> None:
    """A timeout is refused, because the caller's transaction decides how long a statement may take."""
    second = timedelta(seconds=1)
    with pytest.raises(ParameterInvalid, match=r"timeout.*statement_timeout"):
        producer.send(Message("orders", "x"), connection=caller.connection, timeout=second)
    with pytest.raises(ParameterInvalid, match=r"timeout.*statement_timeout"):
        producer.send_batch([Message("orders", "x")], connection=caller.connection, timeout=second)
    producer.send(Message("orders", "y"), connection=caller.connection)
    caller.commit()

    assert texts(log) == ["y"]


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
