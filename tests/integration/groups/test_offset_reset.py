"""Reset and clone: a group continues at the offsets that an operator sets, whether its members are online or not."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.broker.clients import membership
from mqdb.broker.consumers import offset_reset
from mqdb.broker.consumers.offset_reset import Boundary, ResetTarget, clone_offsets, reset_offsets
from mqdb.broker.consumers.offsets import commit_offsets, take_queues
from mqdb.common.group import FROM_FIRST_OFFSET, MessageModel
from mqdb.errors import (
    GroupNotFound,
    NameInvalid,
    ParameterInvalid,
    QueueNotFound,
    StorageRefused,
    TopicNotFound,
)
from mqdb.store.clients.clients import ClientKind, Registration
from mqdb.store.consumers import groups, offset_commits
from mqdb.store.consumers.consumer_offsets import OwnedQueue, committed_offsets
from mqdb.store.consumers.offset_commits import OffsetCommit
from mqdb.store.engine import driver
from mqdb.store.operations import list_operations
from mqdb.store.topics.topics import TopicRoute
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.processes import wait_until
from tests.fixtures.threads import Doing

EARLIEST, LATEST = Boundary.EARLIEST, Boundary.LATEST


@pytest.fixture
def route(broker: Connection) -> TopicRoute:
    """A topic with two queues of five messages each, and a group `readers` that has never read the topic."""
    route = topic(broker, queues=2)
    for queue_id in range(2):
        append(broker, route, *(f"{queue_id}{letter}" for letter in "abcde"), queue_id=queue_id)
    dispatch_all(broker)
    groups.save(broker, "readers", {})
    return route


@pytest.fixture
def owned(broker: Connection, route: TopicRoute) -> list[OwnedQueue]:
    """Both queues, owned by member `m`, which has consumed three messages of each."""
    owned = take_queues(broker, "readers", "m", route.queue_keys, FROM_FIRST_OFFSET)
    commit_offsets(broker, "readers", [queue._replace(next_offset=3) for queue in owned])
    return owned


def offsets(broker: Connection, route: TopicRoute, group: str = "readers") -> list[int | None]:
    found = committed_offsets(broker, group, route.queue_keys)
    return [found.get(key) for key in route.queue_keys]


def test_a_topic_that_is_deleted_meanwhile_has_no_offset_to_reset(
    broker: Connection, route: TopicRoute, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_reset, "_queue_keys", lambda *_: [route.queue_keys[-1] + 1])

    with pytest.raises(ParameterInvalid, match="has no offset in it"):
        reset_offsets(broker, "readers", "orders", 1, queue_id=0)


# -- what is set --------------------------------------------------------------------------------


def test_a_group_goes_on_at_an_end_or_at_an_offset(
    broker: Connection, route: TopicRoute, owned: list[OwnedQueue]
) -> None:
    before = 3
    targets: list[tuple[ResetTarget, int]] = [(EARLIEST, 0), (LATEST, 5), (1, 1), (0, 0), (5, 5)]
    for target, expected in targets:
        changes = reset_offsets(broker, "readers", "orders", target)

        assert offsets(broker, route) == [expected, expected], target
        assert [(change.queue_id, change.old_offset, change.new_offset) for change in changes] == [
            (0, before, expected),
            (1, before, expected),
        ]
        before = expected


def test_a_group_goes_on_at_the_first_message_of_a_time(
    broker: Connection, route: TopicRoute, owned: list[OwnedQueue]
) -> None:
    now = datetime.now(UTC)
    hour = timedelta(hours=1)
    broker.execute(text("SET mqdb.clock_offset = '1 h'"))
    append(broker, route, "late", queue_id=1)
    dispatch_all(broker)
    found = []

    for time in (now + hour / 2, now - hour, now + 2 * hour):
        reset_offsets(broker, "readers", "orders", time)
        found.append(offsets(broker, route))

    assert found == [[5, 5], [0, 0], [5, 6]]
    for too_far in (timedelta.max, timedelta.min):
        with pytest.raises(ParameterInvalid, match=r"to = .* must be at most 365,000 days ago"):
            reset_offsets(broker, "readers", "orders", too_far)


def test_one_queue_alone(broker: Connection, route: TopicRoute, owned: list[OwnedQueue]) -> None:
    (change,) = reset_offsets(broker, "readers", "orders", EARLIEST, queue_id=1)

    assert offsets(broker, route) == [3, 0]
    assert change.queue_id == 1


def test_a_group_that_is_new_to_the_topic_gets_its_offsets(broker: Connection, route: TopicRoute) -> None:
    changes = reset_offsets(broker, "readers", "orders", 2)

    assert offsets(broker, route) == [2, 2]
    assert {change.old_offset for change in changes} == {None}
    assert {(change.repeated, change.skipped) for change in changes} == {(0, 0)}


def test_it_says_how_many_messages_come_again_and_how_many_are_skipped(
    broker: Connection, route: TopicRoute, owned: list[OwnedQueue]
) -> None:
    """A reset reports how many messages are delivered again or skipped.

    Messages dropped by retention count as neither.
    """
    back = reset_offsets(broker, "readers", "orders", 1, dry_run=True)
    forward = reset_offsets(broker, "readers", "orders", LATEST, dry_run=True)
    broker.execute(text("UPDATE mqdb.queue SET base_offset = 2"))
    to_the_min = reset_offsets(broker, "readers", "orders", EARLIEST, dry_run=True)

    assert [(change.repeated, change.skipped) for change in back] == [(2, 0), (2, 0)]
    assert [(change.repeated, change.skipped) for change in forward] == [(0, 2), (0, 2)]
    assert [(change.repeated, change.skipped) for change in to_the_min] == [(1, 0), (1, 0)]


def test_a_dry_run_changes_nothing(broker: Connection, route: TopicRoute, owned: list[OwnedQueue]) -> None:
    def everything() -> list[str]:
        tables = ("consumer_offset", "operation", "subscription_group")
        return [str(broker.execute(text(f"SELECT t::text FROM mqdb.{name} t")).all()) for name in tables]

    before = everything()
    changes = reset_offsets(broker, "readers", "orders", EARLIEST, dry_run=True)
    clone_offsets(broker, "readers", "others", dry_run=True)

    assert everything() == before
    assert [(change.old_offset, change.new_offset) for change in changes] == [(3, 0), (3, 0)]


def test_each_change_is_noted_with_the_reason(broker: Connection, route: TopicRoute, owned: list[OwnedQueue]) -> None:
    reset_offsets(broker, "readers", "orders", 1, queue_id=0, reason="bad deploy")
    clone_offsets(broker, "readers", "others")

    cloned, was_reset = list_operations(broker, topic="orders", group="readers")
    assert (was_reset.verb, was_reset.groups, was_reset.object) == ("offset.reset", ["readers"], "1")
    assert (was_reset.before, was_reset.after) == ({"orders": {"0": 3}}, {"orders": {"0": 1}})
    assert (was_reset.records, was_reset.reason) == (1, "bad deploy")
    assert was_reset.principal == broker.scalar(text("SELECT SESSION_USER"))
    assert (cloned.verb, cloned.groups, cloned.object) == ("offset.clone", ["readers", "others"], "from readers")
    assert (cloned.before, cloned.after) == ({"orders": {"0": None, "1": None}}, {"orders": {"0": 1, "1": 3}})


# -- what is refused ----------------------------------------------------------------------------


def test_topic_and_group_have_to_exist(broker: Connection, route: TopicRoute) -> None:
    """Topic and group must exist, else RocketMQ's codes 17 and 26 are returned; the topic is checked first."""
    with pytest.raises(TopicNotFound):
        reset_offsets(broker, "nobody", "nothing", EARLIEST)
    with pytest.raises(GroupNotFound, match="nobody"):
        reset_offsets(broker, "nobody", "orders", EARLIEST)
    with pytest.raises(QueueNotFound, match="queues 0 to 1, not 2"):
        reset_offsets(broker, "readers", "orders", EARLIEST, queue_id=2)
    assert GroupNotFound.code == 26


