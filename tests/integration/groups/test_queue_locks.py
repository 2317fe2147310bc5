"""Queue locks: no member gets a queue before the owner has unlocked it, or could have known that the lock expired."""

import random
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple

import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.broker.clients import membership
from mqdb.broker.consumers import offsets
from mqdb.broker.consumers.queue_locks import release_queues, renew_queues, take_queues
from mqdb.common.group import FROM_FIRST_OFFSET
from mqdb.common.message import MessageQueue
from mqdb.store.clients.clients import ClientKind, Registration
from mqdb.store.consumers import queue_locks
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb.store.engine import driver, transaction
from mqdb.store.topics.topics import TopicRoute
from mqdb_client.consumer.offsets.locked_offset_store import LockedOffsetStore
from mqdb_client.consumer.offsets.offset_store import Lease
from mqdb_client.consumer.queues.process_queue import FlowLimits
from mqdb_client.consumer.queues.queue_ownership import QueueOwnership
from tests.fixtures.broker import topic
from tests.fixtures.delay import stop_clock
from tests.fixtures.processes import wait_until
from tests.fixtures.threads import Doing

FIRST = FROM_FIRST_OFFSET
MINUTE = timedelta(seconds=60)
LIMITS = FlowLimits(messages=1_000, body_bytes=1_000_000, span=2_000)


@pytest.fixture
def route(broker: Connection, engine: Engine) -> Iterator[TopicRoute]:
    """A topic with three queues, and members `a` and `b` of group `readers`."""
    route = topic(broker, queues=3)
    with engine.connect() as session:
        for client_id in ("a", "b"):
            membership.announce(session, client_id)
            join(broker, client_id)
        yield route


def join(broker: Connection, client_id: str) -> None:
    membership.register(broker, Registration(client_id, ClientKind.CONSUMER, "readers", "test"))


def take(broker: Connection, client_id: str, route: TopicRoute, *, force: bool = False) -> list[OwnedQueue]:
    return take_queues(broker, "readers", client_id, route.queue_keys, FIRST, expiry=MINUTE, force=force)


def renew(broker: Connection, client_id: str, owned: list[OwnedQueue]) -> set[int]:
    return renew_queues(broker, "readers", client_id, owned, expiry=MINUTE)


def later(broker: Connection, seconds: int) -> None:
    """Move the clock of this connection."""
    broker.execute(text(f"SET mqdb.clock_offset = '{seconds} s'"))


def give_up(broker: Connection, client_id: str) -> None:
    """Give up a member, as the broker does if the member is silent or its connection is closed."""
    broker.execute(text("DELETE FROM mqdb.client WHERE client_id = :id"), {"id": client_id})
    broker.execute(text("UPDATE mqdb.consumer_offset SET owner = NULL WHERE owner = :id"), {"id": client_id})


# -- who gets a queue ---------------------------------------------------------------------------


def test_row_65_a_lock_outlives_its_owner_for_60_seconds(broker: Connection, route: TopicRoute) -> None:
    """Checklist row 65, the broker's half.

    A lock outlives its owner for 60 seconds, for which the test moves the clock.
    """
    stop_clock(broker)
    assert len(take(broker, "a", route)) == 3
    give_up(broker, "a")

    later(broker, 59)
    assert take(broker, "b", route) == []

    later(broker, 61)
    assert [queue.epoch for queue in take(broker, "b", route)] == [2, 2, 2]


def test_force_takes_nothing_that_is_locked(broker: Connection, route: TopicRoute) -> None:
    mine = take(broker, "a", route)

    assert take(broker, "b", route, force=True) == []
    assert renew(broker, "a", mine) == set(route.queue_keys)


def test_force_takes_from_an_owner_that_renews_no_more(broker: Connection, route: TopicRoute) -> None:
    mine = take(broker, "a", route)
    later(broker, 61)

    assert take(broker, "b", route) == []
    assert len(take(broker, "b", route, force=True)) == 3
    assert renew(broker, "a", mine) == set()


def test_what_is_given_back_can_be_taken_at_once(broker: Connection, route: TopicRoute, engine: Engine) -> None:
    mine = take(broker, "a", route)
    with engine.connect() as session:
        driver(session).execute("LISTEN mqdb")

        release_queues(broker, "readers", "a", mine[:2])

        [heard] = driver(session).notifies(timeout=5, stop_after=1)
    assert heard.payload == "m:readers"
    assert {queue.queue_key for queue in take(broker, "b", route)} == {queue.queue_key for queue in mine[:2]}


def test_a_member_that_leaves_unlocks_everything(broker: Connection, route: TopicRoute) -> None:
    take(broker, "a", route)

    membership.unregister(broker, "a", "readers", ClientKind.CONSUMER)

    assert len(take(broker, "b", route)) == 3


