"""Queues of a topic that an administrator has deleted accept no message once the deletion has committed.

The segment keeper, which removes the queues later, does not run here. So every refusal comes from the append.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest
from sqlalchemy import Connection

from mqdb.broker.topics.route import find_or_create_dlq_topic
from mqdb.common.unique_id import format_unique_id
from mqdb.settings import load_settings
from mqdb.store.topics import topics
from mqdb_client import Admin, Message, Resolution, TransactionProducer, errors
from tests.fixtures.broker import append, dispatch_all
from tests.fixtures.delay import deliver_all, delivered, move_clock
from tests.fixtures.postgres import Database
from tests.fixtures.principals import Principal
from tests.fixtures.processes import wait_until
from tests.fixtures.roles import MakeRole
from tests.fixtures.spark_sink import Table, stage, stream_writer_for
from tests.fixtures.threads import Doing
from tests.fixtures.transactions import COMMIT, ROLLBACK, SECOND, Asked, send_half
from tests.fixtures.variants import usually

SHOP = "shop"
GRACE = "grace"

Send: TypeAlias = Callable[[TransactionProducer, Message], object]

SENDS: dict[str, Send] = {
    "alone": lambda producer, message: producer.send(message),
    "a batch": lambda producer, message: producer.send_batch([message, message]),
    "behind": lambda producer, message: producer.send_async(message).result(30),
    "a delay": lambda producer, message: producer.send(Message(message.topic, message.body, delay_level=1)),
    "a half message": lambda producer, message: producer.send_in_transaction(message),
}

#: The others go to the queue of the first.
OF_THREE_QUEUES = ("alone", "a delay", "a half message")

STAGED: list[Table] = [{"body": ["a"]}, {"body": ["a"], "delay_level": pa.array([1], pa.int32())}]


@pytest.fixture
def grace_dsn(owner: Admin, role: MakeRole) -> str:
    """The DSN of an administrator that does not own the broker."""
    dsn = role(GRACE)
    owner.acl.grant(GRACE, admin=["orders"])
    return dsn


@pytest.fixture
def grace(grace_dsn: str) -> Iterator[Admin]:
    """The `Admin` of the role grace."""
    with Admin(grace_dsn) as admin:
        yield admin


@pytest.fixture(params=["the owner", "a role"])
def sender(request: pytest.FixtureRequest, database: Database, principal: Principal) -> Iterator[TransactionProducer]:
    """A producer that has the route of `orders`, and creates no topics."""
    dsn = database.dsn if request.param == "the owner" else principal(SHOP, send=["orders"])
    settings = load_settings(dsn=dsn, auto_create_topic_enable=False)
    with TransactionProducer("shop", listener=Asked(COMMIT), settings=settings) as producer:
        producer.send(Message("orders", "before"))
        yield producer


def stored(database: Database) -> list[tuple[int]]:
    return database.rows("SELECT log_pos FROM mqdb.commit_log ORDER BY 1")


@pytest.mark.parametrize(
    "send", usually(*(SENDS[kind] for kind in OF_THREE_QUEUES), of=SENDS.values()), ids=list(SENDS)
)
def test_a_producer_hears_that_the_topic_is_gone(
    sender: TransactionProducer, grace: Admin, database: Database, send: Send
) -> None:
    before = stored(database)
    grace.topics.delete("orders")

    with pytest.raises(errors.TopicNotFound):
        send(sender, Message("orders", "after"))

    assert stored(database) == before


@pytest.mark.parametrize("send", usually(SENDS["a batch"], SENDS["behind"], of=SENDS.values()), ids=list(SENDS))
def test_a_producer_goes_on_in_the_topic_that_is_made_again(
    sender: TransactionProducer, grace: Admin, database: Database, broker: Connection, send: Send
) -> None:
    grace.topics.delete("orders")
    grace.topics.create("orders", queues=1)

    send(sender, Message("orders", "after"))

    dispatch_all(broker)
    move_clock(broker, 2 * SECOND)
    deliver_all(broker)
    old = """SELECT count(*) FROM mqdb.commit_log JOIN mqdb.queue USING (queue_key) JOIN mqdb.topic USING (topic_id)
             WHERE starts_with(topic, mqdb.deleted_prefix()) AND body = 'after'"""
    assert database.rows(old) == [(0,)]
    assert set(delivered(broker)) == {"after"}


@pytest.mark.parametrize(
    "send", usually(SENDS["a delay"], of=[SENDS["alone"], SENDS["a delay"]]), ids=["alone", "a delay"]
)
def test_a_deletion_that_is_not_committed_stops_nobody(
    sender: TransactionProducer, grace_dsn: str, database: Database, send: Send
) -> None:
    before = stored(database)
    with psycopg.connect(grace_dsn) as grace:
        grace.execute("SELECT mqdb.delete_topic('orders', true, '')")
        send(sender, Message("orders", "meanwhile"))
        grace.rollback()
        send(sender, Message("orders", "afterwards"))

    assert len(stored(database)) == len(before) + 2


def test_two_deletions_at_once_leave_no_queue_that_takes_messages(grace_dsn: str, database: Database) -> None:
    """Two concurrent deletions leave no queue that accepts messages.

    This also holds in REPEATABLE READ, and with queues that are added at the same moment.
    """
    with psycopg.connect(grace_dsn) as grace, psycopg.connect(grace_dsn, autocommit=True) as other:
        grace.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        grace.execute("SELECT FROM mqdb.topic")
        other.execute("SELECT mqdb.change_topic('orders', 9, 9, NULL, NULL, NULL, '')")
        with pytest.raises(psycopg.errors.SerializationFailure):
            grace.execute("SELECT mqdb.delete_topic('orders', true, '')")
        grace.rollback()
        other.execute("SELECT mqdb.delete_topic('orders', true, '')")

    left = """SELECT count(*) FROM mqdb.live_queue JOIN mqdb.queue USING (queue_key) JOIN mqdb.topic USING (topic_id)
              WHERE starts_with(topic, mqdb.deleted_prefix())"""
    assert database.rows(left) == [(0,)]


def test_the_dead_letters_of_a_deleted_group_take_no_messages(owner: Admin, grace: Admin, broker: Connection) -> None:
    owner.acl.grant(GRACE, admin_group=["billing"])
    grace.groups.update("billing", retry_max_times=1)
    find_or_create_dlq_topic(broker, "billing")
    route = topics.find_topic(broker, "%DLQ%billing")
    assert route is not None

    grace.groups.delete("billing", with_topics=True)

    with pytest.raises(errors.TopicNotFound):
        append(broker, route, "after")


@pytest.mark.parametrize("table", STAGED, ids=["at once", "a delay"])
def test_what_spark_has_staged_for_it_is_refused(
    grace: Admin, database: Database, principal: Principal, table: Table
) -> None:
    etl = Database(principal("etl", send=["orders"]))
    for each in (database, etl):
        writer = stream_writer_for(each, table, topic="orders")
        staged = stage(writer, table, 0)
        grace.topics.delete("orders", force=True)

        with pytest.raises(errors.TopicNotFound):
            writer.commit([staged], 0)

        grace.topics.create("orders")
    assert stored(database) == []


def test_a_send_by_sql_that_has_found_the_topic_finds_that_it_is_gone(
    grace: Admin, database: Database, principal: Principal
) -> None:
    """A send by SQL that has found the topic notices its deletion.

    The send pauses between the two lookups, while it computes a hash.
    """
    dsn = principal(SHOP, send=["orders"])
    holder = database.connect()
    holder.execute(
        """CREATE OR REPLACE FUNCTION mqdb.java_hash(string text) RETURNS integer LANGUAGE plpgsql AS
           $$ BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN 0; END $$"""
    )
    holder.execute("SELECT pg_advisory_lock(4711)")
    with psycopg.connect(dsn, autocommit=True) as shop:

        def send() -> str | None:
            try:
                shop.execute("SELECT mqdb.send('orders', 'x', sharding_key => 'k')")
            except psycopg.Error as error:
                return error.sqlstate
            return None

        sending = Doing(send)
        wait_until(lambda: holder.execute("SELECT pid FROM pg_locks WHERE objid = 4711 AND NOT granted").fetchone())
        grace.topics.delete("orders")
        holder.execute("SELECT pg_advisory_unlock(4711)")

        assert sending.result() == "MQ301"
    assert stored(database) == []


# -- half messages ------------------------------------------------------------------------------


def test_a_half_message_that_the_checker_has_not_met_is_not_committed_to_a_younger_topic(
    owner: Admin, grace: Admin, broker: Connection
) -> None:
    route = topics.find_topic(broker, "orders")
    assert route is not None
    half = send_half(broker, route, "old")
    grace.topics.delete("orders", force=True)
    grace.topics.create("orders")

    with pytest.raises(errors.TopicNotFound):
        half.end(broker, COMMIT)
    with pytest.raises(errors.TopicNotFound):
        owner.transactions.resolve(format_unique_id(half.unique_id), Resolution.COMMIT)

    assert half.end(broker, ROLLBACK).has_changed
    assert delivered(broker) == []


@pytest.mark.parametrize(
    "call", ["mqdb.end_half({pos}, 'g', '{id}', 'COMMIT', NULL)", "mqdb.resolve_half('{hex}', 'commit', '')"]
)
def test_nor_is_one_of_a_role_that_was_stored_in_that_moment(
    owner: Admin, grace: Admin, broker: Connection, principal: Principal, call: str
) -> None:
    dsn = principal(SHOP, send=["orders"])
    owner.acl.grant(SHOP, operate=["orders"])
    route = topics.find_topic(broker, "orders")
    assert route is not None
    send_half(broker, route, "makes the deletion one by force")
    with psycopg.connect(dsn) as shop:
        unique_id = uuid4()
        sent = shop.execute(SEND_HALF, {"key": route.queue_keys[0], "id": unique_id}).fetchone()
        grace.topics.delete("orders", force=True)
        shop.commit()
        grace.topics.create("orders")
        assert sent is not None

        ends = call.format(pos=sent[0], id=unique_id, hex=unique_id.hex)
        with pytest.raises(psycopg.Error) as refused:
            shop.execute(f"SELECT {ends}".encode())

    assert refused.value.sqlstate == "MQ301"
    assert delivered(broker) == []


SEND_HALF = b"""
    SELECT mqdb.send_half(%(key)s, NULL, 0, now(), %(id)s, 'host', NULL, NULL, '{"PGROUP": "g"}', 'x', 0, 0)"""