def test_an_offset_has_to_be_one_of_the_queue(broker: Connection, route: TopicRoute, owned: list[OwnedQueue]) -> None:
    broker.execute(text("UPDATE mqdb.queue SET base_offset = 2"))

    for offset in (1, 6):
        with pytest.raises(ParameterInvalid, match="queue 0 of topic 'orders' has offsets 2 to 5"):
            reset_offsets(broker, "readers", "orders", offset)

    assert offsets(broker, route) == [3, 3]


def test_a_time_has_to_know_its_zone(broker: Connection, route: TopicRoute) -> None:
    with pytest.raises(ParameterInvalid, match="time zone"):
        reset_offsets(broker, "readers", "orders", datetime(2026, 1, 1))  # noqa: DTZ001


def test_one_queue_of_a_topic_that_the_group_has_never_read_is_refused(broker: Connection, route: TopicRoute) -> None:
    """A reset of one queue in a topic that the group has never read is refused.

    Otherwise the group would start at the first message in all other queues.
    """
    with pytest.raises(ParameterInvalid, match="reset all queues"):
        reset_offsets(broker, "readers", "orders", LATEST, queue_id=1)

    assert offsets(broker, route) == [None, None]


@pytest.fixture
def session(engine: Engine) -> Iterator[Connection]:
    """A connection that holds the presence of registered members."""
    with engine.connect() as session:
        yield session


