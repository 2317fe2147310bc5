"""Another database behind a consumer's address: nothing is read or committed there with the keys of the old one.

The keys of `orders` in the old database belong to `payments` in the new one. Some tests disable the rebalance thread:
the other threads must do no harm before that thread has noticed the change.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from sqlalchemy import Connection, Engine

from mqdb.common.message import MessageQueue
from mqdb.errors import QueueLost
from mqdb.selector.tags import parse_tag_expression
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb.store.engine import create_engine
from mqdb.store.topics.topics import find_topic
from mqdb_client import LitePullConsumer
from mqdb_client.consumer.queues.process_queue import FlowLimits, ProcessQueue
from mqdb_client.consumer.queues.pull_service import PullService
from mqdb_client.new_connection import history_on
from mqdb_client.outage import Outage
from tests.fixtures.broker import append, dispatch_all
from tests.fixtures.broker import topic as new_topic
from tests.fixtures.consuming import LATER, OWNERS, PUSH, WAYS, Consuming, Start
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.queue_owner import held_connections
from tests.fixtures.variants import usually

Swap: TypeAlias = Callable[[], None]

STORED = """
    SELECT topic, convert_from(body, 'UTF8') FROM mqdb.commit_log
    JOIN mqdb.queue USING (queue_key) JOIN mqdb.topic USING (topic_id) ORDER BY log_pos
"""

PAYMENTS = """
    SELECT queue_id, next_offset, owner, epoch FROM mqdb.consumer_offset
    JOIN mqdb.queue USING (queue_key) JOIN mqdb.topic USING (topic_id) WHERE topic = 'payments' ORDER BY queue_id
"""

HAS_BEGUN = """
    WITH made AS (
        INSERT INTO mqdb.subscription_group (group_name) VALUES ('readers')
        ON CONFLICT (group_name) DO UPDATE SET group_name = excluded.group_name RETURNING group_id
    )
    INSERT INTO mqdb.consumer_offset (group_id, queue_key, next_offset, owner, epoch)
    SELECT group_id, queue_key, 1, %s, 1 FROM made, mqdb.queue JOIN mqdb.topic USING (topic_id)
    WHERE topic = 'payments'
