"""The asyncio administrator: its results, and the state that a cancelled task leaves behind."""

import asyncio
from contextlib import aclosing
from typing import assert_type

import pytest
from sqlalchemy import Connection

from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import GroupNotFound, ParameterInvalid, TopicNotFound
from mqdb_client import Answers, DeadLetterFilter, TopicConfig, TopicDetails
from mqdb_client.aio import AsyncAdmin, AsyncBrokerAdmin
from tests.fixtures.broker import append, bodies, topic
from tests.fixtures.dead_letters import bury
from tests.fixtures.lite_pull import numbers
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import TwoBrokers


def test_methods_are_awaited_and_have_their_types(database: Database) -> None:
    async def work() -> None:
        async with AsyncAdmin(database.dsn) as admin:
            created = await admin.topics.create("orders", queues=3, actor="me")
            assert_type(created, TopicConfig)
            shown = await admin.topics.show("orders")
            assert_type(shown, TopicDetails)
            assert_type(await admin.messages.find("orders", limit=5), list[ReceivedMessage])
            assert created.read_queue_nums == len(shown.queues) == 3
            assert [each.actor for each in await admin.operations.list(topic="orders")] == ["me"]
            with pytest.raises(TopicNotFound):
                await admin.topics.show("nothing")
            with pytest.raises(TypeError):
                await admin.topics.create("orders", color="red")  # type: ignore[call-arg]
            await admin.check()
            assert admin.doctor.exit_code(await admin.doctor.examine()) in (0, 1, 2)

    asyncio.run(work())


def test_a_topic_is_read_in_order_and_once_more_when_there_is_more(broker: Connection, database: Database) -> None:
    route = topic(broker)
    append(broker, route, *numbers(0, 700))

    async def work() -> None:
        async with AsyncAdmin(database.dsn) as admin:
            async with admin.messages.reading("orders") as reader:
                assert [message.body.decode() async for message in reader] == numbers(0, 700)
                assert reader.offsets == [700]
                append(broker, route, "later")
                await reader.dispatch()
                assert bodies(await reader.read()) == ["later"]
            with pytest.raises(TopicNotFound):
                async with admin.messages.reading("nothing"):
                    pass

    asyncio.run(work())


def test_dead_letters_are_read_one_after_the_other_and_not_to_the_end(broker: Connection, database: Database) -> None:
    for number in range(250):
        bury(broker, str(number))

    async def work() -> None:
        async with AsyncAdmin(database.dsn) as admin:
            read = [letter.body.decode() async for letter in admin.dead_letters.read(DeadLetterFilter("billing"))]
            assert read == numbers(0, 250)
            async with aclosing(admin.dead_letters.read(DeadLetterFilter("billing"))) as letters:
                async for letter in letters:
                    assert letter.body == b"0"
                    break
            with pytest.raises(GroupNotFound):
                await anext(admin.dead_letters.read(DeadLetterFilter("nobody")))

    asyncio.run(work())
    wait_until(lambda: sessions(database) == 0)


def sessions(database: Database) -> int:
    """The number of administrators' sessions."""
    statement = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mqdb admin' AND datname = %s"
    [(count,)] = database.rows(statement, database.name)
    return int(count)


def test_a_read_that_is_cancelled_is_over_before_its_connection_is_given_back(
    broker: Connection, database: Database
) -> None:
    append(broker, topic(broker), "x")

    async def work() -> None:
        async with AsyncAdmin(database.dsn) as admin:
            async with admin.messages.reading("orders") as reader:
                locker = database.connect(autocommit=False)
                locker.execute("LOCK TABLE mqdb.commit_log, mqdb.consume_queue")
                reading = asyncio.create_task(reader.read())
                await asyncio.to_thread(lambda: wait_until(lambda: waiting(database)))
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading
                asyncio.get_running_loop().call_later(0.1, locker.rollback)
            assert not waiting(database)
            assert bodies(await admin.messages.find("orders")) == ["x"]

    asyncio.run(work())
    wait_until(lambda: sessions(database) == 0)


def waiting(database: Database) -> bool:
    """Whether an administrator waits for a lock."""
    statement = "SELECT FROM pg_stat_activity WHERE application_name = 'mqdb admin' AND wait_event_type = 'Lock'"
    return bool(database.rows(statement))


def test_each_broker_is_asked_by_itself(two_brokers: TwoBrokers) -> None:
    async def work() -> None:
        async with AsyncAdmin(two_brokers.dsn) as admin:
            await admin.on("broker-a").topics.create("orders")

            async def queues_of(broker: AsyncBrokerAdmin) -> int:
                return len((await broker.topics.show("orders")).queues)

            answers = await admin.on_each(queues_of)
            assert_type(answers, Answers[int])
            assert answers.results == {"broker-a": 8}
            assert {name: type(error) for name, error in answers.failures.items()} == {"broker-b": TopicNotFound}
            assert [each.name for each in admin.chosen(["broker-b"])] == ["broker-b"]
            with pytest.raises(ParameterInvalid, match="there is no such broker"):
                admin.on("broker-c")
            with pytest.raises(ParameterInvalid, match="there are several brokers"):
                await admin.topics.list()

    asyncio.run(work())
