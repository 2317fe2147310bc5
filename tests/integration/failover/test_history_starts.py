"""Groups, offsets and results were lost when the database went back: clients continue without skipping any message."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from mqdb.broker.schedule.delay import deliver_due
from mqdb.common.group import ConsumeFromWhere
from mqdb.common.message import Message
from mqdb.errors import DispatchTimeout, QueueLost
from mqdb_client import LitePullConsumer
from tests.fixtures.consuming import WAYS, Consuming, starting
from tests.fixtures.history import QUEUES, Past
from tests.fixtures.lite_pull import queue_of
from tests.fixtures.postgres import query
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import producer_of
from tests.fixtures.proxy import Proxy
from tests.fixtures.variants import usually

LAST = ConsumeFromWhere.LAST_OFFSET


def numbered(name: str, count: int = 2 * QUEUES) -> list[str]:
    """Numbered bodies, the same number of messages for each queue."""
    return [f"{name} {number:02}" for number in range(count)]


def wait_for(consuming: Consuming, *bodies: str) -> None:
    wait_until(lambda: set(bodies) <= set(consuming.bodies()), 30)


def wait_assigned(consuming: Consuming, past: Past) -> None:
    """Wait until the consumer reads all queues of the present log."""
    history = query(past.dsn, "SELECT mqdb.history()")

    def is_assigned() -> bool:
        rebalance = consuming.reader.rebalance
        held = [each for each in rebalance.held if each.queue.topic == "orders"]
        return len(rebalance.assignment) == QUEUES and all(each.history == history for each in held)

    wait_until(is_assigned, 60)


@pytest.mark.parametrize("way", usually("lite pull", of=WAYS))
def test_a_group_that_an_older_copy_lacks_gets_what_was_sent_since(past: Past, way: str, tmp_path: Path) -> None:
    """A group that an older copy lacks gets the messages sent since.

    The group begins at the last offset as of long before the return.
    """
    past.save("older")
    with Proxy(past.dsn) as door, starting(door.dsn, tmp_path) as start:
        consuming = start(way, consume_from_where=LAST)
        wait_assigned(consuming, past)
        past.store("first")
        wait_for(consuming, "first")
        door.cut()
        past.return_to("older")
        past.store("second")
        door.restore()

        wait_for(consuming, "second")


@pytest.fixture
def reading_all(past: Past, tmp_path: Path) -> Callable[..., Consuming]:
    """Makes a reader of queues chosen by the user, which keeps its offsets and began at the first ones."""

    def make(start: Callable[..., Consuming]) -> Consuming:
        consuming = start("assigned", auto_commit=False, consume_from_where=LAST)
        wait_assigned(consuming, past)
        assert isinstance(consuming.consumer, LitePullConsumer)
        for queue_id in range(QUEUES):
            consuming.consumer.seek(queue_of(queue_id), 0)
        return consuming

    return make


def test_a_reader_without_a_committed_offset_goes_on_where_it_was_after_a_restart(
    past: Past, tmp_path: Path, reading_all: Callable[..., Consuming]
) -> None:
    before, after = numbered("before"), numbered("after")
    past.store(*before)
    with starting(past.dsn, tmp_path) as start:
        consuming = reading_all(start)
        wait_for(consuming, *before)
        past.restart()
        past.store(*after)

        wait_for(consuming, *after)

    assert sorted(consuming.received) == sorted([*before, *after])


def test_a_reader_without_a_committed_offset_gets_what_is_new_in_a_log_that_went_back(
    past: Past, tmp_path: Path, reading_all: Callable[..., Consuming]
) -> None:
    kept, lost, new = numbered("kept"), numbered("lost"), numbered("new")
    past.store(*kept)
    past.save("older")
    with starting(past.dsn, tmp_path) as start:
        consuming = reading_all(start)
        past.store(*lost)
        wait_for(consuming, *kept, *lost)
        past.return_to("older")
        past.store(*new)

        wait_for(consuming, *new)

    assert sorted(consuming.received) == sorted([*kept, *lost, *new])


@pytest.mark.long  # half a minute of waiting
@pytest.mark.parametrize("way", ["lite pull", "assigned"])
def test_an_offset_of_a_message_that_the_log_has_lost_is_not_committed(past: Past, way: str, tmp_path: Path) -> None:
    kept, lost, new = numbered("kept"), numbered("lost"), numbered("new", 4 * QUEUES)
    past.store(*kept)
    past.save("older")
    with starting(past.dsn, tmp_path) as start:
        consuming = start(way, auto_commit=False)
        consumer = consuming.consumer
        assert isinstance(consumer, LitePullConsumer)
        past.store(*lost)
        wait_for(consuming, *kept, *lost)
        past.return_to("older")
        past.store(*new)
        wait_assigned(consuming, past)
        reached = {queue_of(queue_id): 4 for queue_id in range(QUEUES)}

        with pytest.raises(QueueLost):
            consumer.commit(reached)
        with pytest.raises(QueueLost):
            consumer.seek(queue_of(0), 4)

        assert past.committed(tmp_path) == 0
        wait_for(consuming, *new)
        consumer.commit(reached)
        assert past.committed(tmp_path) == 4 * QUEUES


def test_a_delayed_message_that_is_delivered_again_proves_nothing(past: Past, tmp_path: Path) -> None:
    """A delayed message that is delivered again proves nothing.

    The new copy has the same id, offset and position, but the message before it is different.
    """

    def deliver() -> None:
        with past._connected() as connection:
            wait_until(lambda: deliver_due(connection).messages == 1)
        past.dispatch()

    with producer_of(past.dsn) as producer:
        producer.send(Message("orders", "delayed", delay_level=1), queue=queue_of(0))
    past.dispatch()
    past.save("older")
    past.store("lost")
    deliver()
    with starting(past.dsn, tmp_path) as start:
        wait_for(start("broadcasting"), "lost", "delayed")
    past.return_to("older")
    past.store("new")
    deliver()

    with starting(past.dsn, tmp_path) as start:
        wait_for(start("broadcasting"), "new", "delayed")


def test_the_offset_of_a_lost_message_is_not_that_of_another_one(past: Past) -> None:
    past.save("older")
    with Proxy(past.dsn) as door, producer_of(door.dsn, timeout="3s") as producer:
        result = producer.send(Message("orders", "lost"), queue=queue_of(0))
        door.cut()
        past.return_to("older")
        past.store("another")
        door.restore()
        wait_until(lambda: producer.send(Message("orders", "next"), timeout=timedelta(seconds=30)))

        with pytest.raises(DispatchTimeout):
            _ = result.queue_offset


def test_a_member_can_join_a_group_that_the_copy_did_not_have(past: Past, tmp_path: Path) -> None:
    """A member can join a group that the copy did not contain.

    The group's members have registered it again, with their subscriptions.
    """
    past.save("older")
    with starting(past.dsn, tmp_path) as start:
        consuming = start("concurrently")
        wait_assigned(consuming, past)
        past.return_to("older")
        wait_assigned(consuming, past)

        start("concurrently", instance_name="second")

        wait_until(lambda: len(consuming.reader.rebalance.assignment) == QUEUES // 2, 60)
