"""Members that join, leave, hang and lose their connections: who reads which queue, and the cost of each change."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.broker.clients.membership import announce, register
from mqdb.broker.topics.topics import delete_topic, update_topic
from mqdb.selector.subscription import SubscriptionData
from mqdb.store.clients.clients import ClientKind, Registration
from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb.store.topics.topics import TopicRoute
from mqdb_client import PushConsumer
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.consumers import Gate, Inbox, Member, duplicates
from tests.fixtures.processes import wait_until
from tests.fixtures.variants import usually

pytestmark = pytest.mark.usefixtures("both_kinds_of_consumers")

SOON = timedelta(milliseconds=20)


def assignment(*members: PushConsumer) -> list[list[int]]:
    """The queue ids of each member, sorted by first id."""
    return sorted([queue.queue_id for queue in member.assignment] for member in members)


class Traffic:
    """Sends messages to all queues of a topic, one after another, from a separate thread."""

    def __init__(self, engine: Engine, route: TopicRoute) -> None:
        self._engine = engine
        self._route = route
        self._stopping = threading.Event()
        self.sent = 0

    @contextmanager
    def flowing(self) -> Iterator[None]:
        thread = threading.Thread(target=self._send)
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join()

    def _send(self) -> None:
        with self._engine.connect() as connection:
            while not self._stopping.wait(0.005):
                queue_id = self.sent // 5 % len(self._route.queue_keys)
                append(connection, self._route, *(f"{self.sent + n}" for n in range(5)), queue_id=queue_id)
                self.sent += 5


def test_row_46_members_share_the_messages_without_overlap(broker: Connection, member: Member) -> None:
    """Checklist row 46: members share the messages without overlap."""
    route = topic(broker, queues=4)
    first, second = Inbox(), Inbox()
    members = [member(first), member(second)]
    wait_until(lambda: assignment(*members) == [[0, 1], [2, 3]])

    for queue_id in range(4):
        append(broker, route, *(f"{queue_id}-{number}" for number in range(25)), queue_id=queue_id)
    first.wait_for(50)
    second.wait_for(50)

    assert len(first.messages) == len(second.messages) == 50
    assert duplicates(first, second) == {}
    assert not {message.queue for message in first.messages} & {message.queue for message in second.messages}


@pytest.mark.long
def test_row_48_queues_are_shared_averagely(broker: Connection, member: Member) -> None:
    """Checklist row 48: 8 queues are shared averagely by 3 members."""
    topic(broker, queues=8)

    members = [member(Inbox()) for _ in range(3)]

    wait_until(lambda: assignment(*members) == [[0, 1, 2], [3, 4, 5], [6, 7]])


def test_row_49_more_members_than_queues(broker: Connection, member: Member) -> None:
    """Checklist row 49: with two queues the third member is idle until another one leaves."""
    route = topic(broker, queues=2)
    inbox = Inbox()
    members = [member(inbox) for _ in range(3)]
    wait_until(lambda: assignment(*members) == [[], [0], [1]])

    [busy, *_] = [each for each in members if each.assignment]
    busy.shutdown()
    wait_until(lambda: assignment(*members) == [[], [0], [1]])
    for queue_id in range(2):
        append(broker, route, f"{queue_id}", queue_id=queue_id)
    inbox.wait_for(2)

    assert sorted(inbox.bodies) == ["0", "1"]


def test_members_that_join_and_leave_under_load_cost_no_message_and_no_duplicate(
    broker: Connection, engine: Engine, member: Member
) -> None:
    route = topic(broker, queues=8)
    inbox = Inbox()
    traffic = Traffic(engine, route)

    with traffic.flowing():
        members = [member(inbox)]
        for _ in range(2):
            members.append(member(inbox))
            wait_until(lambda: all(each.assignment for each in members))
            wait_until(lambda: sum(len(each.assignment) for each in members) == 8)
        for _ in range(2):
            inbox.wait_for(len(inbox.messages) + 50)
            members.pop(0).shutdown()
            wait_until(lambda: sum(len(each.assignment) for each in members) == 8)
    inbox.wait_for(traffic.sent, 30)
    members[0].shutdown()

    assert duplicates(inbox) == {}
    assert sorted(map(int, inbox.bodies)) == list(range(traffic.sent))
    assert sum(committed_offsets(broker, "readers", route.queue_keys).values()) == traffic.sent


def test_a_queue_changes_hands_after_its_running_listeners_have_returned(broker: Connection, member: Member) -> None:
    route = topic(broker, queues=2)
    for queue_id in range(2):
        append(broker, route, *(f"{queue_id}-{number}" for number in range(10)), queue_id=queue_id)
    old, new = Gate("0-0", "1-0"), Inbox()
    first = member(old, consume_thread_nums=3)
    wait_until(lambda: old.waiting == {"0-0", "1-0"})
    old.wait_for(18)

    second = member(new)
    wait_until(lambda: len(first.assignment) == 1)
    assert second.assignment == ()
    old.open()
    wait_until(lambda: len(second.assignment) == 1)
    for queue_id in range(2):
        append(broker, route, f"{queue_id}-10", queue_id=queue_id)
    wait_until(lambda: len(old.messages) + len(new.messages) == 22)

    assert len(new.messages) == 1
    assert duplicates(old, new) == {}


def test_a_queue_whose_owner_hangs_is_taken_by_force(
    broker: Connection, member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    route = topic(broker, queues=2)
    for queue_id in range(2):
        append(broker, route, "0", "hangs", "2", queue_id=queue_id)
    old, new = Gate("hangs"), Inbox()
    first = member(old, consume_thread_nums=4, persist_consumer_offset_interval=SOON)
    old.wait_for(4)
    wait_until(lambda: list(committed_offsets(broker, "readers", route.queue_keys).values()) == [1, 1])

    second = member(new, consume_thread_nums=1, hand_over_grace=timedelta(seconds=1))
    wait_until(lambda: len(second.assignment) == 1)
    new.wait_for(2)
    [stolen] = second.assignment
    append(broker, route, "3", queue_id=stolen.queue_id)
    new.wait_for(3)
    old.open()  # too late for the queue that was lost
    wait_until(lambda: "another member has it, or its offset was set" in caplog.text)
    old.wait_for(6)
    first.shutdown()
    second.shutdown()

    assert new.bodies == ["hangs", "2", "3"]
    keys = route.queue_keys
    assert committed_offsets(broker, "readers", keys) == {
        keys[stolen.queue_id]: 4,
        keys[1 - stolen.queue_id]: 3,
    }


def test_queues_that_are_added_are_read_from_their_beginning(broker: Connection, member: Member) -> None:
    route = topic(broker)
    inbox = Inbox()
    consumer = member(inbox, rebalance_interval=SOON)
    append(broker, route, "0")
    inbox.wait_for(1)

    wider = update_topic(broker, "orders", read_queue_nums=3, write_queue_nums=3)
    append(broker, wider, "1", queue_id=2)
    inbox.wait_for(2)

    wait_until(lambda: assignment(consumer) == [[0, 1, 2]])  # they are pulled a moment before they count as assigned


def test_a_topic_that_is_deleted_and_made_again_is_read_from_its_beginning(broker: Connection, member: Member) -> None:
    route = topic(broker)
    inbox = Inbox()
    consumer = member(inbox, rebalance_interval=SOON)
    append(broker, route, "old")
    inbox.wait_for(1)

    delete_topic(broker, "orders")
    wait_until(lambda: consumer.assignment == ())
    append(broker, topic(broker), "new")
    inbox.wait_for(2)

    assert inbox.bodies == ["old", "new"]


def test_a_topic_without_the_permission_to_read_is_not_read(broker: Connection, member: Member) -> None:
    route = topic(broker)
    inbox = Inbox()
    consumer = member(inbox, rebalance_interval=SOON)
    append(broker, route, "0")
    inbox.wait_for(1)

    broker.execute(text("UPDATE mqdb.topic SET perm = 2 WHERE topic = 'orders'"))
    wait_until(lambda: consumer.assignment == ())
    append(broker, route, "1")
    dispatch_all(broker)
    broker.execute(text("UPDATE mqdb.topic SET perm = 6 WHERE topic = 'orders'"))
    inbox.wait_for(2)

    assert inbox.bodies == ["0", "1"]


def kill_connections(broker: Connection, pattern: str = "mqdb %") -> int:
    """Terminate the backends of the consumers' connections; returns how many."""
    killed = broker.execute(
        text(
            """SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
               WHERE datname = current_database() AND application_name LIKE :pattern AND pid <> pg_backend_pid()"""
        ),
        {"pattern": pattern},
    )
    return int(killed.scalar_one())


