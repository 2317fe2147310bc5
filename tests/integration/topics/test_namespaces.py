"""Namespaces: two teams use the same names for topics and groups without seeing each other."""

import contextlib
import random
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg import Connection, sql
from sqlalchemy import Connection as SqlConnection

from mqdb.broker.schedule import cron
from mqdb.cli.demo import child, scenario
from mqdb.cli.demo.flights import load_flights
from mqdb.common.topic import without_namespace
from mqdb.embedded import EmbeddedPostgres
from mqdb.pipeline.source import MqdbDataSource
from mqdb.service.cron_times import next_time
from mqdb.settings import Settings
from mqdb.store.engine import create_engine
from mqdb.store.topics import topic_ranges
from mqdb_client import (
    Admin,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    DeadLetterFilter,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RedriveStatus,
    Resolution,
    Rights,
    create_reply_message,
    errors,
)
from tests.fixtures import warm_process
from tests.fixtures.broker import dispatch_all as dispatch_every
from tests.fixtures.consumers import Inbox
from tests.fixtures.log import dispatch_all, scalar
from tests.fixtures.postgres import KNOW_ITSELF, Database, new_database, superuser_dsn, with_parts
from tests.fixtures.processes import wait_until
from tests.fixtures.roles import PASSWORD, MakeRole
from tests.fixtures.spark_sink import stage, stream_writer_for
from tests.fixtures.spark_source import rows_of
from tests.fixtures.transactions import COMMIT, SECOND, UNKNOWN, Asked, Checker, StartProducer

#: Everything, in its namespace.
ALL = Rights(["*"], ["*"], ["billing", "shipping", "united-american", "all-carriers"], ["*"], ["*"], ["*"], ["*"])
TENANTS = ("shop", "market")
SOME_DAY = datetime(2999, 1, 1, tzinfo=UTC)

Tenants = dict[str, str]


@pytest.fixture(scope="module")
def roles(postgres: EmbeddedPostgres) -> Iterator[None]:
    """A login role for each of two namespaces."""
    names = [sql.Identifier(f"{namespace} app") for namespace in TENANTS]
    with psycopg.connect(superuser_dsn(postgres), autocommit=True) as superuser:
        for name in names:
            superuser.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(name, sql.Literal(PASSWORD)))
        yield
        for name in names:
            superuser.execute(sql.SQL("DROP ROLE {}").format(name))


@pytest.fixture(scope="module")
def original(postgres: EmbeddedPostgres, template_database: str, roles: None) -> Iterator[str]:
    """Name of a database with two topics, to be copied. Each of these roles has all rights in its namespace."""
    with new_database(postgres, template_database) as database:
        with Admin(database.dsn) as owner:
            for topic in ("orders", "secret"):
                owner.topics.create(topic)
            owner.acl.apply({f"{namespace} app": replace(ALL, namespace=namespace) for namespace in TENANTS})
        yield database.name


@contextlib.contextmanager
def copied(postgres: EmbeddedPostgres, original: str) -> Iterator[Database]:
    with new_database(postgres, original) as database:
        database.connect().execute(KNOW_ITSELF)
        yield database


@pytest.fixture
def database(postgres: EmbeddedPostgres, original: str) -> Iterator[Database]:
    """A copy of the database for one test."""
    with copied(postgres, original) as database:
        yield database


@pytest.fixture
def owner(database: Database) -> Iterator[Admin]:
    with Admin(database.dsn) as admin:
        yield admin


@pytest.fixture
def tenants(database: Database) -> Tenants:
    """The DSN of each namespace's role."""
    return tenants_of(database)


def tenants_of(database: Database) -> Tenants:
    return {namespace: with_parts(database.dsn, user=f"{namespace} app", password=PASSWORD) for namespace in TENANTS}


