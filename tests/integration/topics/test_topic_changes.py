"""Topics that get more queues, fewer queues, or another permission: the effects on messages, locks and readers."""

import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.broker.consumers.groups import update_group
from mqdb.broker.consumers.offsets import commit_offsets, take_queues
from mqdb.broker.topics import topics as admin
from mqdb.broker.topics.route import find_or_create_reply_topic
from mqdb.broker.topics.topics import Unread, unread_messages, update_topic
from mqdb.common.group import FROM_FIRST_OFFSET, ConsumeFromWhere
from mqdb.common.message import Message
from mqdb.common.topic import MAX_QUEUE_NUMS, MessageType, Perm, TopicConfig, reply_topic
from mqdb.errors import NameInvalid, ParameterInvalid, TopicNotFound
from mqdb.store.clients.clients import notify_group
from mqdb.store.engine import transaction
from mqdb.store.topics.topic_uses import TopicUses
from mqdb.store.topics.topics import find_topic
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.consumers import Inbox, Member
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import link_of, producer_of
from tests.fixtures.threads import Doing
from tests.fixtures.variants import case, usually

SOON = timedelta(milliseconds=20)
LAST = ConsumeFromWhere.LAST_OFFSET


@pytest.fixture
def second(engine: Engine) -> Iterator[Connection]:
    """Another session."""
    with engine.connect() as connection:
        yield connection


def queue_rows(connection: Connection) -> list[tuple[int, int]]:
    """Number and key of each row for `orders` in mqdb.queue, including rows beyond its queue counts."""
    statement = """SELECT queue_id, queue_key FROM mqdb.queue JOIN mqdb.topic USING (topic_id)
                   WHERE topic = 'orders' ORDER BY queue_id, queue_key"""
    return [(row.queue_id, row.queue_key) for row in connection.execute(text(statement))]


def read_to_the_end(connection: Connection, group: str, *queue_keys: int) -> None:
    """A member of the group takes these queues and consumes all their messages."""
    update_group(connection, group)
    taken = take_queues(connection, group, "reader", queue_keys, FROM_FIRST_OFFSET, force=True)
    ends = {each.queue_key: each.max_offset for each in _ends(connection)}
    assert commit_offsets(connection, group, [one._replace(next_offset=ends[one.queue_key]) for one in taken]) == []


def _ends(connection: Connection) -> list[Any]:
    statement = """SELECT queue_key, coalesce(max(queue_offset) + 1, 0) AS max_offset
                   FROM mqdb.queue LEFT JOIN mqdb.consume_queue USING (queue_key) GROUP BY queue_key"""
    return list(connection.execute(text(statement)))


# -- what changes, and what stays -------------------------------------------------------------


def test_what_is_not_given_stays_as_it_is(broker: Connection) -> None:
    before = admin.create_topic(
        broker, TopicConfig("orders", 4, 2, Perm.READ, order=True, message_type=MessageType.FIFO)
    )

    assert update_topic(broker, "orders", perm=6).config == TopicConfig("orders", 4, 2, Perm(6), True, MessageType.FIFO)
    assert update_topic(broker, "orders", write_queue_nums=3).config.write_queue_nums == 3
    assert update_topic(broker, "orders", order=False).config.order is False
    after = update_topic(broker, "orders", message_type=MessageType.DELAY)

    assert after.config == TopicConfig("orders", 4, 3, Perm(6), False, MessageType.DELAY)
    assert (after.topic_id, after.queue_keys) == (before.topic_id, before.queue_keys)


def test_the_same_settings_once_more_change_nothing(broker: Connection) -> None:
    before = topic(broker, queues=4)

    assert update_topic(broker, "orders", read_queue_nums=4, write_queue_nums=4) == before


def test_more_queues_are_added_behind_those_that_are_there(broker: Connection) -> None:
    before = topic(broker, queues=4)

    after = update_topic(broker, "orders", read_queue_nums=16, write_queue_nums=16)

    assert after.queue_keys[:4] == before.queue_keys
    assert [queue_id for queue_id, _ in queue_rows(broker)] == list(range(16))
    assert find_topic(broker, "orders") == after


def test_fewer_queues_are_left_out_with_their_messages_and_come_back_with_them(broker: Connection) -> None:
    before = topic(broker, queues=4)
    append(broker, before, "kept", queue_id=3)
    dispatch_all(broker)
    read_to_the_end(broker, "billing", *before.queue_keys)

    fewer = update_topic(broker, "orders", read_queue_nums=2, write_queue_nums=2)
    assert (fewer.read_queue_keys, fewer.write_queue_keys) == (before.queue_keys[:2], before.queue_keys[:2])
    assert [stats.max_offset for stats in admin.topic_stats(broker, "orders")] == [0, 0, 0, 1]

    again = update_topic(broker, "orders", read_queue_nums=5, write_queue_nums=5)
    assert again.queue_keys[:4] == before.queue_keys
    progress = admin.group_progress(broker, "orders")
    assert [(each.queue_id, each.next_offset) for each in progress] == [(0, 0), (1, 0), (2, 0), (3, 1)]