@pytest.mark.parametrize(
    "pattern", usually("mqdb %", of=["mqdb %", "mqdb % listener"]), ids=["all connections", "the listening one"]
)
def test_a_member_that_loses_its_connections_goes_on_without_loss(
    broker: Connection, engine: Engine, member: Member, pattern: str
) -> None:
    route = topic(broker, queues=4)
    inbox = Inbox()
    traffic = Traffic(engine, route)
    members = [member(inbox, persist_consumer_offset_interval=timedelta(seconds=1)) for _ in range(2)]

    with traffic.flowing():
        for _ in range(2):
            wait_until(lambda: kill_connections(broker, pattern) > 0)
            inbox.wait_for(len(inbox.messages) + 100, 30)
    wait_until(lambda: len(set(inbox.bodies)) == traffic.sent, 30)
    wait_until(lambda: assignment(*members) == [[0, 1], [2, 3]], 30)
    # Who took a queue over may still read again what its last owner had not committed.
    wait_until(lambda: sum(committed_offsets(broker, "readers", route.queue_keys).values()) == traffic.sent)
    for each in members:
        each.shutdown()

    assert {int(body) for body in inbox.bodies} == set(range(traffic.sent))
    assert sum(committed_offsets(broker, "readers", route.queue_keys).values()) == traffic.sent


