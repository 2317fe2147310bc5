"""Push consumers of a group that pops: the same listeners, but no member owns a queue."""

import random
import threading
import time
from collections import Counter
from datetime import timedelta

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.consumers.groups import show_group, update_group
from mqdb.broker.consumers.pop import Popped
from mqdb.common.group import ConsumeMode
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import ConsumeModeConflict, ShutdownTimedOut
from mqdb_client import ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus, PushConsumer
from mqdb_client.consumer import following_member, pop_member
from mqdb_client.consumer.queues.broker_pops import BrokerPops
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.consumers import LATER, SUCCESS, Gate, Inbox, Member, duplicates
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.retries import set_delay
from tests.fixtures.simple import Simple

pytestmark = pytest.mark.usefixtures("both_kinds_of_consumers")

SOON = timedelta(milliseconds=50)


@pytest.fixture
def group(broker: Connection) -> str:
    """A group that pops."""
    update_group(broker, "readers", consume_mode=ConsumeMode.POP, retry_max_times=2)
    return "readers"


def in_flight(broker: Connection) -> int:
    return sum(each.in_flight for each in show_group(broker, "readers").progress)


def test_each_message_is_consumed_once_and_acknowledged(broker: Connection, member: Member, group: str) -> None:
    route = topic(broker, queues=2)
    for queue_id in range(2):
        append(broker, route, *(f"{queue_id}-{n}" for n in range(150)), queue_id=queue_id)
    inboxes = [Inbox(), Inbox(), Inbox()]
    consumers = [member(inbox) for inbox in inboxes]

    wait_until(lambda: sum(len(inbox.messages) for inbox in inboxes) == 300)

    assert duplicates(*inboxes) == {}
    wait_until(lambda: in_flight(broker) == 0)
    assert [consumer.assignment for consumer in consumers] == [(), (), ()]


def test_a_member_with_a_slow_message_delays_nobody(broker: Connection, member: Member, group: str) -> None:
    route = topic(broker)
    gate, inbox = Gate("slow"), Inbox()
    member(gate, consume_thread_nums=1)
    append(broker, route, "slow")
    wait_until(lambda: gate.waiting == {"slow"})
    member(inbox)

    append(broker, route, *(str(n) for n in range(20)))

    wait_until(lambda: len(inbox.messages) + len(gate.messages) >= 18)  # the other may have two more in hand
    gate.open()
    wait_until(lambda: in_flight(broker) == 0)
    assert sorted(inbox.bodies + gate.bodies) == sorted(["slow", *(str(n) for n in range(20))])