def test_the_count_to_write_to_may_be_lowered_before_the_one_to_read_from(broker: Connection) -> None:
    before = topic(broker, queues=4)

    written = update_topic(broker, "orders", write_queue_nums=1)

    assert (written.write_queue_keys, written.read_queue_keys) == (before.queue_keys[:1], before.queue_keys)


@pytest.mark.parametrize("name", ["%RETRY%billing", "%DLQ%billing"])
def test_the_topics_of_groups_can_be_changed(broker: Connection, name: str) -> None:
    topic(broker, name)

    changed = update_topic(broker, name, read_queue_nums=3, write_queue_nums=2, perm=Perm.READ)

    assert changed.config == TopicConfig(name, 3, 2, Perm.READ)


# -- what is refused --------------------------------------------------------------------------


def test_a_topic_that_does_not_exist_is_not_made(broker: Connection) -> None:
    with pytest.raises(TopicNotFound):
        update_topic(broker, "orders", read_queue_nums=2)

    assert find_topic(broker, "orders") is None


def test_nothing_to_change_is_refused_with_what_there_is(broker: Connection) -> None:
    topic(broker)

    with pytest.raises(ParameterInvalid, match="read_queue_nums, write_queue_nums, perm, order, message_type"):
        update_topic(broker, "orders")


def test_a_value_out_of_bounds_changes_nothing(broker: Connection) -> None:
    before = topic(broker, queues=2)
    changes: list[dict[str, Any]] = [
        {"read_queue_nums": 0},
        {"write_queue_nums": MAX_QUEUE_NUMS + 1},
        {"read_queue_nums": "8"},
        {"perm": 8},
        {"perm": -1},
        {"message_type": "BIG"},
    ]
    for change in changes:
        with case(change), pytest.raises(ParameterInvalid):
            update_topic(broker, "orders", **({"order": True, "write_queue_nums": 4} | change))

        assert find_topic(broker, "orders") == before, change


@pytest.mark.parametrize("name", ["TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_anything"])
def test_system_topics_stay_as_they_are(broker: Connection, name: str) -> None:
    before = find_topic(broker, name)

    with pytest.raises(NameInvalid, match="belongs to the broker"):
        update_topic(broker, name, read_queue_nums=32, write_queue_nums=32)

    assert find_topic(broker, name) == before


def test_the_topic_that_brings_replies_stays_as_it_is(broker: Connection) -> None:
    """The reply topic cannot be changed.

    Running requesters would not look for replies in other queues. RocketMQ counts it among its system topics.
    """
    before = find_or_create_reply_topic(broker, "DefaultCluster")
    topic(broker, reply_topic("another"))

    with pytest.raises(NameInvalid, match="brings replies"):
        update_topic(broker, before.config.name, read_queue_nums=4, write_queue_nums=4)

    assert find_topic(broker, before.config.name) == before
    assert update_topic(broker, reply_topic("another"), perm=4).config.perm == Perm.READ


# -- what is hidden ---------------------------------------------------------------------------


def test_messages_in_queues_that_are_no_longer_read_are_counted_for_each_group(broker: Connection) -> None:
    route = topic(broker, queues=3)
    append(broker, route, "a", queue_id=0)
    append(broker, route, "b", "c", queue_id=1)
    append(broker, route, "d", queue_id=2)
    dispatch_all(broker)
    assert unread_messages(broker, "orders") == []

    update_topic(broker, "orders", read_queue_nums=1)
    assert unread_messages(broker, "orders") == [Unread(1, None, 2), Unread(2, None, 1)]

    read_to_the_end(broker, "done", *route.queue_keys)
    read_to_the_end(broker, "half", route.queue_keys[1])
    assert unread_messages(broker, "orders") == [Unread(2, "half", 1)]

    update_topic(broker, "orders", read_queue_nums=3)
    assert unread_messages(broker, "orders") == []
    with pytest.raises(TopicNotFound):
        unread_messages(broker, "nowhere")


