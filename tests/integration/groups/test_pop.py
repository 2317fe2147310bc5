"""Pop: messages are in flight, acknowledged, delivered again, or moved to the dead letter queue."""

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from sqlalchemy import Connection, text

from mqdb.broker.consumers.groups import show_group, show_topics, update_group
from mqdb.broker.consumers.horizon import Horizon, SegmentBounds
from mqdb.broker.consumers.offset_reset import Boundary, reset_offsets
from mqdb.broker.consumers.offsets import begin_queues
from mqdb.broker.consumers.pop import (
    NOTHING_SEEN,
    Failed,
    Seen,
    ack,
    change_invisible,
    fail,
    forward_to_dlq,
    pop,
)
from mqdb.broker.topics.route import find_or_create_retry_topic
from mqdb.common.failure import Failure
from mqdb.common.group import AS_THE_GROUP_SAYS, FROM_FIRST_OFFSET, ConsumeFromWhere, ConsumeMode
from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import BrokerUnavailable, ParameterInvalid, ReceiptHandleInvalid
from mqdb.selector import compile_selector
from mqdb.selector.subscription import MessageFilter
from mqdb.selector.tags import parse_tag_expression
from mqdb.store.consumers import pop_batches
from mqdb.store.engine import driver, transaction
from mqdb.store.segments import segments
from tests.fixtures.broker import append, bodies, dispatch_all, topic
from tests.fixtures.log import small_segments
from tests.fixtures.popped_queues import GROUP, HALF_A_MINUTE, Queues, letters
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import is_blocked
from tests.fixtures.threads import Doing