def rows(dsn: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(statement.encode(), values).fetchall()


@contextlib.contextmanager
def sqlalchemy_connection(dsn: str) -> Iterator[SqlConnection]:
    engine = create_engine(dsn)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def of_each(tenants: Tenants, work: Callable[[str, str], Any]) -> dict[str, Any]:
    """The results of both tenants' work, done at the same time."""
    with ThreadPoolExecutor() as pool:
        futures = {namespace: pool.submit(work, namespace, dsn) for namespace, dsn in tenants.items()}
        return {namespace: future.result() for namespace, future in futures.items()}


# -- names --------------------------------------------------------------------------------------

NAMES = [
    ("orders", "TOPIC", "shop%orders"),
    ("%RETRY%billing", "TOPIC", "%RETRY%shop%billing"),
    ("%DLQ%billing", "TOPIC", "%DLQ%shop%billing"),
    ("billing", "GROUP", "shop%billing"),
    ("invoices-*", "TOPIC", "shop%invoices-*"),
    # The broker's own, of a topic; a group may be called so.
    ("SCHEDULE_TOPIC_XXXX", "TOPIC", "SCHEDULE_TOPIC_XXXX"),
    ("rmq_sys_wheel_timer", "TOPIC", "rmq_sys_wheel_timer"),
    ("DefaultCluster_REPLY_TOPIC", "TOPIC", "DefaultCluster_REPLY_TOPIC"),
    ("BenchmarkTest", "GROUP", "shop%BenchmarkTest"),
    ("%RETRY%BenchmarkTest", "TOPIC", "%RETRY%shop%BenchmarkTest"),
    # Whole already, of this namespace and of another one.
    ("shop%orders", "TOPIC", "shop%orders"),
    ("market%orders", "TOPIC", "market%orders"),
    ("%RETRY%market%billing", "TOPIC", "%RETRY%market%billing"),
    ("market%billing", "GROUP", "market%billing"),
]


def test_a_name_is_completed_once(log: Connection) -> None:
    complete = "SELECT mqdb.with_namespace(%s, %s, %s)"
    for name, kind, whole in NAMES:
        assert scalar(log, complete, [name, kind, "shop"]) == whole
        assert scalar(log, complete, [whole, kind, "shop"]) == whole
        assert scalar(log, complete, [name, kind, None]) == name
        assert without_namespace(whole, "shop") == (name.removeprefix("shop%"))


def test_python_and_sql_shorten_names_alike(log: Connection) -> None:
    chosen = random.Random(20)
    parts = ("%RETRY%", "%DLQ%", "shop%", "shop", "%", "orders", "a-b_%", "|")
    pairs = [("".join(chosen.choices(parts, k=3)), chosen.choice(("shop", "a-b_", "RETRY"))) for _ in range(500)]

    shorten = (
        "SELECT mqdb.without_namespace(name, namespace) FROM unnest(%s::text[], %s::text[]) AS pair (name, namespace)"
    )
    short = [name for (name,) in log.execute(shorten, list(map(list, zip(*pairs, strict=True)))).fetchall()]

    assert short == [without_namespace(*pair) for pair in pairs]


# -- side by side -------------------------------------------------------------------------------


def start_warm(command: list[str], *, encoding: str, **options: Any) -> "subprocess.Popen[Any]":
    assert encoding == "utf-8"
    return warm_process.start(command, **options)


@pytest.mark.long
def test_two_tenants_run_the_demo_side_by_side(
    tenants: Tenants, served: sqlalchemy.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tenants run the demo side by side.

    Each has topic `flights`, the groups `united-american` and `all-carriers`, and three consumer processes.
    """
    monkeypatch.setattr(scenario, "STEADY_MESSAGES", 200)
    monkeypatch.setattr(child, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": start_warm}))
    flights = load_flights()[:500]

    def run(_namespace: str, dsn: str) -> tuple[bool, list[tuple[Any, ...]]]:
        result = scenario.Scenario(Settings(dsn=dsn), flights, lambda _: None, is_fresh=True).run()
        return result.is_exact, rows(dsn, "SELECT topic, count(*) FROM mqdb.message GROUP BY topic")

    assert of_each(tenants, run) == dict.fromkeys(TENANTS, (True, [("flights", len(flights))]))
    names = served.execute(sqlalchemy.text("SELECT topic FROM mqdb.topic WHERE topic LIKE '%flights' ORDER BY 1"))
    assert names.scalars().all() == ["market%flights", "shop%flights"]


def test_retries_dead_letters_and_what_waits_stay_with_their_tenant(
    tenants: Tenants, served: sqlalchemy.Connection, owner: Admin
) -> None:
    def live(namespace: str, dsn: str) -> dict[str, Any]:
        shipped = Inbox()
        topics = set[str]()

        def ship(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
            [message] = messages
            topics.add(message.topic)
            if message.body.startswith(b"poison") or message.reconsume_times == 0:
                raise ValueError(namespace)
            return shipped(messages)

        consumer = PushConsumer("billing", dsn, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, max_reconsume_times=2)
        consumer.subscribe("orders")
        consumer.register_listener(ship)
        with Admin(dsn) as admin:
            admin.topics.create("orders", queues=2)
            with Producer("sender", dsn) as producer, consumer:
                later = producer.send(Message("orders", "later", deliver_at=SOME_DAY))
                for number in range(5):
                    producer.send(Message("orders", f"good {number} of {namespace}", delay_level=number % 2))
                    producer.send(Message("orders", f"poison {number} of {namespace}"))
                wait_until(lambda: len(shipped.bodies) == 5)
                wait_until(lambda: len(rows(dsn, "SELECT FROM mqdb.dlq WHERE group_name = 'billing'")) == 5)
                wait_until(lambda: len(rows(dsn, "SELECT FROM mqdb.scheduled WHERE topic = 'orders'")) == 1)
                assert later.recall_handle is not None
                recalled = producer.recall(later.recall_handle)
            letters = admin.dead_letters.list(DeadLetterFilter("billing"))
            redriven = admin.dead_letters.redrive(DeadLetterFilter("billing"), to_topic="orders")
            progress = {(each.group, each.topic) for each in admin.offsets.show("billing")}
            return {
                "bodies": sorted(shipped.bodies),
                "topics": topics,
                "letters": {(each.group, each.topic, each.error) for each in letters},
                "recalled": recalled.value,
                "redriven": {each.status for each in redriven},
                "progress": progress,
                "lag": rows(dsn, "SELECT DISTINCT group_name FROM mqdb.consumer_lag WHERE topic = 'orders'"),
                "groups": [each.group for each in admin.groups.list()],
                "listed": [each.name for each in admin.topics.list() if "orders" in each.name],
                "subscribed": [each.topic for each in admin.groups.show("billing").subscriptions],
                "operated": {name for each in admin.operations.list(topic="orders") for name in each.topics},
            }

    found = of_each(tenants, live)

    for namespace, answer in found.items():
        assert answer == {
            "bodies": [f"good {number} of {namespace}" for number in range(5)],
            "topics": {"orders"},
            "letters": {("billing", "orders", namespace)},
            "recalled": "RECALLED",
            "redriven": {RedriveStatus.REDRIVEN},
            "progress": {("billing", "orders"), ("billing", "%RETRY%billing")},
            "lag": [("billing",)],
            "groups": ["billing"],
            "listed": ["orders"],
            "subscribed": ["orders"],
            "operated": {f"{namespace}%orders"},
        }
    # To the owner names are whole.
    assert [each.group for each in owner.groups.list()] == ["market%billing", "shop%billing"]
    listed = {each.name for each in owner.topics.list()}
    assert {"orders", "market%orders", "shop%orders", "%RETRY%shop%billing", "%DLQ%market%billing"} <= listed
    assert owner.messages.find("orders") == []


def test_sql_names_what_its_tenant_names(tenants: Tenants, owner: Admin, database: Database) -> None:
    for namespace, dsn in tenants.items():
        with Admin(dsn) as admin:
            admin.topics.create("orders", queues=1)
        with psycopg.connect(dsn) as connection:
            connection.execute("SELECT mqdb.send('orders', %s::text)", [namespace])
            connection.execute("SELECT mqdb.send(%s, %s::text)", [f"{namespace}%orders", f"whole {namespace}"])

    dispatch_all(database.connect())
    bodies = "SELECT text FROM mqdb.message WHERE topic = 'orders' ORDER BY 1"
    assert rows(tenants["shop"], bodies) == [("shop",), ("whole shop",)]
    assert rows(tenants["market"], bodies) == [("market",), ("whole market",)]
    assert database.rows(bodies) == []
    assert database.rows("SELECT DISTINCT topic FROM mqdb.message ORDER BY 1") == [("market%orders",), ("shop%orders",)]


@pytest.mark.parametrize("verb", ["send", "batch", "joined", "sql", "create", "subscribe", "group", "poll"])
def test_a_foreign_prefix_is_refused(shared_bank: Tenants, verb: str) -> None:
    dsn = shared_bank["shop"]

    def do() -> None:
        if verb in ("send", "batch", "joined"):
            with Producer("sender", dsn) as producer, psycopg.connect(dsn) as connection:
                if verb == "joined":
                    producer.send(Message("market%orders", "x"), connection=connection)
                elif verb == "send":
                    producer.send(Message("market%orders", "x"))
                else:
                    producer.send_batch([Message("market%orders", "x")] * 2)
        elif verb == "sql":
            rows(dsn, "SELECT mqdb.send('market%%orders', 'x'::text)")
        elif verb == "create":
            with Admin(dsn) as admin:
                admin.topics.create("market%mine")
        elif verb == "poll":
            poller = LitePullConsumer("shipping", dsn)
            poller.subscribe("market%orders")
            poller.start()
        else:
            consumer = PushConsumer("market%billing" if verb == "group" else "billing", dsn)
            consumer.subscribe("orders" if verb == "group" else "market%orders")
            consumer.register_listener(Inbox())
            consumer.start()

    if verb == "sql":
        with pytest.raises(psycopg.Error, match='no right SEND on topic "market%orders"'):
            do()
        return
    with pytest.raises((errors.AccessDenied, errors.RouteNotFound, errors.TopicNotFound), match="market%"):
        do()


# -- what a principal is ------------------------------------------------------------------------


def test_rights_of_a_namespace_lie_in_it(owner: Admin, role: MakeRole) -> None:
    role("app")
    owner.acl.grant("app", namespace="shop", send=["orders", "invoices-*"], group=["billing"])

    names = [right.resource.name for right in owner.acl.list("app")]
    assert sorted(names) == ["shop%billing", "shop%invoices-*", "shop%orders"]
    assert owner.acl.grant("app", send=["orders"]) == []
    assert owner.acl.allows("app", send="orders", group="billing")
    assert owner.acl.allows("app", send="shop%invoices-1")
    assert not owner.acl.allows("app", send="market%orders")
    assert [right.resource.name for right in owner.acl.list("app", topic="orders")] == ["shop%orders"]
    with pytest.raises(errors.NameInvalid, match="'market%orders': is not in namespace 'shop'"):
        owner.acl.grant("app", send=["market%orders"])
    with pytest.raises(errors.ParameterInvalid, match="'app' is a role, and has rights in shop"):
        owner.acl.grant("app", namespace="market", send=["orders"])
    owner.acl.revoke("app", send=["orders"])
    owner.acl.revoke("app")
    assert owner.acl.list("app") == []
    owner.acl.grant("app", send=["orders"])
    with pytest.raises(errors.ParameterInvalid, match="has rights in no namespace"):
        owner.acl.grant("app", namespace="shop", send=["orders"])


def test_a_namespace_is_a_plain_word(owner: Admin, role: MakeRole) -> None:
    role("app")
    for namespace in ("", "a%b", "a|b", "x" * 61, "ä"):
        with pytest.raises(errors.ParameterInvalid, match="1 to 60 of the characters"):
            owner.acl.grant("app", namespace=namespace, send=["orders"])
        assert owner.acl.list("app") == []


def test_a_whole_name_that_is_too_long_is_refused(owner: Admin, role: MakeRole) -> None:
    role("app")
    with pytest.raises(errors.NameInvalid, match="127"):
        owner.acl.grant("app", namespace="shop", send=["o" * 125])


def test_the_owner_has_no_namespace(owner: Admin, database: Database) -> None:
    [(name,)] = database.rows("SELECT current_user")
    with pytest.raises(errors.ParameterInvalid, match="owns the broker"):
        owner.acl.grant(name, namespace="shop", send=["orders"])


def test_a_file_gives_namespaces_once(owner: Admin, role: MakeRole) -> None:
    role("app")
    wanted = {"app": Rights(["orders"], namespace="shop"), "key": Rights(["orders"], external=True)}

    assert len(owner.acl.apply(wanted, dry_run=True)) == 2
    assert owner.acl.list("app") == owner.acl.list("key") == []
    assert len(owner.acl.apply(wanted)) == 2
    assert owner.acl.apply(wanted) == []
    assert [(right.principal, right.resource.name) for name in wanted for right in owner.acl.list(name)] == [
        ("app", "shop%orders"),
        ("key", "orders"),
    ]


def test_a_principal_need_be_no_role(owner: Admin, role: MakeRole) -> None:
    owner.acl.grant("AKIA-1", send=["orders"], group=["billing"], external=True)

    assert owner.acl.allows("AKIA-1", send="orders", group="billing")
    assert not owner.acl.allows("AKIA-1", send="secret")
    # A role that is made later under that name has nothing of it.
    dsn = role("AKIA-1")
    assert rows(dsn, "SELECT has_schema_privilege('mqdb', 'USAGE')") == [(False,)]
    owner.acl.revoke("AKIA-1")
    with pytest.raises(errors.ParameterInvalid, match="is a role of this server"):
        owner.acl.grant("AKIA-1", external=True, send=["orders"])


def test_a_role_has_nothing_of_a_principal_of_its_name(owner: Admin, database: Database, role: MakeRole) -> None:
    owner.acl.grant("AKIA-1", send=["orders"], read=["orders"], group=["billing"], external=True)
    dsn = role("AKIA-1")
    database.connect().execute('GRANT USAGE ON SCHEMA mqdb TO "AKIA-1"')

    assert rows(dsn, "SELECT * FROM mqdb.own_right") == rows(dsn, "SELECT * FROM mqdb.acl_queue") == []
    assert rows(dsn, "SELECT mqdb.is_allowed(session_user, 'SEND', 'TOPIC', 'orders')") == [(False,)]
    with pytest.raises(psycopg.Error, match="no right SEND"):
        rows(dsn, "SELECT mqdb.send('orders', 'x'::text)")


def test_no_role_gives_itself_a_namespace(shared_bank: Tenants) -> None:
    for statement in (
        "UPDATE mqdb.principal SET namespace = 'market'",
        "DELETE FROM mqdb.principal",
        "INSERT INTO mqdb.principal VALUES ('x', true, 'market')",
        "SELECT * FROM mqdb.principal",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            rows(shared_bank["shop"], statement)
    assert rows(shared_bank["shop"], "SELECT * FROM mqdb.own_namespace") == [("shop",)]


# -- what else producers and consumers do -----------------------------------------------------------


@pytest.fixture
def shop(tenants: Tenants) -> str:
    """The DSN of a role of namespace `shop`, where topic `orders` has one queue."""
    with Admin(tenants["shop"]) as admin:
        admin.topics.create("orders", queues=1)
    return tenants["shop"]


def orders(broker: SqlConnection) -> list[str]:
    """The messages in the topic of the namespace, as the owner sees them."""
    dispatch_every(broker)
    found = broker.exec_driver_sql("SELECT text FROM mqdb.message WHERE topic = 'shop%%orders' ORDER BY log_pos")
    return list(found.scalars())


def test_half_messages_are_checked_and_committed(
    broker: SqlConnection, shop: str, transactional_producer: StartProducer
) -> None:
    listener = Asked(UNKNOWN, COMMIT)
    transactional_producer(listener, dsn=shop).send_in_transaction(Message("orders", "half"))
    checker = Checker(broker)
    checker.after(7 * SECOND)

    wait_until(lambda: orders(broker) == ["half"])
    [message] = listener.checks
    assert message.queue.topic == "orders"


def test_an_operator_resolves_half_messages(
    broker: SqlConnection, shop: str, transactional_producer: StartProducer, owner: Admin
) -> None:
    producer = transactional_producer(Asked(UNKNOWN), dsn=shop)
    result = producer.send_in_transaction(Message("orders", "half"))
    Checker(broker).after(7 * SECOND)

    assert [each.topic for each in owner.transactions.list()] == ["shop%orders"]
    with Admin(shop) as admin:
        assert [each.topic for each in admin.transactions.list()] == ["orders"]
        half = admin.transactions.resolve(result.transaction_id or "", Resolution.COMMIT)
    assert (half.topic, orders(broker)) == ("orders", ["half"])


def test_a_message_that_waits_is_recalled(broker: SqlConnection, shop: str) -> None:
    with Producer("sender", shop) as producer, Admin(shop) as admin:
        sent = [producer.send(Message("orders", str(number), deliver_at=SOME_DAY)) for number in range(3)]
        dispatch_every(broker)
        assert {each.topic for each in admin.timers.list("orders")} == {"orders"}
        assert producer.recall(sent[0].recall_handle or "").value == "RECALLED"
        assert admin.timers.recall(sent[1].message_id).value == "RECALLED"
        assert len(admin.timers.list("orders")) == 1


def test_requests_are_answered(shop: str, served: sqlalchemy.Connection) -> None:
    with Producer("asks", shop) as asks, Producer("replies", shop) as replies:

        def answer(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
            for message in messages:
                replies.send(create_reply_message(message, message.body.upper()))
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        consumer = PushConsumer("billing", shop, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
        consumer.subscribe("orders")
        consumer.register_listener(answer)
        with consumer:
            assert asks.request(Message("orders", "ping"), timeout=timedelta(seconds=30)).body == b"PING"


def test_sparks_sink_appends_to_its_topic(broker: SqlConnection, shop: str) -> None:
    writer = stream_writer_for(Database(shop), {"body": ["a"]}, topic="orders")
    writer.commit([stage(writer, {"body": ["a", "b"]}, 0)], 0)

    assert orders(broker) == ["a", "b"]


@pytest.mark.parametrize("what", [{"subscribe": "orders"}, {"subscribePattern": "o.*"}])
def test_sparks_source_reads_its_topics(tenants: Tenants, database: Database, what: dict[str, str]) -> None:
    for namespace, dsn in tenants.items():
        with Admin(dsn) as admin:
            admin.topics.create("orders", queues=1)
        rows(dsn, "SELECT mqdb.send('orders', %s::text)", namespace)
    dispatch_all(database.connect())

    source = MqdbDataSource({"url": tenants["shop"], **what})
    reader = source.reader(source.schema())
    found = [(row["topic"], row["body"]) for row in rows_of(reader, list(reader.partitions()))]
    assert found == [("orders", b"shop")]


def test_joined_sends_and_exactly_once(shop: str, database: Database, served: sqlalchemy.Connection) -> None:
    """Messages consumed from one topic are sent to another, in the transaction that commits their offset."""
    with Admin(shop) as admin:
        admin.topics.create("invoices", queues=1)
    with Producer("bills", shop) as bills:

        def bill(messages: list[ReceivedMessage], connection: sqlalchemy.Connection) -> ConsumeConcurrentlyStatus:
            for message in messages:
                bills.send(Message("invoices", message.body), connection=connection)
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        consumer = PushConsumer("billing", shop, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
        consumer.subscribe("orders")
        consumer.register_listener(bill, exactly_once=True)
        with consumer:
            bills.send_batch([Message("orders", str(number)) for number in range(10)])
            billed = "SELECT text FROM mqdb.message WHERE topic = 'invoices' ORDER BY text"
            wait_until(lambda: rows(shop, billed) == [(str(number),) for number in range(10)])
    assert database.rows("SELECT FROM mqdb.message WHERE topic = 'invoices'") == []


def test_polls_commit_for_their_group(shop: str, served: sqlalchemy.Connection) -> None:
    with Producer("sender", shop) as producer:
        producer.send_batch([Message("orders", str(number)) for number in range(10)])
    polled: list[bytes] = []
    consumer = LitePullConsumer("billing", shop, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, auto_commit=False)
    consumer.subscribe("orders")
    with consumer:
        while len(polled) < 10:
            polled += [each.body for each in consumer.poll()]
        consumer.commit()
    with Admin(shop) as admin:
        assert admin.offsets.committed("billing", "orders") == {0: 10}


def test_an_application_of_one_name_in_each_namespace_has_its_own_crons(tenants: Tenants, owner: Admin) -> None:
    for dsn in tenants.values():
        with Admin(dsn) as admin:
            admin.topics.create("orders", queues=1)
            for _ in range(2):
                admin.crons.declare("tasks", "report", "0 0 1 1 *", Message("orders", "report"))
            assert [(each.name, each.application) for each in admin.crons.list()] == [("report", "tasks")]

    assert {(each.name, each.application) for each in owner.crons.list()} == {
        ("shop%report", "shop%tasks"),
        ("market%report", "market%tasks"),
    }


def test_crons_of_one_name_fire_for_both(tenants: Tenants, broker: SqlConnection) -> None:
    for namespace, dsn in tenants.items():
        with Admin(dsn) as admin:
            admin.topics.create("orders", queues=1)
            admin.crons.add("report", "* * * * *", Message("orders", f"report of {namespace}"))
            assert [(each.name, each.topic) for each in admin.crons.list()] == [("report", "orders")]
    broker.exec_driver_sql("UPDATE mqdb.cron SET next_at = mqdb.now()")

    assert {firing.name for firing in cron.fire_due(broker, next_time).firings} == {"shop%report", "market%report"}
    assert orders(broker) == ["report of shop"]
    with Admin(tenants["market"]) as admin:
        admin.crons.remove("report")
        assert admin.crons.list() == []
    assert len(broker.exec_driver_sql("SELECT FROM mqdb.cron").all()) == 1


def test_offsets_are_reset_and_topics_deleted_by_their_own_names(tenants: Tenants) -> None:
    admins = {namespace: Admin(dsn) for namespace, dsn in tenants.items()}
    for admin in admins.values():
        admin.topics.create("orders", queues=1)
        admin.groups.update("billing")
    [change] = admins["shop"].offsets.reset("billing", "orders", 0)
    assert change.topic == "orders"
    assert admins["shop"].topics.delete("orders") is not None
    assert admins["shop"].groups.delete("billing", with_topics=True) == []

    assert [each.group for each in admins["market"].groups.list()] == ["billing"]
    assert [each.name for each in admins["market"].topics.list() if each.name == "orders"] == ["orders"]
    with pytest.raises(errors.TopicNotFound, match="orders"):
        admins["shop"].topics.show("orders")
    for admin in admins.values():
        admin.close()


# -- attacks, by the numbers of attacks.md -----------------------------------------------------


def open_bank(database: Database) -> Tenants:
    """Both tenants have a topic, a group with an offset, and a cron with the same names.

    `market` also has a message.
    """
    tenants = tenants_of(database)
    for dsn in tenants.values():
        with Admin(dsn) as admin:
            admin.topics.create("orders", queues=1)
            admin.groups.update("billing")
            admin.offsets.reset("billing", "orders", 0)
            admin.crons.add("report", "0 0 1 1 *", Message("orders", "report"))
    rows(tenants["market"], "SELECT mqdb.send('orders', 'TOPSECRET'::text)")
    dispatch_all(database.connect())
    return tenants


@pytest.fixture
def bank(database: Database) -> Tenants:
    """A separate bank for one test."""
    return open_bank(database)


@pytest.fixture(scope="module")
def bank_database(postgres: EmbeddedPostgres, original: str) -> Iterator[Database]:
    """A bank's database shared by all tests that send nothing there, and change nothing that others read."""
    with copied(postgres, original) as database:
        yield database


@pytest.fixture(scope="module")
def shared_bank(bank_database: Database) -> Tenants:
    """The tenants of `bank_database`."""
    return open_bank(bank_database)


#: What a namespace holds, whatever its names.
HELD = r"""
SELECT (SELECT count(*) FROM mqdb.topic WHERE topic LIKE '%%market\%%%%'),
       (SELECT json_agg(o ORDER BY group_id, queue_key) FROM mqdb.consumer_offset o
        JOIN mqdb.subscription_group g USING (group_id) WHERE g.group_name = 'market%%billing')::text,
       (SELECT json_agg(c) FROM mqdb.cron c WHERE c.name = 'market%%report')::text,
       (SELECT json_agg(c.log_pos) FROM mqdb.commit_log c)::text
"""

FOREIGN = [
    "SELECT mqdb.send('market%orders', 'x'::text)",
    "SELECT mqdb.make_topic('market%new', 1, 1, 6, false, 'NORMAL')",
    "SELECT mqdb.make_group('market%billing')",
    "SELECT mqdb.create_topic('market%new', 1, 1, 6, false, 'NORMAL', NULL)",
    "SELECT mqdb.change_topic('market%orders', 2, 2, 6, false, 'NORMAL', NULL)",
    "SELECT mqdb.delete_topic('market%orders', true, NULL)",
    "SELECT mqdb.set_group('market%billing', false, false, 1, 1, NULL, NULL, NULL, NULL, NULL)",
    "SELECT mqdb.delete_group('market%billing', true, NULL)",
    "SELECT mqdb.set_offsets('offset.reset', 'market%billing', NULL, ARRAY[1], ARRAY[7], '', '', NULL)",
    "SELECT mqdb.set_offsets('offset.clone', 'billing', 'market%billing', ARRAY[1], ARRAY[7], '', '', NULL)",
    "SELECT mqdb.recall_own('market%orders', repeat('0', 32))",
    "SELECT mqdb.dlq_outline('market%billing')",
    "SELECT mqdb.group_offsets('market%billing')",
    "SELECT mqdb.live_members('market%billing')",
    "SELECT mqdb.topic_uses('market%orders')",
    """SELECT mqdb.add_cron('c', '0 0 1 1 *', 'UTC', 'market%orders', 'x', NULL, NULL, '{}', NULL, 'once', '2999-01-01',
                            NULL)""",
    "SELECT mqdb.replace_subscriptions('billing', 1, '{market%orders}', '{TAG}', '{*}')",
    "SELECT mqdb.replace_subscriptions('market%billing', 1, '{}', '{}', '{}')",
    "SELECT mqdb.leave_group('market%billing', 'x', 'CONSUMER')",
    "SELECT mqdb.is_allowed('market app', 'SEND', 'TOPIC', 'orders')",
]


@pytest.mark.parametrize("name", ["market", "nobody"])
def test_113_the_other_tenant_is_nobody(shared_bank: Tenants, bank_database: Database, name: str) -> None:
    before = bank_database.rows(HELD)
    for statement in FOREIGN:
        with pytest.raises(psycopg.Error) as caught:
            rows(shared_bank["shop"], statement.replace("market%", f"{name}%").replace("%", "%%"))
        assert caught.value.sqlstate in ("MQ204", "MQ108"), statement
    assert rows(shared_bank["shop"], "SELECT mqdb.change_cron(%s, 'remove', NULL, NULL)", f"{name}%report") == [
        (False,)
    ]
    for view in (
        "message WHERE topic",
        "dlq WHERE group_name",
        "consumer_lag WHERE group_name",
        "scheduled WHERE topic",
    ):
        assert rows(shared_bank["shop"], f"SELECT FROM mqdb.{view} = %s", f"{name}%orders") == []
    assert bank_database.rows(HELD) == before


def test_114_no_shape_of_a_name_leaves_the_namespace(bank: Tenants, database: Database) -> None:
    before = {name for (name,) in database.rows("SELECT topic FROM mqdb.topic")}
    for name in (
        *("shop%orders", "shop%shop%orders", "shop%", "shop", "%orders", "SHOP%orders", "shop%market%orders"),
        *("market%shop%orders", "shop%%RETRY%market%billing", "%RETRY%market%billing", "%RETRY%shop%billing"),
        *("%DLQ%%RETRY%market%billing", "%RETRY%%DLQ%market%x", "shop|orders", "shop%SCHEDULE_TOPIC_XXXX", "rmq_sys_x"),
        *("SCHEDULE_TOPIC_XXXX", "shop%TBW102", "TBW102", "shop%rmq_sys_x", "DefaultCluster_REPLY_TOPIC", "%DLQ%", ""),
    ):
        for call in ("make_topic(%s, 1, 1, 6, false, 'NORMAL')", "send(%s, 'x'::text)"):
            with contextlib.suppress(psycopg.Error):
                rows(bank["shop"], f"SELECT mqdb.{call}", name)
    made = {name for (name,) in database.rows("SELECT topic FROM mqdb.topic")} - before
    assert made
    assert {name for name in made if not name.startswith(("shop%", "%RETRY%shop%", "%DLQ%shop%"))} == set()
    dispatch_all(database.connect())
    reached = {name for (name,) in database.rows("SELECT DISTINCT topic FROM mqdb.message")}
    assert {name for name in reached if not name.startswith("shop%")} == {"market%orders"}


def test_115_names_are_compared_as_bytes(owner: Admin, database: Database, role: MakeRole) -> None:
    dsn = role("app")
    owner.acl.grant("app", namespace="sho_", send=["*"], read=["*"])
    for name in ("shop%orders", "shopping-list", "sho_%orders"):
        owner.topics.create(name, queues=1)

    assert [
        name for (name,) in rows(dsn, "SELECT topic FROM mqdb.named_topic") if "orders" in name or "list" in name
    ] == ["orders"]


@pytest.mark.parametrize("prefix", ["*", "b*", "bank*"])
def test_117_a_star_covers_no_namespace(owner: Admin, role: MakeRole, database: Database, prefix: str) -> None:
    dsn = role("audit")
    owner.acl.grant("audit", read=[prefix], send=[prefix], admin=[prefix], admin_group=[prefix], operate_group=[prefix])
    owner.topics.create("bank%orders", queues=1)
    owner.topics.create("bankers", queues=1)
    owner.groups.update("bank%billing")

    for access in ("READ", "SEND", "ADMIN"):
        assert not owner.acl.allows("audit", **{access.lower(): "bank%orders"})
    assert not owner.acl.allows("audit", admin_group="bank%billing")
    assert owner.acl.allows("audit", read="bankers", operate_group="bankers")
    assert [
        key
        for (key,) in rows(
            dsn, "SELECT topic FROM mqdb.topic JOIN mqdb.queue USING (topic_id) WHERE topic LIKE 'bank%%'"
        )
    ] == ["bankers"]
    owner.acl.grant("audit", read=["bank%*"])
    assert owner.acl.allows("audit", read="bank%orders")


def test_118_no_setting_is_a_namespace(shared_bank: Tenants) -> None:
    with psycopg.connect(shared_bank["shop"], autocommit=True) as connection:
        connection.execute("SET mqdb.namespace = 'market'")
        connection.execute("SELECT set_config('mqdb.namespace', 'market', false)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute('SET ROLE "market app"')
        connection.execute("CREATE TEMP VIEW own_namespace AS SELECT 'market' AS namespace")
        connection.execute("SET search_path = pg_temp, mqdb")
        assert connection.execute("SELECT mqdb.full_topic('orders'), mqdb.own_name('shop%orders')").fetchall() == [
            ("shop%orders", "orders")
        ]
        assert connection.execute("SELECT FROM mqdb.message").fetchall() == []


def test_119_what_one_does_changes_nothing_of_the_other(bank: Tenants, database: Database) -> None:
    before = database.rows(HELD)
    with Admin(bank["shop"]) as shop:
        shop.offsets.reset("billing", "orders", 0)
        shop.crons.remove("report")
        shop.groups.delete("billing", with_topics=True)
        shop.topics.delete("orders", force=True)
    assert database.rows(HELD) == before


def test_120_errors_are_those_of_a_broker_without_others(shared_bank: Tenants) -> None:
    with Admin(shared_bank["market"]) as market:
        market.topics.create("theirs")
    with pytest.raises(psycopg.Error) as theirs, psycopg.connect(shared_bank["shop"]) as connection:
        connection.execute("SELECT mqdb.send('theirs', 'x'::text)")
    with pytest.raises(psycopg.Error) as nobodys, psycopg.connect(shared_bank["shop"]) as connection:
        connection.execute("SELECT mqdb.send('nobodys', 'x'::text)")
    assert str(theirs.value).replace("theirs", "nobodys") == str(nobodys.value)
    assert theirs.value.sqlstate == "MQ301"
    with sqlalchemy_connection(shared_bank["shop"]) as reader:
        assert set(topic_ranges.topic_names(reader)) >= {"orders"}
        assert not any("market" in name or name == "theirs" for name in topic_ranges.topic_names(reader))


def test_121_old_sessions_have_nothing_in_a_new_namespace(bank: Tenants, owner: Admin) -> None:
    with Producer("sender", bank["shop"]) as producer:
        producer.send(Message("orders", "before"))
        with pytest.raises(errors.ParameterInvalid, match="has rights in shop"):
            owner.acl.grant("shop app", namespace="market", send=["orders"])
        owner.acl.revoke("shop app")
        owner.acl.grant("shop app", namespace="other", send=["orders"])
        producer.send(Message("orders", "after"))  # a topic that this makes
    for name, body in (("shop%orders", b"before"), ("market%orders", b"TOPSECRET"), ("other%orders", b"after")):
        assert [each.body for each in owner.messages.find(name)] == [body]


def test_122_a_name_is_as_long_as_it_may_be_with_the_namespace(shared_bank: Tenants) -> None:
    with Admin(shared_bank["shop"]) as shop:
        shop.topics.create("t" * 122)
        shop.groups.update("g" * 115)
        with pytest.raises(errors.InvalidInput, match="127"):
            shop.topics.create("t" * 123)
        with pytest.raises(errors.InvalidInput, match="120"):
            shop.groups.update("g" * 116)


def test_123_positions_and_ids_of_others_are_none(shared_bank: Tenants, bank_database: Database) -> None:
    [(log_pos, msg_id)] = bank_database.rows(
        "SELECT log_pos, msg_id FROM mqdb.message WHERE topic = 'market%%orders' LIMIT 1"
    )
    dsn = shared_bank["shop"]
    assert rows(dsn, "SELECT FROM mqdb.message WHERE log_pos = %s OR msg_id = %s", log_pos, msg_id) == []
    assert rows(dsn, "SELECT * FROM mqdb.find_records(ARRAY[%s::uuid], 0)", msg_id) == []
    assert rows(dsn, "SELECT topic FROM mqdb.find_aim(%s)", log_pos) == [(None,)]
    redriven = rows(dsn, "SELECT status, group_name FROM mqdb.dlq_redrive(ARRAY[%s::bigint])", log_pos)
    assert redriven == rows(dsn, "SELECT status, group_name FROM mqdb.dlq_redrive(ARRAY[987654321::bigint])")
    with Admin(dsn) as shop:
        assert shop.messages.show(msg_id) == []
