"""The catalogue of the archive, and retention that drops only archived segments."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, timedelta
from pathlib import Path

import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import IntegrityError

from mqdb.broker import archive
from mqdb.broker.archive import SegmentContents
from mqdb.broker.topics import topics as admin
from mqdb.common.topic import SCHEDULE_TOPIC
from mqdb.embedded import EmbeddedPostgres
from mqdb.errors import TopicNotFound
from mqdb.server.service_configs import keeper_config
from mqdb.service.retention import RetentionRules, SegmentSizing
from mqdb.service.segment_keeper import KeeperCounts, SegmentKeeper, SegmentKeeperConfig
from mqdb.service.service import Context
from mqdb.settings import load_settings
from mqdb.store.engine import create_engine
from mqdb.store.segments import segments
from mqdb.store.segments.archived_segments import Topics, begin_run, find_archived, is_sealed, unfinished_runs
from tests.fixtures.archive import as_archived, seal_full
from tests.fixtures.broker import append, topic
from tests.fixtures.delay import delay, move_clock
from tests.fixtures.log import small_segments
from tests.fixtures.postgres import KNOW_ITSELF, Database, new_database
from tests.fixtures.processes import wait_until

CONFIG = SegmentKeeperConfig(
    sizing=SegmentSizing(fewest=1, most=10**9, smallest=1),
    retention=RetentionRules(delete_when=tuple(range(24)), time_zone=UTC),
    retain_until_archived=True,
)
FOUR_DAYS = timedelta(days=4)

Keep = Callable[[SegmentKeeperConfig], KeeperCounts]


@pytest.fixture(scope="module")
def original(postgres: EmbeddedPostgres, template_database: str) -> Iterator[str]:
    """Name of a database to be copied.

    The database has orders in two queues, in segments of ten records. Two segments are sealed; the third has one
    record.
    """
    with new_database(postgres, template_database) as database:
        small_segments(database.connect(), 10, ahead=6)
        engine = create_engine(database.dsn)
        with engine.connect() as broker:
            broker.exec_driver_sql(KNOW_ITSELF)
            orders = topic(broker, "orders", queues=2)
            append(broker, orders, *"abcdefg")
            append(broker, orders, *"hijk", queue_id=1)
            append(broker, orders, *"lmnopqrstu")
            assert seal_full(broker) == [1, 2]
        engine.dispose()
        database.close()
        yield database.name


@pytest.fixture
def database(postgres: EmbeddedPostgres, original: str) -> Iterator[Database]:
    """A copy of the database for one test."""
    with new_database(postgres, original) as database:
        yield database


@pytest.fixture
def keep(broker: Connection, scheduler: BackgroundScheduler) -> Keep:
    """Run a round of the segment keeper."""

    def keep(config: SegmentKeeperConfig = CONFIG) -> KeeperCounts:
        return SegmentKeeper(Context(lambda: broker), scheduler, config).run_once(broker)

    return keep


def archive_first(broker: Connection) -> None:
    """Record that the oldest segment is archived."""
    assert archive.record(broker, as_archived(archive.plan(broker)[0]))


# -- what is archived -----------------------------------------------------------------------------


def test_what_a_segment_holds_is_told_by_topic_and_queue(broker: Connection) -> None:
    first, second = archive.plan(broker)

    assert first == SegmentContents(1, {"orders": {0: (0, 7), 1: (0, 3)}})
    assert second == SegmentContents(2, {"orders": {0: (7, 16), 1: (3, 4)}})
    assert (first.messages, second.messages) == (10, 10)


def test_what_waits_in_topics_of_the_broker_is_left_out(broker: Connection) -> None:
    delay(broker, 18, *"123456789")
    assert seal_full(broker) == [1, 2, 3]

    assert archive.plan(broker)[2] == SegmentContents(3, {"orders": {0: (16, 17)}})


def test_topics_may_be_named(broker: Connection) -> None:
    payments = topic(broker, "payments")
    append(broker, payments, *"123456789")
    seal_full(broker)

    assert archive.plan(broker, ["payments"])[2] == SegmentContents(3, {"payments": {0: (0, 9)}}, ("payments",))
    with pytest.raises(TopicNotFound):
        archive.plan(broker, ["payment"])


def test_a_topic_that_was_deleted_is_not_archived(broker: Connection) -> None:
    admin.delete_topic(broker, "orders")

    assert [contents.messages for contents in archive.plan(broker)] == [0, 0]


def test_a_segment_is_archived_once(broker: Connection) -> None:
    contents = archive.plan(broker)[0]
    begin_run(broker, 1, "file:/archive/run=1")
    begin_run(broker, 1, "file:/archive/run=2")

    assert archive.record(broker, as_archived(contents, "file:/archive/run=1"))
    assert not archive.record(broker, as_archived(contents, "file:/archive/run=2"))

    assert unfinished_runs(broker) == ["file:/archive/run=2"]
    assert [contents.segment for contents in archive.plan(broker)] == [2]


def test_the_catalogue_gives_back_what_it_was_told(broker: Connection) -> None:
    archived = as_archived(archive.plan(broker, ["orders"])[0])
    archive.record(broker, archived)

    assert find_archived(broker, "orders") == [archived]
    assert find_archived(broker, "payments") == []


# -- topics that are archived before the rest -----------------------------------------------------


@pytest.fixture
def payments(broker: Connection) -> None:
    """A full third segment with nine payments and an order, archived for the payments only."""
    append(broker, topic(broker, "payments"), *"123456789")
    seal_full(broker)
    archive.record(broker, as_archived(archive.plan(broker, ["payments"])[2], "file:/archive/run=payments"))


@pytest.mark.usefixtures("payments")
def test_topics_are_archived_where_they_are_lacking(broker: Connection) -> None:
    def lacking(*topics: str) -> list[SegmentContents]:
        return [contents for contents in archive.plan(broker, topics) if contents.segment == 3]

    assert lacking("payments") == []
    assert lacking("payments", "orders") == [SegmentContents(3, {"orders": {0: (16, 17)}}, ("orders",))]


@pytest.mark.usefixtures("payments")
def test_a_partly_archived_segment_is_archived_as_a_whole_and_read_once(broker: Connection) -> None:
    whole = archive.plan(broker)[2]
    assert whole == SegmentContents(3, {"orders": {0: (16, 17)}, "payments": {0: (0, 9)}})
    assert [each.path for each in find_archived(broker, "payments")] == ["file:/archive/run=payments"]

    assert archive.record(broker, as_archived(whole, "file:/archive/run=whole"))

    assert [each.path for each in find_archived(broker, "payments")] == ["file:/archive/run=whole"]
    assert [contents.segment for contents in archive.plan(broker, ["payments"])] == [1, 2]
    assert [contents.segment for contents in archive.plan(broker)] == [1, 2]


#: Rows of a segment, the topics that are wanted, and those that it lacks.
LACKING: dict[str, tuple[list[Topics], list[str] | None, Topics]] = {
    "nothing": ([], None, None),
    "a part": ([("a",)], None, None),
    "the whole": ([("a",), None], None, ()),
    "topics": ([], ["b", "a", "b"], ("a", "b")),
    "topics of two runs": ([("a",), ("b",)], ["a", "b"], ()),
    "a topic of the broker": ([None], ["a", SCHEDULE_TOPIC], (SCHEDULE_TOPIC,)),
}


def test_the_rows_of_a_segment_say_what_it_lacks() -> None:
    for name, (rows, wanted, lacking) in LACKING.items():
        assert archive.topics_lacking(rows, wanted) == lacking, name


def is_free(connection: Connection) -> bool:
    with archive.sole_archiver(connection) as is_sole:
        return is_sole


def test_one_session_archives_at_a_time(broker: Connection, engine: Engine) -> None:
    with engine.connect() as other:
        with archive.sole_archiver(broker) as is_sole:
            assert is_sole
            assert not is_free(other)
        assert is_free(other)


def test_a_session_that_is_lost_archives_no_longer(broker: Connection, engine: Engine) -> None:
    with engine.connect() as other:
        with archive.sole_archiver(broker):
            broker.invalidate()
        # When the server has seen it.
        wait_until(lambda: is_free(other))


# -- retention ------------------------------------------------------------------------------------


def test_without_the_setting_retention_asks_no_archive(broker: Connection, keep: Keep) -> None:
    move_clock(broker, FOUR_DAYS)

    assert keep(replace(CONFIG, retain_until_archived=False)).dropped == 2


def test_only_what_is_archived_goes(broker: Connection, keep: Keep) -> None:
    move_clock(broker, FOUR_DAYS)
    assert keep(CONFIG) == KeeperCounts()

    archive_first(broker)

    assert keep(CONFIG) == replace(KeeperCounts(), drained=1, dropped=1)
    assert keep(CONFIG) == KeeperCounts()


def test_a_segment_that_is_archived_for_some_topics_stays(broker: Connection, keep: Keep) -> None:
    archive.record(broker, as_archived(archive.plan(broker, ["orders"])[0]))
    move_clock(broker, FOUR_DAYS)
    assert keep(CONFIG) == KeeperCounts()

    archive_first(broker)

    assert keep(CONFIG).dropped == 1


def test_the_catalogue_remembers_a_segment_that_is_dropped(broker: Connection, keep: Keep) -> None:
    archive_first(broker)
    move_clock(broker, FOUR_DAYS)
    assert keep(CONFIG).dropped == 1

    assert [each.segment for each in find_archived(broker, "orders")] == [1]
    assert [contents.segment for contents in archive.plan(broker)] == [2]


def test_a_full_disk_takes_nothing_that_is_not_archived(
    broker: Connection, keep: Keep, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "mqdb.service")
    full = replace(CONFIG, disk_used_percent=lambda: 99.0)
    assert keep(full) == KeeperCounts()
    assert [record.getMessage() for record in caplog.records] == [
        "99 % of the disk is used; the oldest messages are not archived"
    ]
    caplog.clear()

    archive_first(broker)

    assert keep(full) == replace(KeeperCounts(), drained=1, dropped=1)
    assert [record.getMessage() for record in caplog.records] == ["dropping messages early: 99 % of the disk is used"]


def test_a_segment_that_retention_gives_up_meanwhile_does_not_count_as_empty(broker: Connection) -> None:
    """A segment that retention gives up during planning does not count as empty.

    The segment is drained between the plan's first statement and its others.
    """
    planned = archive.plan(broker)
    assert segments.drain(broker, 1)

    assert [contents.segment for contents in planned] == [1, 2]
    assert [contents.segment for contents in archive.plan(broker)] == [2]
    assert not is_sealed(broker, 1)
    assert is_sealed(broker, 2)


def test_the_setting_reaches_the_segment_keeper(tmp_path: Path) -> None:
    assert not keeper_config(load_settings(home=tmp_path)).retain_until_archived
    assert keeper_config(load_settings(home=tmp_path, retain_until_archived=True)).retain_until_archived


def test_a_segment_with_messages_has_a_path(broker: Connection) -> None:
    """An archived segment with messages has a path, which a constraint of the table enforces."""
    with pytest.raises(IntegrityError, match="violates check constraint"):
        broker.execute(
            text("INSERT INTO mqdb.archived_segment (segment, offsets, messages, bytes) VALUES (9, '{}', 1, 1)")
        )
