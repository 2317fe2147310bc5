"""Another database behind the same address: nothing is stored there with the numbers of the old one."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.errors import BrokerMisnamed, BrokerUnavailable, MqdbError, TopicNotFound
from mqdb_client import Message, MessageQueue, Producer, SendResult
from mqdb_client.producer.append.group_append import GroupAppend
from mqdb_client.producer.append.held_connection import HeldConnection
from mqdb_client.producer.append.waking import Waking
from mqdb_client.producer.queues.queue_choice import SendPlace
from tests.fixtures.appends import Given, Log
from tests.fixtures.log import scalar
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import Before, link_of, producer_of
from tests.fixtures.variants import usually

STORED = """
    SELECT topic, convert_from(body, 'UTF8') FROM mqdb.commit_log
    JOIN mqdb.queue USING (queue_key) JOIN mqdb.topic USING (topic_id) ORDER BY log_pos
"""


@pytest.mark.parametrize("is_async", usually(False, of=[False, True]))
def test_a_send_goes_to_its_topic_in_the_database_that_has_come(
    database: Database, swap_databases: Callable[[], None], is_async: bool
) -> None:
    with producer_of(database.dsn) as producer:
        producer.send(Message("orders", "before"))
        producer.register_send_message_hook(Before(swap_databases))

        message = Message("orders", "after")
        _ = producer.send_async(message).result(100) if is_async else producer.send(message)

        assert database.rows(STORED) == [("orders", "after")]


def test_a_database_of_another_broker_gets_nothing(
    database: Database, second_database: Database, swap_databases: Callable[[], None]
) -> None:
    second_database.connect().execute("UPDATE mqdb.broker SET broker_name = 'broker-b'")
    with producer_of(database.dsn, timeout="2s") as producer:
        producer.send(Message("orders", "before"))
        swap_databases()

        def sent() -> SendResult | MqdbError:
            try:
                return producer.send(Message("orders", "after"))
            except MqdbError as error:
                return error

        wait_until(lambda: isinstance(sent(), BrokerMisnamed))

        assert database.rows(STORED) == []


def test_what_is_asked_beside_the_appends_goes_to_the_new_database_too(database: Database, to_one: Producer) -> None:
    """Queries beside the appends go to the new database, too.

    A connection to the old database would report its topics for ever.
    """
    to_one.send(Message("orders", "before"))
    link = link_of(to_one)
    late = BrokerUnavailable("the test", "no answer")
    pid = text("SELECT pg_backend_pid()")

    def asked() -> int:
        found: int = link.ask(lambda connection: connection.scalar(pid), time.monotonic() + 30, late)
        return found

    before = asked()
    route = link.instance.routes.known("orders")
    assert route is not None
    link.instance.routes.remember(replace(route, history=route.history + 1))  # of a server which is still there

    to_one.send(Message("orders", "after"))

    assert asked() != before
    assert database.rows(STORED) == [("orders", "before"), ("orders", "after")]


def test_a_route_that_is_newer_than_the_refused_one_is_kept(to_one: Producer) -> None:
    """A route newer than the refused one is kept.

    Many sends under way are refused after a restart, and the first of them has already asked for the route again.
    """
    to_one.send(Message("orders", "x"))
    assert to_one._running is not None
    link, routes = link_of(to_one), to_one._running.routes
    route = link.instance.routes.known("orders")
    assert route is not None
    older = SendPlace(MessageQueue("orders", link.name, 0), link, route.queue_keys[0], route.history + 1)

    routes.forget(older)
    assert link.instance.routes.known("orders") is route

    routes.forget(older._replace(history=route.history))
    assert link.instance.routes.known("orders") is None


def test_units_of_another_history_are_refused_and_those_beside_them_are_stored(locked_log: Log, engine: Engine) -> None:
    locked_log.unlock()
    held = HeldConnection(engine.connect)
    appends = GroupAppend(held, Waking())
    history = scalar(locked_log.connection, "SELECT mqdb.history()")
    held.open()
    appends.open()
    right, wrong = (
        Given([record._replace(history=each) for record in locked_log.records(body)], 30)
        for body, each in (("right", history), ("wrong", history + 1))
    )

    try:
        # Handed in before anybody leads: both go into one statement.
        ended: list[Given] = []
        appends._plan.is_busy = True
        for unit in (right, wrong):
            appends.hand_in(unit, partial(ended.append, unit))
        appends._work.put(True)
        wait_until(lambda: len(ended) == 2)
    finally:
        appends.close()
        held.close()

    assert right.error is None
    assert isinstance(wrong.error, TopicNotFound)
    assert locked_log.database.rows(STORED) == [("orders", "right")]


def test_a_connection_that_was_cut_comes_back(engine: Engine) -> None:
    held = HeldConnection(engine.connect)
    held.open()

    def pid(connection: Connection) -> int:
        found: int = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        return found

    before = held.run(pid, time.monotonic() + 30)
    held.cut()

    assert held.run(pid, time.monotonic() + 30) != before
    held.close()


def test_a_topic_that_exists_is_found_although_the_first_question_after_the_swap_is_not_answered(
    database: Database, second_database: Database, swap_databases: Callable[[], None]
) -> None:
    """An existing topic is found even if the first query after the swap fails.

    The old route is not used then, not even for lack of a better one.
    """
    with producer_of(database.dsn) as producer:
        producer.send(Message("orders", "before"))
        link = link_of(producer)
        failures = [BrokerUnavailable("the test", "no answer")] * 3
        ask = link.ask

        def failing(*arguments: Any, **options: Any) -> Any:
            if failures:
                raise failures.pop()
            return ask(*arguments, **options)

        link.ask = failing  # type: ignore[method-assign]
        producer.register_send_message_hook(Before(swap_databases))

        producer.send(Message("orders", "after"))

        assert database.rows(STORED) == [("orders", "after")]
