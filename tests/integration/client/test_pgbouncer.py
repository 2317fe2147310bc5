"""Clients behind a real PgBouncer with transaction pooling (MQDB_POOL_DSN); LISTEN and presence bypass it."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import Connection, text

from mqdb.common.dsn import BrokerDsn
from mqdb.common.http_address import HttpAddress
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import MqdbError
from mqdb.remoting.front import Front
from mqdb_client import ConsumeConcurrentlyStatus, Message, Producer
from tests.fixtures.broker import topic
from tests.fixtures.consumers import LATER, SUCCESS, Inbox, Member, duplicates
from tests.fixtures.joined_sends import url_of
from tests.fixtures.orderly import OrderlyMember, Witness
from tests.fixtures.pgbouncer import PgBouncer
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import producer_of, stored_bodies
from tests.fixtures.remoting_client import PATIENCE_SECONDS, RemotingClient, consumer, pulled
from tests.fixtures.transactional import Ledger, TransactionalMember
from tests.fixtures.variants import usually
from tests.integration.remoting.test_sends import send


@pytest.fixture
def orders(broker: Connection) -> None:
    """A topic with four queues."""
    topic(broker, "orders", 4)


@pytest.fixture
def producer(database: Database, pooled: PgBouncer, orders: None) -> Iterator[Producer]:
    with producer_of(database.dsn) as producer:
        yield producer
    assert pooled.transactions(database) > 0


def send_all_ways(producer: Producer, count: int) -> list[str]:
    """Send `count` messages with each kind of send; returns their bodies."""
    sent = [f"{kind} {number}" for kind in ("sync", "batch", "async", "oneway") for number in range(count)]
    messages = {body: Message("orders", body, keys=body.replace(" ", "-")) for body in sent}
    for number in range(count):
        producer.send(messages[f"sync {number}"])
        producer.send_oneway(messages[f"oneway {number}"])
    producer.send_batch([messages[f"batch {number}"] for number in range(count)])
    for future in [producer.send_async(messages[f"async {number}"]) for number in range(count)]:
        future.result(30)
    return sent


def test_all_kinds_of_sends_are_stored_and_consumed_once_by_a_group(
    producer: Producer, member: Member, broker: Connection
) -> None:
    inboxes = Inbox(), Inbox()
    for inbox in inboxes:
        member(inbox)

    sent = send_all_ways(producer, 8)

    wait_until(lambda: sum(len(inbox.messages) for inbox in inboxes) >= len(sent))
    assert Counter(body for inbox in inboxes for body in inbox.bodies) == Counter(sent)
    assert duplicates(*inboxes) == {}


def test_the_offset_and_the_outcome_of_a_send_are_found(producer: Producer, member: Member) -> None:
    member(Inbox())

    sent = producer.send(Message("orders", "one"))

    assert sent.queue_offset == 0
    found = producer.outcome(sent.message_id)
    assert found is not None
    assert found.queue == sent.queue


def test_a_front_for_rocketmqs_clients_goes_through_the_pooler(
    pooled: PgBouncer, database: Database, orders: None
) -> None:
    way = pooled.dsn(database.dsn)
    front = Front(BrokerDsn("broker-a", database.dsn), HttpAddress("127.0.0.1", 0), pool_dsn=way)
    with ExitStack() as stack:
        front.start()
        stack.callback(front.stop)
        before = pooled.transactions(database)
        client = stack.enter_context(closing(RemotingClient(front.address)))
        client.heartbeat("1.2.3.4@1", consumer(orders="*"))
        assert client.query_offset("readers", "orders") == 0
        held = client.begin_pull("readers", "orders", 0, hold_ms=20_000)

        assert send(client).code == 0

        assert pulled(held.result(PATIENCE_SECONDS)).bodies == ["hello"]
        assert pooled.transactions(database) > before


class FailsOnce(Inbox):
    """A listener that fails each message the first time."""

    def __call__(self, messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        super().__call__(messages)
        return SUCCESS if messages[0].reconsume_times else LATER


@pytest.mark.usefixtures("served")
def test_a_failed_message_comes_again(producer: Producer, member: Member) -> None:
    inbox = FailsOnce()
    member(inbox)

    producer.send(Message("orders", "one"))

    inbox.wait_for(2)
    assert inbox.bodies == ["one", "one"]


def test_each_queue_is_consumed_in_order(producer: Producer, orderly_member: OrderlyMember) -> None:
    witness = Witness()
    for _ in range(2):
        orderly_member(witness)

    for number in range(40):
        producer.send(Message("orders", f"{number}"), sharding_key=f"{number % 7}")

    witness.wait_for(40)
    assert len(witness.bodies) == 40


@pytest.mark.parametrize("orderly", usually(False, of=[False, True]), ids=["concurrently", "orderly"])
@pytest.mark.usefixtures("both_kinds_of_consumers")
def test_effects_and_offsets_are_one_transaction(
    producer: Producer, transactional_member: TransactionalMember, broker: Connection, orderly: bool
) -> None:
    failures = Counter[str]()

    def fail_once(messages: list[ReceivedMessage], _connection: Connection) -> None:
        body = messages[0].body.decode()
        failures[body] += 1
        if orderly and failures[body] == 1 and body.endswith("3"):
            raise ValueError(body)

    ledger = Ledger(broker, fail_once, orderly=orderly)
    for _ in range(2):
        transactional_member(ledger, orderly=orderly)

    for number in range(20):
        producer.send(Message("orders", f"{number}"), sharding_key=f"{number % 5}")

    ledger.wait_for(20)
    assert Counter(ledger.bodies) == Counter(str(number) for number in range(20))


# -- joined sends -----------------------------------------------------------------------------


@contextmanager
def of_psycopg(dsn: str) -> Iterator[tuple[object, Callable[[], None], Callable[[], None]]]:
    with psycopg.connect(dsn, prepare_threshold=None) as connection:
        yield connection, connection.commit, connection.rollback


@contextmanager
def of_sqlalchemy(dsn: str) -> Iterator[tuple[object, Callable[[], None], Callable[[], None]]]:
    engine = sqlalchemy.create_engine(url_of(Database(dsn)), connect_args={"prepare_threshold": None})
    with engine.connect() as connection:
        yield connection, connection.commit, connection.rollback
    engine.dispose()


@pytest.mark.parametrize("joined", usually(of_psycopg, of=[of_psycopg, of_sqlalchemy]))
def test_a_joined_send_is_part_of_the_callers_transaction_behind_the_pooler(
    producer: Producer,
    pooled: PgBouncer,
    database: Database,
    joined: Callable[[str], object],
) -> None:
    with joined(pooled.dsn(database.dsn)) as (connection, commit, rollback):  # type: ignore[attr-defined]
        for number in range(10):
            producer.send(Message("orders", f"kept {number}"), connection=connection)
            commit()
            producer.send(Message("orders", f"lost {number}"), connection=connection)
            rollback()
        batch = [Message("orders", "batch 1"), Message("orders", "batch 2")]
        producer.send_batch(batch, connection=connection)
        commit()

    assert stored_bodies(database) == [*(f"kept {number}" for number in range(10)), "batch 1", "batch 2"]


# -- a pooler that is restarted ---------------------------------------------------------------


def test_over_restarts_of_the_pooler_nothing_acknowledged_is_lost_or_stored_twice(
    producer: Producer, pooled: PgBouncer, database: Database, member: Member
) -> None:
    inbox = Inbox()
    member(inbox)
    acknowledged: list[str] = []
    unknown: list[str] = []
    is_over = threading.Event()

    def send(name: int) -> None:
        for number in range(1_000_000):
            if is_over.is_set():
                return
            body = f"{name}-{number}"
            try:
                producer.send(Message("orders", body))
                acknowledged.append(body)
            except MqdbError:
                unknown.append(body)

    senders = [threading.Thread(target=send, args=(name,)) for name in range(4)]
    for sender in senders:
        sender.start()
    for _ in range(2):
        before = len(acknowledged)
        wait_until(lambda before=before: len(acknowledged) > before + 20)  # type: ignore[misc]
        pooled.restart()
    before = len(acknowledged)
    wait_until(lambda: len(acknowledged) > before + 20)
    is_over.set()
    for sender in senders:
        sender.join()

    stored = Counter(stored_bodies(database))
    assert set(acknowledged) <= set(stored) <= {*acknowledged, *unknown}
    assert max(stored.values()) == 1
    wait_until(lambda: set(inbox.bodies) >= set(stored))


# -- settings that do not get through ---------------------------------------------------------


@pytest.mark.usefixtures("pooled", "orders")
@pytest.mark.parametrize("isolation", usually("serializable", of=["serializable", "repeatable read"]))
def test_what_needs_read_committed_has_it_whatever_is_the_default(
    database: Database,
    member: Member,
    transactional_member: TransactionalMember,
    broker: Connection,
    isolation: str,
) -> None:
    database.set_default("default_transaction_isolation", isolation)
    inboxes, ledger = (Inbox(), Inbox()), Ledger(broker)
    for inbox in inboxes:
        member(inbox, group="billing")
    transactional_member(ledger)
    with producer_of(database.dsn) as producer:
        sent = send_all_ways(producer, 8)

        wait_until(lambda: sum(len(inbox.messages) for inbox in inboxes) >= len(sent))
        ledger.wait_for(len(sent))

    assert Counter(body for inbox in inboxes for body in inbox.bodies) == Counter(sent)
    assert Counter(ledger.bodies) == Counter(sent)
    assert broker.scalar(text("SHOW default_transaction_isolation")) == "read committed"