def test_members_that_consume_by_broadcasting_have_no_offsets_here(
    broker: Connection, route: TopicRoute, session: Connection
) -> None:
    membership.announce(session, "b")
    membership.register(broker, Registration("b", ClientKind.CONSUMER, "readers", "test", MessageModel.BROADCASTING))

    with pytest.raises(ParameterInvalid, match="broadcasting"):
        reset_offsets(broker, "readers", "orders", EARLIEST)


# -- owners -------------------------------------------------------------------------------------


def test_what_an_owner_from_before_commits_is_refused(
    broker: Connection, route: TopicRoute, owned: list[OwnedQueue]
) -> None:
    reset_offsets(broker, "readers", "orders", 1, queue_id=0)

    lost = commit_offsets(broker, "readers", [queue._replace(next_offset=4) for queue in owned])

    assert [queue.queue_key for queue in lost] == [owned[0].queue_key]
    assert offsets(broker, route) == [1, 4]


def test_the_next_owner_begins_there_and_looks_in_all_segments(
    broker: Connection, route: TopicRoute, owned: list[OwnedQueue]
) -> None:
    commit_offsets(broker, "readers", [queue._replace(next_offset=4, segment=7) for queue in owned])
    reset_offsets(broker, "readers", "orders", 1)

    taken = take_queues(broker, "readers", "m", route.queue_keys)

    assert [(queue.epoch, queue.next_offset, queue.segment) for queue in taken] == [
        (queue.epoch + 2, 1, 0) for queue in owned
    ]


def test_commits_of_exactly_once_consumers_and_locks_of_orderly_ones_are_gone(
    broker: Connection, route: TopicRoute, owned: list[OwnedQueue]
) -> None:
    broker.execute(
        text(
            """INSERT INTO mqdb.offset_commit (group_id, queue_key, from_offset, next_offset, segment, epoch)
               SELECT group_id, queue_key, 3, 5, 1, epoch FROM mqdb.consumer_offset"""
        )
    )
    broker.execute(
        text(
            """INSERT INTO mqdb.queue_lock
               SELECT group_id, queue_key, 'm', epoch, mqdb.now() + interval '1 min', interval '1 min'
               FROM mqdb.consumer_offset"""
        )
    )

    (change,) = reset_offsets(broker, "readers", "orders", 1, queue_id=0)

    assert (change.old_offset, change.new_offset) == (5, 1)
    for table in ("offset_commit", "queue_lock"):
        assert broker.scalars(text(f"SELECT queue_key FROM mqdb.{table}")).all() == [owned[1].queue_key]


def test_the_group_is_told(broker: Connection, route: TopicRoute, engine: Engine) -> None:
    with engine.connect() as session:
        listener = driver(session)
        listener.execute("LISTEN mqdb")
        reset_offsets(broker, "readers", "orders", EARLIEST)

        heard = [notify.payload for notify in listener.notifies(timeout=5, stop_after=1)]

    assert heard == ["m:readers"]


