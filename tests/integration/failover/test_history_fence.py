"""Each statement that stores a position compares the history of the position with that of the log."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.broker.clients import membership
from mqdb.broker.consumers import exactly_once, group_offsets, offsets, queue_locks
from mqdb.broker.consumers.exactly_once import ConsumedBatch
from mqdb.broker.consumers.send_back import SendBackRequest, send_back
from mqdb.common.clock import SystemClock
from mqdb.common.failure import Failure
from mqdb.common.group import FROM_FIRST_OFFSET
from mqdb.common.message import MessageQueue
from mqdb.errors import BrokerUnavailable, QueueLost
from mqdb.store.clients.clients import ClientKind, Registration
from mqdb.store.consumers.consumer_offsets import OwnedQueue, owned_epochs
from mqdb.store.consumers.group_offsets import ReadQueue
from mqdb.store.consumers.offset_commits import OffsetCommit
from mqdb.store.log import history
from tests.fixtures.broker import append, dispatch_all, topic

GROUP, CLIENT = "readers", "10.0.0.7@1"
QUEUE = MessageQueue("orders", "broker-a", 0)


@dataclass
class Held:
    """An owned and locked queue with three messages."""

    owned: OwnedQueue
    positions: list[int]
    current: int

    def at(self, offset: int, *, is_current: bool) -> OwnedQueue:
        return self.owned._replace(next_offset=offset, history=self.current if is_current else self.current + 1)


@pytest.fixture
def session(engine: Engine) -> Iterator[Connection]:
    """Another connection."""
    with engine.connect() as connection:
        yield connection


@pytest.fixture
def held(broker: Connection, session: Connection) -> Held:
    route = topic(broker)
    positions = append(broker, route, "a", "b", "c")
    dispatch_all(broker)
    membership.announce(session, CLIENT)
    membership.register(broker, Registration(CLIENT, ClientKind.CONSUMER, GROUP, "test"))
    [owned] = queue_locks.take_queues(
        broker, GROUP, CLIENT, route.queue_keys, FROM_FIRST_OFFSET, expiry=timedelta(minutes=1)
    )
    return Held(owned, positions, history.find(broker))


def committed(broker: Connection) -> int:
    found: int = broker.execute(text("SELECT next_offset FROM mqdb.consumer_lag WHERE topic = 'orders'")).scalar_one()
    return found


def test_it_is_the_same_on_all_connections_of_a_server(broker: Connection, session: Connection) -> None:
    assert history.find(broker) == history.find(session)


def test_an_offset(broker: Connection, held: Held) -> None:
    right, wrong = held.at(2, is_current=True), held.at(3, is_current=False)

    assert offsets.commit_offsets(broker, GROUP, [wrong]) == [wrong]
    assert offsets.commit_offsets(broker, GROUP, [right]) == []
    assert offsets.commit_offsets(broker, GROUP, [wrong, right]) == [wrong]  # of one queue, under one epoch
    assert not offsets.correct_offset(broker, GROUP, wrong)
    assert group_offsets.commit_positions(broker, GROUP, [wrong]) == [wrong]
    assert exactly_once.commit_offsets(broker, GROUP, [wrong]) == [wrong]

    assert committed(broker) == 2


def test_a_lock(broker: Connection, held: Held) -> None:
    def renewed(*, is_current: bool) -> set[int]:
        owned = [held.at(0, is_current=is_current)]
        return queue_locks.renew_queues(broker, GROUP, CLIENT, owned, expiry=timedelta(minutes=1))

    assert renewed(is_current=False) == set()
    assert renewed(is_current=True) == {held.owned.queue_key}


def test_a_queue_that_is_given_back(broker: Connection, held: Held) -> None:
    offsets.release_queues(broker, GROUP, [held.at(0, is_current=False)])

    assert owned_epochs(broker, GROUP, CLIENT) == {held.owned.queue_key: held.owned.epoch}


def test_the_offset_of_a_transaction(broker: Connection, engine: Engine, held: Held) -> None:
    def commit(*, is_current: bool) -> None:
        key, epoch, _, segment, found_in = held.at(0, is_current=is_current)
        batch = ConsumedBatch(GROUP, CLIENT, QUEUE, OffsetCommit(key, epoch, 0, 1, segment, found_in))
        with engine.connect().execution_options(isolation_level="READ COMMITTED") as connection:
            connection.begin()
            exactly_once.begin(connection)
            exactly_once.commit(connection, batch)

    with pytest.raises(QueueLost):
        commit(is_current=False)
    assert committed(broker) == 0
    commit(is_current=True)
    assert committed(broker) == 1


def test_an_offset_without_owner(broker: Connection, held: Held) -> None:
    offsets.release_queues(broker, GROUP, [held.owned])
    queue_locks.release_queues(broker, GROUP, CLIENT, [held.owned])
    key = held.owned.queue_key

    refused = group_offsets.commit_without_owner(broker, GROUP, [ReadQueue(key, 3, 0, None, held.current + 1)])

    assert (refused.owned, refused.reset, committed(broker)) == ({}, {key}, 0)
    assert group_offsets.commit_without_owner(broker, GROUP, [ReadQueue(key, 3, 0, None, held.current)]).reset == set()


def test_what_is_sent_back(broker: Connection, held: Held) -> None:
    failure = Failure.later(CLIENT, SystemClock().now())
    request = SendBackRequest(held.positions[0], QUEUE, 0, failure, history=held.current + 1)

    with pytest.raises(BrokerUnavailable):
        send_back(broker, GROUP, [request])

    assert len(send_back(broker, GROUP, [request._replace(history=held.current)])) == 1
