"""A broker's default durability for producers that choose none. The standby is a real one."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any, Final

import pytest

from mqdb.common.dsn import BrokerDsn
from mqdb.common.durability import Durability
from mqdb.common.http_address import HttpAddress
from mqdb.common.message import Message, SendStatus
from mqdb.common.transaction import LocalTransactionState
from mqdb.errors import ParameterInvalid, ResponseCode
from mqdb.remoting.front import Front
from mqdb.server import Server
from mqdb.settings import load_settings
from mqdb_client import Producer, TransactionProducer
from mqdb_client.aio import AsyncProducer
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.remoting_client import RemotingClient
from tests.fixtures.standby import Standby
from tests.integration.remoting.test_sends import send

# Of a send that waits for the standby in vain; with `cancelled_early` 3 s of it are left to ask for the reason.
WAITS: Final = timedelta(seconds=4)

ORDER: Final = Message("orders", "x")


def set_default(database: Database, durability: Durability) -> None:
    # Not to wait for a standby that a test has stopped.
    connection = database.connect(options="-c synchronous_commit=local")
    connection.execute("UPDATE mqdb.broker SET default_durability = %s", [durability.value])


@pytest.fixture
def orders(database: Database) -> None:
    """A topic, and a table that records the durability of each append's commit."""
    connection = database.connect()
    create_topic(connection, "orders")
    connection.execute("CREATE TABLE public.witness (id serial, level text)")
    connection.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$"
        "BEGIN INSERT INTO public.witness VALUES (DEFAULT, current_setting('synchronous_commit')); RETURN NULL; END $$"
    )
    connection.execute("CREATE TRIGGER note AFTER INSERT ON mqdb.commit_log EXECUTE FUNCTION note()")


def levels(database: Database) -> list[str]:
    return [level for (level,) in database.rows("SELECT level FROM public.witness ORDER BY id")]


# -- who asks the broker ----------------------------------------------------------------------


def sync_send(dsn: str) -> None:
    with Producer("senders", dsn) as producer:
        producer.send(ORDER)


def async_send(dsn: str) -> None:
    with Producer("senders", dsn) as producer:
        producer.send_async(ORDER).result()


def send_from_a_task(dsn: str) -> None:
    async def sending() -> None:
        async with AsyncProducer("senders", dsn) as producer:
            await producer.send(ORDER)

    asyncio.run(sending())


def send_half(dsn: str) -> None:
    unknown = LocalTransactionState.UNKNOWN
    producer = TransactionProducer(
        "senders", dsn, execute_local_transaction=lambda *_: unknown, check_local_transaction=lambda _: unknown
    )
    with producer:
        producer.send_in_transaction(ORDER)


def send_through_the_front(dsn: str) -> None:
    front = Front(BrokerDsn("broker-a", dsn), HttpAddress("127.0.0.1", 0))
    front.start()
    try:
        with closing(RemotingClient(front.address)) as client:
            assert send(client).code == ResponseCode.SUCCESS
    finally:
        front.stop()


@pytest.mark.parametrize("sends", [sync_send, async_send, send_from_a_task, send_half, send_through_the_front])
def test_a_producer_that_chooses_no_durability_has_that_of_the_broker(
    database: Database, orders: None, sends: Callable[[str], None]
) -> None:
    set_default(database, Durability.ASYNC_FLUSH)

    sends(database.dsn)

    assert levels(database) == ["off"]


def test_a_producer_that_has_chosen_keeps_its_choice(database: Database, orders: None) -> None:
    set_default(database, Durability.ASYNC_FLUSH)

    with Producer("senders", database.dsn, durability=Durability.SYNC_FLUSH) as producer:
        producer.send(ORDER)

    assert levels(database) == ["local"]


def test_a_send_in_a_transaction_of_the_user_waits_as_that_says(database: Database, orders: None) -> None:
    set_default(database, Durability.ASYNC_FLUSH)

    with Producer("senders", database.dsn) as producer, database.connect().transaction() as joined:
        producer.send(ORDER, connection=joined.connection)

    assert levels(database) == ["on"]


def test_another_default_holds_from_the_next_connection_on(database: Database, orders: None) -> None:
    with Producer("senders", database.dsn) as producer:
        producer.send(ORDER)
        set_default(database, Durability.ASYNC_FLUSH)
        producer.send(ORDER)
        assert levels(database) == ["local", "local"]

        assert producer._running is not None
        [link] = producer._running.links.values()
        link.connection.cut()
        wait_until(lambda: not link.connection.is_lost)
        producer.send(ORDER)

        assert levels(database)[-1] == "off"
        with Producer("others", database.dsn) as other:
            other.send(ORDER)
        assert levels(database)[-1] == "off"


# -- who sets it ------------------------------------------------------------------------------