CHANGED = "SELECT pg_notify('mqdb', 'm:readers')"


def test_a_member_that_was_given_up_keeps_the_queues_that_nobody_has_had(broker: Connection, member: Member) -> None:
    """A member that was given up keeps the queues that no other member has had.

    The member's listener does not get the held messages twice.
    """
    route = topic(broker)
    append(broker, route, *(f"{number}" for number in range(50)))
    gate = Gate("0")
    consumer = member(gate, consume_thread_nums=2)
    gate.wait_for(49)

    broker.execute(text("UPDATE mqdb.consumer_offset SET owner = NULL"))
    broker.execute(text(CHANGED))
    wait_until(lambda: owner(broker) is not None)
    gate.open()
    append(broker, route, "50")
    gate.wait_for(51)
    consumer.shutdown()

    assert duplicates(gate) == {}
    assert committed_offsets(broker, "readers", route.queue_keys) == {route.queue_keys[0]: 51}


def test_a_member_that_was_given_up_reads_again_what_another_one_has_had(
    broker: Connection, member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    """A member that was given up rereads the queues that another member has had.

    The other member may have committed more or less; messages held before no longer count.
    """
    route = topic(broker)
    append(broker, route, *(f"{number}" for number in range(50)))
    gate = Gate("0")
    consumer = member(gate, consume_thread_nums=2)
    gate.wait_for(49)

    taken = "UPDATE mqdb.consumer_offset SET owner = NULL, epoch = epoch + 2, next_offset = 40 WHERE queue_key = :key"
    broker.execute(text(taken), {"key": route.queue_keys[0]})
    broker.execute(text(CHANGED))
    gate.wait_for(59)
    gate.open()
    gate.wait_for(60)
    consumer.shutdown()

    assert set(duplicates(gate)) == {f"{number}" for number in range(40, 50)}
    assert caplog.text.count("another member has it, or its offset was set") == 1
    assert committed_offsets(broker, "readers", route.queue_keys) == {route.queue_keys[0]: 50}


def test_a_member_that_was_taken_out_of_its_group_comes_back(broker: Connection, member: Member) -> None:
    """A member that was removed from its group comes back, for example after a late heartbeat."""
    route = topic(broker, queues=2)
    inbox = Inbox()
    consumer = member(inbox)
    append(broker, route, "0")
    inbox.wait_for(1)

    broker.execute(text("DELETE FROM mqdb.client"))
    broker.execute(text("UPDATE mqdb.consumer_offset SET owner = NULL"))
    broker.execute(text(CHANGED))
    wait_until(lambda: owner(broker) is not None)
    wait_until(lambda: assignment(consumer) == [[0, 1]])
    append(broker, route, "1")
    inbox.wait_for(2)
    consumer.shutdown()

    assert sorted(inbox.bodies) == ["0", "1"]


def owner(broker: Connection) -> object:
    """The owner of the first queue."""
    return broker.execute(text("SELECT owner FROM mqdb.consumer_offset ORDER BY queue_key LIMIT 1")).scalar_one()


def test_a_member_whose_connection_closes_is_replaced_within_two_seconds(
    broker: Connection, engine: Engine, member: Member
) -> None:
    """Checklist row 70: a member whose connection closes is replaced by the others within two seconds.

    No broker process watches the members here.
    """
    route = topic(broker, queues=2)
    inbox = Inbox()
    alone = member(inbox)

    def seconds_without(client_id: str) -> float:
        with engine.connect() as session:
            announce(session, client_id)
            subscriptions = [SubscriptionData("orders", "TAG", "*")]
            register(
                broker,
                Registration(client_id, ClientKind.CONSUMER, "readers", "test", subscriptions=subscriptions),
            )
            wait_until(lambda: assignment(alone) == [[0]])
            began = time.monotonic()
            session.invalidate()
        wait_until(lambda: assignment(alone) == [[0, 1]])
        return time.monotonic() - began

    # A busy machine may lose half a second, but not each time.
    assert any(seconds_without(f"zz{number}") < 2.5 for number in range(3))
    append(broker, route, "x", queue_id=1)
    inbox.wait_for(1)