def test_a_reset_waits_for_a_member_that_is_just_committing(
    broker: Connection, route: TopicRoute, owned: list[OwnedQueue], engine: Engine
) -> None:
    with engine.connect() as committing, engine.connect() as resetting:
        with driver(committing).transaction():
            commit_offsets(committing, "readers", [queue._replace(next_offset=4) for queue in owned])
            doing = Doing(lambda: reset_offsets(resetting, "readers", "orders", 1))
            wait_until(lambda: broker.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")))
        changes = doing.result()

    assert [change.old_offset for change in changes] == [4, 4]
    assert offsets(broker, route) == [1, 1]


def test_an_exactly_once_listener_that_is_just_committing_has_consumed_before_the_reset(
    broker: Connection, route: TopicRoute, owned: list[OwnedQueue], engine: Engine
) -> None:
    commit = OffsetCommit(owned[0].queue_key, owned[0].epoch, from_offset=3, next_offset=5, segment=1)
    with engine.connect() as committing, engine.connect() as resetting:
        with driver(committing).transaction():
            offset_commits.append(driver(committing), "readers", "m", commit, is_marked=False)
            doing = Doing(lambda: reset_offsets(resetting, "readers", "orders", 1, queue_id=0))
            wait_until(lambda: broker.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")))
        (change,) = doing.result()

    assert (change.old_offset, change.new_offset) == (5, 1)
    assert groups.progress(broker, "readers")[0].next_offset == 1
    with pytest.raises(psycopg.Error) as refused:
        offset_commits.append(driver(broker), "readers", "m", commit, is_marked=False)
    assert refused.value.sqlstate == offset_commits.NOT_OWNED


def test_a_member_that_does_not_let_go_is_not_waited_for_without_end(
    broker: Connection,
    route: TopicRoute,
    owned: list[OwnedQueue],
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mqdb.store.engine._TRIES", 2)
    with engine.connect() as other, driver(other).transaction():
        commit_offsets(other, "readers", [owned[1]._replace(next_offset=4)])

        with pytest.raises(StorageRefused, match="55P03"):
            reset_offsets(broker, "readers", "orders", 1)

    assert offsets(broker, route) == [3, 4]
    assert list_operations(broker, topic="orders", group="readers") == []


# -- clone --------------------------------------------------------------------------------------


def test_a_clone_stands_where_its_source_stands(broker: Connection, route: TopicRoute, owned: list[OwnedQueue]) -> None:
    """A clone has the offsets of its source, including those committed exactly once."""
    commit_offsets(broker, "readers", [owned[1]._replace(next_offset=4)])
    broker.execute(
        text(
            """INSERT INTO mqdb.offset_commit (group_id, queue_key, from_offset, next_offset, segment, epoch)
               SELECT group_id, queue_key, 3, 5, 1, epoch FROM mqdb.consumer_offset WHERE queue_key = :key"""
        ),
        {"key": owned[0].queue_key},
    )

    changes = clone_offsets(broker, "readers", "others")

    assert offsets(broker, route, "others") == [5, 4]
    assert [(change.topic, change.queue_id, change.old_offset, change.new_offset) for change in changes] == [
        ("orders", 0, None, 5),
        ("orders", 1, None, 4),
    ]


def test_a_clone_is_of_the_topics_that_are_named_or_of_all_but_the_retries(
    broker: Connection, route: TopicRoute, owned: list[OwnedQueue]
) -> None:
    for name in ("payments", "%RETRY%readers"):
        keys = topic(broker, name).queue_keys
        take_queues(broker, "readers", "m", keys)

    named = clone_offsets(broker, "readers", "one", ["payments"])
    every = clone_offsets(broker, "readers", "two")

    assert {change.topic for change in named} == {"payments"}
    assert {change.topic for change in every} == {"orders", "payments"}


def test_what_cannot_be_cloned_is_refused(broker: Connection, route: TopicRoute) -> None:
    topic(broker, "payments")

    with pytest.raises(GroupNotFound, match="nobody"):
        clone_offsets(broker, "nobody", "others")
    with pytest.raises(TopicNotFound, match="nothing"):
        clone_offsets(broker, "readers", "others", ["nothing"])
    with pytest.raises(ParameterInvalid, match="has never read the topic"):
        clone_offsets(broker, "readers", "others", ["payments"])
    with pytest.raises(ParameterInvalid, match="source"):
        clone_offsets(broker, "readers", "readers")
    with pytest.raises(NameInvalid):
        clone_offsets(broker, "readers", "no such name")
