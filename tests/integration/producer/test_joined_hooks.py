"""Hooks around sends that join the caller's transaction receive each topic, and a batch stays all or nothing."""

from collections.abc import Iterator

import pytest

from mqdb.errors import ParameterInvalid, TopicNotFound
from mqdb_client import Message, MessageQueue, Producer
from mqdb_client.producer.sends.send_hooks import SendMessageContext
from tests.fixtures.log import Connection, create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.producers import Attempts, attempts_of, producer_of, stored_bodies

ORDERS_AND_INVOICES = [Message("orders", "a"), Message("invoices", "b"), Message("orders", "c")]


class ForbidsInvoices:
    hook_name = "police"

    def check_forbidden(self, context: SendMessageContext) -> None:
        if context.message.topic == "invoices":
            raise PermissionError("no invoices today")


@pytest.fixture
def producer(database: Database) -> Iterator[Producer]:
    create_topic(database.connect(), "orders", 4)
    create_topic(database.connect(), "invoices", 4)
    with producer_of(database.dsn) as producer:
        yield producer


@pytest.fixture
def attempts(producer: Producer) -> Attempts:
    return attempts_of(producer)


@pytest.fixture
def connection(database: Database) -> Connection:
    return database.connect(autocommit=False)


def test_hooks_see_the_messages_of_each_topic_their_ids_and_their_results(
    producer: Producer, attempts: Attempts, connection: Connection
) -> None:
    first, second, third = producer.send_batch(ORDERS_AND_INVOICES, connection=connection)

    of_orders, of_invoices = attempts.ended
    assert attempts.begun == attempts.ended
    assert [message.body for message in of_orders.messages] == [b"a", b"c"]
    assert list(of_orders.message_ids) == [first.message_id, third.message_id]
    assert list(of_orders.results) == [first, third]
    assert list(of_invoices.message_ids) == [second.message_id]
    assert list(of_invoices.results) == [second]
    assert {first.queue, third.queue} == {of_orders.queue}
    assert second.queue == of_invoices.queue


@pytest.mark.usefixtures("attempts")
def test_a_topic_that_is_missing_takes_all_others_with_it(
    database: Database, producer: Producer, connection: Connection
) -> None:
    with pytest.raises(TopicNotFound):
        producer.send_batch([*ORDERS_AND_INVOICES, Message("missing", "d")], connection=connection)
    connection.commit()

    assert stored_bodies(database) == []


def test_a_queue_of_another_topic_takes_all_others_with_it(
    database: Database, producer: Producer, attempts: Attempts, connection: Connection
) -> None:
    queue = MessageQueue("orders", "broker-a", 1)

    with pytest.raises(ParameterInvalid, match="goes to topic 'invoices'"):
        producer.send_batch(ORDERS_AND_INVOICES, queue=queue, connection=connection)
    connection.commit()

    assert stored_bodies(database) == []
    assert [type(context.error) for context in attempts.ended] == [ParameterInvalid] * 2


def test_a_topic_that_is_forbidden_takes_all_others_with_it(
    database: Database, producer: Producer, attempts: Attempts, connection: Connection
) -> None:
    producer.register_check_forbidden_hook(ForbidsInvoices())

    with pytest.raises(PermissionError):
        producer.send_batch(ORDERS_AND_INVOICES, connection=connection)
    connection.commit()

    assert stored_bodies(database) == []
    [begun] = attempts.begun
    assert begun.message.topic == "orders"
    assert attempts.ended == [begun]
    assert isinstance(begun.error, PermissionError)
