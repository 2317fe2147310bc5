"""Lite pull consumers that share a topic: the cost of moving a queue, and topics and offsets that do not exist."""

import threading
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.broker.clients.client_requests import RequestKind, ask, wait_for_answer
from mqdb.broker.consumers.offset_reset import reset_offsets
from mqdb.broker.topics.topics import delete_topic
from mqdb.common.group import ConsumeFromWhere
from mqdb.errors import ClientRequestFailed, IllegalState
from mqdb.store.clients.clients import members_of
from mqdb_client import LitePullConsumer
from tests.fixtures.broker import append, bodies, topic
from tests.fixtures.lite_pull import Lite, committed, drained, fill, numbers, polled, queue_of
from tests.fixtures.processes import wait_until
from tests.fixtures.threads import Doing
from tests.fixtures.variants import usually

pytestmark = pytest.mark.usefixtures("both_kinds_of_clients")

SECOND = timedelta(seconds=1)
NEVER = timedelta(hours=1)
NOTHING = timedelta(0)


def test_members_share_the_queues_and_a_move_costs_neither_a_message_nor_a_duplicate(
    broker: Connection, lite: Lite
) -> None:
    route = fill(broker, queues=4, count=5)
    first, second = (lite("orders", is_started=False, pull_batch_size=20, auto_commit_interval=NEVER) for _ in range(2))
    first.start()
    received = polled_from_all(first, queues=4)

    second.start()
    wait_until(lambda: len(first.assignment) == 2)
    before = second.assignment, committed(broker, route)
    received += bodies(first.poll(NOTHING))
    wait_until(lambda: len(second.assignment) == 2)
    for queue_id in range(4):
        append(broker, route, *(f"{queue_id}-{number}" for number in range(5, 100)), queue_id=queue_id)
    received += drained(second, 190) + drained(first, 190)

    # Not earlier: what the last poll has returned may be in somebody's hands.
    assert before == ((), [0, 0, 0, 0])
    assert len(received) == 400
    assert set(received) == {f"{queue}-{number}" for queue in range(4) for number in range(100)}


def polled_from_all(consumer: LitePullConsumer, queues: int) -> list[str]:
    """The bodies returned until each queue has returned messages, however many polls that takes."""
    while True:
        batch = consumer.poll(SECOND)
        if len({message.queue for message in batch}) == queues:
            return bodies(batch)
        for queue_id in range(queues):
            consumer.seek_to_begin(queue_of(queue_id))


