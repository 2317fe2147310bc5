"""Roles that do not own the broker use clients like everyone else, within their rights."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg import sql

from mqdb_client import (
    Admin,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeMode,
    ConsumeOrderlyStatus,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
    errors,
)
from tests.fixtures.broker import dispatch_all
from tests.fixtures.consumers import Inbox
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.roles import MakeRole
from tests.fixtures.variants import case

SHOP = 'the "shop"'
BILLING = "billing @ work"
ENTER = sqlalchemy.text("INSERT INTO public.ledger VALUES (:body)")
SOME_DAY = datetime(2999, 1, 1, tzinfo=UTC)


@pytest.fixture
def admin(owner: Admin) -> Admin:
    """An `Admin` of the owner of a broker with the topics `orders` and `secret`."""
    return owner


@pytest.fixture
def shop(admin: Admin, role: MakeRole) -> str:
    """The DSN of a role that may send to `orders`."""
    dsn = role(SHOP)
    admin.acl.grant(SHOP, send=["orders"])
    return dsn


@pytest.fixture
def billing(admin: Admin, role: MakeRole) -> str:
    """The DSN of a role that may read `orders` as a member of group `billing`."""
    dsn = role(BILLING)
    admin.acl.grant(BILLING, read=["orders"], group=["billing"])
    return dsn


def rows(dsn: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(statement.encode(), values).fetchall()


# -- to send ------------------------------------------------------------------------------------


def test_who_may_send_sends_in_every_way_and_learns_what_became_of_it(admin: Admin, shop: str) -> None:
    with Producer("shop", shop) as producer:
        sent = producer.send(Message("orders", "alone"))
        producer.send_batch([Message("orders", str(number)) for number in range(3)])
        at_once = producer.send_async(Message("orders", "behind"))
        later = producer.send(Message("orders", "later", delay_level=1))
        some_day = producer.send(Message("orders", "some day", deliver_at=SOME_DAY))

        assert at_once.result(30).queue.topic == "orders"
        assert (sent.queue_offset, later.queue_offset, some_day.queue_offset) == (0, 0, 0)
        for result in (sent, later, some_day):
            found = producer.outcome(result.message_id)
            assert found is not None
            assert (found.queue, found.log_pos) == (result.queue, result.log_pos)


def test_a_send_joins_a_transaction_of_the_role(shop: str, database: Database) -> None:
    with Producer("shop", shop) as producer, psycopg.connect(shop) as connection:
        producer.send(Message("orders", "1"), connection=connection)
        producer.send_batch([Message("orders", "2"), Message("orders", "3")], connection=connection)
        producer.send(Message("orders", "4", delay_level=1), connection=connection)
        assert database.rows("SELECT count(*) FROM mqdb.commit_log") == [(0,)]
        connection.commit()

    assert database.rows("SELECT count(*) FROM mqdb.commit_log") == [(4,)]


@pytest.mark.parametrize("topic", ["secret", "no-such-topic"])
def test_a_topic_that_the_role_may_not_send_to_is_refused_and_not_told_of(
    admin: Admin, shop: str, database: Database, topic: str
) -> None:
    with Producer("shop", shop) as producer, psycopg.connect(shop) as connection:
        sends: list[Callable[[], object]] = [
            lambda: producer.send(Message(topic, "x")),
            lambda: producer.send_batch([Message(topic, "x")]),
            lambda: producer.send(Message(topic, "x", delay_level=1)),
            lambda: producer.send(Message(topic, "x"), connection=connection),
            lambda: producer.send_async(Message(topic, "x")).result(30),
        ]
        for send in sends:
            with pytest.raises(errors.AccessDenied) as refusal:
                send()
            denied = refusal.value
            assert (denied.principal, denied.access, denied.resource) == (SHOP, "SEND", topic)

    assert database.rows("SELECT count(*) FROM mqdb.commit_log") == [(0,)]


def test_who_may_only_read_a_topic_is_told_so_when_it_sends(billing: str, database: Database) -> None:
    with Producer("billing", billing) as producer, psycopg.connect(billing) as connection:
        sends: list[Callable[[], object]] = [
            lambda: producer.send(Message("orders", "x")),
            lambda: producer.send(Message("orders", "x", delay_level=1)),
            lambda: producer.send(Message("orders", "x"), connection=connection),
        ]
        for send in sends:
            with pytest.raises(errors.AccessDenied, match=f"{BILLING!r} has no right SEND on TOPIC 'orders'"):
                send()

    assert database.rows("SELECT count(*) FROM mqdb.commit_log") == [(0,)]


def test_what_is_refused_spoils_nothing_that_is_stored_together_with_it(
    admin: Admin, role: MakeRole, database: Database
) -> None:
    """A refused message does not affect messages stored with it. Messages sent at the same time share a statement."""
    dsn = role(SHOP)
    admin.acl.grant(SHOP, send=["orders"], read=["secret"])
    with Producer("shop", dsn) as producer:
        producer.send(Message("orders", "first"))
        sends = [
            (topic, producer.send_async(Message(topic, str(number)), timeout=timedelta(seconds=30)))
            for number in range(100)
            for topic in (("orders", "secret") if number % 10 == 0 else ("orders",))
        ]
        refused = [topic for topic, sending in sends if isinstance(sending.exception(30), errors.AccessDenied)]

    assert refused == ["secret"] * 10
    assert all(sending.exception() is None for topic, sending in sends if topic == "orders")
    assert database.rows("SELECT count(*) FROM mqdb.commit_log") == [(101,)]


def test_a_right_that_is_taken_away_ends_with_the_next_send(admin: Admin, shop: str) -> None:
    with Producer("shop", shop) as producer:
        producer.send(Message("orders", "1"))

        admin.acl.revoke(SHOP, send=["orders"])
        admin.acl.grant(SHOP, send=["other"])

        with pytest.raises(errors.AccessDenied, match="SEND on TOPIC 'orders'"):
            producer.send(Message("orders", "2"))


def test_a_topic_is_made_by_its_first_send_as_for_everybody_else(admin: Admin, shop: str) -> None:
    admin.acl.grant(SHOP, send=["new-*"])
    with Producer("shop", shop) as producer:
        producer.send(Message("new-1", "x"))

        with pytest.raises(errors.AccessDenied):
            producer.send(Message("other", "x"))

    assert [topic.name for topic in admin.topics.list() if topic.name.startswith(("new", "other"))] == ["new-1"]


# -- to consume ---------------------------------------------------------------------------------


def test_a_member_receives_what_it_may_read_and_the_group_remembers(
    admin: Admin, shop: str, billing: str, database: Database
) -> None:
    inbox = Inbox()
    consumer = PushConsumer("billing", billing, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("orders")
    consumer.register_listener(inbox)
    with Producer("shop", shop) as producer, consumer:
        producer.send_batch([Message("orders", str(number)) for number in range(10)])
        inbox.wait_for(10)

    assert sorted(inbox.bodies) == sorted(map(str, range(10)))
    assert rows(billing, "SELECT sum(next_offset) FROM mqdb.consumer_lag WHERE topic = 'orders'") == [(10,)]
    assert database.rows("SELECT count(*) FROM mqdb.client") == [(0,)]


def test_in_order_and_exactly_once(shop: str, billing: str, database: Database) -> None:
    database.connect().execute("CREATE TABLE public.ledger (body text)")
    database.connect().execute(sql.SQL("GRANT ALL ON public.ledger TO {}").format(sql.Identifier(BILLING)))

    def enter(messages: list[ReceivedMessage], connection: sqlalchemy.Connection) -> ConsumeOrderlyStatus:
        for message in messages:
            connection.execute(
                sqlalchemy.text("INSERT INTO public.ledger VALUES (:body)"), {"body": message.body.decode()}
            )
        return ConsumeOrderlyStatus.SUCCESS

    consumer = PushConsumer("billing", billing, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("orders")
    consumer.register_listener(enter, orderly=True, exactly_once=True)
    with Producer("shop", shop) as producer, consumer:
        for number in range(10):
            producer.send(Message("orders", str(number)), sharding_key="one")
        wait_until(lambda: database.rows("SELECT count(*) FROM public.ledger") == [(10,)])

    assert [body for (body,) in database.rows("SELECT body FROM public.ledger")] == list(map(str, range(10)))


def test_who_polls_commits_as_well(shop: str, billing: str) -> None:
    consumer = LitePullConsumer("billing", billing, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, auto_commit=False)
    consumer.subscribe("orders")
    with Producer("shop", shop) as producer, consumer:
        producer.send_batch([Message("orders", str(number)) for number in range(10)])
        polled: list[bytes] = []
        while len(polled) < 10:
            polled += [message.body for message in consumer.poll()]
            consumer.commit()

    assert rows(billing, "SELECT sum(next_offset) FROM mqdb.consumer_lag WHERE topic = 'orders'") == [(10,)]


def test_who_pops_acknowledges_as_well(shop: str, billing: str) -> None:
    with Producer("shop", shop) as producer:
        for body in ("1", "2", "3"):
            producer.send(Message("orders", body))
    consumer = SimpleConsumer("billing", billing, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("orders")
    with consumer:
        one, two, three = consumer.receive(3, timedelta(minutes=1), timedelta(seconds=30))
        consumer.ack(one)
        consumer.change_invisible(two, timedelta(minutes=5))
        consumer.forward_to_dlq(three, "poison")

    assert rows(billing, "SELECT lag, in_flight FROM mqdb.consumer_lag WHERE topic = 'orders' AND in_flight > 0") == [
        (0, 1)
    ]
    assert rows(billing, "SELECT sum(bit_count(in_flight::bit(64))) FROM mqdb.pop_batch") == [(1,)]


def test_who_pops_in_sql_needs_no_more(admin: Admin, shop: str, billing: str, broker: sqlalchemy.Connection) -> None:
    where = ConsumeFromWhere.FIRST_OFFSET
    admin.groups.update("billing", consume_mode=ConsumeMode.POP, consume_from_where=where, retry_max_times=0)
    with Producer("shop", shop) as producer:
        producer.send_batch([Message("orders", "1"), Message("orders", "2")])
    dispatch_all(broker)
    pop = "SELECT text FROM mqdb.pop('billing', 'orders', 2, '1 ms')"

    assert rows(billing, pop) == [("1",), ("2",)]
    wait_until(lambda: rows(billing, "SELECT FROM mqdb.pop_batch WHERE visible_at <= now()") != [])
    assert rows(billing, pop) == []
    dispatch_all(broker)
    assert rows(billing, "SELECT text, exception FROM mqdb.dlq ORDER BY 1") == [("1", "TIMEOUT"), ("2", "TIMEOUT")]


def test_who_pops_gets_nothing_of_a_queue_that_it_may_not_read(admin: Admin, billing: str, database: Database) -> None:
    admin.groups.update("billing", consume_mode=ConsumeMode.POP)
    with Producer("owner", database.dsn) as producer:
        producer.send(Message("secret", "x"))
    of_secret = "FROM mqdb.queue JOIN mqdb.topic USING (topic_id) WHERE topic = 'secret'"
    keys = [key for (key,) in rows(database.dsn, f"SELECT queue_key {of_secret}")]
    rows(
        database.dsn,
        "INSERT INTO mqdb.consumer_offset (group_id, queue_key, next_offset) SELECT group_id, key, 0 "
        "FROM mqdb.subscription_group, unnest(%s::integer[]) AS key WHERE group_name = 'billing' RETURNING 1",
        keys,
    )

    assert rows(billing, "SELECT * FROM mqdb.pop_queues('billing', %s, 9)", keys) == []
    take = (
        "SELECT * FROM mqdb.pop_take('billing', 'me', '1 min', 9, 9, true, %s, '{1}', '{1}', '{0}', '{1}', '{1}', "
        "'{0}', '{1}')"
    )
    with pytest.raises(psycopg.Error, match="must be queues that may be read"):
        rows(billing, take, keys[:1])
    assert len(rows(database.dsn, take, keys[:1])) == 1
    rows(database.dsn, "UPDATE mqdb.pop_batch SET visible_at = '2000-01-01' RETURNING 1")
    assert rows(billing, "SELECT * FROM mqdb.pop_due('billing', 'me', '1 min', %s, 9)", keys) == []


def test_what_fails_too_often_is_a_dead_letter_of_the_group(
    admin: Admin, role: MakeRole, shop: str, billing: str
) -> None:
    def fail(_messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        raise ValueError("no such customer")

    consumer = PushConsumer("billing", billing, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, max_reconsume_times=0)
    consumer.subscribe("orders")
    consumer.register_listener(fail)
    with Producer("shop", shop) as producer, consumer:
        producer.send(Message("orders", "1", keys="o-1"))
        wait_until(lambda: rows(billing, "SELECT group_name, keys, error FROM mqdb.dlq") != [])

    assert rows(billing, "SELECT group_name, keys, error FROM mqdb.dlq") == [("billing", "o-1", "no such customer")]
    other = role("payroll")
    admin.acl.grant("payroll", read=["orders"], group=["payroll"])
    assert rows(other, "SELECT * FROM mqdb.dlq") == []


def test_what_is_to_be_retried_waits_and_is_seen_by_the_group_alone(
    admin: Admin, role: MakeRole, shop: str, billing: str
) -> None:
    consumer = PushConsumer("billing", billing, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("orders")
    consumer.register_listener(lambda _messages: ConsumeConcurrentlyStatus.RECONSUME_LATER)
    with Producer("shop", shop) as producer, consumer:
        producer.send(Message("orders", "1"))
        wait_until(lambda: rows(billing, "SELECT topic FROM mqdb.scheduled") == [("%RETRY%billing",)])

    assert rows(billing, "SELECT sum(waiting) FROM mqdb.consumer_lag") == [(1,)]
    assert rows(shop, "SELECT * FROM mqdb.scheduled") == []
    other = role("payroll")
    admin.acl.grant("payroll", read=["orders"], group=["payroll"])
    assert rows(other, "SELECT * FROM mqdb.scheduled") == []


def test_a_consumer_that_lacks_a_right_says_so_at_the_start(billing: str) -> None:
    for group, topic, lacks in (
        ("payroll", "orders", "GROUP 'payroll'"),
        ("billing", "secret", "TOPIC 'secret'"),
        ("billing", "none", "TOPIC 'none'"),
    ):
        consumer = PushConsumer(group, billing)
        consumer.subscribe(topic)
        consumer.register_listener(Inbox())

        with case(lacks), pytest.raises(errors.AccessDenied, match=f"{BILLING!r} has no right READ on {lacks}"):
            consumer.start()


# -- side by side -------------------------------------------------------------------------------


def test_three_services_with_the_least_rights_do_what_the_demo_does(
    admin: Admin, role: MakeRole, served: sqlalchemy.Connection, database: Database
) -> None:
    """Three services with the least possible rights do the work of the demo.

    One service sends, at once and later; one books each message exactly once; one retries, and gives up on some.
    """
    sender, billing, shipping = role("sender"), role("billing"), role("shipping")
    admin.acl.grant("sender", send=["orders"])
    admin.acl.grant("billing", read=["orders"], group=["billing"])
    admin.acl.grant("shipping", read=["orders"], group=["shipping"])
    served.execute(sqlalchemy.text("CREATE TABLE public.ledger (body text)"))
    served.execute(sqlalchemy.text("GRANT INSERT ON public.ledger TO billing"))
    shipped, first_tries = Inbox(), set[str]()

    def ship(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        [message] = messages
        body = message.body.decode()
        if body.startswith("poison") or (body.startswith("twice") and body not in first_tries):
            first_tries.add(body)
            raise ValueError(body)
        return shipped(messages)

    def book(messages: list[ReceivedMessage], connection: sqlalchemy.Connection) -> ConsumeConcurrentlyStatus:
        for message in messages:
            connection.execute(ENTER, {"body": message.body.decode()})
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    books = PushConsumer("billing", billing, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    books.subscribe("orders")
    books.register_listener(book, exactly_once=True)
    ships = PushConsumer("shipping", shipping, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, max_reconsume_times=2)
    ships.subscribe("orders")
    ships.register_listener(ship)
    sent = [f"{kind} {number}" for kind in ("once", "twice", "poison") for number in range(20)]
    with Producer("sender", sender) as producer, books, ships:
        for number, body in enumerate(sent):
            producer.send(Message("orders", body, delay_level=number % 2))
        wait_until(lambda: len(shipped.bodies) == 40 and len(rows(shipping, "SELECT 1 FROM mqdb.dlq")) == 20)
        wait_until(lambda: database.rows("SELECT count(*) FROM public.ledger") == [(60,)])

    assert sorted(shipped.bodies) == sorted(body for body in sent if not body.startswith("poison"))
    assert sorted(body for (body,) in database.rows("SELECT body FROM public.ledger")) == sorted(sent)
    assert rows(billing, "SELECT * FROM mqdb.dlq") == rows(sender, "SELECT * FROM mqdb.message") == []
    assert rows(shipping, "SELECT DISTINCT group_name FROM mqdb.consumer_lag") == [("shipping",)]


# -- to read ------------------------------------------------------------------------------------


def test_a_reader_sees_the_messages_of_its_topics_and_no_others(
    admin: Admin, database: Database, role: MakeRole, shop: str, billing: str
) -> None:
    with Producer("owner", database.dsn) as producer:
        sent = {topic: producer.send(Message(topic, topic, keys="k")) for topic in ("orders", "secret")}
        assert [each.queue_offset for each in sent.values()] == [0, 0]
    audit = role("audit")
    admin.acl.grant("audit", read=["sec*"])

    assert rows(billing, "SELECT body FROM mqdb.commit_log_1") == [(b"orders",)]
    seen = {
        who: [name for (name,) in rows(dsn, "SELECT topic FROM mqdb.message ORDER BY log_pos")]
        for who, dsn in (("owner", database.dsn), ("shop", shop), ("billing", billing), ("audit", audit))
    }
    assert seen == {"owner": ["orders", "secret"], "shop": [], "billing": ["orders"], "audit": ["secret"]}
    with Admin(billing) as guest:
        assert "orders" in (listed := [topic.name for topic in guest.topics.list()])
        assert "secret" not in listed
        assert [message.body for message in guest.messages.show(sent["orders"].message_id)] == [b"orders"]
        assert [message.body for message in guest.messages.find("orders", key="k")] == [b"orders"]
        with pytest.raises(errors.NotFound):
            guest.messages.find("secret", key="k")
        assert guest.messages.show(sent["secret"].message_id) == []


def test_a_role_sees_what_was_done_to_what_is_its_own(admin: Admin, billing: str, shop: str) -> None:
    admin.topics.update("orders", queues=3)
    admin.topics.update("secret", queues=3)
    admin.groups.update("billing")
    admin.groups.update("payroll")

    with Admin(billing) as guest, Admin(shop) as sender:
        seen = [(each.verb, each.topics, each.groups) for each in guest.operations.list()]
        assert seen == [
            ("group.update", [], ["billing"]),
            ("topic.update", ["orders"], []),
            ("topic.create", ["orders"], []),
        ]
        assert {name for each in sender.operations.list() for name in each.topics} == {"orders"}
        with pytest.raises(errors.AccessDenied, match="ADMIN on GROUP 'billing'"):
            guest.groups.update("billing")
