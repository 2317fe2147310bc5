"""Queue ownership: one owner at a time, fenced by the epoch; offsets of new groups; members that come and go."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.broker.clients import membership
from mqdb.broker.consumers.offsets import commit_offsets, correct_offset, release_queues, take_queues
from mqdb.broker.topics import topics as admin
from mqdb.common.group import FROM_FIRST_OFFSET, FROM_LAST_OFFSET, ConsumeFromWhere, StartingPoint
from mqdb.errors import ClientIdInUse, ParameterInvalid
from mqdb.store.clients.clients import ClientKind, Registration, live_principals, members_of
from mqdb.store.consumers.consumer_offsets import OwnedQueue, committed_offsets
from mqdb.store.engine import transaction
from mqdb.store.topics.topics import TopicRoute
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.processes import wait_until

FIRST, LAST, TIMESTAMP = FROM_FIRST_OFFSET, FROM_LAST_OFFSET, ConsumeFromWhere.TIMESTAMP


@pytest.fixture
def route(broker: Connection, engine: Engine) -> Iterator[TopicRoute]:
    """A topic with two queues of three messages each, and members `a` and `b` of group `readers`."""
    route = topic(broker, queues=2)
    for queue_id in range(2):
        append(broker, route, "x", "y", "z", queue_id=queue_id)
    dispatch_all(broker)
    with engine.connect() as session:
        for client_id in ("a", "b"):
            membership.announce(session, client_id)
            membership.register(broker, Registration(client_id, ClientKind.CONSUMER, "readers", "test"))
        yield route


def test_a_new_group_starts_where_it_says(broker: Connection, route: TopicRoute) -> None:
    """Checklist row 50: a new group starts where its setting says; LAST_OFFSET is always the max offset."""
    membership.register(broker, Registration("c", ClientKind.CONSUMER, "others", "test"))

    first = take_queues(broker, "readers", "a", route.queue_keys, FIRST)
    last = take_queues(broker, "others", "c", route.queue_keys, LAST)

    assert [queue.next_offset for queue in first] == [0, 0]
    assert [queue.next_offset for queue in last] == [3, 3]


def test_a_new_group_starts_at_a_time_in_each_queue(broker: Connection, route: TopicRoute) -> None:
    """A new group starts at a time in each queue. Once the group has an offset, the time has no effect."""
    hour = timedelta(hours=1)
    begin = datetime.now(UTC)
    broker.execute(text("SET mqdb.clock_offset = '1 h'"))
    append(broker, route, "new", queue_id=1)
    dispatch_all(broker)

    def taken(time: datetime) -> list[int]:
        queues = take_queues(broker, "readers", "a", route.queue_keys, StartingPoint(TIMESTAMP, time))
        return [queue.next_offset for queue in queues]

    assert taken(begin + hour / 2) == [3, 3]
    assert taken(begin - hour) == [3, 3]


@pytest.mark.parametrize("time", [None, datetime(2026, 1, 1)], ids=["no time", "no time zone"])  # noqa: DTZ001
def test_a_start_at_a_time_needs_to_know_which(broker: Connection, route: TopicRoute, time: datetime | None) -> None:
    with pytest.raises(ParameterInvalid, match="consume_timestamp"):
        take_queues(broker, "readers", "a", route.queue_keys, StartingPoint(TIMESTAMP, time))


def test_a_queue_added_later_is_read_from_its_beginning(broker: Connection, route: TopicRoute) -> None:
    take_queues(broker, "readers", "a", route.queue_keys, LAST)
    wider = admin.update_topic(broker, "orders", read_queue_nums=3, write_queue_nums=3)
    append(broker, wider, "x", queue_id=2)
    dispatch_all(broker)

    [taken] = take_queues(broker, "readers", "a", [wider.queue_keys[2]], LAST)

    assert taken.next_offset == 0


def test_a_new_group_starts_in_all_queues_at_once(broker: Connection, route: TopicRoute) -> None:
    """A new group starts in all queues at once.

    Each member takes its own share, the second one a little later than the first.
    """
    mine, others = route.queue_keys
    take_queues(broker, "readers", "a", [mine], LAST)
    append(broker, route, "new", queue_id=1)
    dispatch_all(broker)

    [taken] = take_queues(broker, "readers", "b", [others], LAST)

    assert taken.next_offset == 3


def test_an_offset_that_does_not_exist_is_corrected_backward_as_well(broker: Connection, route: TopicRoute) -> None:
    [mine] = take_queues(broker, "readers", "a", route.queue_keys[:1], FIRST)
    commit_offsets(broker, "readers", [mine._replace(next_offset=10**9, segment=1)])

    assert correct_offset(broker, "readers", mine._replace(next_offset=3, segment=0))
    assert not correct_offset(broker, "readers", mine._replace(next_offset=0, epoch=mine.epoch - 1))

    assert committed_offsets(broker, "readers", [mine.queue_key]) == {mine.queue_key: 3}


def test_an_owned_queue_is_not_free_until_it_is_released(broker: Connection, route: TopicRoute) -> None:
    mine = take_queues(broker, "readers", "a", route.queue_keys, FIRST)
    assert take_queues(broker, "readers", "b", route.queue_keys, FIRST) == []

    release_queues(broker, "readers", mine[:1])

    [taken] = take_queues(broker, "readers", "b", route.queue_keys, FIRST)
    assert (taken.queue_key, taken.epoch) == (mine[0].queue_key, mine[0].epoch + 1)


def test_what_an_old_owner_commits_is_refused(broker: Connection, route: TopicRoute) -> None:
    mine = take_queues(broker, "readers", "a", route.queue_keys, FIRST)
    taken = take_queues(broker, "readers", "b", route.queue_keys[:1], FIRST, force=True)

    lost = commit_offsets(broker, "readers", [queue._replace(next_offset=2) for queue in mine])

    assert [queue.queue_key for queue in lost] == [route.queue_keys[0]]
    assert committed_offsets(broker, "readers", route.queue_keys) == {route.queue_keys[0]: 0, route.queue_keys[1]: 2}
    assert commit_offsets(broker, "readers", [taken[0]._replace(next_offset=1)]) == []


def test_a_commit_moves_forward_only(broker: Connection, route: TopicRoute) -> None:
    [mine] = take_queues(broker, "readers", "a", route.queue_keys[:1], FIRST)

    commit_offsets(broker, "readers", [mine._replace(next_offset=2)])
    assert commit_offsets(broker, "readers", [mine._replace(next_offset=1)]) == []

    assert committed_offsets(broker, "readers", [mine.queue_key]) == {mine.queue_key: 2}


def test_racing_members_never_own_a_queue_together(broker: Connection, engine: Engine, route: TopicRoute) -> None:
    start = threading.Barrier(2)
    taken: dict[str, list[OwnedQueue]] = {}

    def take(client_id: str) -> None:
        with engine.connect() as connection:
            start.wait()
            taken[client_id] = take_queues(connection, "readers", client_id, route.queue_keys, FIRST)

    for _ in range(20):
        threads = [threading.Thread(target=take, args=(client_id,)) for client_id in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        owned = [queue.queue_key for queues in taken.values() for queue in queues]
        assert len(owned) == len(set(owned)) <= 2
        for queues in taken.values():
            release_queues(broker, "readers", queues)


def test_queues_of_a_member_that_leaves_are_free(broker: Connection, route: TopicRoute) -> None:
    take_queues(broker, "readers", "a", route.queue_keys, FIRST)

    membership.unregister(broker, "a", "readers", ClientKind.CONSUMER)

    assert members_of(broker, "readers") == ["b"]
    assert len(take_queues(broker, "readers", "b", route.queue_keys, FIRST)) == 2


def test_a_closed_connection_is_a_member_that_is_gone(broker: Connection, engine: Engine) -> None:
    """Checklist row 70: a member whose connection closes is gone."""
    session = engine.connect()
    membership.announce(session, "fragile")
    membership.register(broker, Registration("fragile", ClientKind.CONSUMER, "readers", "test"))
    assert membership.reap(broker) == []

    session.invalidate()
    session.close()

    wait_until(lambda: membership.reap(broker) == ["readers"])
    assert members_of(broker, "readers") == []


def test_a_silent_member_is_given_up_after_the_expiry(broker: Connection, route: TopicRoute) -> None:
    """Checklist row 70: a silent member is given up after the expiry, for which the test moves the clock."""
    broker.execute(text("SET mqdb.clock_offset = '121 s'"))
    assert membership.heartbeat(broker, "b")

    assert membership.reap(broker, timedelta(seconds=120)) == ["readers"]

    assert members_of(broker, "readers") == ["b"]
    assert not membership.heartbeat(broker, "a")


def test_a_client_id_has_one_session(engine: Engine) -> None:
    with engine.connect() as one, engine.connect() as two:
        membership.announce(one, "twin")
        with pytest.raises(ClientIdInUse, match=r"client twin is in use: another process .* until it disconnects"):
            membership.announce(two, "twin")
        one.invalidate()

        wait_until(lambda: announces(two, "twin"))


def announces(session: Connection, client_id: str) -> bool:
    try:
        membership.announce(session, client_id)
    except ClientIdInUse:
        return False
    return True


def waits_for(broker: Connection, pid: int) -> bool:
    return bool(broker.scalar(text("SELECT cardinality(pg_blocking_pids(:pid))"), {"pid": pid}))


def backend(session: Connection) -> int:
    return int(session.execute(text("SELECT pg_backend_pid()")).scalar_one())


@pytest.fixture
def orphan(broker: Connection, engine: Engine) -> str:
    """A member whose connection is closed."""
    session = engine.connect()
    membership.announce(session, "orphan")
    membership.register(broker, Registration("orphan", ClientKind.CONSUMER, "readers", "test"))
    session.invalidate()
    session.close()
    wait_until(lambda: not live_principals(broker, "orphan"))
    return "orphan"


@pytest.mark.parametrize("has_been_there", [False, True])
def test_of_two_sessions_that_announce_at_once_one_is_refused(
    broker: Connection, engine: Engine, orphan: str, has_been_there: bool
) -> None:
    client_id = orphan if has_been_there else "new"
    with ThreadPoolExecutor() as pool, engine.connect() as one, engine.connect() as two:
        with transaction(one):
            membership.announce(one, client_id)
            pid = backend(two)
            second = pool.submit(announces, two, client_id)
            wait_until(lambda: waits_for(broker, pid))
        assert not second.result()
        held = text("SELECT count(*) FROM mqdb.held_presence")
        assert broker.scalar(held) == 1  # who is refused keeps no lock


def test_who_comes_back_while_the_dead_are_removed_stays(broker: Connection, engine: Engine, orphan: str) -> None:
    """A member that comes back while dead members are removed stays. The removal does not wait for it."""
    with engine.connect() as session, engine.connect() as reaper:
        with transaction(session):
            membership.announce(session, orphan)
            assert membership.reap(reaper) == []

        assert membership.reap(reaper) == []
        assert members_of(broker, "readers") == [orphan]
        assert live_principals(broker, orphan)


def test_a_change_of_members_is_announced(broker: Connection, route: TopicRoute, engine: Engine) -> None:
    from mqdb.store.engine import driver

    with engine.connect() as session:
        listener = driver(session)
        listener.execute("LISTEN mqdb")
        mine = take_queues(broker, "readers", "a", route.queue_keys, FIRST)
        release_queues(broker, "readers", mine)
        membership.unregister(broker, "a", "readers", ClientKind.CONSUMER)

        heard = [notify.payload for notify in listener.notifies(timeout=5, stop_after=2)]

    assert heard == ["m:readers", "m:readers"]