def test_locks_are_those_of_one_group(broker: Connection, route: TopicRoute) -> None:
    membership.register(broker, Registration("c", ClientKind.CONSUMER, "others", "test"))
    take(broker, "a", route)

    assert len(take_queues(broker, "others", "c", route.queue_keys, FIRST, expiry=MINUTE)) == 3


def test_a_member_that_was_given_up_takes_its_own_again(broker: Connection, route: TopicRoute) -> None:
    take(broker, "a", route)
    give_up(broker, "a")
    join(broker, "a")

    again = take(broker, "a", route)

    assert [queue.epoch for queue in again] == [2, 2, 2]
    assert renew(broker, "a", again) == set(route.queue_keys)


def test_a_queue_without_a_lock_can_be_owned_by_one_that_consumes_concurrently(
    broker: Connection, route: TopicRoute
) -> None:
    """A queue without a lock can be owned by a member that consumes concurrently.

    So queues are also handed over in order while a group changes from one way of consuming to the other.
    """
    offsets.take_queues(broker, "readers", "a", route.queue_keys, FIRST)

    assert take(broker, "b", route) == []
    assert len(take(broker, "b", route, force=True)) == 3


# -- renewal ------------------------------------------------------------------------------------


def test_a_lock_that_is_renewed_does_not_expire(broker: Connection, route: TopicRoute) -> None:
    mine = take(broker, "a", route)
    give_up(broker, "a")
    later(broker, 50)
    assert renew(broker, "a", mine) == set(route.queue_keys)

    later(broker, 100)

    assert take(broker, "b", route) == []


def test_a_lock_that_nobody_else_has_taken_can_still_be_renewed(broker: Connection, route: TopicRoute) -> None:
    mine = take(broker, "a", route)
    give_up(broker, "a")
    later(broker, 90)

    assert renew(broker, "a", mine) == set(route.queue_keys)
    assert take(broker, "b", route) == []


def test_only_what_is_one_s_own_is_renewed_and_unlocked(broker: Connection, route: TopicRoute) -> None:
    first, second, third = take(broker, "a", route)
    release_queues(broker, "readers", "a", [second])
    give_up(broker, "a")
    [theirs] = take(broker, "b", route)

    assert renew(broker, "a", [first, second, third._replace(epoch=7)]) == {first.queue_key}
    assert renew(broker, "b", [first, theirs]) == {theirs.queue_key}
    release_queues(broker, "readers", "b", [first, third])
    assert renew(broker, "a", [first, third]) == {first.queue_key, third.queue_key}


def test_nothing_to_do_asks_nothing(broker: Connection, route: TopicRoute) -> None:
    assert take_queues(broker, "readers", "a", [], expiry=MINUTE) == []
    assert renew(broker, "a", []) == set()
    release_queues(broker, "readers", "a", [])


# -- at the same time ---------------------------------------------------------------------------


def test_a_renewal_under_way_keeps_a_lock_that_has_expired(
    broker: Connection, route: TopicRoute, engine: Engine
) -> None:
    mine = take(broker, "a", route)
    give_up(broker, "a")
    with engine.connect() as other:
        later(other, 61)
        with transaction(broker):
            queue_locks.renew(broker, "readers", "a", mine, timedelta(hours=1))
            taking = Doing(lambda: take(other, "b", route))
            wait_for_lock(engine)
        assert taking.result() == []


def test_a_queue_that_is_being_taken_is_not_renewed(broker: Connection, route: TopicRoute, engine: Engine) -> None:
    mine = take(broker, "a", route)
    give_up(broker, "a")
    later(broker, 61)
    with engine.connect() as other:
        with transaction(broker):
            theirs = take(broker, "b", route)
            renewing = Doing(lambda: renew(other, "a", mine))
            wait_for_lock(engine)
        assert renewing.result() == set()
    assert len(theirs) == 3


def test_what_somebody_else_is_taking_is_not_free(broker: Connection, route: TopicRoute, engine: Engine) -> None:
    release_queues(broker, "readers", "a", take(broker, "a", route))
    first, *others = route.queue_keys

    with engine.connect() as other, transaction(broker):
        take_queues(broker, "readers", "a", [first], FIRST, expiry=MINUTE)
        assert queue_locks.free(other, "readers", "b", route.queue_keys) == others


def test_a_take_that_fails_leaves_no_lock(broker: Connection, route: TopicRoute) -> None:
    def take_and_fail() -> None:
        with transaction(broker):
            take(broker, "a", route)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take_and_fail()

    assert len(take(broker, "b", route)) == 3


def wait_for_lock(engine: Engine) -> None:
    """Wait until a session waits for another session's lock."""
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    with engine.connect() as connection:
        wait_until(lambda: connection.scalar(waiting))


class Hold(NamedTuple):
    """A period in which a member believed that it owned a queue."""

    queue_key: int
    member: str
    begins: float
    ends: float

    def overlaps(self, other: "Hold") -> bool:
        """Whether another member believed that it owned the queue during the same period."""
        is_rival = self.queue_key == other.queue_key and self.member != other.member
        return is_rival and self.begins < other.ends and other.begins < self.ends