def test_a_group_that_has_not_noticed_a_queue_has_not_consumed_what_lies_there(broker: Connection) -> None:
    read_to_the_end(broker, "billing", *topic(broker).queue_keys)

    wider = update_topic(broker, "orders", write_queue_nums=2)
    append(broker, wider, "a", queue_id=1)
    dispatch_all(broker)

    assert unread_messages(broker, "orders") == [Unread(1, "billing", 1)]


# -- at the same time -------------------------------------------------------------------------


def test_of_two_changes_at_once_both_last(broker: Connection, second: Connection) -> None:
    topic(broker, queues=2)

    with transaction(broker):
        update_topic(broker, "orders", read_queue_nums=4)
        waiting = Doing(lambda: update_topic(second, "orders", write_queue_nums=6, perm=4))
        _wait_for_one_that_is_blocked(broker)
    route = waiting.result()

    assert route.config == TopicConfig("orders", 4, 6, Perm.READ)
    assert find_topic(broker, "orders") == route
    assert [queue_id for queue_id, _ in queue_rows(broker)] == list(range(6))


def test_a_topic_that_is_deleted_meanwhile_is_not_found(broker: Connection, second: Connection) -> None:
    topic(broker, queues=2)

    with transaction(broker):
        admin.delete_topic(broker, "orders")
        waiting = Doing(lambda: update_topic(second, "orders", read_queue_nums=4))
        _wait_for_one_that_is_blocked(broker)

    assert isinstance(waiting.error(), TopicNotFound)
    assert queue_rows(broker) == []


def test_a_topic_that_is_changed_meanwhile_is_deleted_with_all_its_queues(
    broker: Connection, second: Connection
) -> None:
    topic(broker, queues=2)

    with transaction(broker):
        update_topic(broker, "orders", read_queue_nums=4)
        deleting: Doing[TopicUses | None] = Doing(lambda: admin.delete_topic(second, "orders"))
        _wait_for_one_that_is_blocked(broker)

    assert deleting.result()
    assert (
        broker.scalar(text("SELECT count(*) FROM mqdb.queue LEFT JOIN mqdb.topic USING (topic_id) WHERE topic IS NULL"))
        == 0
    )
    assert find_topic(broker, "orders") is None


def test_nobody_who_sends_or_consumes_waits_for_a_change(broker: Connection, second: Connection) -> None:
    route = topic(broker, queues=2)
    second.execute(text("SET lock_timeout = '100ms'"))

    with transaction(broker):
        update_topic(broker, "orders", read_queue_nums=4, write_queue_nums=4)
        append(second, route, "a")
        dispatch_all(second)
        read_to_the_end(second, "billing", *route.queue_keys)
        assert find_topic(second, "orders") == route

    assert [each.next_offset for each in admin.group_progress(broker, "orders")] == [1, 0]


def _wait_for_one_that_is_blocked(connection: Connection) -> None:
    blocked = text(
        """SELECT count(*) FROM pg_stat_activity
           WHERE datname = current_database() AND pg_backend_pid() = ANY (pg_blocking_pids(pid))"""
    )
    wait_until(lambda: connection.scalar(blocked) == 1)


# -- producers and consumers that run ---------------------------------------------------------


def test_a_producer_sends_to_the_new_queues_once_its_routes_are_refreshed(
    broker: Connection, database: Database
) -> None:
    topic(broker, queues=2)
    with producer_of(database.dsn) as producer:

        def queues_of(count: int) -> set[int]:
            return {producer.send(Message("orders", f"{number}")).queue.queue_id for number in range(count)}

        assert queues_of(6) == {0, 1}
        update_topic(broker, "orders", read_queue_nums=6, write_queue_nums=6)
        assert queues_of(6) == {0, 1}

        link_of(producer).instance.routes.refresh()  # as its heartbeat does every 30 s
        assert queues_of(18) == set(range(6))

        update_topic(broker, "orders", write_queue_nums=1)
        link_of(producer).instance.routes.refresh()
        assert queues_of(6) == {0}


@pytest.mark.parametrize("where", usually(LAST, of=[LAST, ConsumeFromWhere.FIRST_OFFSET]))
def test_what_is_sent_to_new_queues_before_the_consumer_sees_them_is_consumed(
    broker: Connection, member: Member, where: ConsumeFromWhere
) -> None:
    route = topic(broker, queues=2)
    inbox = Inbox()
    consumer = member(inbox, consume_from_where=where)  # it looks by itself every 20 s only
    append(broker, route, "old")
    inbox.wait_for(1)

    wider = update_topic(broker, "orders", read_queue_nums=4, write_queue_nums=4)
    for queue_id in (2, 3):
        append(broker, wider, *(f"{queue_id}-{number}" for number in range(5)), queue_id=queue_id)
    dispatch_all(broker)
    assert len(consumer.assignment) == 2
    notify_group(broker, "readers")
    inbox.wait_for(11)

    wait_until(lambda: [queue.queue_id for queue in consumer.assignment] == [0, 1, 2, 3])
    assert sorted(inbox.bodies) == sorted(
        ["old", *(f"{queue_id}-{number}" for queue_id in (2, 3) for number in range(5))]
    )


