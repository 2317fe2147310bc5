"""Orderly consumption by members of a group: order across joins, leaves and lost connections, and failures."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb.store.topics.topics import TopicRoute
from mqdb_client import ConsumeOrderlyContext, ConsumeOrderlyStatus
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.orderly import COMMIT, SUCCESS, SUSPEND, Messages, OrderlyMember, Script, Witness
from tests.fixtures.processes import wait_until
from tests.fixtures.proxy import Proxy
from tests.fixtures.variants import usually

pytestmark = pytest.mark.usefixtures("both_kinds_of_consumers")

SOON = timedelta(milliseconds=50)


def send(broker: Connection, route: TopicRoute, count: int) -> None:
    """Send `count` messages to each queue."""
    for queue_id in range(len(route.queue_keys)):
        append(broker, route, *(f"{queue_id}-{number}" for number in range(count)), queue_id=queue_id)


def committed(broker: Connection, route: TopicRoute) -> list[int]:
    """The group's offset on each queue."""
    offsets = committed_offsets(broker, "readers", route.queue_keys)
    return [offsets[key] for key in route.queue_keys]


def locks(broker: Connection) -> int:
    count: int = broker.execute(text("SELECT count(*) FROM mqdb.queue_lock")).scalar_one()
    return count


@contextmanager
def traffic(engine: Engine, route: TopicRoute) -> Iterator[list[int]]:
    """Sends messages to all queues until the end of the block; yields a list with the number of sent messages."""
    sent, stopping = [0], threading.Event()

    def work() -> None:
        with engine.connect() as connection:
            while not stopping.wait(0.002):
                queue_id = sent[0] // 5 % len(route.queue_keys)
                append(connection, route, *(f"{sent[0] + n}" for n in range(5)), queue_id=queue_id)
                sent[0] += 5

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield sent
    finally:
        stopping.set()
        thread.join()


# -- order --------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", usually(7, of=[1, 7]))
def test_row_61_each_queue_comes_in_order_and_one_call_at_a_time(
    broker: Connection, orderly_member: OrderlyMember, batch: int
) -> None:
    """Checklist row 61: each queue is consumed in order, one call at a time."""
    route = topic(broker, queues=4)
    witness = Witness()
    members = [orderly_member(witness, consume_message_batch_max_size=batch) for _ in range(2)]
    wait_until(lambda: sum(len(member.assignment) for member in members) == 4)

    send(broker, route, 250)

    witness.wait_for(1_000)


@pytest.mark.long
def test_order_holds_while_members_join_and_leave(
    broker: Connection, engine: Engine, orderly_member: OrderlyMember
) -> None:
    """Order holds while members join and leave, and no message is delivered twice."""
    route = topic(broker, queues=8)
    witness = Witness()

    with traffic(engine, route) as sent:
        members = [orderly_member(witness)]
        for _ in range(3):
            members.append(orderly_member(witness))
            wait_until(lambda: all(each.assignment for each in members))
            wait_until(lambda: sum(len(each.assignment) for each in members) == 8)
        for _ in range(3):
            witness.wait_for(len(witness.bodies) + 100)
            members.pop(0).shutdown()
            wait_until(lambda: sum(len(each.assignment) for each in members) == 8)
    witness.wait_for(sent[0], 30)
    members[0].shutdown()

    assert sorted(map(int, witness.bodies)) == list(range(sent[0]))
    assert sum(committed(broker, route)) == sent[0]
    assert locks(broker) == 0


def test_the_longest_durations_are_no_trouble(broker: Connection, orderly_member: OrderlyMember) -> None:
    """The longest durations cause no trouble.

    All but one may exceed the longest wait of a thread, and PostgreSQL's range of times.
    """
    route = topic(broker)
    script = Script()
    names = ("persist_consumer_offset_interval", "rebalance_interval", "hand_over_grace", "consume_timeout")
    orderly_member(script, queue_lock_expiry=timedelta(days=365), **dict.fromkeys(names, timedelta.max))

    append(broker, route, "0")

    script.wait_for(1)
    assert locks(broker) == 2  # also of the retry topic