"""


def store(database: Database, topic: str, *bodies: str, queue_id: int = 0) -> None:
    """Store messages that consumers can read."""
    engine = create_engine(database.dsn)
    with engine.connect() as connection:
        route = find_topic(connection, topic)
        assert route is not None
        append(connection, route, *bodies, queue_id=queue_id)
        dispatch_all(connection)
    engine.dispose()


@pytest.fixture
def stored(database: Database, second_database: Database, swap_databases: Swap) -> Swap:
    """Both databases have messages; returns a function that swaps them."""
    store(database, "orders", "1", "2", "3")
    store(second_database, "payments", *(f"payment {number}" for number in range(6)))
    store(second_database, "orders", "after")
    return swap_databases


def note_connections(consuming: Consuming) -> list[Connection]:
    """The connections to another database that the pull thread opens from now on."""
    made: list[Connection] = []
    pull, found = consuming.reader.pull, consuming.reader._instance.connections.history
    connect = pull._connect

    def noting() -> Connection:
        connection = connect()
        if history_on(connection) != found:
            made.append(connection)
        return connection

    pull._connect = noting
    return made


class Pause:
    """A pause in which every caller waits until the pause is over."""

    def __init__(self) -> None:
        self._begun, self._ended = threading.Event(), threading.Event()
        self.has_begun = self._begun.is_set
        self.end = self._ended.set

    def __call__(self) -> None:
        self._begun.set()
        assert self._ended.wait(60), "nobody has ended the pause"


def hold_up_rebalance(consuming: Consuming) -> None:
    consuming.reader.rebalance.is_suspended = True


def go_on(consuming: Consuming) -> None:
    consuming.reader.rebalance.is_suspended = False
    consuming.reader.rebalance.rebalance()


@pytest.mark.parametrize("way", usually("exactly once, orderly", of=WAYS))
def test_nothing_of_another_topic_is_delivered(stored: Swap, start: Start, way: str) -> None:
    consuming = start(way)
    wait_until(lambda: len(consuming.bodies()) == 3)
    hold_up_rebalance(consuming)
    made = note_connections(consuming)

    stored()
    # The second one is made when the first was of no use.
    wait_until(lambda: len(made) > 1 or len(consuming.bodies()) > 3)
    go_on(consuming)
    wait_until(lambda: "after" in consuming.bodies())

    assert consuming.bodies() == ["1", "2", "3", "after"]


@pytest.mark.parametrize("way", usually("orderly", of=[*OWNERS, "assigned"]))
def test_no_offset_of_another_topic_is_moved(
    database: Database, second_database: Database, stored: Swap, start: Start, way: str
) -> None:
    """No offset of another topic is moved, although the group has read `payments`, too, and under the same epoch."""
    second_database.connect().execute(HAS_BEGUN, [None])
    consuming = start(way)
    wait_until(lambda: len(consuming.bodies()) == 3)

    stored()
    wait_until(lambda: "after" in consuming.bodies())
    consuming.consumer.shutdown()

    assert database.rows(PAYMENTS) == [(number, 1, None, 1) for number in range(4)]


@pytest.mark.parametrize("way", usually("concurrently", of=PUSH))
def test_what_fails_is_not_sent_back_by_its_position_in_another_database(
    database: Database, second_database: Database, stored: Swap, start: Start, way: str
) -> None:
    pause = Pause()

    def fail(body: str) -> Any:
        if body != "1":
            return None
        pause()
        return LATER["orderly" in PUSH[way]]

    consuming = start(way, fail, max_reconsume_times=0)
    wait_until(pause.has_begun)
    second_database.connect().execute(HAS_BEGUN, [consuming.reader._instance.client_id])
    second_database.connect().execute("UPDATE mqdb.consumer_offset SET next_offset = 0")
    hold_up_rebalance(consuming)
    made = note_connections(consuming)

    stored()
    wait_until(lambda: made)
    pause.end()
    wait_until(lambda: not any(held.describe()["running"] for held in consuming.reader.rebalance.held))
    go_on(consuming)
    wait_until(lambda: "after" in consuming.bodies())

    topics = {topic for topic, _ in database.rows(STORED)}
    assert topics == {"payments", "orders"}


@pytest.mark.parametrize("way", usually("exactly once", of=["exactly once", "exactly once, orderly"]))
def test_no_transaction_in_another_database_is_for_a_message_of_the_old_one(
    database: Database, second_database: Database, stored: Swap, start: Start, way: str
) -> None:
    store(database, "orders", "other", queue_id=1)
    store(second_database, "payments", "payment", queue_id=1)  # else the offset there would be illegal
    pause = Pause()
    consuming = start(way, lambda _body: pause(), consume_thread_nums=1)
    wait_until(lambda: pause.has_begun() and sum(map(len, consuming.reader.rebalance.held)) == 4)
    second_database.connect().execute(HAS_BEGUN, [consuming.reader._instance.client_id])
    second_database.connect().execute("UPDATE mqdb.consumer_offset SET next_offset = 0")
    hold_up_rebalance(consuming)
    made = note_connections(consuming)
    [first] = consuming.bodies()

    stored()
    wait_until(lambda: made)
    pause.end()
    wait_until(lambda: len(consuming.bodies()) > 1 or not consuming.reader.rebalance.held)
    go_on(consuming)
    wait_until(lambda: "after" in consuming.bodies())

    assert consuming.bodies() == [first, "after"]
    assert [row[1] for row in database.rows(PAYMENTS)] == [0, 0, 0, 0]


@pytest.mark.parametrize("way", usually("lite pull", of=["lite pull", "assigned"]))
def test_a_user_commits_no_offset_of_another_topic(
    database: Database, second_database: Database, stored: Swap, start: Start, way: str
) -> None:
    second_database.connect().execute(HAS_BEGUN, [None])
    consuming = start(way, auto_commit=False)
    consumer = consuming.consumer
    assert isinstance(consumer, LitePullConsumer)
    wait_until(lambda: len(consuming.bodies()) == 3)
    hold_up_rebalance(consuming)
    made = note_connections(consuming)
    stored()
    wait_until(lambda: made)

    with pytest.raises(QueueLost):
        consumer.commit()

    assert database.rows(PAYMENTS) == [(number, 1, None, 1) for number in range(4)]


def test_a_connection_to_the_old_database_is_left(
    engine: Engine, broker: Connection, second_database: Database
) -> None:
    """A connection to the old database is dropped: if it stays open, it pulls no queue of the new database."""
    route = new_topic(broker)
    append(broker, route, "after")
    dispatch_all(broker)
    other = create_engine(second_database.dsn)
    ways = [held_connections(engine), held_connections(other)]
    owned = OwnedQueue(route.queue_keys[0], epoch=1, next_offset=0, segment=0, history=route.history)
    queue = ProcessQueue(MessageQueue("orders", "broker-a", 0), owned, FlowLimits(10, 10_000, 10))
    service = PullService(
        "readers",
        connect=lambda: ways.pop()(),
        subscriptions={"orders": parse_tag_expression("*")},
        batch_size=32,
        deliver=lambda _queue, _count: None,
        outage=Outage("broker-a"),
    )
    service.add(queue)
    service.start()
    try:
        wait_until(lambda: len(queue))
    finally:
        service.stop()
        other.dispose()

    assert ways == []
