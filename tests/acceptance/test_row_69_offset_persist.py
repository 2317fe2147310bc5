"""Row 69 of the checklist: offsets are stored every 5 s and when a consumer leaves, and at no other time."""

import itertools
import signal
import threading
from collections.abc import Iterator
from datetime import datetime

import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb.store.topics.topics import TopicRoute
from tests.fixtures.broker import append, topic
from tests.fixtures.consumer_processes import RunConsumer
from tests.fixtures.processes import wait_until
from tests.fixtures.threads import Doing

INTERVAL = 5.0


@pytest.fixture
def route(broker: Connection, engine: Engine) -> Iterator[TopicRoute]:
    """A topic with one queue that constantly receives messages."""
    route = topic(broker)
    stopping = threading.Event()

    def send() -> None:
        with engine.connect() as connection:
            number = 0
            while not stopping.wait(0.1):
                append(connection, route, f"{number}")
                number += 1

    sending = Doing(send)
    yield route
    stopping.set()
    sending.result()


def committed(broker: Connection, route: TopicRoute) -> int:
    return committed_offsets(broker, "readers", route.queue_keys).get(route.queue_keys[0], 0)


@pytest.mark.slow
def test_row_69_offsets_are_stored_every_five_seconds(
    broker: Connection, route: TopicRoute, run_consumer: RunConsumer
) -> None:
    run_consumer()
    changes: dict[int, datetime] = {}  # when each offset was stored

    def has_changed_three_times() -> bool:
        rows = broker.execute(text("SELECT next_offset, updated_at FROM mqdb.consumer_offset WHERE next_offset > 0"))
        changes.update((row.next_offset, row.updated_at) for row in rows)
        return len(changes) == 3

    wait_until(has_changed_three_times, 60)

    intervals = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(changes.values())]
    # A machine that stands still for a moment makes one of them longer.
    assert INTERVAL - 0.5 < min(intervals) < INTERVAL + 2.5


def test_row_69_offsets_are_stored_when_a_consumer_leaves(
    broker: Connection, route: TopicRoute, run_consumer: RunConsumer
) -> None:
    process = run_consumer()
    wait_until(lambda: len(process.bodies) > 10, 30)

    assert process.end(signal.SIGTERM) == 0

    assert committed(broker, route) == len(process.bodies)


def test_row_69_what_was_not_stored_when_a_consumer_died_comes_again(
    broker: Connection, route: TopicRoute, run_consumer: RunConsumer
) -> None:
    first = run_consumer()
    wait_until(lambda: committed(broker, route) > 0, 30)
    more = len(first.bodies) + 5
    wait_until(lambda: len(first.bodies) >= more)

    first.end(signal.SIGKILL)
    stored = committed(broker, route)
    second = run_consumer()
    wait_until(lambda: str(stored) in second.bodies)

    assert stored < len(first.bodies)
    assert min(map(int, second.bodies)) == stored