def test_a_queue_changes_hands_when_its_listener_has_returned_and_not_before(
    broker: Connection, orderly_member: OrderlyMember
) -> None:
    """A queue changes hands only after its listener has returned.

    The second member's patience ends earlier, but a locked queue is not taken by force.
    """
    route = topic(broker, queues=2)
    expiry = timedelta(seconds=6)
    entered, leave = threading.Event(), threading.Event()

    class Slow(Witness):
        def consume(self, messages: Messages) -> ConsumeOrderlyStatus:
            if messages[0].body == b"1-0":
                entered.set()
                assert leave.wait(30)
            return SUCCESS

    witness = Slow()
    first = orderly_member(witness, queue_lock_expiry=expiry)
    send(broker, route, 5)
    assert entered.wait(30)

    second = orderly_member(witness, queue_lock_expiry=expiry, hand_over_grace=SOON)
    wait_until(lambda: len(first.assignment) == 1)
    lock = text("SELECT expires_at FROM mqdb.queue_lock WHERE queue_key = :key").bindparams(key=route.queue_keys[1])
    locked_until, since = broker.scalar(lock), time.monotonic()
    # It is renewed every 2 s, and asked for every second.
    wait_until(lambda: broker.scalar(lock) > locked_until and time.monotonic() > since + 2)
    assert second.assignment == ()
    leave.set()
    wait_until(lambda: len(second.assignment) == 1)

    witness.wait_for(10)


def test_a_member_that_is_cut_off_starts_no_listener_while_another_one_takes_over(
    broker: Connection, proxy: Proxy, orderly_member: OrderlyMember
) -> None:
    """Checklist row 65: a member that is cut off starts no listener while another takes over.

    The member treats its lock as expired earlier than the broker does.
    """
    route = topic(broker)
    expiry = timedelta(seconds=1)
    seen: list[tuple[str, int, float]] = []

    def listener_of(name: str, seconds: float) -> Callable[[Messages], ConsumeOrderlyStatus]:
        def listener(messages: Messages) -> ConsumeOrderlyStatus:
            seen.append((name, messages[0].queue_offset, time.monotonic()))
            time.sleep(seconds)
            return SUCCESS

        return listener

    # It has enough in hand to go on for long.
    isolated = orderly_member(listener_of("isolated", 0.05), dsn=proxy.dsn, queue_lock_expiry=expiry)
    wait_until(lambda: len(isolated.assignment) == 1)
    send(broker, route, 100)
    wait_until(lambda: len(seen) >= 5)

    proxy.cut()
    cut_at = time.monotonic()
    orderly_member(listener_of("heir", 0.0), queue_lock_expiry=expiry)
    wait_until(lambda: seen[-1][:2] == ("heir", 99))
    proxy.restore()

    last_of_isolated = max(at for name, _, at in seen if name == "isolated")
    first_of_heir = min(at for name, _, at in seen if name == "heir")
    assert last_of_isolated < first_of_heir
    assert first_of_heir - cut_at >= expiry.total_seconds() / 2
    offsets_of_heir = [offset for name, offset, _ in seen if name == "heir"]
    assert offsets_of_heir == list(range(offsets_of_heir[0], 100))


def test_a_member_that_cannot_renew_for_a_while_goes_on_where_it_was(
    broker: Connection, proxy: Proxy, orderly_member: OrderlyMember
) -> None:
    """A member that cannot renew for a while continues at its offset.

    If there is no other member, the lock stays with its owner, expired or not.
    """
    route = topic(broker)
    witness = Witness()

    def slowly(_messages: Messages) -> ConsumeOrderlyStatus:
        time.sleep(0.005)  # there is always more to consume than there is time
        return SUCCESS

    witness.consume = slowly  # type: ignore[method-assign]
    orderly_member(witness, dsn=proxy.dsn, queue_lock_expiry=timedelta(seconds=1))
    send(broker, route, 500)
    witness.wait_for(20)

    proxy.cut()
    halted_at = stand_still(witness)
    assert halted_at < 500
    proxy.restore()

    witness.wait_for(500)


