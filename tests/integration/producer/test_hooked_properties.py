"""Properties that a send message hook adds to a message are checked and then stored."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from mqdb.common.compression import Compression
from mqdb.errors import PropertiesTooLarge, PropertyInvalid
from mqdb_client import Message, Producer
from mqdb_client.producer.sends.send_hooks import SendMessageContext, SendMode
from tests.fixtures.async_sends import SECONDS
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import attempts_of, producer_of, stored_bodies
from tests.fixtures.variants import usually


class Adds:
    """A hook that gives each message a property."""

    hook_name = "trace"

    def __init__(self, value: Any) -> None:
        self._value = value

    def send_message_before(self, context: SendMessageContext) -> None:
        for message in context.messages:
            message.properties["trace"] = self._value  # type: ignore[index]  # a dict, which no type promises

    def send_message_after(self, context: SendMessageContext) -> None:
        pass


class AddsBeside(Adds):
    """A hook that adds a property without changing the message object."""

    def send_message_before(self, context: SendMessageContext) -> None:
        for extra in context.extra_properties:
            extra["trace"] = self._value


each_way = pytest.mark.parametrize("way", [Adds, AddsBeside])


def stored_traces(database: Database) -> list[str | None]:
    return [row[0] for row in database.rows("SELECT properties ->> 'trace' FROM mqdb.commit_log ORDER BY log_pos")]


@each_way
@pytest.mark.parametrize("compression", [None, Compression.ZLIB])
def test_what_a_hook_adds_is_stored_by_all_kinds_of_sends(
    database: Database, compression: Compression | None, way: type[Adds]
) -> None:
    create_topic(database.connect(), "orders", 4)
    with producer_of(database.dsn, compression=compression) as producer:
        producer.register_send_message_hook(way("00-abc"))

        producer.send(Message("orders", "1"))
        producer.send_batch([Message("orders", "2"), Message("orders", "3")])
        producer.send_async(Message("orders", "4")).result(SECONDS)
        producer.send_oneway(Message("orders", "5"))
        with database.connect(autocommit=False) as connection:
            producer.send(Message("orders", "6"), connection=connection)
            producer.send_batch([Message("orders", "7"), Message("orders", "8")], connection=connection)

    assert sorted(stored_bodies(database)) == list("12345678")
    assert stored_traces(database) == ["00-abc"] * 8


def by_send(producer: Producer, _database: Database) -> None:
    producer.send(Message("orders", "x"))


def by_batch(producer: Producer, _database: Database) -> None:
    producer.send_batch([Message("orders", "x"), Message("orders", "y")])


def by_future(producer: Producer, _database: Database) -> None:
    sent: Future[Any] = producer.send_async(Message("orders", "x"))
    sent.result(SECONDS)


def by_joining(producer: Producer, database: Database) -> None:
    with database.connect(autocommit=False) as connection:
        producer.send(Message("orders", "x"), connection=connection)


@each_way
@pytest.mark.parametrize("send", usually(by_send, by_joining, of=[by_send, by_batch, by_future, by_joining]))
@pytest.mark.parametrize(("value", "kind"), [(17, PropertyInvalid), ("v" * 32_767, PropertiesTooLarge)])
def test_what_a_hook_adds_is_refused_where_a_user_may_not_send_it(
    database: Database,
    to_one: Producer,
    send: Callable[[Producer, Database], None],
    value: object,
    kind: type[Exception],
    way: type[Adds],
) -> None:
    to_one.register_send_message_hook(way(value))
    attempts = attempts_of(to_one)

    with pytest.raises(kind):
        send(to_one, database)

    assert [type(context.error) for context in attempts.ended] == [kind]
    assert attempts.ended == attempts.begun
    assert stored_bodies(database) == []


def test_a_hook_gets_no_results_of_a_oneway_send(to_one: Producer) -> None:
    attempts = attempts_of(to_one)

    to_one.send_oneway(Message("orders", "x"))
    wait_until(lambda: attempts.ended)

    [context] = attempts.ended
    assert context.mode is SendMode.ONEWAY
    assert context.error is None
    assert context.results == ()
