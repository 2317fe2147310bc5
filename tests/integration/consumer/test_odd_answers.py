"""Listeners of every kind return answers and set delays that are hard to inspect: each fails only its own message."""

import asyncio
import itertools
import logging
from typing import Any

import pytest
from sqlalchemy import Connection, text

from mqdb.common.group import ConsumeFromWhere
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import dlq_topic
from mqdb_client import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, PushConsumer
from mqdb_client.aio import AsyncPushConsumer
from tests.fixtures.aio_consumers import SOON
from tests.fixtures.broker import append, topic
from tests.fixtures.odd_answers import ODD_ANSWERS, ODD_WISHES, text_that_fails
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.variants import usually

#: How a listener is registered.
KINDS = {
    "concurrent": {},
    "orderly": {"orderly": True},
    "exactly once": {"exactly_once": True},
    "exactly once in order": {"orderly": True, "exactly_once": True},
}
NAMES = [*(f"answer {name}" for name in ODD_ANSWERS), *(f"wish {name}" for name in ODD_WISHES)]


class Answering:
    """A listener that returns the answer named in its message.

    For other messages the status is a string whose methods fail.
    """

    def __init__(self, kind: str) -> None:
        self.good = 0
        self._success = ConsumeOrderlyStatus.SUCCESS if "order" in kind else ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    def __call__(self, messages: list[ReceivedMessage], *others: Any) -> Any:
        kind, _, name = messages[0].body.decode().partition(" ")
        if kind == "answer":
            return ODD_ANSWERS[name]()
        if kind == "wish":
            ODD_WISHES[name](others[-1])
            raise ValueError("no stock")
        self.good += 1
        return text_that_fails(self._success)


def dead(broker: Connection) -> set[str]:
    statement = text("SELECT text FROM mqdb.message WHERE topic = :topic")
    return set(broker.scalars(statement, {"topic": dlq_topic("readers")}))


@pytest.mark.parametrize(
    ("kind", "called"),
    usually(("orderly", "loop"), ("exactly once", "thread"), of=itertools.product(KINDS, ("thread", "loop"))),
)
def test_each_odd_answer_fails_its_message_and_no_other(
    broker: Connection, database: Database, kind: str, called: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    route = topic(broker)
    for name in NAMES:
        append(broker, route, name, "good")
    listener = Answering(kind)
    options: dict[str, Any] = {
        "consume_from_where": ConsumeFromWhere.FIRST_OFFSET,
        "max_reconsume_times": 0,
        "suspend_current_queue_time": SOON,
    }

    def consumed() -> bool:
        return listener.good == len(NAMES) == len(dead(broker))

    async def call(messages: list[ReceivedMessage], *others: Any) -> Any:
        return listener(messages, *others)

    async def work() -> None:
        consumer = AsyncPushConsumer("readers", database.dsn, **options)
        await consumer.subscribe("orders")
        consumer.register_listener(call, **KINDS[kind])
        async with consumer:
            await asyncio.to_thread(wait_until, consumed)

    if called == "loop":
        asyncio.run(work())
    else:
        consumer = PushConsumer("readers", database.dsn, **options)
        consumer.subscribe("orders")
        consumer.register_listener(lambda messages, *others: listener(messages, *others), **KINDS[kind])
        with consumer:
            wait_until(consumed)

    assert dead(broker) == set(NAMES)
    assert max(len(record.getMessage()) for record in caplog.records) < 10_000
