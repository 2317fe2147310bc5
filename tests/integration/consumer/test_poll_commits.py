"""Commits by polls are appended and fenced: a kill or a reset in the middle of them undoes nothing."""

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.broker.consumers.group_offsets import append_commits, commit_positions
from mqdb.broker.consumers.offset_reset import reset_offsets
from mqdb.broker.consumers.offsets import take_queues
from mqdb.common.group import FROM_FIRST_OFFSET
from mqdb.store.consumers import groups
from mqdb.store.consumers.consumer_offsets import OwnedQueue, committed_offsets
from mqdb.store.consumers.offset_commits import OffsetCommit
from mqdb.store.topics.topics import TopicRoute
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.fuzz import fuzz_random
from tests.fixtures.lite_pull import Lite, fill
from tests.fixtures.postgres import Database
from tests.fixtures.variants import usually

pytestmark = pytest.mark.usefixtures("both_kinds_of_clients")

ROUNDS = 8
NEVER = timedelta(hours=1)
ROW = "SELECT xmin::text, next_offset FROM mqdb.consumer_offset WHERE queue_key = :key"


@pytest.mark.parametrize("is_pooled", usually(False, of=[False, True]), ids=["direct", "pooled"])
def test_polls_with_commits_update_no_row_and_whoever_takes_the_queue_goes_on_behind_them(
    broker: Connection, database: Database, lite: Lite, monkeypatch: pytest.MonkeyPatch, is_pooled: bool
) -> None:
    if is_pooled:  # nothing is prepared then
        monkeypatch.setenv("MQDB_POOL_DSN", database.dsn)
    [key] = fill(broker).queue_keys
    consumer = lite("orders", auto_commit=False, auto_commit_interval=NEVER, pull_batch_size=3)
    row = broker.execute(text(ROW), {"key": key}).one()

    for number in range(1, 6):
        assert len(consumer.poll(timedelta(seconds=20))) == 3
        consumer.commit()
        assert committed_offsets(broker, "readers", [key]) == {key: number * 3}

    assert broker.execute(text(ROW), {"key": key}).one() == row
    assert broker.scalar(text("SELECT count(*) FROM mqdb.offset_commit")) == 5
    # A plain member of the group, after a crash.
    [taken] = take_queues(broker, "readers", "another", [key], FROM_FIRST_OFFSET, force=True)
    assert taken.next_offset == 15
    assert broker.scalar(text("SELECT count(*) FROM mqdb.offset_commit")) == 0


def test_a_commit_without_news_asks_nothing(broker: Connection, database: Database, lite: Lite) -> None:
    """A commit without new offsets runs no statement.

    The offset tables are locked, so any statement that uses them would wait.
    """
    fill(broker)
    consumer = lite("orders", auto_commit=False, auto_commit_interval=NEVER, pull_batch_size=5)
    consumer.poll(timedelta(seconds=20))
    consumer.commit()
    with ThreadPoolExecutor(1) as thread, database.connect(autocommit=False) as locker:
        locker.execute("LOCK TABLE mqdb.offset_commit, mqdb.consumer_offset")

        for _ in range(3):
            thread.submit(consumer.commit).result(30)


def test_what_a_selector_passes_by_is_committed_as_well(broker: Connection, lite: Lite) -> None:
    route = topic(broker)
    consumer = lite("orders", "TagA", auto_commit=False, auto_commit_interval=NEVER)
    append(broker, route, *["x"] * 7, tag="TagB")
    dispatch_all(broker)

    seconds = 0.0
    while committed_offsets(broker, "readers", route.queue_keys) != {route.queue_keys[0]: 7}:
        assert seconds < 30
        consumer.poll(timedelta(seconds=0.05))
        consumer.commit()
        seconds += 0.05


class Committing(threading.Thread):
    """An owner that commits as fast as possible until it loses the queue, and folds the commits now and then."""

    def __init__(self, engine: Engine, owned: OwnedQueue, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self._engine = engine
        self._owned = owned
        self._rng = rng
        #: What has returned; what is under way may be committed as well.
        self.reached = owned.next_offset

    def run(self) -> None:
        key, epoch, stored, segment, _ = self._owned
        with self._engine.connect() as connection:
            while True:
                past = self.reached + self._rng.randint(1, 5)
                if self._rng.random() < 0.1:
                    position = self._owned._replace(next_offset=past)
                    is_lost = bool(commit_positions(connection, "readers", [position], {key: stored}))
                    stored = past
                else:
                    commit = OffsetCommit(key, epoch, self.reached, past, segment)
                    is_lost = not append_commits(connection, "readers", [commit])
                if is_lost:
                    return
                self.reached = past


def _take(broker: Connection, route: TopicRoute) -> int:
    """Take the queue by force, as another member. The queue is skipped during a commit, and tried again."""
    while True:
        for taken in take_queues(broker, "readers", "b", route.queue_keys, FROM_FIRST_OFFSET, force=True):
            return taken.next_offset


def _reset(broker: Connection, _route: TopicRoute) -> int:
    reset_offsets(broker, "readers", "orders", 1)
    return 1


@pytest.mark.parametrize("take_away", [_take, _reset])
def test_nothing_is_committed_any_more_once_a_queue_is_taken_or_reset(
    broker: Connection, engine: Engine, take_away: Callable[[Connection, TopicRoute], int]
) -> None:
    """No commit succeeds once a queue is taken or reset, at random moments, even in the middle of a commit.

    Commits that had returned by then count.
    """
    rng = fuzz_random()
    route = fill(broker)
    [key] = route.queue_keys
    groups.save(broker, "readers", {})
    for _ in range(ROUNDS):
        [owned] = take_queues(broker, "readers", "a", [key], FROM_FIRST_OFFSET, force=True)
        committing = Committing(engine, owned, random.Random(rng.random()))
        committing.start()
        committing.join(rng.random() * 0.03)
        before = committing.reached

        offset = take_away(broker, route)
        committing.join(30)

        assert not committing.is_alive()
        assert committed_offsets(broker, "readers", [key]) == {key: offset}
        if take_away is _take:
            assert before <= committing.reached <= offset