def stand_still(witness: Witness) -> int:
    """Wait until nothing more is consumed; returns the number of consumed messages."""
    while True:
        count = len(witness.bodies)
        since = time.monotonic()
        wait_until(lambda: len(witness.bodies) > count or time.monotonic() > since + 0.3)  # noqa: B023
        if len(witness.bodies) == count:
            return count


# -- failures -----------------------------------------------------------------------------------


def test_row_62_the_head_blocks_its_queue_and_no_other(broker: Connection, orderly_member: OrderlyMember) -> None:
    """Checklist row 62: a failing head blocks its own queue and no other."""
    route = topic(broker, queues=2)
    tries: list[int] = []
    may_pass = threading.Event()

    class Blocked(Witness):
        def consume(self, messages: Messages) -> ConsumeOrderlyStatus:
            if messages[0].body == b"0-2" and not may_pass.is_set():
                tries.append(messages[0].reconsume_times)
                return SUSPEND
            return SUCCESS

    witness = Blocked()
    orderly_member(witness, persist_consumer_offset_interval=SOON)
    send(broker, route, 50)
    wait_until(lambda: len(tries) >= 20 and committed(broker, route) == [2, 50])

    assert len(witness.bodies) == 52
    may_pass.set()
    witness.wait_for(100)
    assert tries == list(range(len(tries)))


def test_row_63_what_fails_too_often_is_a_dead_letter(broker: Connection, orderly_member: OrderlyMember) -> None:
    """Checklist row 63: with a maximum of two retries a message is dead after three deliveries.

    Then the queue continues.
    """
    route = topic(broker)
    script = Script(SUCCESS, *[lambda: 1 / 0] * 3)
    member = orderly_member(script, max_reconsume_times=2)
    append(broker, route, "good", "bad", "next")
    script.wait_for(5)
    member.shutdown()
    dispatch_all(broker)  # who has shut down may not have come to that

    assert script.calls == [[0], [1], [1], [1], [2]]
    dead = broker.execute(text("SELECT text, topic, exception, attempts FROM mqdb.dlq")).all()
    assert [tuple(row) for row in dead] == [("bad", "orders", "ZeroDivisionError", 3)]
    assert committed(broker, route) == [3]


def test_row_64_what_was_not_committed_comes_again_after_a_restart(
    broker: Connection, orderly_member: OrderlyMember
) -> None:
    """Checklist row 64: uncommitted messages are delivered again after a restart."""
    route = topic(broker)
    append(broker, route, *(f"{number}" for number in range(6)))
    script = Script(SUCCESS, COMMIT, *[SUCCESS] * 4, auto_commit=False)
    first = orderly_member(script)
    script.wait_for(6)
    first.shutdown()

    assert committed(broker, route) == [2]
    again = Script()
    orderly_member(again)
    again.wait_for(4)
    assert again.calls == [[2], [3], [4], [5]]


def test_a_commit_says_that_all_before_it_is_done(broker: Connection, orderly_member: OrderlyMember) -> None:
    """A commit covers all earlier messages. Ten messages form one piece of work, answered as documented."""
    route = topic(broker)
    gathered: list[bytes] = []

    def listener(messages: Messages, context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        context.auto_commit = False
        gathered.append(messages[0].body)
        return COMMIT if len(gathered) % 10 == 0 else SUCCESS

    member = orderly_member(listener)
    send(broker, route, 25)
    wait_until(lambda: len(gathered) == 25)
    member.shutdown()

    assert committed(broker, route) == [20]


def test_threads_are_those_of_the_consumer_and_not_of_its_queues(
    broker: Connection, orderly_member: OrderlyMember
) -> None:
    route = topic(broker, queues=16)
    witness = Witness()
    member = orderly_member(witness, consume_thread_nums=2)
    wait_until(lambda: len(member.assignment) == 16)
    send(broker, route, 20)

    witness.wait_for(320)
    assert sum("readers-consume" in thread.name for thread in threading.enumerate()) == 2
