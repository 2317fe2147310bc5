"""A failed start leaves nothing behind: no thread, no connection, no member, and no consumed message."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, text

from mqdb_client.consumer.listeners.consume_concurrently import ConsumeConcurrently
from mqdb_client.consumer.members import Members
from mqdb_client.consumer.queues.process_queue import ProcessQueue
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.consumers import Inbox, Member
from tests.fixtures.lite_pull import Lite, polled
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import TwoBrokers
from tests.fixtures.threads import refuse_threads
from tests.fixtures.transactional import Ledger, TransactionalMember
from tests.fixtures.variants import usually

# What each kind of consumer needs threads for, and how many of them there are.
PARTS = pytest.mark.parametrize(
    ("part_of_name", "but"),
    usually(
        ("notifications", 0),
        ("consume", 3),
        ("readers-pull", 0),
        of=[
            *(("notifications", 0), ("send-back", 0), ("consume", 3)),
            *(("requests", 0), ("rebalance", 0), ("readers-pull", 0)),
        ],
    ),
)


def fails_for_want_of_a_thread(start: Callable[[], object], *which: Any) -> None:
    """Check that a start without enough threads fails and ends all threads that it has started."""
    before = threads()
    with pytest.MonkeyPatch.context() as meanwhile:
        refuse_threads(meanwhile, *which)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            start()
    assert threads() == before


def threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("mqdb-"))


def clients(broker: Connection) -> tuple[int, int]:
    """The number of registered clients, and of connected ones."""
    connected = """
        SELECT count(DISTINCT application_name) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE 'mqdb %@%'
    """
    registered = broker.scalar(text("SELECT count(*) FROM mqdb.client"))
    return registered or 0, broker.scalar(text(connected)) or 0


@PARTS
def test_a_consumer_that_gets_no_thread_leaves_nothing_behind(
    broker: Connection, member: Member, part_of_name: str, but: int
) -> None:
    append(broker, topic(broker), "early")
    refused, welcome = Inbox(), Inbox()

    fails_for_want_of_a_thread(lambda: member(refused), part_of_name, but)
    wait_until(lambda: clients(broker) == (0, 0))
    member(welcome)
    welcome.wait_for(1)

    assert refused.bodies == []


def test_no_listener_runs_before_the_last_thread_is_started(
    two_brokers: TwoBrokers, broker: Connection, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No listener runs before the last thread is started.

    A message of the first broker is already held when no thread is left to pull from the second.
    """
    append(broker, topic(broker), "early")
    dispatch_all(broker)
    is_in_hand = threading.Event()
    submit = ConsumeConcurrently.submit

    def submit_and_tell(consume: ConsumeConcurrently, process_queue: ProcessQueue, count: int) -> None:
        submit(consume, process_queue, count)
        is_in_hand.set()

    monkeypatch.setattr(ConsumeConcurrently, "submit", submit_and_tell)
    brokers = {"broker-a": two_brokers.a.dsn, "broker-b": two_brokers.b.dsn}
    inbox = Inbox()

    fails_for_want_of_a_thread(lambda: member(inbox, brokers=brokers), "readers-pull", 1, lambda: is_in_hand.wait(10))

    assert inbox.bodies == []
    assert clients(broker)[0] == 0


@pytest.mark.parametrize("part_of_name", usually("pauses", of=["pauses", "consume", "rebalance"]))
def test_a_transactional_consumer_that_gets_no_thread_leaves_nothing_behind(
    broker: Connection, transactional_member: TransactionalMember, part_of_name: str
) -> None:
    append(broker, topic(broker), "early")
    refused, welcome = Ledger(broker), Ledger(broker)

    fails_for_want_of_a_thread(lambda: transactional_member(refused), part_of_name)
    wait_until(lambda: clients(broker) == (0, 0))
    transactional_member(welcome)
    welcome.wait_for(1)

    assert refused.calls == []


@pytest.mark.parametrize(
    "part_of_name",
    usually("requests", "topics", of=["notifications", "requests", "rebalance", "readers-pull", "topics"]),
)
def test_a_lite_pull_consumer_that_gets_no_thread_leaves_nothing_behind(
    broker: Connection, lite: Lite, part_of_name: str
) -> None:
    append(broker, topic(broker), "early")

    fails_for_want_of_a_thread(lambda: lite("orders"), part_of_name)
    wait_until(lambda: clients(broker) == (0, 0))

    assert polled(lite("orders"), 1) == ["early"]


def test_a_lite_pull_consumer_that_cannot_be_made_gives_its_connections_back(
    broker: Connection, lite: Lite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Members, "__init__", refuse)
    before = threads()

    with pytest.raises(MemoryError):
        lite("orders")

    wait_until(lambda: clients(broker) == (0, 0))
    assert threads() == before
