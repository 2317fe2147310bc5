"""Row 66 of the checklist: how many messages a consumer holds while its listener is slow, by its own status."""

import time
from typing import Any

import pytest
from sqlalchemy import Connection

from mqdb.common.message import Message
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.consumer_processes import queues_in_hand
from tests.fixtures.consumers import Gate, Member
from tests.fixtures.processes import wait_until

QUEUES = 4
KIBIBYTE = 1_024
MEBIBYTE = 1_024 * KIBIBYTE
#: pull_batch_size: what the last pull may bring beyond a limit.
BATCH = 32


def fill(broker: Connection, per_queue: int, size: int = 1) -> list[str]:
    """Fill each queue of `orders` with messages; returns their bodies.

    The first message of queue 2 is `0-2`, and so on.
    """
    route = topic(broker, queues=QUEUES)
    sent = []
    for queue_id in range(QUEUES):
        bodies = [f"{number}-{queue_id}".ljust(size, ".") for number in range(per_queue)]
        append(broker, route, *bodies, queue_id=queue_id)
        sent += bodies
    dispatch_all(broker)
    return sent


def blocked(size: int = 1) -> Gate:
    """A listener that does not return from the first message of each queue.

    The bodies have this size.
    """
    return Gate(*(f"0-{queue_id}".ljust(size, ".") for queue_id in range(QUEUES)))


def most_in_hand(broker: Connection, what: str, lowest: int, seconds: float = 1.5) -> list[int]:
    """The maximum for each queue over a while, which begins once all queues have reached `lowest`."""
    wait_until(lambda: all(queue[what] >= lowest for queue in _all(broker)), 30)
    most = [0] * QUEUES
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        most = [max(pair) for pair in zip(most, (queue[what] for queue in _all(broker)), strict=True)]
    return most


def _all(broker: Connection) -> list[dict[str, Any]]:
    queues = queues_in_hand(broker)
    return queues if len(queues) == QUEUES else [{"in_hand": -1, "body_bytes": -1}]


def test_row_66_a_queue_holds_a_thousand_messages_and_the_last_pull(broker: Connection, member: Member) -> None:
    sent = fill(broker, per_queue=1_500)
    gate = blocked()
    member(gate, consume_thread_nums=1, pull_batch_size=BATCH)  # one thread: nothing else is consumed either

    most = most_in_hand(broker, "in_hand", 1_001)
    gate.open()
    gate.wait_for(len(sent), 30)

    assert max(most) <= 1_000 + BATCH
    assert sorted(gate.bodies) == sorted(sent)


def test_row_66_a_queue_holds_so_many_bytes_of_bodies_and_the_last_pull(broker: Connection, member: Member) -> None:
    """The limit is 1 MiB here instead of 100 MiB."""
    size = 64 * KIBIBYTE
    sent = fill(broker, per_queue=40, size=size)
    gate = blocked(size)
    member(gate, consume_thread_nums=1, pull_batch_size=4, pull_threshold_size_for_queue_mib=1)

    most = most_in_hand(broker, "body_bytes", MEBIBYTE + 1)
    gate.open()
    gate.wait_for(len(sent), 30)

    assert max(most) <= MEBIBYTE + 4 * size
    assert sorted(gate.bodies) == sorted(sent)


def test_row_66_messages_in_hand_are_no_farther_apart_than_the_span(broker: Connection, member: Member) -> None:
    """Every tenth message matches: a thousand of them would span ten thousand offsets."""
    distance = 10
    route = topic(broker)
    messages = [Message("orders", f"{n}", "A" if n % distance == 0 else "B") for n in range(5_000)]
    append(broker, route, *messages)
    dispatch_all(broker)
    gate = Gate("0")
    member(gate, expression="A", consume_thread_nums=1, pull_batch_size=BATCH)

    wait_until(lambda: in_hand_of_only_queue(broker) >= 2_000 // distance, 30)
    most = 0
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:
        most = max(most, in_hand_of_only_queue(broker))
    gate.open()
    gate.wait_for(5_000 // distance, 30)

    assert 2_000 // distance <= most <= 2_000 // distance + BATCH


def in_hand_of_only_queue(broker: Connection) -> int:
    return sum(queue["in_hand"] for queue in queues_in_hand(broker))


@pytest.mark.parametrize(
    ("options", "what", "limit", "beyond"),
    [
        ({"pull_threshold_for_topic": 200}, "in_hand", 200 // QUEUES, BATCH),
        ({"pull_threshold_size_for_topic_mib": 1}, "body_bytes", MEBIBYTE // QUEUES, BATCH * KIBIBYTE),
    ],
    ids=["messages", "bytes"],
)
def test_row_66_the_queues_of_a_topic_share_its_limit(
    broker: Connection, member: Member, options: dict[str, int], what: str, limit: int, beyond: int
) -> None:
    sent = fill(broker, per_queue=350, size=KIBIBYTE)
    gate = blocked(KIBIBYTE)
    member(gate, consume_thread_nums=1, pull_batch_size=BATCH, **options)

    most = most_in_hand(broker, what, limit + 1)
    gate.open()
    gate.wait_for(len(sent), 30)

    assert max(most) <= limit + beyond
