"""A database goes back while clients keep their positions: no message in its log is skipped."""

import logging
import os
import signal
import threading
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection

from mqdb.common.message import Message
from mqdb_client import create_reply_message
from mqdb_client.consumer.queues.share import Share
from tests.fixtures.consuming import PUSH, WAYS, Consuming, starting
from tests.fixtures.history import Past
from tests.fixtures.postgres import Database, query
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import Before, producer_of
from tests.fixtures.proxy import Proxy
from tests.fixtures.requests import request_of
from tests.fixtures.variants import usually

ANOTHER = "another history"


def numbered(name: str, count: int) -> list[str]:
    return [f"{name} {number}" for number in range(count)]


def wait_for(consuming: Consuming, *bodies: str) -> None:
    wait_until(lambda: set(bodies) <= set(consuming.bodies()), 30)


def warned(caplog: pytest.LogCaptureFixture) -> bool:
    return any(ANOTHER in record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


@pytest.mark.parametrize("way", usually("exactly once, orderly", of=WAYS))
def test_an_older_copy_of_the_directory_that_has_grown_past_the_position(
    past: Past, way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept, lost, new = numbered("kept", 20), numbered("lost", 20), numbered("new", 80)
    past.store(*kept)
    past.save("older")
    with starting(past.dsn, tmp_path) as start:
        consuming = start(way)
        past.store(*lost)
        wait_for(consuming, *kept, *lost)
        consuming.pause()
        past.return_to("older")
        past.store(*new)
        consuming.resume()

        wait_for(consuming, *kept, *new)

    assert warned(caplog)


@pytest.mark.parametrize("way", usually("exactly once", of=WAYS))
def test_an_older_copy_that_is_behind_the_position(past: Past, way: str, tmp_path: Path) -> None:
    """An older copy may end before the position of a client.

    A pull beyond the end of its queue continues at the committed offset, not at the end.
    """
    kept, lost, new = numbered("kept", 20), numbered("lost", 40), numbered("new", 8)
    past.store(*kept)
    past.save("older")
    with starting(past.dsn, tmp_path) as start:
        consuming = start(way)
        past.store(*lost)
        wait_for(consuming, *kept, *lost)
        consuming.pause()
        past.return_to("older")
        past.store(*new)
        consuming.resume()

        wait_for(consuming, *kept, *new)


@pytest.mark.parametrize("way", usually("lite pull", of=WAYS))
def test_a_server_that_was_stopped_and_started_has_lost_nothing(
    past: Past, way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that was stopped and started has lost nothing.

    Committed messages are not delivered again, and the log has no warning.
    """
    before, after = numbered("before", 20), numbered("after", 20)
    past.store(*before)
    with starting(past.dsn, tmp_path) as start:
        consuming = start(way)
        wait_for(consuming, *before)
        consuming.commit()
        wait_until(lambda: past.committed(tmp_path) == 20)
        past.restart()
        past.store(*after)

        wait_for(consuming, *after)

    assert sorted(consuming.received) == sorted([*before, *after])
    assert not warned(caplog)


def test_a_broadcasting_consumer_goes_on_at_the_last_position_that_the_log_proves(
    past: Past, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept, lost, new = numbered("kept", 20), numbered("lost", 20), numbered("new", 80)
    past.store(*kept)
    with starting(past.dsn, tmp_path) as start:
        wait_for(start("broadcasting"), *kept)
    past.save("older")
    past.store(*lost)
    with starting(past.dsn, tmp_path) as start:
        wait_for(start("broadcasting"), *lost)
    past.return_to("older")
    past.store(*new)

    with starting(past.dsn, tmp_path) as start:
        consuming = start("broadcasting")
        wait_for(consuming, *new)

    assert sorted(consuming.received) == sorted(new)
    assert warned(caplog)


def test_a_broadcasting_consumer_whose_log_proves_nothing_reads_all_of_it(past: Past, tmp_path: Path) -> None:
    lost, new = numbered("lost", 20), numbered("new", 80)
    past.store(*lost)
    with starting(past.dsn, tmp_path) as start:
        wait_for(start("broadcasting"), *lost)
    past.return_to("empty")
    past.store(*new)

    with starting(past.dsn, tmp_path) as start:
        consuming = start("broadcasting")
        wait_for(consuming, *new)

    assert sorted(consuming.received) == sorted(new)


@pytest.mark.parametrize("way", usually("exactly once, orderly", of=PUSH))
def test_a_message_whose_listener_runs_does_not_come_again_before_it_has_returned(
    past: Past, way: str, tmp_path: Path
) -> None:
    """A message whose listener is running is not delivered again before the listener returns.

    After a restart the queue is lost and taken again, but only one listener may run on it.
    """
    may_return, has_waited = threading.Event(), threading.Event()
    with starting(past.dsn, tmp_path) as start:
        consuming = start(way, lambda _body: may_return.wait(60) and None)
        try:
            past.store("first")
            wait_until(lambda: consuming.received)
            rebalance = consuming.reader.rebalance
            past.restart()
            wait_until(lambda: rebalance._ownership.unsettled, 30)
            take = rebalance._take

            def taking(connection: Connection, share: Share) -> None:
                take(connection, share)
                has_waited.set()

            rebalance._take = taking  # type: ignore[method-assign]
            rebalance.rebalance()
            assert has_waited.wait(30)
            assert rebalance._ownership.unsettled.isdisjoint(held.queue_key for held in rebalance.held)
            assert consuming.received == ["first"]
        finally:
            may_return.set()
        wait_until(lambda: len(consuming.received) == 2, 30)

    assert consuming.received == ["first", "first"]


def test_it_changes_when_the_server_recovers_from_the_crash_of_one_backend(past: Past) -> None:
    """The history changes when the server recovers from the crash of one backend.

    The server's start time does not change then, although unwritten changes are gone.
    """
    with psycopg.connect(past.dsn, autocommit=True) as victim:
        before = query(past.dsn, "SELECT mqdb.history()")
        assert query(past.dsn, "SELECT mqdb.history()") == before
        os.kill(victim.info.backend_pid, signal.SIGKILL)

        def history() -> object:
            try:
                return query(past.dsn, "SELECT mqdb.history()")
            except psycopg.OperationalError:
                return before

        wait_until(lambda: history() != before, 30)


@pytest.mark.parametrize("schedule", [{}, {"delay_level": 1}], ids=["plain", "delayed"])
@pytest.mark.parametrize("is_pooled", usually(False, of=[False, True]))
def test_a_queue_that_has_the_key_of_a_lost_one_gets_nothing_of_its_topic(
    past: Past, monkeypatch: pytest.MonkeyPatch, is_pooled: bool, schedule: dict[str, Any]
) -> None:
    """A queue that has the key of a lost one receives no message of the lost topic.

    The lost queue was made after the copy, the other one after the return; the lost topic is created again
    automatically.
    """
    if is_pooled:
        monkeypatch.setenv("MQDB_POOL_DSN", past.dsn)
    past.save("older")
    past.create_topic("lost")

    def go_back() -> None:
        past.return_to("older")
        past.create_topic("new")

    with producer_of(past.dsn) as producer:
        producer.send(Message("lost", "before"))
        producer.register_send_message_hook(Before(go_back))

        producer.send(Message("lost", "after", **schedule))

    past.dispatch()
    if schedule:
        assert query(past.dsn, "SELECT topic FROM mqdb.scheduled") == "lost"
    else:
        assert query(past.dsn, "SELECT topic FROM mqdb.message") == "lost"


@pytest.mark.parametrize("is_pooled", usually(False, of=[False, True]))
def test_a_reply_is_found_in_a_log_that_has_grown_past_where_replies_were_read(
    past: Past, monkeypatch: pytest.MonkeyPatch, is_pooled: bool
) -> None:
    database, wait = Database(past.dsn), timedelta(seconds=60)
    with ExitStack() as stack:
        way = stack.enter_context(Proxy(past.dsn))
        replier = stack.enter_context(producer_of(past.dsn, group="repliers"))
        if is_pooled:
            monkeypatch.setenv("MQDB_POOL_DSN", way.dsn)
        requester = stack.enter_context(producer_of(way.dsn, group="askers"))
        for number in range(10):
            future = requester.request_async(Message("orders", "ping"), wait)
            request = request_of(database, number)
            replier.send(create_reply_message(request, "pong"))
            assert future.result(30).body == b"pong"
            if not number:
                past.save("older")
        future = requester.request_async(Message("orders", "last"), wait)
        last = request_of(database, 10)
        way.cut()
        past.return_to("older")

        replier.send(create_reply_message(last, "pong again"))
        for _ in range(30):
            replier.send(create_reply_message(request, "nobody waits for it"))
        past.dispatch()
        way.restore()

        assert future.result(30).body == b"pong again"
