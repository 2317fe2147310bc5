"""Reset and clone while the group's members are running: they stop, take the new offsets and continue."""

import threading
from datetime import timedelta

import pytest
from sqlalchemy import Connection, Engine

from mqdb.broker.consumers.offset_reset import Boundary, clone_offsets, reset_offsets
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import GroupInUse
from mqdb.store.consumers import groups
from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb.store.topics.topics import TopicRoute
from mqdb_client import PushConsumer
from mqdb_client.consumer.listeners.message_listener import ConsumeOrderlyStatus
from mqdb_client.consumer.queues.process_queue import ProcessQueue
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.consumers import Gate, Inbox, Member
from tests.fixtures.orderly import OrderlyMember
from tests.fixtures.processes import wait_until
from tests.fixtures.threads import Doing

QUICK = {
    "persist_consumer_offset_interval": timedelta(milliseconds=50),
    "rebalance_interval": timedelta(hours=1),
    "consume_thread_nums": 1,
}


@pytest.fixture
def route(broker: Connection) -> TopicRoute:
    """A topic with two queues of five messages each."""
    route = topic(broker, queues=2)
    for queue_id in range(2):
        append(broker, route, *(f"{queue_id}{letter}" for letter in "abcde"), queue_id=queue_id)
    dispatch_all(broker)
    return route


def offsets(broker: Connection, route: TopicRoute) -> list[int]:
    found = committed_offsets(broker, "readers", route.queue_keys)
    return [found[key] for key in route.queue_keys]


def are_owned(broker: Connection) -> bool:
    return all(one.owner for one in groups.progress(broker, "readers"))


def held_by(consumer: PushConsumer) -> list[ProcessQueue]:
    """The queues of the topic that a member currently owns, according to the member."""
    assert consumer._members is not None
    held = [held for one in consumer._members.by_broker.values() for held in one.held]
    return [one for one in held if one.queue.topic == "orders"]


def test_a_reset_back_has_running_members_consume_from_there_again(
    broker: Connection, route: TopicRoute, member: Member
) -> None:
    inbox = Inbox()
    member(inbox, **QUICK)
    inbox.wait_for(10)

    reset_offsets(broker, "readers", "orders", 2, queue_id=1)
    inbox.wait_for(13)
    append(broker, route, "0f")
    append(broker, route, "1f", queue_id=1)
    inbox.wait_for(15)

    again = inbox.bodies[10:]
    assert [body for body in again if body[0] == "1"] == ["1c", "1d", "1e", "1f"]
    assert [body for body in again if body[0] == "0"] == ["0f"]
    wait_until(lambda: offsets(broker, route) == [6, 6])


def test_a_reset_forward_has_running_members_leave_out_what_lies_between(
    broker: Connection, route: TopicRoute, member: Member
) -> None:
    """A reset forward makes running members skip the messages in between.

    A message already in the listener is finished without effect; no other is begun.
    """
    gate = Gate("0b")
    consumer = member(gate, **QUICK)
    wait_until(lambda: "0b" in gate.waiting)
    before = held_by(consumer)

    reset_offsets(broker, "readers", "orders", Boundary.LATEST)
    # It takes them again first, and drops what it had when it finds that they were set.
    wait_until(lambda: all(held.is_dropped for held in before))
    wait_until(lambda: are_owned(broker))
    append(broker, route, "0f")
    append(broker, route, "1f", queue_id=1)
    gate.open()
    wait_until(lambda: {"0f", "1f"} <= set(gate.bodies))
    wait_until(lambda: offsets(broker, route) == [6, 6])

    assert not {"0c", "0d", "0e"} & set(gate.bodies)


def test_while_offsets_jump_to_and_fro_no_message_behind_them_is_lost(
    broker: Connection, route: TopicRoute, member: Member, engine: Engine
) -> None:
    """No later message is lost while offsets jump back and forth.

    Two members run while offsets are reset under load: in the end every sent message has arrived, and everything is
    committed.
    """
    one, two = Inbox(), Inbox()
    member(one, **QUICK)
    member(two, **QUICK)
    is_over = threading.Event()

    def send() -> list[str]:
        sent: list[str] = []
        with engine.connect() as connection:
            while not is_over.is_set():
                sent.append(f"x{len(sent)}")
                append(connection, route, sent[-1], queue_id=len(sent) % 2)
        return sent

    sending = Doing(send)
    for offset in (1, 4, 2, 0):
        count = len(one.messages) + len(two.messages)
        reset_offsets(broker, "readers", "orders", offset)
        wait_until(lambda count=count: len(one.messages) + len(two.messages) > count + 50)  # type: ignore[misc]
    is_over.set()
    sent = sending.result()
    wait_until(lambda: set(sent) <= {*one.bodies, *two.bodies}, 30)

    wait_until(lambda: sum(offsets(broker, route)) == 10 + len(sent), 30)


def test_a_reset_forward_passes_a_message_that_blocks_an_orderly_queue(
    broker: Connection, route: TopicRoute, orderly_member: OrderlyMember
) -> None:
    consumed: list[str] = []

    def listen(messages: list[ReceivedMessage]) -> ConsumeOrderlyStatus:
        (body,) = [message.body.decode() for message in messages]
        consumed.append(body)
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT if body == "0b" else ConsumeOrderlyStatus.SUCCESS

    orderly_member(listen, **QUICK)
    wait_until(lambda: consumed.count("0b") > 1 and "1e" in consumed)

    reset_offsets(broker, "readers", "orders", 2, queue_id=0)
    wait_until(lambda: "0e" in consumed)
    wait_until(lambda: offsets(broker, route) == [5, 5])

    assert [body for body in consumed if body[0] == "0" and body != "0b"] == ["0a", "0c", "0d", "0e"]


def test_a_clone_moves_live_members_only_by_force(broker: Connection, route: TopicRoute, member: Member) -> None:
    groups.save(broker, "source", {})
    reset_offsets(broker, "source", "orders", 3)
    inbox = Inbox()
    member(inbox, **QUICK)
    inbox.wait_for(10)

    with pytest.raises(GroupInUse, match="readers"):
        clone_offsets(broker, "source", "readers")
    clone_offsets(broker, "source", "readers", force=True)
    inbox.wait_for(14)

    assert sorted(inbox.bodies[10:]) == ["0d", "0e", "1d", "1e"]
