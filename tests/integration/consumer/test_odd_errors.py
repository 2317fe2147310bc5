"""Listeners of every kind raise errors that are hard to inspect: each message fails, and the next one is delivered."""

import asyncio
import logging
from typing import Any

import pytest
from sqlalchemy import Connection, text

from mqdb.common.group import ConsumeFromWhere
from mqdb.common.property import FailureProperty
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import dlq_topic
from mqdb_client import App, ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, Message, Producer, PushConsumer
from mqdb_client.aio import AsyncProducer, AsyncPushConsumer
from mqdb_client.producer.sends.send_hooks import SendMessageContext
from tests.fixtures.aio_consumers import SOON, until
from tests.fixtures.broker import append, topic
from tests.fixtures.odd_errors import ODD_ERRORS
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.variants import usually

Messages = list[ReceivedMessage]

#: How a listener is registered.
KINDS = {
    "concurrent": {},
    "orderly": {"orderly": True},
    "exactly once": {"exactly_once": True},
    "exactly once in order": {"orderly": True, "exactly_once": True},
}
#: A listener that is a coroutine function cannot raise it: Python makes a RuntimeError of it.
CONVERTED = {"StopIteration": "RuntimeError"}


def send_all(broker: Connection) -> None:
    """Send a message for each error, each followed by one that is consumed."""
    route = topic(broker)
    for name in ODD_ERRORS:
        append(broker, route, name, "good")


def class_of(name: str) -> str:
    return str(type.__dict__["__qualname__"].__get__(type(ODD_ERRORS[name]())))


def failures(broker: Connection) -> dict[str, str]:
    """The class of each dead letter's error, without its module."""
    statement = "SELECT text, properties ->> :name AS failure FROM mqdb.message WHERE topic = :topic"
    values = {"name": FailureProperty.EXCEPTION, "topic": dlq_topic("readers")}
    return {row.text: row.failure.rpartition(".")[2] for row in broker.execute(text(statement), values)}


class Raising:
    """A listener that raises the error named in its message."""

    def __init__(self, kind: str) -> None:
        self.good = 0
        self._success = ConsumeOrderlyStatus.SUCCESS if "order" in kind else ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    def __call__(self, messages: Messages, *_: object) -> Any:
        name = messages[0].body.decode()
        if name != "good":
            raise ODD_ERRORS[name]()
        self.good += 1
        return self._success

    def have_ended(self, broker: Connection) -> bool:
        return self.good == len(failures(broker)) == len(ODD_ERRORS)


@pytest.mark.parametrize("kind", usually("concurrent", "exactly once", of=KINDS))
def test_each_error_in_a_thread_fails_its_message_and_no_other(
    broker: Connection, database: Database, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # 20 MB of it are of no use in a report
    send_all(broker)
    listener = Raising(kind)
    consumer = PushConsumer(
        "readers", database.dsn, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, max_reconsume_times=0
    )
    consumer.subscribe("orders")
    consumer.register_listener(lambda *given: listener(*given), **KINDS[kind])

    with consumer:
        wait_until(lambda: listener.have_ended(broker))

    assert failures(broker) == {name: class_of(name) for name in ODD_ERRORS}


@pytest.mark.parametrize("kind", usually("concurrent", "exactly once in order", of=KINDS))
def test_each_error_in_a_loop_fails_its_message_and_no_other(
    broker: Connection, database: Database, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    send_all(broker)
    listener = Raising(kind)

    async def call(*given: Any) -> Any:
        return listener(*given)

    async def work() -> None:
        consumer = AsyncPushConsumer(
            "readers",
            database.dsn,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            max_reconsume_times=0,
            suspend_current_queue_time=SOON,
        )
        await consumer.subscribe("orders")
        consumer.register_listener(call, **KINDS[kind])
        async with consumer:
            await until(lambda: listener.have_ended(broker))

    asyncio.run(work())

    assert failures(broker) == {name: CONVERTED.get(name, class_of(name)) for name in ODD_ERRORS}


@pytest.mark.parametrize("called", usually("thread of a loop", of=["thread", "loop", "thread of a loop"]))
def test_each_error_of_a_function_of_an_application_fails_its_message_and_no_other(
    broker: Connection, database: Database, called: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    send_all(broker)
    app, listener = App("shop", dsn=database.dsn), Raising("concurrent")
    app.configure_group("readers", consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    topic(broker, "others")

    def plain(message: ReceivedMessage) -> None:
        listener([message])

    async def asynchronous(message: ReceivedMessage) -> None:
        listener([message])

    app.listener("orders", group="readers", retries=0)(asynchronous if called == "loop" else plain)
    if called == "thread of a loop":
        app.listener("others", group="readers")(asynchronous)

    async def work() -> None:
        async with app.consuming():
            await until(lambda: listener.have_ended(broker))
        await app.aclose()

    asyncio.run(work())

    converted = {} if called == "thread" else CONVERTED
    assert failures(broker) == {name: converted.get(name, class_of(name)) for name in ODD_ERRORS}


class Forbidding:
    """A hook that forbids each send with the error named in the message's body."""

    hook_name = "forbidding"

    def check_forbidden(self, context: SendMessageContext) -> None:
        raise ODD_ERRORS[context.messages[0].body.decode()]()


@pytest.mark.parametrize("mode", ["async", "oneway"])
def test_a_hook_may_forbid_a_send_by_each_error(
    broker: Connection, database: Database, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A hook may forbid a send with any error, which the caller of `send` gets.

    SystemExit and similar errors end the program's sends, as elsewhere.
    """
    caplog.set_level(logging.CRITICAL)
    topic(broker)
    names = [name for name, make in ODD_ERRORS.items() if issubclass(type(make()), Exception)]

    async def work() -> None:
        async with AsyncProducer("senders", database.dsn) as producer:
            producer.register_check_forbidden_hook(Forbidding())
            for name in names:
                if mode == "oneway":
                    await producer.send_oneway(Message("orders", name))
                    continue
                with pytest.raises(Exception) as caught:  # noqa: PT011 - the class is looked at
                    await asyncio.wait_for(producer.send(Message("orders", name)), 30)
                expected = RuntimeError if name in CONVERTED else type(ODD_ERRORS[name]())
                assert type(caught.value) is expected

    asyncio.run(work())
    with Producer("senders", database.dsn) as producer:
        producer.register_check_forbidden_hook(Forbidding())
        for name in names:
            if mode == "oneway":
                producer.send_oneway(Message("orders", name))
            else:
                assert type(producer.send_async(Message("orders", name)).exception(30)) is type(ODD_ERRORS[name]())