class Contender(threading.Thread):
    """A member that takes queues by force, renews locks now and then, and gives queues back, or forgets them."""

    def __init__(self, engine: Engine, name: str, route: TopicRoute, seed: int, ends_at: float) -> None:
        super().__init__(name=name)
        self._engine = engine
        self._route = route
        self._random = random.Random(seed)
        self._ends_at = ends_at
        self.holds: list[Hold] = []

    def run(self) -> None:
        with self._engine.connect() as connection:
            while time.monotonic() < self._ends_at or (not self.holds and time.monotonic() < self._ends_at + 60):
                self._hold_once(connection)

    def _hold_once(self, connection: Connection) -> None:
        client_expiry, expiry = 0.03, timedelta(seconds=0.06)
        keys = self._random.sample(self._route.queue_keys, self._random.randint(1, 3))
        asked_at = time.monotonic()
        owned = take_queues(connection, "readers", self.name, keys, FIRST, expiry=expiry, force=True)
        since = {queue.queue_key: (time.monotonic(), asked_at + client_expiry) for queue in owned}
        for _ in range(self._random.randint(0, 4)):
            time.sleep(0.01)
            asked_at = time.monotonic()
            renewed = renew_queues(connection, "readers", self.name, owned, expiry=expiry)
            for key in renewed:
                begins, ends = since[key]
                if asked_at > ends:  # there was a time when it did not believe so
                    self.holds.append(Hold(key, self.name, begins, ends))
                    begins = time.monotonic()
                since[key] = (begins, asked_at + client_expiry)
        now = time.monotonic()
        self.holds += [Hold(key, self.name, begins, min(now, ends)) for key, (begins, ends) in since.items()]
        if self._random.random() < 0.7:
            release_queues(connection, "readers", self.name, owned)


def test_no_two_members_ever_hold_a_queue_at_the_same_time(
    broker: Connection, route: TopicRoute, engine: Engine
) -> None:
    ends_at = time.monotonic() + 1.5
    contenders = [Contender(engine, f"member-{seed}", route, seed, ends_at) for seed in range(4)]
    for contender in contenders:
        contender.start()
    for contender in contenders:
        contender.join()

    holds = sorted(hold for contender in contenders for hold in contender.holds)
    overlaps = [
        (one, two)
        for number, one in enumerate(holds)
        for two in holds[number + 1 :]
        if one.queue_key == two.queue_key
        and one.member != two.member
        and one.begins < two.ends
        and two.begins < one.ends
    ]
    assert overlaps == []
    assert len({hold.member for hold in holds}) == 4


# -- as a consumer sees it ----------------------------------------------------------------------


def ownership(client_id: str) -> QueueOwnership:
    lease = Lease(timedelta(seconds=20), timedelta(seconds=30), timedelta(seconds=60))
    return QueueOwnership("readers", LockedOffsetStore("readers", client_id, lease), LIMITS)


def wanted(route: TopicRoute) -> dict[int, MessageQueue]:
    return {key: MessageQueue("orders", "broker-a", queue_id) for queue_id, key in enumerate(route.queue_keys)}


def test_the_lease_ends_30_seconds_after_it_was_asked_for(broker: Connection, route: TopicRoute) -> None:
    mine = ownership("a")
    before = time.monotonic()
    held = mine.take(broker, wanted(route), FIRST)
    after = time.monotonic()

    assert all(before + 30 <= queue.lease_ends <= after + 30 for queue in held)
    before = time.monotonic()
    assert mine.renew(broker) == []
    assert all(queue.lease_ends >= before + 30 for queue in held)


def test_a_renewal_tells_what_is_lost(broker: Connection, route: TopicRoute) -> None:
    mine, theirs = ownership("a"), ownership("b")
    held = mine.take(broker, wanted(route), FIRST)
    give_up(broker, "a")
    later(broker, 61)
    theirs.take(broker, dict(list(wanted(route).items())[:1]), FIRST)

    assert mine.renew(broker) == held[:1]
    assert [queue.is_lost for queue in held] == [True, False, False]
    assert mine.take_again(broker) == []


def test_a_member_that_was_given_up_for_a_while_keeps_what_it_has_in_hand(
    broker: Connection, route: TopicRoute
) -> None:
    mine, theirs = ownership("a"), ownership("b")
    held = mine.take(broker, wanted(route), FIRST)
    give_up(broker, "a")
    assert theirs.take(broker, wanted(route), FIRST, force=True) == []
    join(broker, "a")

    assert mine.take_again(broker) == []
    assert [queue.epoch for queue in held] == [2, 2, 2]
    assert mine.renew(broker) == []
    for queue in held:
        queue.drop()
    mine.give_back(broker)
    assert len(theirs.take(broker, wanted(route), FIRST)) == 3
