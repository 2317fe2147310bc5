"""Offsets without an owner: the offset at which a group resumes, and commits that must not disturb its members."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.broker.clients import membership
from mqdb.broker.consumers import queue_locks
from mqdb.broker.consumers.group_offsets import Refused, commit_positions, commit_without_owner, queue_ends, reset_since
from mqdb.broker.consumers.offset_reset import reset_offsets
from mqdb.broker.consumers.offsets import release_queues, start_offsets, take_queues
from mqdb.broker.topics.topics import delete_topic, update_topic
from mqdb.common.group import FROM_FIRST_OFFSET, FROM_LAST_OFFSET, ConsumeFromWhere, StartingPoint
from mqdb.errors import ParameterInvalid
from mqdb.store.clients.clients import ClientKind, Registration
from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb.store.consumers.group_offsets import ReadQueue, committed_positions
from mqdb.store.topics.topics import TopicRoute
from tests.fixtures.broker import append, dispatch_all, topic

NOTHING = Refused({}, frozenset())
FIRST, LAST, TIMESTAMP = FROM_FIRST_OFFSET, FROM_LAST_OFFSET, ConsumeFromWhere.TIMESTAMP


@pytest.fixture
def route(broker: Connection) -> TopicRoute:
    """A topic with two queues of three messages each."""
    route = topic(broker, queues=2)
    for queue_id in range(2):
        append(broker, route, "x", "y", "z", queue_id=queue_id)
    dispatch_all(broker)
    return route


@pytest.fixture
def a_member(broker: Connection, engine: Engine) -> Iterator[str]:
    """Member `a` of group `readers`."""
    with engine.connect() as session:
        membership.announce(session, "a")
        membership.register(broker, Registration("a", ClientKind.CONSUMER, "readers", "test"))
        yield "a"


def at(route: TopicRoute, *offsets: int) -> list[ReadQueue]:
    """Positions in the first queues, none of which was ever reset."""
    return [ReadQueue(key, offset, 1, None) for key, offset in zip(route.queue_keys, offsets, strict=False)]


def committed(broker: Connection, route: TopicRoute) -> list[int | None]:
    offsets = committed_offsets(broker, "readers", route.queue_keys)
    return [offsets.get(key) for key in route.queue_keys]


def test_a_queue_says_where_it_begins_and_ends(broker: Connection, route: TopicRoute) -> None:
    broker.execute(text("UPDATE mqdb.queue SET base_offset = 1"))

    assert queue_ends(broker, route.queue_keys[0]) == (1, 3)
    assert queue_ends(broker, 10**6) is None


def test_a_group_reads_on_where_it_has_committed_and_elsewhere_where_it_is_told(
    broker: Connection, route: TopicRoute
) -> None:
    first, second = route.queue_keys
    commit_without_owner(broker, "readers", at(route, 1))

    starts = {start: start_offsets(broker, [second], start) for start in (FIRST, LAST)}

    assert offsets(committed_positions(broker, "readers", [first, second])) == {first: 1}
    assert starts == {FIRST: {second: 0}, LAST: {second: 3}}
    assert committed(broker, route) == [1, None]  # to look leaves no trace


def offsets(positions: list[ReadQueue]) -> dict[int, int]:
    return {position.queue_key: position.next_offset for position in positions}


def test_a_group_may_start_at_a_time(broker: Connection, route: TopicRoute) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=1)

    assert start_offsets(broker, route.queue_keys[:1], StartingPoint(TIMESTAMP, long_ago)) == {route.queue_keys[0]: 0}
    for no_time in (None, datetime(2024, 1, 1)):  # noqa: DTZ001
        with pytest.raises(ParameterInvalid, match="consume_timestamp"):
            start_offsets(broker, route.queue_keys, StartingPoint(TIMESTAMP, no_time))


def test_a_commit_makes_the_group_and_goes_forward_and_back(broker: Connection, route: TopicRoute) -> None:
    commits = []
    for position in ((2, 3), (1, 0)):
        assert commit_without_owner(broker, "readers", at(route, *position)) == NOTHING
        commits.append(committed(broker, route))

    assert commits == [[2, 3], [1, 0]]


def test_a_commit_is_refused_where_a_member_has_the_queue(broker: Connection, route: TopicRoute, a_member: str) -> None:
    first = route.queue_keys[0]
    take_queues(broker, "readers", a_member, [first], FIRST)

    refused = commit_without_owner(broker, "readers", at(route, 2, 2))

    assert refused == Refused({first: a_member}, set())
    assert committed(broker, route) == [0, 2]


def test_a_commit_is_refused_where_a_queue_is_locked(broker: Connection, route: TopicRoute, a_member: str) -> None:
    """A commit is refused if a queue is locked.

    An orderly consumer may be in the middle of a message, even if it is no longer a member.
    """
    queue_locks.take_queues(broker, "readers", a_member, route.queue_keys[:1], FIRST, expiry=timedelta(minutes=1))
    broker.execute(text("DELETE FROM mqdb.client"))

    assert commit_without_owner(broker, "readers", at(route, 2)).owned == {route.queue_keys[0]: a_member}


def test_a_member_that_comes_back_notices_that_somebody_else_has_committed(
    broker: Connection, route: TopicRoute, a_member: str
) -> None:
    """A returning member notices that another client has committed.

    The member was given up and is registered again, so the messages that it held no longer count.
    """
    [owned, _] = take_queues(broker, "readers", a_member, route.queue_keys, FIRST)
    broker.execute(text("DELETE FROM mqdb.client"))

    assert commit_without_owner(broker, "readers", at(route, 2)) == NOTHING
    assert commit_positions(broker, "readers", [owned._replace(next_offset=1)]) == [owned._replace(next_offset=1)]
    membership.register(broker, Registration(a_member, ClientKind.CONSUMER, "readers", "test"))
    [again] = take_queues(broker, "readers", a_member, [owned.queue_key], FIRST)

    assert (again.next_offset, again.epoch) == (2, owned.epoch + 2)


def test_an_owner_commits_back_as_well_until_it_has_lost_the_queue(
    broker: Connection, route: TopicRoute, a_member: str
) -> None:
    first, second = take_queues(broker, "readers", a_member, route.queue_keys, FIRST)
    for offset in (3, 1):
        assert commit_positions(broker, "readers", [first._replace(next_offset=offset)]) == []
    release_queues(broker, "readers", [second])
    take_queues(broker, "readers", "thief", [second.queue_key], FIRST)

    assert commit_positions(broker, "readers", [first, second]) == [second]
    assert committed(broker, route) == [0, 0]


def test_what_was_consumed_exactly_once_counts_until_another_offset_is_committed(
    broker: Connection, route: TopicRoute, a_member: str
) -> None:
    [owned] = take_queues(broker, "readers", a_member, route.queue_keys[:1], FIRST)
    broker.execute(
        text(
            """INSERT INTO mqdb.offset_commit (group_id, queue_key, from_offset, next_offset, segment, epoch)
               SELECT group_id, queue_key, 0, 3, 1, epoch FROM mqdb.consumer_offset ORDER BY queue_key LIMIT 1"""
        )
    )
    broker.execute(text("DELETE FROM mqdb.client"))

    before = offsets(committed_positions(broker, "readers", [owned.queue_key]))
    commit_without_owner(broker, "readers", at(route, 1))

    assert before == {owned.queue_key: 3}
    assert offsets(committed_positions(broker, "readers", [owned.queue_key])) == {owned.queue_key: 1}


def test_queues_of_deleted_topics_are_left_out(broker: Connection, route: TopicRoute) -> None:
    delete_topic(broker, "orders")

    assert commit_without_owner(broker, "readers", at(route, 2)) == NOTHING
    assert start_offsets(broker, route.queue_keys, FIRST) == {}


# -- what members and people make of it -----------------------------------------------------------


def test_a_member_starts_where_it_says_in_queues_that_nobody_has_committed(
    broker: Connection, route: TopicRoute, a_member: str
) -> None:
    commit_without_owner(broker, "readers", at(route, 1))

    taken = take_queues(broker, "readers", a_member, route.queue_keys, LAST)

    assert [queue.next_offset for queue in taken] == [1, 3]


def test_a_group_is_at_home_in_a_topic_when_a_member_has_had_a_queue_of_it(broker: Connection, a_member: str) -> None:
    """A group is at home in a topic once a member has owned one of its queues.

    A queue added later is read from its beginning, even if all existing offsets came from other commits.
    """
    before = topic(broker, "bills")
    commit_without_owner(broker, "readers", at(before, 0))
    take_queues(broker, "readers", a_member, before.queue_keys, LAST)
    update_topic(broker, "bills", read_queue_nums=2, write_queue_nums=2)
    route = topic(broker, "bills", queues=2)
    append(broker, route, "first", queue_id=1)
    dispatch_all(broker)

    [taken] = take_queues(broker, "readers", a_member, route.queue_keys[1:], LAST)

    assert taken.next_offset == 0


def test_a_commit_does_not_undo_a_reset_until_it_is_known(broker: Connection, route: TopicRoute) -> None:
    commit_without_owner(broker, "readers", at(route, 1, 1))
    first, second = before = committed_positions(broker, "readers", route.queue_keys)
    reset_offsets(broker, "readers", "orders", 0, queue_id=0)

    refused = commit_without_owner(broker, "readers", [first._replace(next_offset=2), second._replace(next_offset=2)])
    unknown = reset_since(broker, "readers", before)
    again = committed_positions(broker, "readers", route.queue_keys[:1])
    committed_first = committed(broker, route)

    assert refused == Refused({}, {first.queue_key})
    assert unknown == {first.queue_key}
    assert committed_first == [0, 2]
    assert commit_without_owner(broker, "readers", [again[0]._replace(next_offset=3)]) == NOTHING
    assert reset_since(broker, "readers", again) == set()
