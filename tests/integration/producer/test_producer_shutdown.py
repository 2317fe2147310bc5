"""Work that continues while a producer shuts down, and work that must not wait for the shutdown."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from mqdb.errors import StorageRefused
from mqdb_client import Message, Producer
from mqdb_client.producer.sends.send_hooks import SendMessageContext, SendMessageHook
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import producer_of, refuse_appends, stall
from tests.fixtures.threads import Doing

Begin = Callable[[Producer, Callable[[object], None]], object]


def begin_send(producer: Producer, callback: Callable[[object], None]) -> None:
    producer.send_async(Message("orders", "x"), callback=callback)


def begin_request(producer: Producer, callback: Callable[[object], None]) -> None:
    producer.request_async(Message("orders", "x"), timedelta(seconds=60)).add_done_callback(callback)


@pytest.mark.parametrize("begin", [begin_send, begin_request])
def test_a_callback_may_shut_down_what_is_shutting_down(database: Database, begin: Begin) -> None:
    create_topic(database.connect(), "orders")
    called: list[bool] = []
    with producer_of(database.dsn) as producer:
        producer.send(Message("orders", "first"))
        locker = stall(database) if begin is begin_send else database.connect()

        def callback(_: object) -> None:
            producer.shutdown()
            called.append(True)

        begin(producer, callback)
        ending = Doing(producer.shutdown)
        wait_until(lambda: producer._running is None)
        locker.rollback()

        ending.result()
    assert called == [True]


def test_a_producer_that_has_sent_leaves_by_a_connection_that_it_has(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(database.connect(), "orders")
    made: list[str] = []
    connect = psycopg.connect

    def counted(*arguments: Any, **options: Any) -> Any:
        made.append(options["application_name"])
        return connect(*arguments, **options)

    monkeypatch.setattr(psycopg, "connect", counted)
    with producer_of(database.dsn) as producer:
        producer.send(Message("orders", "x"))

    # To listen, to append, and for questions.
    assert len(made) == 3


class Hangs(SendMessageHook):
    """A hook that does not return from the end of some sends until the test allows it."""

    hook_name = "hangs"

    def __init__(self) -> None:
        self.hanging: list[bytes] = []
        self.may_end = threading.Event()

    def send_message_before(self, context: SendMessageContext) -> None:
        pass

    def send_message_after(self, context: SendMessageContext) -> None:
        body = context.messages[0].body
        if body.startswith(b"hangs"):
            self.hanging.append(body)
            assert self.may_end.wait(60)


def test_an_async_send_ends_in_time_while_all_threads_that_judge_hang(database: Database) -> None:
    create_topic(database.connect(), "orders")
    hook = Hangs()
    with producer_of(database.dsn) as producer:
        producer.register_send_message_hook(hook)
        refuse_appends(database)
        hanging = [producer.send_async(Message("orders", f"hangs {number}")) for number in range(2)]
        wait_until(lambda: len(hook.hanging) == 2)
        try:
            other = producer.send_async(Message("orders", "x"), timeout=timedelta(seconds=0.5))

            assert isinstance(other.exception(10), StorageRefused)
        finally:
            hook.may_end.set()
        assert all(isinstance(future.exception(30), StorageRefused) for future in hanging)