def test_mqdb_serve_sets_the_default_and_leaves_it_if_it_is_not_told(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    said = "SELECT default_durability FROM mqdb.broker"
    assert database.rows(said) == [("SYNC_FLUSH",)]

    with Server(load_settings(dsn=database.dsn, default_durability="SYNC_MASTER")):
        assert database.rows(said) == [("SYNC_MASTER",)]
    with Server(load_settings(dsn=database.dsn)):
        assert database.rows(said) == [("SYNC_MASTER",)]

    [told] = [record for record in caplog.records if record.message.startswith("changed setting")]
    assert (told.__dict__["setting"], told.__dict__["before"], told.__dict__["after"]) == (
        "default_durability",
        "SYNC_FLUSH",
        "SYNC_MASTER",
    )


# -- a standby that does not answer -----------------------------------------------------------


@pytest.fixture
def defaulting(replicated: Database) -> Iterator[Callable[[Durability], Database]]:
    """Sets the default of the broker with a standby."""

    def default_to(durability: Durability) -> Database:
        set_default(replicated, durability)
        return replicated

    yield default_to
    set_default(replicated, Durability.SYNC_FLUSH)


def producer_of(database: Database, **options: Any) -> Producer:
    return Producer("senders", settings=load_settings(dsn=database.dsn, send_message_timeout="30s"), **options)


@pytest.mark.usefixtures("cancelled_early")
def test_with_sync_master_as_default_a_send_waits_for_the_standby(
    standby: Standby, defaulting: Callable[[Durability], Database]
) -> None:
    with producer_of(defaulting(Durability.SYNC_MASTER)) as producer:
        assert producer.send(ORDER).status is SendStatus.SEND_OK
        with standby.paused():
            assert producer.send(ORDER, timeout=WAITS).status is SendStatus.FLUSH_SLAVE_TIMEOUT
        with standby.stopped():
            assert producer.send(ORDER, timeout=WAITS).status is SendStatus.SLAVE_NOT_AVAILABLE


def test_without_it_a_send_does_not_wait(standby: Standby, defaulting: Callable[[Durability], Database]) -> None:
    with producer_of(defaulting(Durability.SYNC_FLUSH)) as producer, standby.paused():
        assert producer.send(ORDER).status is SendStatus.SEND_OK


def test_a_producer_with_a_choice_of_its_own_does_not_wait(
    standby: Standby, defaulting: Callable[[Durability], Database]
) -> None:
    chosen = producer_of(defaulting(Durability.SYNC_MASTER), durability=Durability.SYNC_FLUSH)
    with chosen as producer, standby.paused():
        assert producer.send(ORDER).status is SendStatus.SEND_OK


@pytest.mark.usefixtures("cancelled_early")
def test_clients_of_rocketmq_are_told_what_their_message_lacks(
    standby: Standby, defaulting: Callable[[Durability], Database]
) -> None:
    database = defaulting(Durability.SYNC_MASTER)
    front = Front(BrokerDsn("broker-a", database.dsn), HttpAddress("127.0.0.1", 0))
    front.start()
    try:
        with closing(RemotingClient(front.address)) as client:
            assert send(client).code == ResponseCode.SUCCESS
            with standby.paused():
                late = send(client)
            with standby.stopped():
                alone = send(client)
    finally:
        front.stop()

    assert (late.code, alone.code) == (ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE)
    assert late.fields["msgId"] != alone.fields["msgId"]


# -- behind a transaction pooler --------------------------------------------------------------


def pooled_producer(database: Database, **options: Any) -> Producer:
    settings = load_settings(dsn=database.dsn, pool_dsn=database.dsn, send_message_timeout="2s")
    return Producer("senders", settings=settings, **options)


def test_behind_a_pooler_a_producer_does_not_start_if_sends_are_to_wait_for_a_standby(
    database: Database, orders: None
) -> None:
    set_default(database, Durability.SYNC_MASTER)

    with pytest.raises(ParameterInvalid, match=r"durability = 'SYNC_MASTER': the broker asks for it .* leave pool_dsn"):
        pooled_producer(database).start()
    with pooled_producer(database, durability=Durability.SYNC_FLUSH) as producer:
        producer.send(ORDER)


def test_behind_a_pooler_sends_are_refused_if_the_default_changes_before_the_next_connection(
    database: Database, orders: None
) -> None:
    with pooled_producer(database) as producer:
        producer.send(ORDER)
        set_default(database, Durability.SYNC_MASTER)
        assert producer._running is not None
        [link] = producer._running.links.values()
        link.connection.cut()

        with pytest.raises(ParameterInvalid, match="the broker asks for it"):
            producer.send(ORDER)


def test_behind_a_pooler_a_default_of_less_is_no_reason_to_refuse(database: Database, orders: None) -> None:
    set_default(database, Durability.ASYNC_FLUSH)

    with pooled_producer(database) as producer:
        producer.send(ORDER)

    assert levels(database) == ["on"]


def test_a_front_behind_a_pooler_does_not_start_either(database: Database) -> None:
    set_default(database, Durability.SYNC_MASTER)
    front = Front(BrokerDsn("broker-a", database.dsn), HttpAddress("127.0.0.1", 0), pool_dsn=database.dsn)

    with pytest.raises(ParameterInvalid, match="the broker asks for it"):
        front.start()