def test_members_that_come_and_go_under_load_lose_nothing_and_repeat_nothing(
    broker: Connection, engine: Engine, lite: Lite
) -> None:
    route = topic(broker, queues=8)
    received: list[str] = []
    sent: list[str] = []
    stopping = threading.Event()
    options = {"is_started": False, "poll_timeout": timedelta(milliseconds=50)}
    members = [lite("orders", **options) for _ in range(4)]

    def read(member: LitePullConsumer) -> None:
        with member:
            for message in member:
                received.append(message.body.decode())

    def send() -> None:
        with engine.connect() as connection:
            while not stopping.wait(0.001):
                bodies_sent = [f"{len(sent) + n}" for n in range(5)]
                append(connection, route, *bodies_sent, queue_id=len(sent) // 5 % 8)
                sent.extend(bodies_sent)

    sending, reading = Doing(send), []
    for member in members:
        reading.append(Doing(partial(read, member)))
        wait_until(partial(reads, member))
    for member, thread in zip(members[:3], reading[:3], strict=True):
        more = len(received) + 50
        wait_until(partial(is_long, received, more))
        member.shutdown()
        thread.result()
    stopping.set()
    sending.result()
    wait_until(lambda: set(received) == set(sent), 30)
    members[3].shutdown()
    reading[3].result()

    repeated = len(received) - len(set(received))
    # A shutdown by another thread does not know what becomes of the one message that an iteration has in hand.
    assert repeated <= 3


def reads(member: LitePullConsumer) -> bool:
    return member.is_running and bool(member.assignment)


def is_long(received: list[str], count: int) -> bool:
    return len(received) >= count


def test_row_68_an_offset_that_does_not_exist_is_corrected(broker: Connection, lite: Lite) -> None:
    """Checklist row 68: an offset above the max offset is corrected to the max, below the min offset to the min.

    A pause of the queue survives the correction.
    """
    route = fill(broker)
    lite("orders").shutdown()
    key = {"key": route.queue_keys[0]}

    broker.execute(text("UPDATE mqdb.consumer_offset SET next_offset = 1000000000 WHERE queue_key = :key"), key)
    consumer = lite("orders")
    wait_until(lambda: committed(broker, route) == [30])
    append(broker, route, "30")
    assert polled(consumer, 1) == ["30"]
    consumer.shutdown()
    broker.execute(text("UPDATE mqdb.queue SET base_offset = 12 WHERE queue_key = :key"), key)
    broker.execute(text("UPDATE mqdb.consumer_offset SET next_offset = 0 WHERE queue_key = :key"), key)

    assert polled(lite("orders"), 10) == numbers(12, 22)


@pytest.mark.parametrize("offset", usually(5, of=[5, 25]))
def test_an_offset_that_is_reset_counts_at_once(
    broker: Connection, lite: Lite, caplog: pytest.LogCaptureFixture, offset: int
) -> None:
    route = fill(broker)
    consumer = lite("orders", rebalance_interval=timedelta(milliseconds=50))
    polled(consumer, 10)
    consumer.commit()

    reset_offsets(broker, "readers", "orders", offset)
    # That is how it looks to its owner.
    wait_until(lambda: "another member has it, or its offset was set" in caplog.text)
    received = drained(consumer, 30 - offset)
    consumer.commit()

    assert received == numbers(offset, 30)
    assert committed(broker, route) == [30]


def test_a_topic_that_comes_later_is_read_from_its_beginning(broker: Connection, lite: Lite) -> None:
    consumer = lite("orders", consume_from_where=ConsumeFromWhere.LAST_OFFSET)

    append(broker, topic(broker), "first")

    assert polled(consumer, 1) == ["first"]


def test_a_topic_may_be_subscribed_to_and_given_up_while_it_runs(broker: Connection, lite: Lite) -> None:
    for name in ("orders", "bills"):
        append(broker, topic(broker, name), name)
    consumer = lite("orders")
    first = polled(consumer, 1)

    consumer.subscribe("bills")
    second = polled(consumer, 1)
    consumer.unsubscribe("orders")
    consumer.poll(NOTHING)
    wait_until(lambda: consumer.assignment == (queue_of(0, "bills"),))

    assert (first, second) == (["orders"], ["bills"])
    with pytest.raises(IllegalState, match="subscribe or assign, not both"):
        lite().subscribe("orders")


def test_it_answers_what_people_ask_of_a_member(broker: Connection, lite: Lite) -> None:
    fill(broker)
    consumer = lite("orders")
    polled(consumer, 10)
    [client_id] = members_of(broker, "readers")

    def ask_for(kind: RequestKind, **arguments: object) -> dict[str, Any]:
        return wait_for_answer(broker, ask(broker, client_id, kind, {"group": "readers", **arguments}))

    status = ask_for(RequestKind.STATUS)
    with pytest.raises(ClientRequestFailed, match="has no listener"):
        ask_for(RequestKind.CONSUME_DIRECTLY, topic="orders", queue_id=0, queue_offset=0)

    [queue] = status["queues"]
    assert (queue["queue"], queue["running"], queue["commit_offset"]) == ("orders@broker-a:0", 10, 0)


def test_a_topic_that_is_deleted_is_not_assigned_any_more(broker: Connection, lite: Lite) -> None:
    fill(broker)
    consumer = lite("orders", rebalance_interval=timedelta(milliseconds=50))
    polled(consumer, 10)

    delete_topic(broker, "orders")
    consumer.poll(NOTHING)
    wait_until(lambda: consumer.assignment == ())

    assert drained(consumer) == []
