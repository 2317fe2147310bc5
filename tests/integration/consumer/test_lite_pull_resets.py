"""A reset while lite pull consumers read: they stop, take the new offsets and continue."""

import logging
from contextlib import suppress
from datetime import timedelta

import pytest
from sqlalchemy import Connection

from mqdb.broker.consumers.offset_reset import Boundary, reset_offsets
from mqdb.errors import QueueLost
from mqdb.store.consumers import groups
from tests.fixtures.broker import append
from tests.fixtures.lite_pull import Lite, committed, drained, fill, numbers, polled, queue_of
from tests.fixtures.processes import wait_until

pytestmark = pytest.mark.usefixtures("both_kinds_of_clients")

HOUR = timedelta(hours=1)


@pytest.mark.parametrize("auto_commit", [True, False], ids=["auto commit", "commits of its own"])
def test_a_reset_back_has_a_running_consumer_read_from_there_again(
    broker: Connection, lite: Lite, auto_commit: bool
) -> None:
    groups.save(broker, "readers", {})
    fill(broker, queues=2)
    consumer = lite(queue_ids=[0, 1], auto_commit=auto_commit, rebalance_interval=HOUR)
    polled(consumer, 60)

    reset_offsets(broker, "readers", "orders", 20)

    again = polled(consumer, 20)
    assert sorted(again) == sorted(f"{queue_id}-{number}" for queue_id in range(2) for number in range(20, 30))


def test_a_reset_forward_has_it_leave_out_what_lies_between(
    broker: Connection, lite: Lite, caplog: pytest.LogCaptureFixture
) -> None:
    groups.save(broker, "readers", {})
    route = fill(broker, count=50)
    consumer = lite(queue_ids=[0], rebalance_interval=HOUR, pull_batch_size=10, pull_threshold_for_queue=10)
    polled(consumer, 10)

    reset_offsets(broker, "readers", "orders", Boundary.LATEST)
    wait_until(lambda: "another member has it, or its offset was set" in caplog.text)
    append(broker, route, "50")

    assert polled(consumer, 1) == ["50"]
    consumer.commit()
    assert committed(broker, route) == [51]


def test_a_commit_does_not_undo_a_reset(broker: Connection, lite: Lite) -> None:
    """A commit does not undo a reset, whether or not the consumer has noticed the reset by then."""
    groups.save(broker, "readers", {})
    fill(broker)
    consumer = lite(queue_ids=[0], rebalance_interval=HOUR)

    for _ in range(8):
        read = polled(consumer, 30)
        reset_offsets(broker, "readers", "orders", Boundary.EARLIEST)
        with suppress(QueueLost):
            consumer.commit()
        assert read == numbers(0, 30)

    assert polled(consumer, 30) == numbers(0, 30)


def test_queues_that_were_not_reset_go_on_without_a_gap(broker: Connection, lite: Lite) -> None:
    groups.save(broker, "readers", {})
    fill(broker, queues=2, count=100)
    consumer = lite(queue_ids=[0, 1], rebalance_interval=HOUR)
    consumer.pause([queue_of(0)])
    polled(consumer, 100)
    consumer.commit()
    reset_offsets(broker, "readers", "orders", 90, queue_id=1)

    again = polled(consumer, 10)
    consumer.resume([queue_of(0)])

    assert again == [f"1-{number}" for number in range(90, 100)]
    assert drained(consumer, 100) == [f"0-{number}" for number in range(100)]


def test_a_member_hears_that_what_it_has_polled_is_not_committed_when_it_has_its_queue_again(
    broker: Connection, lite: Lite, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mqdb_client")
    route = fill(broker)
    consumer = lite("orders", rebalance_interval=HOUR, pull_batch_size=30)
    polled(consumer, 30)
    reset_offsets(broker, "readers", "orders", 20)
    wait_until(lambda: any("its offset was set" in message for message in caplog.messages))

    with pytest.raises(QueueLost):
        consumer.commit()

    assert committed(broker, route) == [20]
    assert polled(consumer, 10) == numbers(20, 30)
