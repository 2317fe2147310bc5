"""Row 75 of the checklist: messages are deleted by age, whether read or not, and the min offset moves.

Segments are dropped while messages are sent and pulled and a transaction stays open. No session waits for the
transaction.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import Connection, Engine

from mqdb.broker.consumers.pull import PullStatus, pull
from mqdb.service.segment_keeper import SegmentKeeperConfig
from mqdb.store.segments import partitions
from mqdb.store.segments.partitions import PartitionState
from mqdb.store.topics.topics import TopicRoute
from tests.fixtures import broker, log
from tests.fixtures.busy_machine import PULSE, Pulses
from tests.fixtures.log import drop_partitions, scalar
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.serve import Starter

SEGMENT_SIZE = 50
SEGMENTS = 60
LOCK_TIMEOUT = SegmentKeeperConfig().lock_timeout
#: Nobody waits longer than the lock timeout; the rest is for a server that is busy with something else.
LONGEST_STATEMENT = LOCK_TIMEOUT + timedelta(seconds=1.8)
#: Whoever waited for the open transaction would wait this long, which is longer than that.
HELD_OPEN = 2 * LONGEST_STATEMENT


class Loop(threading.Thread):
    """Repeats a function until stopped; records the start and end of each call."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.action = action
        self.stopping = threading.Event()
        self.spans: list[tuple[float, float]] = []
        self.error: BaseException | None = None

    @property
    def times(self) -> int:
        return len(self.spans)

    def run(self) -> None:
        try:
            while not self.stopping.wait(0.03):
                began = time.monotonic()
                self.action()
                self.spans.append((began, time.monotonic()))
        except BaseException as error:
            self.error = error
            raise


class Reader:
    """Pulls a queue from its beginning, as a consumer does."""

    def __init__(self, connection: Connection, route: TopicRoute) -> None:
        self.connection = connection
        self.route = route
        self.offset = 0
        self.segment = 0
        self.moved = 0

    def pull(self) -> None:
        ((result,), _) = pull(self.connection, [broker.request(self.route, self.offset, segment=self.segment)])
        if result.status is PullStatus.OFFSET_ILLEGAL:
            self.moved += 1
        else:
            offsets = [message.queue_offset for message in result.messages]
            assert offsets == list(range(self.offset, self.offset + len(offsets)))
        self.offset, self.segment = result.next_begin_offset, result.segment


@contextmanager
def running(*loops: Loop) -> Iterator[None]:
    """Starts the loops, and stops them. An error in a loop fails the test."""
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.stopping.set()
        for loop in loops:
            loop.join(30)
    for loop in loops:
        assert loop.error is None


def read_all(connection: log.Connection) -> None:
    """Read, and so lock, all segments until the transaction ends."""
    for parent in log.PARENTS:
        connection.execute(f"SELECT count(*) FROM mqdb.{parent}")


@pytest.fixture
def small_segments(database: Database) -> None:
    """A log with segments that fill in less than a second."""
    connection = database.connect()
    connection.execute("DELETE FROM mqdb.segment")
    drop_partitions(connection, [1, 2, 3])
    connection.execute("UPDATE mqdb.broker SET segment_size = %s", [SEGMENT_SIZE])
    connection.execute("SELECT mqdb.ensure_segments(%s)", [SEGMENTS])


@pytest.mark.slow
@pytest.mark.usefixtures("small_segments")
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_old_messages_go_whether_read_or_not_and_nobody_waits(
    serve: Starter, database: Database, engine: Engine
) -> None:
    with engine.connect() as sending, engine.connect() as pulling, engine.connect() as looking:
        # Given a broker that keeps messages for a second
        route = broker.topic(looking)
        serve(dsn=database.dsn, file_reserved_time="1s", idle_seconds=1, delete_when=";".join(map(str, range(24))))
        watch = database.connect()
        reader, laggard = Reader(pulling, route), Reader(looking, route)
        sender = Loop(lambda: broker.append(sending, route, "body"))
        puller = Loop(reader.pull)

        def min_offset() -> int:
            return int(scalar(watch, "SELECT base_offset FROM mqdb.queue WHERE queue_key = %s", [route.queue_keys[0]]))

        def oldest_segment() -> int:
            return int(scalar(watch, "SELECT min(segment) FROM mqdb.segment"))

        def is_detaching() -> bool:
            return partitions.state_of(looking, "queue_run", oldest_segment()) is PartitionState.DETACHING

        with Pulses() as pulses, running(sender, puller):
            wait_until(lambda: sender.times > 2 * SEGMENT_SIZE)
            # when a transaction that has read and written stays open, longer than anybody may wait
            with database.connect(autocommit=False) as user:
                read_all(user)
                user.execute("SELECT mqdb.send('orders', 'late'::text)")
                wait_until(lambda: min_offset() > 0)
                sent, pulled, held_since = sender.times, puller.times, time.monotonic()
                wait_until(lambda: time.monotonic() - held_since > HELD_OPEN.total_seconds())

                # then messages flow on, and those that are old have gone, for those who have read them and for others
                wait_until(lambda: sender.times > sent + 100 and puller.times > pulled + 100)
                wait_until(is_detaching)
                laggard.pull()
                assert (laggard.moved, laggard.offset) == (1, min_offset())
                # Another one keeps what comes now, which would go after a second.
                other = database.connect(autocommit=False)
                read_all(other)

            # and when it ends, what was given up is dropped, and its own message arrives.
            wait_until(lambda: scalar(watch, "SELECT count(*) FROM mqdb.message WHERE text = 'late'") == 1)
            other.rollback()
            wait_until(lambda: oldest_segment() > 3)
            assert partitions.state_of(looking, "commit_log", 1) is PartitionState.GONE
        assert max(pulses.between(*span) for span in sender.spans + puller.spans) < LONGEST_STATEMENT / PULSE
