"""Offsets: the reported progress of a group, and when it is stored."""

from datetime import timedelta

import pytest
from sqlalchemy import Connection, text

from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb.store.topics.topics import TopicRoute
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.consumers import Gate, Inbox, Member
from tests.fixtures.processes import wait_until

pytestmark = pytest.mark.usefixtures("both_kinds_of_consumers")

SOON = timedelta(milliseconds=20)


def committed(broker: Connection, route: TopicRoute) -> int:
    return committed_offsets(broker, "readers", route.queue_keys)[route.queue_keys[0]]


def test_row_51_the_lowest_unfinished_offset_is_committed(broker: Connection, member: Member) -> None:
    """Checklist row 51: the lowest unfinished offset is committed. 10, 20, 21 and 23 match.

    Messages between and after them do not hold the offset back.
    """
    route = topic(broker)
    for number in range(30):
        append(broker, route, f"{number}", tag="A" if number in (10, 20, 21, 23) else "B")
    dispatch_all(broker)
    gate = Gate("10", "23")
    commits = []

    member(gate, expression="A", persist_consumer_offset_interval=SOON)
    gate.wait_for(2)
    for opened, expected in ((None, 10), ("10", 23), ("23", 30)):
        if opened:
            gate.open(opened)
        wait_until(lambda expected=expected: committed(broker, route) >= expected)  # type: ignore[misc]
        commits.append(committed(broker, route))

    assert commits == [10, 23, 30]


def test_row_69_offsets_are_committed_at_the_interval(broker: Connection, member: Member) -> None:
    """Checklist row 69, with an interval shorter than 5 s: only changed offsets are committed."""
    route = topic(broker, queues=2)
    inbox = Inbox()
    member(inbox, persist_consumer_offset_interval=SOON)

    append(broker, route, "0", "1")
    wait_until(lambda: committed(broker, route) == 2)
    written = broker.execute(text("SELECT xmin::text FROM mqdb.consumer_offset ORDER BY queue_key")).scalars().all()
    append(broker, route, "2")
    wait_until(lambda: committed(broker, route) == 3)

    now = broker.execute(text("SELECT xmin::text FROM mqdb.consumer_offset ORDER BY queue_key")).scalars().all()
    assert now[0] != written[0]
    assert now[1] == written[1]


def test_row_69_offsets_are_committed_at_shutdown(broker: Connection, member: Member) -> None:
    """Checklist row 69: offsets are committed at shutdown."""
    route = topic(broker)
    inbox = Inbox()
    consumer = member(inbox, persist_consumer_offset_interval=timedelta(hours=1))
    append(broker, route, "0", "1")
    inbox.wait_for(2)
    assert committed(broker, route) == 0

    consumer.shutdown()

    assert committed(broker, route) == 2


def test_row_68_an_offset_beyond_the_end_is_corrected_for_good(broker: Connection, member: Member) -> None:
    """Checklist row 68: a group beyond the end continues at the max offset, which is stored as well."""
    route = topic(broker)
    append(broker, route, "0", "1", "2")
    dispatch_all(broker)
    first, second = Inbox(), Inbox()
    member(first).shutdown()
    broker.execute(text("UPDATE mqdb.consumer_offset SET next_offset = 1000000000"))

    consumer = member(first)
    wait_until(lambda: committed(broker, route) == 3)
    append(broker, route, "3")
    wait_until(lambda: "3" in first.bodies)
    consumer.shutdown()
    assert committed(broker, route) == 4
    append(broker, route, "4")
    member(second)
    second.wait_for(1)

    assert second.bodies == ["4"]


def test_row_68_an_offset_that_retention_has_passed_is_corrected_to_the_first_that_is_left(
    broker: Connection, member: Member
) -> None:
    """Checklist row 68: an offset that retention has passed is corrected to the first existing offset."""
    route = topic(broker)
    append(broker, route, "0", "1", "2", "3")
    dispatch_all(broker)
    broker.execute(text("UPDATE mqdb.queue SET base_offset = 2 WHERE queue_key = :key"), {"key": route.queue_keys[0]})
    inbox = Inbox()

    broker.execute(text("INSERT INTO mqdb.subscription_group (group_name) VALUES ('readers')"))
    broker.execute(
        text(
            "INSERT INTO mqdb.consumer_offset (group_id, queue_key, next_offset) SELECT group_id, :key, 0 FROM "
            "mqdb.subscription_group"
        ),
        {"key": route.queue_keys[0]},
    )
    member(inbox, consume_thread_nums=1)
    inbox.wait_for(2)

    assert inbox.bodies == ["2", "3"]
