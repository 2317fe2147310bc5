"""Shutdown of a consumer whose listener hangs, for each way to consume.

The consumer logs a warning, gives up in time, and releases its queues.
"""

import logging
import re
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from mqdb.broker.topics.topics import update_topic
from mqdb.common.group import ConsumeFromWhere, MessageModel
from mqdb.errors import ShutdownTimedOut
from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb_client import ConsumeOrderlyStatus, LitePullConsumer, PushConsumer
from mqdb_client.consumer.listeners.stop_signals import on_stop_signal
from tests.fixtures.broker import append, topic
from tests.fixtures.consumers import SUCCESS, Gate, Inbox
from tests.fixtures.lite_pull import Lite
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until

#: Longer than a shutdown is silent.
PATIENCE = timedelta(seconds=1)

WAYS: list[Any] = [
    pytest.param({}, {}, id="concurrently"),
    pytest.param({"orderly": True}, {}, id="orderly", marks=pytest.mark.long),
    pytest.param({"exactly_once": True}, {}, id="exactly once", marks=pytest.mark.long),
    pytest.param({"exactly_once": True, "orderly": True}, {}, id="exactly once, orderly"),
    pytest.param({}, {"message_model": MessageModel.BROADCASTING}, id="broadcasting", marks=pytest.mark.long),
]


def started(
    database: Database, number: int, inbox: Inbox, way: dict[str, Any], options: dict[str, Any]
) -> PushConsumer:
    """A started member that consumes in this way. Each number has its own client."""
    success = ConsumeOrderlyStatus.SUCCESS if way.get("orderly") else SUCCESS

    def listener(messages: list[Any], *_: object) -> object:
        inbox(messages)
        return success

    def transactional(messages: list[Any], connection: Connection) -> object:
        return listener(messages, connection)

    consumer = PushConsumer(
        "readers",
        f"{database.dsn}&application_name=member{number}",
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        **options,
    )
    consumer.subscribe("orders")
    consumer.register_listener(transactional if way.get("exactly_once") else listener, **way)
    consumer.start()
    return consumer


@pytest.mark.parametrize(("way", "options"), WAYS)
def test_a_listener_that_hangs_is_left_in_time_and_its_messages_go_to_others(
    broker: Connection,
    database: Database,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    way: dict[str, Any],
    options: dict[str, Any],
) -> None:
    route = topic(broker)
    append(broker, route, "0", "hangs", "2")
    gate, heir = Gate("hangs"), Inbox()
    options = options | {"local_offset_directory": tmp_path}
    consumer = started(database, 1, gate, way, options | {"shutdown_timeout": PATIENCE})
    wait_until(lambda: gate.waiting == {"hangs"} and "0" in gate.bodies)

    with pytest.raises(ShutdownTimedOut) as left:
        consumer.shutdown()

    try:
        assert (left.value.group, left.value.listeners) == ("readers", 1)
        [line] = said(caplog)
        assert re.fullmatch(
            r"shutdown in group readers waits for 1 running listeners, [01]\.[0-9] s at most \(shutdown_timeout\); "
            "a second SIGINT or SIGTERM leaves them at once",
            line,
        )
        second = started(database, 2, heir, way, options)
        heir.wait_for(1)
        second.shutdown()
        assert heir.bodies[0] == "hangs"
    finally:
        gate.open()


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log's warnings about the shutdown."""
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and "shutdown" in r.getMessage()]


def test_a_shutdown_without_running_listeners_says_nothing(
    broker: Connection, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    topic(broker)
    consumer = started(database, 1, Inbox(), {}, {})

    consumer.shutdown()

    assert said(caplog) == []


def test_an_error_that_ends_the_block_is_not_lost_in_a_shutdown_that_gives_up(
    broker: Connection, database: Database
) -> None:
    append(broker, topic(broker), "hangs")
    gate = Gate("hangs")
    consumer = PushConsumer(
        "readers",
        database.dsn,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        shutdown_timeout=timedelta(0),
    )
    consumer.subscribe("orders")
    consumer.register_listener(gate)

    with pytest.raises(ZeroDivisionError), consumer:  # noqa: PT012 - the block is what is tested
        wait_until(lambda: gate.waiting)
        raise ZeroDivisionError
    gate.open()


def test_run_raises_when_listeners_have_not_returned(broker: Connection, database: Database) -> None:
    route = topic(broker)
    append(broker, route, "hangs")
    gate = Gate("hangs")
    consumer = PushConsumer(
        "readers",
        database.dsn,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        shutdown_timeout=timedelta(seconds=0.1),
    )
    consumer.subscribe("orders")
    consumer.register_listener(gate)

    def stop() -> None:
        wait_until(lambda: gate.waiting)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    stopping = threading.Thread(target=stop)
    stopping.start()
    with pytest.raises(ShutdownTimedOut):
        consumer.run()
    stopping.join()
    gate.open()

    assert committed_offsets(broker, "readers", route.queue_keys) == {route.queue_keys[0]: 0}


@pytest.mark.usefixtures("both_kinds_of_clients")
def test_a_listener_of_topics_that_hangs_is_left_in_time(broker: Connection, lite: Lite) -> None:
    topic(broker)
    is_told, may_return = threading.Event(), threading.Event()

    def listener(*_: object) -> None:
        is_told.set()
        may_return.wait(60)

    options = {"topic_metadata_check_interval": timedelta(milliseconds=20), "shutdown_timeout": timedelta(seconds=0.1)}
    consumer: LitePullConsumer = lite("orders", is_started=False, **options)
    consumer.register_topic_message_queue_change_listener("orders", listener)
    consumer.start()
    update_topic(broker, "orders", read_queue_nums=2, write_queue_nums=2)
    assert is_told.wait(30)

    with pytest.raises(ShutdownTimedOut):
        consumer.shutdown()

    may_return.set()


def test_the_second_signal_ends_the_process_unless_the_program_has_a_handler_of_its_own() -> None:
    requests: list[None] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def own_handler(*_: object) -> None:
        """The program's own signal handler."""

    # Python's own handler of SIGINT: a Spark session of an earlier test leaves another one behind.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, own_handler)
    try:
        with on_stop_signal(stop_request(requests)):
            signal.raise_signal(signal.SIGINT)
            assert requests == [None]
            assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
            assert signal.getsignal(signal.SIGTERM) is own_handler
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_request(requests: list[None]) -> Callable[[], None]:
    return lambda: requests.append(None)