def test_a_failed_message_comes_again_and_is_dead_in_the_end(broker: Connection, member: Member, group: str) -> None:
    set_delay(broker, "50ms")
    route = topic(broker)
    attempts: list[int] = []

    def fail(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        [message] = messages
        attempts.append(message.delivery_attempt)
        raise ValueError("no such account")

    member(fail)
    append(broker, route, "x")

    wait_until(lambda: in_flight(broker) == 0 and len(attempts) == 3)

    assert attempts == [1, 2, 3]
    dispatch_all(broker)
    [letter] = broker.execute(text("SELECT exception, error, attempts, topic FROM mqdb.dlq"))
    assert tuple(letter) == ("ValueError", "no such account", 3, "orders")


def test_a_listener_says_when_a_message_comes_again(broker: Connection, member: Member, group: str) -> None:
    route = topic(broker)
    attempts: list[int] = []

    def retry(messages: list[ReceivedMessage], context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        attempts.append(messages[0].delivery_attempt)
        context.delay_when_next_consume = SOON
        return SUCCESS if len(attempts) == 2 else LATER

    member(retry)
    append(broker, route, "x")

    wait_until(lambda: in_flight(broker) == 0 and len(attempts) == 2)
    assert attempts == [1, 2]


def test_a_part_of_a_batch_is_acknowledged(broker: Connection, member: Member, group: str) -> None:
    route = topic(broker)
    append(broker, route, "a", "b", "c")
    dispatch_all(broker)
    batches: list[list[str]] = []

    def first_only(messages: list[ReceivedMessage], context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        batches.append([message.body.decode() for message in messages])
        context.ack_index, context.delay_when_next_consume = 0, SOON
        return SUCCESS

    member(first_only, consume_message_batch_max_size=3)

    wait_until(lambda: in_flight(broker) == 0 and sum(map(len, batches)) >= 6)
    assert batches[0] == ["a", "b", "c"]
    assert [batch[0] for batch in batches] == ["a", "b", "c"]


def test_a_listener_that_runs_for_long_keeps_its_messages(broker: Connection, member: Member, group: str) -> None:
    """A long-running listener keeps its messages: their invisible time is prolonged before it has passed."""
    route = topic(broker)
    gate, other = Gate("slow"), Inbox()
    member(gate, pop_invisible_time=timedelta(seconds=5))
    append(broker, route, "slow")
    wait_until(lambda: gate.waiting == {"slow"})
    popped_until = "SELECT visible_at FROM mqdb.pop_batch"
    first = broker.scalar(text(popped_until))
    member(other)

    wait_until(lambda: broker.scalar(text(popped_until)) > first)

    gate.open()
    wait_until(lambda: in_flight(broker) == 0)
    assert (gate.bodies, other.bodies) == (["slow"], [])
    assert [message.delivery_attempt for message in gate.messages] == [1]


def test_a_shutdown_gives_back_what_no_listener_has_got(broker: Connection, member: Member, group: str) -> None:
    route = topic(broker)
    append(broker, route, "slow", "a")
    dispatch_all(broker)
    gate, other = Gate("slow"), Inbox()
    consumer = member(gate, consume_thread_nums=1)
    wait_until(lambda: gate.waiting == {"slow"})
    leaving = threading.Thread(target=consumer.shutdown)
    leaving.start()
    member(other)

    other.wait_for(1)
    gate.open()
    leaving.join(30)

    assert (gate.bodies, other.bodies) == (["slow"], ["a"])
    assert other.messages[0].delivery_attempt == 1  # no listener had got it before
    wait_until(lambda: in_flight(broker) == 0)


def test_a_shutdown_that_waits_no_longer_gives_back_what_runs(broker: Connection, member: Member, group: str) -> None:
    route = topic(broker)
    append(broker, route, "slow")
    gate, other = Gate("slow"), Inbox()
    consumer = member(gate)
    wait_until(lambda: gate.waiting == {"slow"})

    with pytest.raises(ShutdownTimedOut):
        consumer.shutdown(timedelta(milliseconds=100))

    member(other)
    other.wait_for(1)
    assert [message.delivery_attempt for message in other.messages] == [2]
    gate.open()


def test_push_and_simple_consumers_share_a_group(
    broker: Connection, member: Member, simple: Simple, group: str
) -> None:
    route = topic(broker)
    inbox = Inbox()
    member(inbox)
    consumer = simple(group=group)
    append(broker, route, *(str(n) for n in range(40)))

    received: list[str] = []
    while len(received) + len(inbox.bodies) < 40:
        messages = consumer.receive(1, timeout=timedelta(milliseconds=100))
        received += [message.body.decode() for message in messages]
        consumer.ack(messages)

    assert sorted(map(int, received + inbox.bodies)) == list(range(40))


def test_a_member_may_have_more_in_hand_than_one_pop_gives(broker: Connection, member: Member, group: str) -> None:
    route = topic(broker)
    append(broker, route, *(str(n) for n in range(1_500)))
    inbox = Inbox()
    member(inbox, consume_thread_nums=40, consume_message_batch_max_size=32)

    inbox.wait_for(1_500)
    wait_until(lambda: in_flight(broker) == 0)
    assert duplicates(inbox) == {}


def test_a_quick_listener_has_more_in_hand(
    broker: Connection, member: Member, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []

    def pop(pops: BrokerPops, limit: int, invisible: timedelta) -> Popped:
        limits.append(limit)
        return unchanged(pops, limit, invisible)

    unchanged = BrokerPops.pop
    monkeypatch.setattr(BrokerPops, "pop", pop)
    route = topic(broker)
    append(broker, route, *(str(n) for n in range(3_000)))
    inbox = Inbox()
    member(inbox, consume_thread_nums=1)

    inbox.wait_for(3_000)
    assert limits[0] == 2
    assert max(limits) > 2
    assert duplicates(inbox) == {}


def test_more_threads_have_more_in_hand(
    broker: Connection, member: Member, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_member, "LONGEST_WAIT_SECONDS", 3600.0)  # it looks again only if it is told
    route = topic(broker)
    append(broker, route, *(str(n) for n in range(8)))
    gate = Gate(*(str(n) for n in range(8)))
    consumer = member(gate, consume_thread_nums=1, pop_invisible_time=timedelta(minutes=5))
    wait_until(lambda: in_flight(broker) == 2)

    consumer.update_consume_thread_nums(4)

    wait_until(lambda: len(gate.waiting) == 4)
    wait_until(lambda: in_flight(broker) == 8)
    gate.open()
    gate.wait_for(8)


def test_a_topic_that_does_not_exist_yet_is_waited_for(
    broker: Connection, member: Member, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = Inbox()
    member(inbox)
    wait_until(lambda: "does not exist yet" in caplog.text)

    append(broker, topic(broker), "first")
    inbox.wait_for(1)

    assert inbox.bodies == ["first"]
    assert caplog.text.count("does not exist yet") == 1


def test_a_message_that_comes_again_at_once(broker: Connection, member: Member, group: str) -> None:
    update_group(broker, group, retry_max_times=1_000)
    route = topic(broker)
    seen: Counter[str] = Counter()
    guard = threading.Lock()

    def fail_often(messages: list[ReceivedMessage], context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        context.delay_when_next_consume = timedelta(0)
        with guard:
            seen.update(message.body.decode() for message in messages)
            return SUCCESS if all(seen[message.body.decode()] >= 20 for message in messages) else LATER

    member(fail_often)
    append(broker, route, *(str(n) for n in range(10)))

    wait_until(lambda: in_flight(broker) == 0 and len(seen) == 10 and min(seen.values()) >= 20)
    assert set(seen.values()) == {20}


def test_a_suspended_member_pops_nothing(broker: Connection, member: Member, group: str) -> None:
    route = topic(broker)
    inbox = Inbox()
    consumer = member(inbox)
    consumer.suspend()
    append(broker, route, "x")
    dispatch_all(broker)
    inboxes = inbox, Inbox()
    other = member(inboxes[1])
    wait_until(lambda: sum(len(each.messages) for each in inboxes) == 1)  # a pop that had begun may have got it
    append(broker, route, "y")
    wait_until(lambda: "y" in inboxes[1].bodies)
    other.shutdown()

    consumer.resume()
    append(broker, route, "z")
    wait_until(lambda: "z" in inbox.bodies)


@pytest.mark.parametrize("option", ["orderly", "exactly_once"])
def test_a_listener_that_needs_a_queue_is_refused(
    broker: Connection, database: Database, group: str, option: str
) -> None:
    topic(broker)
    consumer = PushConsumer(group, f"broker-a={database.dsn}")
    consumer.subscribe("orders")
    consumer.register_listener(lambda *_: None, **{option: True})

    with pytest.raises(ConsumeModeConflict, match="consumes by pop, but this consumer by pull"):
        consumer.start()


def test_a_consumer_follows_its_group(broker: Connection, member: Member, group: str) -> None:
    """A consumer follows its group to another mode.

    The consumer's current messages are finished first; these are not delivered again, and do not hold up later ones.
    """
    route = topic(broker)
    gate = Gate("slow")
    consumer = member(gate)
    append(broker, route, "slow", "a")
    wait_until(lambda: gate.waiting == {"slow"} and in_flight(broker) == 1)

    update_group(broker, "readers", consume_mode=ConsumeMode.PULL)
    inbox = Inbox()
    other = member(inbox)
    append(broker, route, "b")

    wait_until(lambda: sorted(inbox.bodies + gate.bodies) == ["a", "b"])
    gate.open()
    wait_until(lambda: in_flight(broker) == 0)
    wait_until(lambda: len(consumer.assignment + other.assignment) == 1)
    update_group(broker, "readers", consume_mode=ConsumeMode.POP)
    wait_until(lambda: consumer.assignment + other.assignment == ())
    append(broker, route, "c")
    wait_until(lambda: sorted(inbox.bodies + gate.bodies) == ["a", "b", "c", "slow"])


def test_a_consumer_goes_on_when_the_other_member_cannot_begin(
    broker: Connection, database: Database, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer continues when its new member cannot start.

    The group has changed back by then, so the consumer needs its former member again.
    """
    route = topic(broker)
    monkeypatch.setattr(following_member, "_AGAIN_SECONDS", 0.05)

    def refuse(_: pop_member.PopMember, **__: object) -> None:
        with database.connect() as other:
            other.execute("UPDATE mqdb.subscription_group SET consume_mode = 'PULL'")
        raise OSError("no more threads")

    monkeypatch.setattr(pop_member.PopMember, "start", refuse)
    inbox = Inbox()
    member(inbox)
    wait_until(lambda: show_group(broker, "readers").members != [])

    update_group(broker, "readers", consume_mode=ConsumeMode.POP)

    wait_until(lambda: show_group(broker, "readers").settings.consume_mode is ConsumeMode.PULL)
    append(broker, route, "a")
    inbox.wait_for(1)


def test_a_consumer_leaves_while_its_group_changes(broker: Connection, member: Member, group: str) -> None:
    gate = Gate("slow")
    consumer = member(gate)
    append(broker, topic(broker), "slow")
    wait_until(lambda: gate.waiting == {"slow"})
    update_group(broker, "readers", consume_mode=ConsumeMode.PULL)

    with pytest.raises(ShutdownTimedOut):
        consumer.shutdown(timedelta(milliseconds=50))

    assert show_group(broker, "readers").members == []
    gate.open()


def test_however_often_a_group_changes_each_message_is_consumed_once(
    broker: Connection, member: Member, group: str
) -> None:
    seed = random.randrange(1_000_000)
    chance = random.Random(seed)
    route = topic(broker, queues=3)
    inboxes = [Inbox(), Inbox(), Inbox()]
    for inbox in inboxes:
        member(inbox)
    names = [f"m{number}" for number in range(600)]
    modes = 0
    for first in range(0, len(names), 10):
        append(broker, route, *names[first : first + 10], queue_id=chance.randrange(3))
        if chance.random() < 0.3:
            modes += 1
            update_group(broker, "readers", consume_mode=[ConsumeMode.POP, ConsumeMode.PULL][modes % 2])
        time.sleep(chance.uniform(0, 0.05))  # the moment of a change is what chance decides

    wait_until(lambda: {body for inbox in inboxes for body in inbox.bodies} == set(names))
    wait_until(lambda: in_flight(broker) == 0)
    assert duplicates(*inboxes) == {}, f"seed {seed}, {modes} changes"