def test_what_is_sent_to_new_queues_while_no_consumer_runs_is_consumed(broker: Connection, member: Member) -> None:
    route = topic(broker)
    before, after = Inbox(), Inbox()
    first = member(before, consume_from_where=LAST)
    append(broker, route, "old")
    before.wait_for(1)
    first.shutdown()

    wider = update_topic(broker, "orders", read_queue_nums=2, write_queue_nums=2)
    append(broker, wider, "new", queue_id=1)
    dispatch_all(broker)
    member(after, consume_from_where=LAST)
    after.wait_for(1)

    assert after.bodies == ["new"]


def test_queues_that_come_back_are_read_from_where_the_group_has_come(broker: Connection, member: Member) -> None:
    route = topic(broker, queues=2)
    inbox = Inbox()
    consumer = member(inbox, consume_from_where=LAST, rebalance_interval=SOON)
    append(broker, route, "read", queue_id=1)
    inbox.wait_for(1)

    update_topic(broker, "orders", read_queue_nums=1)
    wait_until(lambda: [queue.queue_id for queue in consumer.assignment] == [0])
    append(broker, route, "hidden", queue_id=1)
    dispatch_all(broker)
    wait_until(lambda: unread_messages(broker, "orders") == [Unread(1, "readers", 1)])
    update_topic(broker, "orders", read_queue_nums=2)
    inbox.wait_for(2)

    assert inbox.bodies == ["read", "hidden"]


# -- anything, at once ------------------------------------------------------------------------


def test_whatever_is_changed_at_once_no_queue_is_doubled_no_setting_lost_and_no_message_missed(
    broker: Connection, engine: Engine, database: Database, member: Member
) -> None:
    """Concurrent changes duplicate no queue, lose no setting and miss no message.

    Four sessions change one setting each, two producers send, and two members of a group that began at the end read.
    MQDB_TOPIC_SEED repeats the changes of an earlier run; each run prints its seed.
    """
    seed = int(os.environ.get("MQDB_TOPIC_SEED", random.randrange(2**32)))
    sys.stdout.write(f"seed {seed}\n")
    keys = topic(broker, queues=2).queue_keys
    inbox = Inbox()
    members = [member(inbox, consume_from_where=LAST, rebalance_interval=SOON) for _ in range(2)]
    wait_until(lambda: sum(len(each.assignment) for each in members) == 2)
    values: dict[str, Callable[[random.Random], Any]] = {
        "read_queue_nums": lambda chance: chance.randint(1, 12),
        "write_queue_nums": lambda chance: chance.randint(1, 12),
        "perm": lambda chance: chance.choice((6, 7)),
        "order": lambda chance: chance.random() < 0.5,
    }
    chosen = {
        setting: [value(chance) for _ in range(12)]
        for setting, value in values.items()
        for chance in [random.Random(f"{seed} {setting}")]
    }
    are_over = threading.Event()

    def change(setting: str) -> None:
        with engine.connect() as connection:
            for value in chosen[setting]:
                route = update_topic(connection, "orders", **{setting: value})
                assert getattr(route.config, setting) == value

    def send(name: str) -> list[str]:
        sent: list[str] = []
        with producer_of(database.dsn, group=name, instance_name=name) as producer:
            while not are_over.is_set():
                sent.append(f"{name} {len(sent)}")
                producer.send(Message("orders", sent[-1]))
                link_of(producer).instance.routes.refresh()
        return sent

    senders = [Doing(partial(send, name)) for name in ("one", "other")]
    changes = [Doing(partial(change, setting)) for setting in values]
    for each in changes:
        each.result()
    are_over.set()
    sent = [body for sender in senders for body in sender.result()]

    route = find_topic(broker, "orders")
    assert route is not None
    assert {setting: getattr(route.config, setting) for setting in values} == {
        setting: chosen[setting][-1] for setting in values
    }
    rows = queue_rows(broker)
    most = max(chosen["read_queue_nums"] + chosen["write_queue_nums"])
    assert [queue_id for queue_id, _ in rows] == list(range(most))
    assert tuple(key for _, key in rows[:2]) == keys
    update_topic(broker, "orders", read_queue_nums=most)
    wait_until(lambda: len(set(inbox.bodies)) == len(sent))
    assert set(inbox.bodies) == set(sent)
