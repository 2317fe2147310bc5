"""Requests from operators to a running consumer: report its status, consume one message now, pause for a while."""

import threading
from typing import Any

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.clients.client_requests import RequestKind, ask, wait_for_answer
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import IllegalState, ParameterInvalid
from mqdb.rebalance import allocate_averagely_by_circle, allocate_by_config
from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb_client import ConsumeConcurrentlyStatus, PushConsumer
from mqdb_client.consumer.queues.process_queue import ProcessQueue
from mqdb_client.consumer.queues.pull_service import PullService
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.consumers import LATER, SUCCESS, Gate, Inbox, Member
from tests.fixtures.consuming import member_of
from tests.fixtures.processes import wait_until
from tests.fixtures.threads import refuse_threads
from tests.fixtures.variants import usually


def client_id_of(broker: Connection) -> str:
    client_id: str = broker.execute(text("SELECT client_id FROM mqdb.client WHERE kind = 'CONSUMER'")).scalar_one()
    return client_id


def answer(broker: Connection, kind: RequestKind, **arguments: object) -> dict[str, Any]:
    request_id = ask(broker, client_id_of(broker), kind, {"group": "readers", **arguments})
    return wait_for_answer(broker, request_id)


def test_its_status_shows_the_stack_of_a_listener_that_hangs(broker: Connection, member: Member) -> None:
    route = topic(broker)
    gate = Gate("stuck")
    member(gate)
    append(broker, route, "stuck")
    wait_until(lambda: gate.waiting)

    status = answer(broker, RequestKind.STATUS)

    (listener,) = status["listeners"]
    assert "in __call__" in listener["stack"]
    assert (listener["queue"], listener["queue_offset"]) == ("orders@broker-a:0", 0)
    (queue,) = [each for each in status["queues"] if each["queue"].startswith("orders")]
    assert (queue["in_hand"], queue["running"], queue["commit_offset"]) == (1, 1, 0)


LISTENERS: dict[str, Any] = {
    "CR_SUCCESS": lambda _: SUCCESS,
    "CR_LATER": lambda _: LATER,
    "CR_RETURN_NULL": lambda _: None,
    "CR_THROW_EXCEPTION": lambda _: 1 / 0,
}


@pytest.mark.parametrize("result", usually("CR_SUCCESS", "CR_THROW_EXCEPTION", of=LISTENERS))
def test_row_73_a_message_is_consumed_directly_without_an_effect(
    broker: Connection, member: Member, result: str
) -> None:
    """Checklist row 73: a message is consumed directly, without changing the offset."""
    route = topic(broker)
    append(broker, route, "old")
    dispatch_all(broker)
    broker.execute(text("UPDATE mqdb.topic SET perm = 2"))  # nobody reads it
    member(LISTENERS[result])

    told = answer(broker, RequestKind.CONSUME_DIRECTLY, topic="orders", queue_id=0, queue_offset=0)

    assert told["result"] == result
    assert committed_offsets(broker, "readers", route.queue_keys) == {}
    waiting = "SELECT count(*) FROM mqdb.message WHERE topic = 'SCHEDULE_TOPIC_XXXX'"
    dispatch_all(broker)
    assert broker.scalar(text(waiting)) == 0


def test_row_72_a_suspended_consumer_finishes_what_it_has_and_pulls_no_more(broker: Connection, member: Member) -> None:
    """Checklist row 72: a suspended consumer finishes the messages that it has, and pulls no more."""
    route = topic(broker)
    gate = Gate("0")
    consumer = member(gate)
    append(broker, route, *(f"{number}" for number in range(10)))
    wait_until(lambda: gate.waiting and len(gate.messages) == 9)

    consumer.suspend()
    wait_until_nothing_is_pulled(consumer)
    append(broker, route, "late")
    dispatch_all(broker)
    gate.open("0")
    gate.wait_for(10)
    assert "late" not in gate.bodies

    consumer.resume()
    gate.wait_for(11)
    assert gate.bodies[-1] == "late"


def wait_until_nothing_is_pulled(suspended: PushConsumer) -> None:
    """Wait until no pull is under way: such a pull still returns its messages."""
    assert suspended._members is not None
    pulling = member_of(suspended._members).pull
    # The pull thread sets it where it then looks whether it is suspended.
    poll_at = pulling._poll_at
    wait_until(lambda: pulling._poll_at != poll_at)


