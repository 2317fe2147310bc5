"""Row 72 of the checklist: a suspended consumer pulls nothing, and consumes the messages that it already has."""

import time

from sqlalchemy import Connection

from mqdb_client import PushConsumer
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.consumer_processes import queues_in_hand
from tests.fixtures.consumers import Gate, Inbox, Member
from tests.fixtures.consuming import member_of
from tests.fixtures.processes import wait_until
from tests.fixtures.threads import is_awaited

QUIET_SECONDS = 1.5


def test_row_72_what_is_in_hand_goes_on_and_what_is_sent_waits(broker: Connection, member: Member) -> None:
    # Given a consumer whose listener is busy, with more messages in hand
    route = topic(broker, queues=2)
    for queue_id in range(2):
        append(broker, route, *(f"{queue_id}-{number}" for number in range(50)), queue_id=queue_id)
    dispatch_all(broker)
    gate = Gate("0-0", "1-0")
    consumer = member(gate, consume_thread_nums=1)
    wait_until(lambda: sum(queue["in_hand"] for queue in queues_in_hand(broker)) == 100)

    # when it is suspended, and more is sent
    consumer.suspend()
    wait_for_pull(consumer)
    for queue_id in range(2):
        append(broker, route, *(f"{queue_id}-{number}" for number in range(50, 60)), queue_id=queue_id)
    dispatch_all(broker)
    gate.open()

    # then it consumes what it has, and nothing else,
    gate.wait_for(100)
    suspended_at = time.monotonic()
    wait_until(lambda: time.monotonic() - suspended_at > QUIET_SECONDS)
    assert len(gate.messages) == 100

    # until it is resumed.
    consumer.resume()
    gate.wait_for(120)
    assert len(set(gate.bodies)) == 120


def wait_for_pull(consumer: PushConsumer) -> None:
    """Wait until a pull that began before `suspend` has ended: such a pull still returns messages."""
    assert consumer._members is not None
    pull = member_of(consumer._members).pull
    wait_until(lambda: is_awaited(pull._wake))


def test_row_72_a_consumer_that_is_suspended_keeps_its_queues_and_takes_no_others(
    broker: Connection, member: Member
) -> None:
    topic(broker, queues=4)
    first, second = member(Inbox()), member(Inbox())
    wait_until(lambda: len(first.assignment) == len(second.assignment) == 2)
    mine = first.assignment

    first.suspend()
    second.shutdown()
    left_at = time.monotonic()
    wait_until(lambda: time.monotonic() - left_at > QUIET_SECONDS)
    assert first.assignment == mine

    first.resume()
    wait_until(lambda: len(first.assignment) == 4)