def test_a_message_is_nobody_elses_until_its_time_has_passed(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues()
    orders.send("a", "b", "c")

    first, second = orders.pop(2), orders.pop()

    assert (bodies(first), bodies(second), orders.pop()) == (["a", "b"], ["c"], [])
    orders.pass_time(30)
    again = orders.pop()
    assert sorted(bodies(again)) == ["a", "b", "c"]
    assert {each.delivery_attempt for each in again} == {2}


def test_an_acknowledged_message_does_not_come_again(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues()
    orders.send("a", "b", "c")
    a, b, c = orders.pop()

    assert orders.ack(c, a) == [True, True]

    assert (orders.in_flight(), orders.rows()) == (1, 1)
    orders.pass_time(31)
    [again] = orders.pop()
    assert (again.body, again.queue_offset) == (b"b", b.queue_offset)
    assert orders.ack(again) == [True]
    assert (orders.in_flight(), orders.rows()) == (0, 0)


def test_the_handle_of_an_earlier_delivery_is_refused(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues()
    orders.send("a")
    [first] = orders.pop()
    assert orders.ack(first, first) == [True, True]
    assert orders.ack(first) == [True]  # as often as one likes, while its time runs
    orders.send("b")
    [second] = orders.pop()
    orders.pass_time(30)

    assert orders.ack(second) == [False]

    [again] = orders.pop()
    assert (orders.ack(second), orders.in_flight()) == ([False], 1)
    assert (orders.ack(again), orders.in_flight()) == ([True], 0)


@pytest.mark.parametrize("handle", ["", "x", "0" * 80, "0" * 79, "g" * 80, "f" * 80, "F" * 80, "\u0663" * 80])
def test_what_is_no_handle_is_refused(make_queues: Callable[..., Queues], handle: str) -> None:
    orders = make_queues()
    orders.send("a")
    [message] = orders.pop()

    assert ack(orders.broker, GROUP, [handle, str(message.receipt_handle)]) == [False, True]
    assert change_invisible(orders.broker, GROUP, [handle], HALF_A_MINUTE) == [None]


def test_a_handle_counts_in_its_group_and_its_history_only(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues()
    orders.send("a")
    [message] = orders.pop()
    update_group(orders.broker, "others", consume_mode=ConsumeMode.POP)
    handle = str(message.receipt_handle)
    of_another_history = f"{int(handle[:16], 16) ^ 1:016x}{handle[16:]}"

    assert ack(orders.broker, "others", [handle]) == [False]
    assert ack(orders.broker, GROUP, [of_another_history]) == [False]
    assert orders.in_flight() == 1


def test_a_longer_time_keeps_the_message(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues()
    orders.send("a", "b")
    a, _ = orders.pop()
    orders.pass_time(20)

    [longer] = change_invisible(orders.broker, GROUP, [str(a.receipt_handle)], timedelta(minutes=5))

    orders.pass_time(15)
    assert bodies(orders.pop()) == ["b"]
    assert orders.ack(a) == [False]  # its own time has passed
    assert (ack(orders.broker, GROUP, [str(longer)]), orders.in_flight()) == ([True], 1)


def test_the_handle_from_before_counts_while_its_own_time_runs(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues()
    orders.send("a")
    [message] = orders.pop()
    change_invisible(orders.broker, GROUP, [str(message.receipt_handle)], timedelta(minutes=5))

    assert (orders.ack(message), orders.in_flight()) == ([True], 0)


def test_a_failed_message_comes_again_when_it_is_to(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues()
    orders.send("a", "b")
    a, _ = orders.pop()

    [now] = change_invisible(orders.broker, GROUP, [str(a.receipt_handle)], timedelta(0))

    assert now is not None
    [again] = orders.pop()
    assert (again.body, again.delivery_attempt) == (b"a", 2)
    assert change_invisible(orders.broker, GROUP, [now], timedelta(0)) == [None]


def test_messages_of_one_pop_that_get_the_same_time_share_a_row(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues()
    orders.send(*"abcd")
    handles = [str(each.receipt_handle) for each in orders.pop()]

    longer = change_invisible(orders.broker, GROUP, handles[:2], timedelta(minutes=1))
    longer += change_invisible(orders.broker, GROUP, handles[2:3], timedelta(minutes=1))

    assert (orders.rows(), orders.in_flight()) == (2, 4)
    assert ack(orders.broker, GROUP, [str(each) for each in (*longer, handles[3])]) == [True] * 4
    assert orders.rows() == 0


def test_a_pop_takes_of_several_queues(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues(queues=3)
    for queue_id, texts in ((0, "ab"), (2, "cd")):
        orders.send(*texts, queue_id=queue_id)

    assert bodies(orders.pop(3)) == ["a", "b", "c"]
    assert bodies(orders.pop()) == ["d"]
    assert orders.in_flight() == 4


def test_more_than_64_messages_come_in_several_rows(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues()
    texts = [str(n) for n in range(150)]
    orders.send(*texts)

    popped = orders.pop(150)

    assert bodies(popped) == texts
    assert (orders.rows(), orders.in_flight()) == (3, 150)
    orders.pass_time(30)
    assert len(orders.pop(100)) == 100
    assert len(orders.pop(150)) == 50
    assert orders.in_flight() == 150


@pytest.mark.parametrize("count", [1, 2, 62, 63, 64, 65, 127, 128])
def test_any_number_of_messages_is_popped_and_acknowledged(make_queues: Callable[..., Queues], count: int) -> None:
    orders = make_queues()
    orders.send(*(str(n) for n in range(count)))

    messages = orders.pop(1_024)
    assert bodies(messages) == [str(n) for n in range(count)]
    assert orders.ack(*messages[1:]) == [True] * (count - 1)
    assert orders.in_flight() == 1
    orders.pass_time(30)
    [first] = orders.pop(1_024)
    assert orders.ack(first) == [True]
    assert orders.rows() == 0


def test_a_part_of_what_is_due_leaves_the_rest(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues()
    orders.send(*"abcde")
    orders.pop()
    orders.pass_time(30)

    parts = [orders.pop(2), orders.pop(2), orders.pop(2)]

    assert [bodies(part) for part in parts] == [["a", "b"], ["c", "d"], ["e"]]
    assert all(orders.ack(*part) == [True] * len(part) for part in parts)
    assert orders.rows() == 0


@pytest.mark.parametrize(
    "filter", [parse_tag_expression("paid"), compile_selector("TAGS = 'paid'")], ids=["tags", "SQL92"]
)
def test_a_filter_passes_over_the_others(make_queues: Callable[..., Queues], filter: MessageFilter) -> None:
    orders = make_queues()
    for n in range(6):
        orders.send(str(n), tag="paid" if n % 2 else "open")

    popped = orders.pop(filter=filter)

    assert bodies(popped) == ["1", "3", "5"]
    assert orders.ack(popped[1]) == [True]
    orders.pass_time(30)
    assert bodies(orders.pop(filter=filter)) == ["1", "5"]
    assert show_group(orders.broker, GROUP).progress[0].next_offset == 6


def test_a_pop_looks_on_while_nothing_matches(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues()
    orders.send(*(str(n) for n in range(2_000)), tag="open")
    orders.send("wanted", tag="paid")

    assert bodies(orders.pop(filter=compile_selector("TAGS = 'paid'"))) == ["wanted"]


def test_two_tags_with_one_code_are_told_apart(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues()
    orders.send("1", tag="Aa")
    orders.send("2", tag="BB")  # the same hash

    assert bodies(orders.pop(filter=parse_tag_expression("BB"))) == ["2"]
    assert orders.in_flight() == 1


def test_a_message_that_nobody_acknowledges_ends_in_the_dead_letter_queue(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues(retry_max_times=2)
    orders.send("a", "b")
    for attempt in (1, 2, 3):
        popped = orders.pop()
        assert {each.delivery_attempt for each in popped} == {attempt}
        orders.ack(*(each for each in popped if each.body == b"b"))
        orders.pass_time(30)

    assert (orders.pop(), orders.in_flight()) == ([], 0)

    dispatch_all(orders.broker)
    assert letters(orders.broker) == [("a", "TIMEOUT", 3)]


def test_a_member_may_give_a_message_up_at_once(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues()
    orders.send("a", "b")
    a, b = orders.pop()
    failure = Failure("ValueError", "no such account", "", "w1", datetime.now(UTC))

    forward_to_dlq(orders.broker, GROUP, [a], failure)

    dispatch_all(orders.broker)
    assert letters(orders.broker) == [("a", "ValueError", 1)]
    assert orders.in_flight() == 1
    orders.pass_time(30)
    with pytest.raises(ReceiptHandleInvalid):
        forward_to_dlq(orders.broker, GROUP, [b], failure)
    assert (dispatch_all(orders.broker), orders.in_flight()) == (0, 1)


def test_a_queue_in_order_waits_for_its_acks(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues(queues=2, orderly=True)
    orders.send("a", "b", "c")
    orders.send("x", queue_id=1)

    first = orders.pop(2)
    assert bodies(first) == ["a", "b"]
    assert bodies(orders.pop()) == ["x"]
    orders.ack(first[1])
    assert orders.pop() == []
    orders.ack(first[0])
    assert bodies(orders.pop()) == ["c"]


def test_nothing_overtakes_a_message_that_comes_again_in_order(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues(orderly=True)
    orders.send(*"abcd")
    a, b, _ = orders.pop(3)
    change_invisible(orders.broker, GROUP, [str(a.receipt_handle)], timedelta(minutes=1))
    orders.ack(b)

    orders.pass_time(30)  # c is due, a is not

    assert orders.pop() == []
    orders.pass_time(30)
    again = orders.pop(1)
    assert bodies(again) == ["a"]
    assert orders.pop() == []
    orders.ack(*again)
    again = orders.pop()
    assert bodies(again) == ["c"]
    orders.ack(*again)
    assert bodies(orders.pop()) == ["d"]


def test_what_retention_has_dropped_is_said(
    make_queues: Callable[..., Queues], caplog: pytest.LogCaptureFixture
) -> None:
    orders = make_queues()
    orders.send("a", "b")
    orders.pop()
    orders.broker.execute(text("UPDATE mqdb.queue SET base_offset = 1"))
    orders.pass_time(30)

    assert bodies(orders.pop()) == ["b"]
    assert orders.in_flight() == 1
    assert "retention dropped a message in flight of group workers" in caplog.text


def test_a_pop_without_messages_says_when_one_comes_again(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues()
    assert orders.find().seconds_to_next is None
    orders.send("a")
    orders.pop()
    orders.pass_time(10)

    assert orders.find().seconds_to_next == 20


def test_a_pop_that_is_rolled_back_has_not_happened(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues()
    orders.send("a")

    def pop_and_fail() -> None:
        with transaction(orders.broker):
            assert bodies(orders.pop()) == ["a"]
            raise RuntimeError

    with pytest.raises(RuntimeError):
        pop_and_fail()

    assert bodies(orders.pop()) == ["a"]
    assert orders.in_flight() == 1


def test_a_queue_that_lags_behind_the_window_loses_nothing(make_queues: Callable[..., Queues]) -> None:
    """A queue behind the window loses nothing.

    A reader remembers the segments of its last reads, and the messages of another queue may lie before them.
    """
    orders = make_queues(queues=2)
    small_segments(driver(orders.broker), 10, ahead=8)
    orders.send("early-0", "early-1", "early-2", queue_id=1)
    orders.send(*(f"a{n}" for n in range(40)), queue_id=0)
    newest = orders.broker.scalar(text("SELECT max(segment) FROM mqdb.queue_run"))
    orders.send("late", queue_id=1)
    past_all = "UPDATE mqdb.consumer_offset SET next_offset = 40 WHERE queue_key = %s"
    driver(orders.broker).execute(past_all, [orders.route.queue_keys[0]])
    bounds = {number: SegmentBounds(lowest, past) for number, lowest, past in segments.bounds(orders.broker)}
    seen = Seen(Horizon(newest, bounds), frozenset({newest}))
    received: list[str] = []
    while (found := orders.find(32, seen=seen)).messages:
        received += bodies(found.messages)
        assert all(orders.ack(*found.messages))

    assert received == ["early-0", "early-1", "early-2", "late"]


def test_an_ack_finds_a_message_whose_time_is_being_changed(
    make_queues: Callable[..., Queues], database: Database
) -> None:
    orders = make_queues()
    orders.send("a")
    handle = str(orders.pop()[0].receipt_handle)
    changing = database.connect(autocommit=False)
    changing.execute("SELECT mqdb.change_invisible(%s, %s, '5 minutes')", [GROUP, [handle]])
    acking = Doing(lambda: ack(orders.broker, GROUP, [handle]))
    waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"
    wait_until(lambda: database.rows(waits, database.name))

    changing.commit()

    assert acking.result() == [True]
    assert orders.in_flight() == 0


def test_a_letter_that_cannot_be_buried_keeps_nobody_from_popping(
    make_queues: Callable[..., Queues], caplog: pytest.LogCaptureFixture
) -> None:
    orders = make_queues(retry_max_times=0)
    orders.send("a")
    orders.pop()
    orders.pass_time(30)
    find_or_create_retry_topic(orders.broker, GROUP)
    orders.broker.execute(text("UPDATE mqdb.topic SET perm = 4 WHERE topic = '%RETRY%workers'"))
    orders.send("b")

    assert bodies(orders.pop()) == ["b"]
    assert "could not append 1 messages to the DLQ of group workers" in caplog.text
    orders.broker.execute(text("UPDATE mqdb.topic SET perm = 6 WHERE topic = '%RETRY%workers'"))
    orders.pass_time(31)
    orders.pop()
    dispatch_all(orders.broker)
    assert ("a", "TIMEOUT", 2) in letters(orders.broker)


def test_a_delivery_that_nobody_has_read_is_not_counted(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues()
    orders.send("a")
    for _ in range(3):
        [message] = orders.pop()
        assert message.delivery_attempt == 1
        handles = [str(message.receipt_handle)]
        for _ in range(2):  # the second time by a client that has not heard the answer
            assert change_invisible(orders.broker, GROUP, handles, timedelta(0), is_unread=True) != [None]


def test_the_lag_tells_of_messages_in_flight(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues(queues=2)
    orders.send("a", "b", "c")
    orders.pop(2)

    [lag] = show_topics(orders.broker, GROUP)

    assert (lag.lag, lag.in_flight, lag.committed, lag.unowned_queues) == (1, 2, 2, 0)


def test_a_reset_forgets_what_is_in_flight(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues()
    orders.send("a", "b", "c")
    orders.ack(orders.pop(1)[0])
    [b] = orders.pop(1)

    reset_offsets(orders.broker, GROUP, "orders", Boundary.EARLIEST)

    assert (orders.in_flight(), orders.rows()) == (0, 0)
    assert bodies(orders.pop()) == ["a", "b", "c"]
    assert orders.ack(b) == [True]  # it counts, for nothing
    assert orders.in_flight() == 3


def test_a_queue_of_which_retention_has_dropped_all_is_passed_by(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues()
    orders.send("a", "b")
    orders.broker.execute(text("UPDATE mqdb.queue SET base_offset = 2"))

    assert orders.pop() == []
    orders.send("c")
    assert bodies(orders.pop()) == ["c"]


def test_messages_of_several_segments(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues(queues=2)
    small_segments(driver(orders.broker), 10, ahead=20)
    seen = NOTHING_SEEN
    for n in range(30):
        orders.send(*(f"{n}-{each}" for each in range(5)), queue_id=n % 2)
    assert (orders.broker.scalar(text("SELECT max(segment) FROM mqdb.queue_run")) or 0) > 10
    received: list[str] = []
    while (found := orders.find(7, seen=seen)).messages:
        seen = found.seen
        received += bodies(found.messages)
        assert all(orders.ack(*found.messages))

    assert sorted(received) == sorted(f"{n}-{each}" for n in range(30) for each in range(5))
    assert (orders.in_flight(), orders.rows()) == (0, 0)


def test_only_a_part_of_another_transaction_waits_for_the_disk(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues()
    orders.send("a", "b")
    durability = text("SELECT current_setting('synchronous_commit')")
    usual = orders.broker.scalar(durability)
    handles = [str(each.receipt_handle) for each in orders.pop()]

    with transaction(orders.broker):
        driver(orders.broker).execute("SELECT mqdb.ack(%s, %s, false)", [GROUP, handles[:1]])
        assert orders.broker.scalar(durability) == "off"
    with transaction(orders.broker):
        ack(orders.broker, GROUP, handles)
        orders.pop()
        assert orders.broker.scalar(durability) == usual
    assert orders.broker.scalar(durability) == usual


def test_a_group_says_how_long_failed_messages_wait(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues()
    orders.send("a")
    update_group(orders.broker, GROUP, retry_delays=[timedelta(seconds=1), timedelta(seconds=7)])
    failure = Failure.later("w1", datetime.now(UTC))

    for seconds in (1, 7, 7):
        [message] = orders.pop()
        fail(orders.broker, GROUP, [Failed(message, failure)])
        orders.pass_time(seconds - 0.1)
        assert orders.pop() == []
        orders.pass_time(0.1)


@pytest.mark.parametrize("where", [ConsumeFromWhere.FIRST_OFFSET, ConsumeFromWhere.LAST_OFFSET])
def test_a_group_says_where_it_begins(broker: Connection, where: ConsumeFromWhere) -> None:
    route = topic(broker)
    append(broker, route, "a", "b")
    dispatch_all(broker)
    update_group(broker, GROUP, consume_from_where=where)

    begin_queues(broker, GROUP, route.queue_keys, AS_THE_GROUP_SAYS)

    [progress] = show_group(broker, GROUP).progress
    assert progress.lag == (2 if where is ConsumeFromWhere.FIRST_OFFSET else 0)


def test_nothing_begins_in_a_topic_that_is_being_deleted(broker: Connection, database: Database) -> None:
    route = topic(broker)
    update_group(broker, GROUP)
    other = database.connect(autocommit=False)
    other.execute("DELETE FROM mqdb.topic WHERE topic = 'orders'")

    beginning = Doing(lambda: begin_queues(broker, GROUP, route.queue_keys, FROM_FIRST_OFFSET))

    wait_until(lambda: is_blocked(database, driver(broker).info.backend_pid))
    other.commit()
    beginning.result()
    assert show_group(broker, GROUP).progress == []


def test_messages_are_returned_if_an_error_comes_after_them(
    make_queues: Callable[..., Queues], monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = make_queues()
    orders.send("a")
    monkeypatch.setattr(random, "random", lambda: 1.0)  # new messages first

    def lose(*_: object) -> None:
        raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(pop_batches, "due", lose)

    assert bodies(orders.pop()) == ["a"]
    with pytest.raises(BrokerUnavailable):
        orders.pop()


def test_an_old_snapshot_makes_a_pop_no_slower(make_queues: Callable[..., Queues], database: Database) -> None:
    """An old snapshot, which keeps dead rows, makes a pop no slower.

    A pop reads no dead rows: it reads one commit of the cursor, and the rows that have become due since the last pop.
    """
    orders = make_queues()
    orders.send(*(str(n) for n in range(120)))
    holder = database.connect(autocommit=False)
    holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    holder.execute("SELECT 1 FROM mqdb.pop_batch")
    seen = NOTHING_SEEN

    def pop_and_ack() -> int:
        """Pop and acknowledge one message; returns the number of buffers read."""
        nonlocal seen
        before = buffers(orders.broker)
        found = orders.find(1, seen=seen)
        seen = found.seen
        orders.ack(*found.messages)
        return buffers(orders.broker) - before

    first = [pop_and_ack() for _ in range(20)]
    orders.pass_time(31)  # all of it would be due
    rest = [pop_and_ack() for _ in range(80)]

    assert sorted(rest)[40] < 1.5 * sorted(first)[10]
    holder.rollback()


def buffers(broker: Connection) -> int:
    """Shared buffer hits in this database, over all sessions."""
    broker.execute(text("SELECT pg_stat_force_next_flush()"))
    broker.execute(text("SELECT pg_stat_clear_snapshot()"))
    return (
        broker.scalar(text("SELECT blks_hit + blks_read FROM pg_stat_database WHERE datname = current_database()")) or 0
    )


@pytest.mark.parametrize(("name", "value"), [("limit", 0), ("limit", 1_025)])
def test_bad_limits_are_refused(make_queues: Callable[..., Queues], name: str, value: int) -> None:
    with pytest.raises(ParameterInvalid, match=name):
        make_queues().pop(value)


@pytest.mark.parametrize("invisible", [timedelta(0), timedelta(hours=12, microseconds=1), timedelta(days=-1)])
def test_bad_times_are_refused(make_queues: Callable[..., Queues], invisible: timedelta) -> None:
    orders = make_queues()
    orders.send("a")
    queue = {orders.route.queue_keys[0]: MessageQueue("orders", "broker-a", 0)}

    with pytest.raises(ParameterInvalid, match=r"must be from 00:00:00\.001 to 12:00:00"):
        pop(orders.broker, GROUP, "w1", queue, limit=1, invisible=invisible)
    assert bodies(orders.pop()) == ["a"]


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_and_nothing_is_had_twice_at_a_time(make_queues: Callable[..., Queues], seed: int) -> None:
    """No message is lost, or held by two workers at a time.

    Workers pop, acknowledge, fail, forget and come late in random turns, while messages arrive.
    """
    chance = random.Random(seed)
    orders = make_queues(queues=3, retry_max_times=10**6)
    held: dict[str, tuple[ReceivedMessage, float]] = {}
    sent: list[str] = []
    acknowledged: set[str] = set()
    now = 0.0
    for _ in range(120):
        action = chance.choice(["send", "pop", "pop", "ack", "change", "wait"])
        if action == "send":
            texts = [f"m{len(sent) + n}" for n in range(chance.randint(1, 40))]
            orders.send(*texts, queue_id=chance.randrange(3))
            sent += texts
        elif action == "pop":
            for message in orders.pop(chance.choice([1, 7, 32, 100])):
                [body] = bodies([message])
                assert body not in acknowledged, f"seed {seed}: {body} comes after its ack"
                assert body not in held or held[body][1] <= now, f"seed {seed}: two have {body}"
                held[body] = message, now + 30
        elif action == "ack":
            some = chance.sample(sorted(held), min(len(held), chance.randint(0, 50)))
            answers = orders.ack(*(held[body][0] for body in some))
            for body, is_valid in zip(some, answers, strict=True):
                assert is_valid == (held.pop(body)[1] > now), f"seed {seed}: the ack of {body}"
                if is_valid:
                    acknowledged.add(body)
        elif action == "change":
            some = chance.sample(sorted(held), min(len(held), chance.randint(0, 10)))
            seconds = chance.choice([0, 5, 60])
            handles = [str(held[body][0].receipt_handle) for body in some]
            changed = change_invisible(orders.broker, GROUP, handles, timedelta(seconds=seconds))
            for body, handle in zip(some, changed, strict=True):
                message, until = held.pop(body)
                assert (handle is not None) == (until > now), f"seed {seed}: the change of {body}"
                if handle is not None:
                    message.popped(handle)
                    held[body] = message, now + seconds
        else:
            orders.pass_time(seconds := chance.choice([1, 10, 31]))
            now += seconds
    orders.pass_time(61)
    while popped := orders.pop(100):
        acknowledged |= set(bodies(popped))
        assert all(orders.ack(*popped))
    assert acknowledged == set(sent), f"seed {seed}"
    assert (orders.rows(), orders.in_flight()) == (0, 0)
