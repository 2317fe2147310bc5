"""The life of segments, round by round."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import Connection, Engine, func, select

from mqdb.service.retention import RetentionRules, SegmentSizing
from mqdb.service.segment_keeper import KeeperCounts, SegmentKeeper, SegmentKeeperConfig
from mqdb.service.service import Context
from mqdb.store.segments import partitions
from mqdb.store.segments.partitions import PartitionState
from tests.fixtures import log as by_hand
from tests.fixtures.clocks import ManualClock
from tests.fixtures.delay import stop_clock
from tests.fixtures.log import append, create_topic, dispatch_all, drop_partitions, index_all, scalar, small_segments
from tests.fixtures.postgres import Database
from tests.fixtures.services import Rounds
from tests.fixtures.variants import usually

SIZE = 10
ANY_HOUR = RetentionRules(delete_when=tuple(range(24)), time_zone=UTC)
#: Keeps the size of segments as the tests have cut them.
AS_CUT = SegmentSizing(fewest=1, most=10**9, smallest=1)
CONFIG = SegmentKeeperConfig(sizing=AS_CUT, retention=ANY_HOUR)
NOTHING = KeeperCounts()


class Keeper:
    """A segment keeper with its connection and their common clock."""

    def __init__(self, connection: Connection, scheduler: BackgroundScheduler) -> None:
        self.connection = connection
        self.scheduler = scheduler
        self.clock = ManualClock(datetime(2024, 1, 1, tzinfo=UTC))
        self.configure(CONFIG)

    def configure(self, config: SegmentKeeperConfig) -> None:
        self.service = SegmentKeeper(Context(lambda: self.connection, clock=self.clock), self.scheduler, config)
        self.service.prepare(self.connection)

    def round(self) -> KeeperCounts:
        return self.service.run_once(self.connection)

    def wait(self, time: timedelta) -> None:
        self.clock.advance(time)
        moved = self.clock.now() - datetime(2024, 1, 1, tzinfo=UTC)
        self.connection.execute(select(func.set_config("mqdb.clock_offset", f"{moved.total_seconds()} s", False)))


@pytest.fixture
def keeper(engine: Engine, scheduler: BackgroundScheduler) -> Iterator[Keeper]:
    with engine.connect() as connection:
        yield Keeper(connection, scheduler)
        connection.invalidate()


@pytest.fixture
def queue(log: by_hand.Connection) -> int:
    """The key of an empty queue in a log with small segments."""
    log.execute("DELETE FROM mqdb.segment")
    drop_partitions(log, [1, 2, 3])
    log.execute("UPDATE mqdb.broker SET segment_size = %s", [SIZE])
    log.execute("SELECT mqdb.ensure_segments(3)")
    return create_topic(log, "orders")[0]


def fill(log: by_hand.Connection, queue: int, segments: int = 1) -> None:
    """Send enough records to fill this many segments, and have them dispatched and indexed."""
    for _ in range(segments):
        append(log, queue, SIZE)
        dispatch_all(log)
        index_all(log)


def states(log: by_hand.Connection) -> dict[int, str]:
    """The state of each segment in mqdb.segment."""
    return dict(log.execute("SELECT segment, state FROM mqdb.segment ORDER BY segment").fetchall())


def tables(log: by_hand.Connection, segment: int) -> set[str]:
    """The parent tables of which a segment still has a partition, attached or not."""
    rows = log.execute("SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE %s", [f"%\\_{segment}"])
    return {name.removesuffix(f"_{segment}") for (name,) in rows}


def base_offset(log: by_hand.Connection, queue: int) -> int:
    return int(scalar(log, "SELECT base_offset FROM mqdb.queue WHERE queue_key = %s", [queue]))


# -- making, closing, sealing -------------------------------------------------------------------


def test_two_segments_are_ahead_of_the_log(keeper: Keeper, log: by_hand.Connection, queue: int) -> None:
    log.execute("SELECT setval('mqdb.log_pos', 25)")

    assert keeper.round().made == 2

    assert list(states(log)) == [1, 2, 3, 4, 5]
    assert keeper.round().made == 0


def test_segments_grow_with_the_traffic(keeper: Keeper, log: by_hand.Connection, queue: int) -> None:
    keeper.configure(replace(CONFIG, sizing=SegmentSizing(smallest=SIZE)))
    log.execute("UPDATE mqdb.broker SET created_at = mqdb.now() - interval '1 day'")
    log.execute("SELECT setval('mqdb.log_pos', 8001)")

    keeper.round()

    assert scalar(log, "SELECT segment_size FROM mqdb.broker") == pytest.approx(24_000 / 38, rel=0.1)


def test_a_segment_is_closed_when_all_its_positions_are_taken(
    keeper: Keeper, log: by_hand.Connection, queue: int
) -> None:
    append(log, queue, SIZE - 1)
    assert keeper.round().closed == 0

    append(log, queue)

    assert keeper.round().closed == 1
    assert states(log)[1] == "closed"
    assert scalar(log, "SELECT closed_at > mqdb.now() - interval '1 minute' FROM mqdb.segment WHERE segment = 1")


def test_a_closed_segment_is_sealed_when_all_of_it_is_dispatched_and_indexed(
    keeper: Keeper, log: by_hand.Connection, queue: int
) -> None:
    append(log, queue, SIZE + 1)
    assert keeper.round().sealed == 0
    dispatch_all(log)
    assert keeper.round().sealed == 0
    index_all(log)

    assert keeper.round().sealed == 1

    assert states(log)[1] == "sealed"


def test_a_segment_is_not_sealed_while_a_transaction_may_write_to_it(
    keeper: Keeper, log: by_hand.Connection, queue: int, database: Database
) -> None:
    late = database.connect(autocommit=False)
    append(late, queue)
    fill(log, queue)
    keeper.round()
    assert states(log)[1] == "closed"

    late.commit()
    fill(log, queue)
    keeper.round()

    assert states(log)[1] == "sealed"


# -- retention ----------------------------------------------------------------------------------


def test_what_is_older_than_the_reserved_time_goes_as_a_whole(
    keeper: Keeper, log: by_hand.Connection, queue: int
) -> None:
    fill(log, queue, 2)
    assert keeper.round() == replace(NOTHING, closed=2, sealed=2)

    keeper.wait(timedelta(hours=72, minutes=1))

    assert keeper.round() == replace(NOTHING, drained=1, dropped=1)
    assert base_offset(log, queue) == SIZE
    assert tables(log, 1) == set()
    assert list(states(log)) == [2, 3, 4]


def test_before_the_reserved_time_nothing_goes(keeper: Keeper, log: by_hand.Connection, queue: int) -> None:
    fill(log, queue, 2)
    keeper.round()

    keeper.wait(timedelta(hours=71, minutes=59))

    assert keeper.round() == NOTHING


def test_outside_the_hours_of_delete_when_nothing_goes(keeper: Keeper, log: by_hand.Connection, queue: int) -> None:
    stop_clock(keeper.connection)  # a full hour may strike
    hour = scalar(log, "SELECT extract(hour FROM mqdb.now() AT TIME ZONE 'UTC')::integer")
    rules = replace(ANY_HOUR, delete_when=((hour + 12) % 24,))
    keeper.configure(replace(CONFIG, retention=rules))
    fill(log, queue, 2)
    keeper.round()

    keeper.wait(timedelta(days=4))
    assert keeper.round() == NOTHING

    keeper.wait(timedelta(hours=12))
    assert keeper.round().drained == 1


def test_a_queue_without_messages_in_a_dropped_segment_keeps_its_min_offset(
    keeper: Keeper, log: by_hand.Connection, queue: int
) -> None:
    other = create_topic(log, "payments")[0]
    fill(log, queue)
    append(log, other, 3)
    dispatch_all(log)
    keeper.round()

    keeper.wait(timedelta(days=4))

    assert keeper.round().dropped == 1
    assert (base_offset(log, queue), base_offset(log, other)) == (SIZE, 0)


def test_offsets_go_on_after_all_messages_of_a_queue_are_gone(
    keeper: Keeper, log: by_hand.Connection, queue: int
) -> None:
    fill(log, queue)
    other = create_topic(log, "payments")[0]
    fill(log, other, 3)
    keeper.round()
    keeper.wait(timedelta(days=4))
    keeper.round()
    assert base_offset(log, queue) == SIZE

    append(log, queue)
    dispatch_all(log)

    statement = "SELECT array_agg(queue_offset) FROM mqdb.consume_queue WHERE queue_key = %s"
    assert scalar(log, statement, [queue]) == [SIZE]


@pytest.fixture
def late_committer(keeper: Keeper, log: by_hand.Connection, queue: int, database: Database) -> None:
    """A record at position 1, whose entry is in segment 3; segments 1 and 2 are drained."""
    late = database.connect(autocommit=False)
    append(late, queue, body=b"late")
    fill(log, queue, 2)
    late.commit()
    dispatch_all(log)
    index_all(log)
    keeper.round()
    keeper.wait(timedelta(days=4))
    assert keeper.round() == replace(NOTHING, drained=2)


@pytest.mark.usefixtures("late_committer")
def test_a_log_stays_while_a_younger_segment_points_into_it(
    keeper: Keeper, log: by_hand.Connection, queue: int
) -> None:
    assert (states(log)[1], tables(log, 1)) == ("drained", {"commit_log"})
    assert scalar(log, "SELECT array_agg(text ORDER BY queue_offset) FROM mqdb.message") == ["body", "late"]

    fill(log, queue)
    keeper.round()
    keeper.wait(timedelta(days=4))

    assert keeper.round() == replace(NOTHING, drained=1, dropped=3)


@pytest.mark.usefixtures("late_committer")
def test_a_restored_database_does_not_bring_dropped_messages_back(log: by_hand.Connection, database: Database) -> None:
    log.execute("UPDATE mqdb.broker SET database_oid = 1")

    adopted = by_hand.dispatch(database.connect())

    assert (adopted.outcome, adopted.messages) == ("ADOPTED", 0)


@pytest.mark.parametrize(("disk_used", "drained"), [(75.0, 0), (75.1, 1)])
def test_a_fuller_disk_makes_old_segments_go_at_any_hour(
    keeper: Keeper, log: by_hand.Connection, queue: int, disk_used: float, drained: int
) -> None:
    hour = scalar(log, "SELECT extract(hour FROM mqdb.now() AT TIME ZONE 'UTC')::integer")
    rules = replace(ANY_HOUR, delete_when=((hour + 12) % 24,))
    keeper.configure(replace(CONFIG, retention=rules, disk_used_percent=lambda: disk_used))
    fill(log, queue, 2)
    keeper.round()

    keeper.wait(timedelta(days=4))

    assert keeper.round().drained == drained


def test_a_nearly_full_disk_makes_young_segments_go_one_by_one(
    keeper: Keeper, log: by_hand.Connection, queue: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "mqdb.service")
    keeper.configure(replace(CONFIG, disk_used_percent=lambda: 85.1))
    fill(log, queue, 4)

    assert keeper.round() == replace(NOTHING, closed=4, sealed=4, drained=1, dropped=1)
    assert keeper.round() == NOTHING
    keeper.wait(timedelta(seconds=10))

    assert keeper.round() == replace(NOTHING, drained=1, dropped=1)
    assert list(states(log)) == [3, 4, 5, 6]
    assert {record.getMessage()[:23] for record in caplog.records} == {"dropping messages early"}


def test_a_nearly_full_disk_spares_what_is_not_sealed(
    keeper: Keeper, log: by_hand.Connection, queue: int, database: Database
) -> None:
    keeper.configure(replace(CONFIG, disk_used_percent=lambda: 99.0))
    late = database.connect(autocommit=False)
    append(late, queue)
    fill(log, queue, 2)

    assert keeper.round().drained == 0

    assert (states(log)[1], states(log)[2]) == ("closed", "sealed")


def test_a_round_drops_a_bounded_number_of_segments(keeper: Keeper, log: by_hand.Connection, queue: int) -> None:
    keeper.configure(replace(CONFIG, drained_per_round=2))
    fill(log, queue, 4)
    keeper.round()
    keeper.wait(timedelta(days=4))

    assert [keeper.round().dropped for _ in range(3)] == [2, 1, 0]


# -- interruptions ------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", usually(1, 4, 6, of=range(7)))
def test_a_drop_that_is_interrupted_is_taken_up_by_the_next_keeper(
    keeper: Keeper, log: by_hand.Connection, queue: int, steps: int
) -> None:
    """An interrupted drop is completed by the next keeper. After a kill only the states in the catalog are left."""
    fill(log, queue, 2)
    keeper.round()
    log.execute("UPDATE mqdb.segment SET state = 'drained' WHERE segment = 1")
    parents = [*partitions.INDEXES, partitions.LOG]
    for _ in range(steps):
        next(parent for parent in parents if partitions.step(keeper.connection, parent, 1))

    assert keeper.round().dropped == 1

    assert tables(log, 1) == set()
    assert 1 not in states(log)


def test_a_detach_that_waits_for_a_reader_is_finished_when_the_reader_is(
    keeper: Keeper, log: by_hand.Connection, queue: int, database: Database
) -> None:
    fill(log, queue, 2)
    keeper.round()
    keeper.wait(timedelta(days=4))
    reader = database.connect(autocommit=False)
    reader.execute("SELECT count(*) FROM mqdb.consume_queue")

    assert keeper.round() == replace(NOTHING, drained=1, waiting=True)
    assert base_offset(log, queue) == SIZE
    assert partitions.state_of(keeper.connection, "queue_run", 1) is PartitionState.DETACHING
    assert keeper.round() == replace(NOTHING, waiting=True)

    reader.rollback()
    assert keeper.round() == replace(NOTHING, dropped=1)


def test_min_offsets_wait_for_who_holds_them(
    keeper: Keeper, log: by_hand.Connection, queue: int, database: Database
) -> None:
    fill(log, queue, 2)
    keeper.round()
    keeper.wait(timedelta(days=4))
    holder = database.connect(autocommit=False)
    holder.execute("SELECT FROM mqdb.queue WHERE queue_key = %s FOR UPDATE", [queue])

    assert keeper.round() == replace(NOTHING, waiting=True)
    assert (states(log)[1], base_offset(log, queue)) == ("sealed", 0)

    holder.rollback()
    assert keeper.round().dropped == 1


def test_while_a_detach_is_pending_segments_are_made_and_messages_flow(
    keeper: Keeper, log: by_hand.Connection, queue: int, database: Database
) -> None:
    fill(log, queue, 2)
    keeper.round()
    keeper.wait(timedelta(days=4))
    reader = database.connect(autocommit=False)
    reader.execute("SELECT FROM mqdb.consume_queue, mqdb.message_index, mqdb.commit_log LIMIT 0")
    assert keeper.round().waiting

    fill(log, queue, 2)

    assert keeper.round() == replace(NOTHING, closed=2, sealed=2, waiting=True)
    assert len(states(log)) == 6


def test_a_lock_timeout_is_an_outcome_and_any_other_error_is_not(keeper: Keeper, log: by_hand.Connection) -> None:
    log.execute("ALTER TABLE mqdb.commit_log RENAME TO renamed")

    with pytest.raises(psycopg.errors.UndefinedTable):
        partitions.remove(keeper.connection, "commit_log", 1)


# -- checkpoints and rounds ---------------------------------------------------------------------


def test_the_newest_checkpoints_of_each_service_are_kept(keeper: Keeper, log: by_hand.Connection, queue: int) -> None:
    keeper.configure(replace(CONFIG, checkpoints_kept=3))
    for _ in range(8):
        append(log, queue)
        dispatch_all(log)
    newest = scalar(log, "SELECT max(seq) FROM mqdb.checkpoint WHERE service = 'dispatch'")

    assert keeper.round().checkpoints_pruned > 0

    kept = log.execute("SELECT seq FROM mqdb.checkpoint WHERE service = 'dispatch' ORDER BY seq").fetchall()
    assert [seq for (seq,) in kept] == [newest - 2, newest - 1, newest]
    assert scalar(log, "SELECT count(*) FROM mqdb.checkpoint WHERE service = 'index'") > 0
    assert keeper.round().checkpoints_pruned == 0


def test_the_scheduler_drives_it(
    engine: Engine, scheduler: BackgroundScheduler, rounds: Rounds, log: by_hand.Connection, queue: int
) -> None:
    config = replace(CONFIG, interval=timedelta(milliseconds=20))
    keeper = SegmentKeeper(Context(engine.connect, on_round=rounds), scheduler, config)
    fill(log, queue)

    keeper.start()
    try:
        rounds.wait_for(lambda counts: counts.sealed == 1)
    finally:
        keeper.stop()


def test_a_full_segment_is_sealed_in_seconds(keeper: Keeper, log: by_hand.Connection) -> None:
    """A full segment is sealed in seconds.

    The proof that nothing is missing reads each record once; an unlucky plan would take minutes.
    """
    small_segments(log, 70_000)
    queue = create_topic(log, "orders")[0]
    log.execute("ALTER TABLE mqdb.commit_log_1 SET (autovacuum_enabled = off)")  # its lock is in the way of a seal
    append(log, queue, 70_010, body=b"x")
    dispatch_all(log, 50_000)
    index_all(log, 50_000)
    keeper.connection.exec_driver_sql("SET statement_timeout = '30s'")

    assert keeper.round().sealed == 1