def test_the_pool_can_be_resized(broker: Connection, member: Member) -> None:
    route = topic(broker)
    meeting = threading.Barrier(6)
    inbox = Inbox()

    def listener(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        meeting.wait(20)
        return inbox(messages)

    consumer = member(listener, consume_thread_nums=2)
    append(broker, route, *"abcdef")
    consumer.update_consume_thread_nums(6)

    inbox.wait_for(6)
    with pytest.raises(ParameterInvalid, match="from 1 to 1,000"):
        consumer.update_consume_thread_nums(0)


def test_its_status_shows_how_many_threads_it_has_now(broker: Connection, member: Member) -> None:
    topic(broker)
    consumer = member(Inbox(), consume_thread_nums=2)

    consumer.update_consume_thread_nums(6)

    assert answer(broker, RequestKind.STATUS)["consume_thread_nums"] == 6


def test_where_threads_cannot_be_started_there_are_as_many_as_before(
    broker: Connection, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic(broker)
    consumer = member(Inbox(), consume_thread_nums=2)
    refuse_threads(monkeypatch, "readers-consume", but=1)

    with pytest.raises(RuntimeError, match="can't start new thread"):
        consumer.update_consume_thread_nums(6)

    assert answer(broker, RequestKind.STATUS)["consume_thread_nums"] == 2


def test_what_is_for_a_running_consumer_is_refused_before(broker: Connection) -> None:
    consumer = PushConsumer("readers", "postgresql://nowhere/mqdb")

    for method in (consumer.suspend, consumer.resume, lambda: consumer.update_consume_thread_nums(3)):
        with pytest.raises(IllegalState, match="not started"):
            method()


def test_limits_of_a_topic_are_shared_by_its_queues(broker: Connection, member: Member) -> None:
    """Checklist row 66: the limits of a topic are shared by its queues.

    40 messages over 4 queues are 10 for each queue, plus those of the last pull.
    """
    route = topic(broker, queues=4)
    for queue_id in range(4):
        append(broker, route, *(f"{queue_id} {number}" for number in range(100)), queue_id=queue_id)
    dispatch_all(broker)
    gate = Gate(*(f"{queue_id} {number}" for queue_id in range(4) for number in range(100)))
    member(gate, pull_threshold_for_topic=40, pull_batch_size=8, consume_thread_nums=4)

    def in_hand() -> list[int]:
        queues = answer(broker, RequestKind.STATUS)["queues"]
        return [each["in_hand"] for each in queues if each["queue"].startswith("orders")]

    # Nothing is consumed, so nothing leaves the hand: a full queue is not pulled again before a quarter of it is done.
    wait_until(lambda: all(count > 10 for count in in_hand()))
    assert all(count <= 10 + 8 for count in in_hand())


def test_a_queue_is_not_read_before_it_knows_its_share(
    broker: Connection, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic(broker, queues=4)
    limits: list[int] = []
    add = PullService.add

    def noting(self: PullService, process_queue: ProcessQueue) -> None:
        if process_queue.queue.topic == "orders":
            limits.append(process_queue.limits.messages)
        add(self, process_queue)

    monkeypatch.setattr(PullService, "add", noting)

    member(Inbox(), pull_threshold_for_topic=40)

    assert limits == [10] * 4


def test_members_follow_the_strategy_that_they_are_given(broker: Connection, member: Member) -> None:
    topic(broker, queues=4)
    first = member(Inbox(), allocate_message_queue_strategy=allocate_averagely_by_circle)
    second = member(Inbox(), allocate_message_queue_strategy=allocate_averagely_by_circle)
    wait_until(lambda: len(first.assignment) == len(second.assignment) == 2)

    shares = sorted([queue.queue_id for queue in consumer.assignment] for consumer in (first, second))
    assert shares == [[0, 2], [1, 3]]


def test_by_configuration_a_member_reads_what_it_was_given(broker: Connection, member: Member) -> None:
    topic(broker, queues=4)
    consumer = member(Inbox())
    given = consumer.assignment[1:3]
    consumer.shutdown()

    chosen = member(Inbox(), allocate_message_queue_strategy=allocate_by_config(given))

    assert chosen.assignment == given
