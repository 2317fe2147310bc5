"""A server hangs while its kernel still answers: clients notice, cut their connections, and continue elsewhere."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from mqdb.server import Server
from mqdb.settings import load_settings
from mqdb.store import silence
from mqdb_client import Message, Producer, PushConsumer, connection_watch, outage
from tests.fixtures.consumers import Inbox
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.proxy import StrandingProxy

SERVICES = (
    "leadership", "dispatcher", "key indexer", "delay deliverer", "timer deliverer", "segment keeper", "client reaper",
    "timer keeper", "transaction checker", "cron sender",
)  # fmt: skip
SESSIONS = f"""
    SELECT count(*) FROM pg_stat_activity WHERE state = 'idle' AND datname = current_database()
    AND application_name IN ({", ".join(f"'mqdb {name}'" for name in SERVICES)})
"""


@pytest.fixture
def way(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[StrandingProxy]:
    """A proxy to the test's database, which has the topic `orders`. Clients wait for 1 s instead of 15."""
    monkeypatch.setattr(silence, "PATIENCE_SECONDS", 1.0)
    create_topic(database.connect(), "orders", 4)
    with StrandingProxy(database.dsn) as way:
        yield way


@contextmanager
def reading(dsn: str) -> Iterator[Inbox]:
    """A consumer that has consumed one message."""
    inbox = Inbox()
    consumer = PushConsumer("readers", dsn)
    consumer.subscribe("orders")
    consumer.register_listener(inbox)
    with consumer:
        yield inbox


def send(database: Database, body: str) -> None:
    """Send with a new producer, without the proxy."""
    with Producer("senders", settings=load_settings(dsn=database.dsn)) as producer:
        producer.send(Message("orders", body))


def told(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.msg for record in caplog.records if record.levelno == level]


def test_a_consumer_whose_connections_stand_still_goes_on_with_new_ones(
    database: Database, way: StrandingProxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mqdb_client")
    with reading(way.dsn) as inbox:
        send(database, "before")
        inbox.wait_for(1)

        way.strand()
        send(database, "after")

        inbox.wait_for(2)
        wait_until(lambda: "connected to the broker again" in caplog.text)
    assert set(inbox.bodies) == {"before", "after"}
    assert told(caplog, logging.WARNING) == [outage.BEGINS]
    assert {record.__dict__["reason"] for record in caplog.records if record.msg == outage.BEGINS} == {
        "no answer for 1 s"
    }


def test_a_consumer_leaves_a_server_of_which_nothing_answers(
    database: Database, way: StrandingProxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mqdb_client")
    with reading(f"{way.dsn}&connect_timeout=2") as inbox:
        send(database, "before")
        inbox.wait_for(1)

        way.freeze()
        wait_until(lambda: "lost the connection to the broker" in caplog.text)
        # Woken again, the server answers nobody who waited before.
        way.restore()
        send(database, "after")

        inbox.wait_for(2)
        wait_until(lambda: "connected to the broker again" in caplog.text)
    assert set(inbox.bodies) == {"before", "after"}
    assert told(caplog, logging.WARNING) == [outage.BEGINS]


def test_a_statement_that_waits_for_a_lock_is_no_reason_to_leave_a_server(
    database: Database, way: StrandingProxy, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, "mqdb_client")
    with reading(way.dsn) as inbox, psycopg.connect(database.dsn) as blocker:
        send(database, "before")
        inbox.wait_for(1)
        questions: list[int] = []

        def noting(connect: Any, waits: dict[connection_watch.Line, float]) -> object:
            found = silence.find_stranded(connect, waits)
            questions.append(len(waits))
            assert found == []
            return found

        monkeypatch.setattr(connection_watch, "find_stranded", noting)
        blocker.execute("LOCK TABLE mqdb.leader IN ACCESS EXCLUSIVE MODE")
        wait_until(lambda: len(questions) >= 2)
        blocker.rollback()
        send(database, "after")
        inbox.wait_for(2)
    assert all(questions)
    assert "lost the connection to the broker" not in caplog.text


def test_services_whose_connections_stand_still_go_on_with_new_ones(
    database: Database, way: StrandingProxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mqdb")
    with Server(load_settings(dsn=way.dsn)) as server:
        # An attempt to connect that stands still ends by itself, after 5 s.
        wait_until(lambda: database.rows(SESSIONS) == [(len(SERVICES),)])

        way.strand()

        wait_until(lambda: "lost leadership" in caplog.text)
        wait_until(lambda: server.is_leader and caplog.messages.count("elected leader") == 2)
        dispatched = Inbox()
        consumer = PushConsumer("readers", way.dsn)
        consumer.subscribe("orders")
        consumer.register_listener(dispatched)
        with consumer, Producer("senders", settings=load_settings(dsn=way.dsn)) as producer:
            producer.send(Message("orders", "after"))
            dispatched.wait_for(1)
    [lost] = [record for record in caplog.records if record.getMessage().startswith("lost leadership")]
    assert lost.__dict__["reason"] == "no answer for 1 s"
    others = [sentence for sentence in told(caplog, logging.WARNING) if sentence != lost.msg]
    assert others in ([], ["ended the connection of the hung leader of epoch %(epoch)s"])
