"""Messages are counted by topic, tag and hour, with the time from their storage to the batch that dispatched them."""

import json
import pickle
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from sqlalchemy import Engine

from mqdb.broker.log.message_statistics import count_by_segment
from mqdb.errors import TopicNotFound
from mqdb.pipeline.errors import SegmentDropped
from mqdb.pipeline.jobs.statistics_source import StatisticsSource
from mqdb.store.log.message_statistics import TICKS_PER_SECOND
from tests.fixtures.log import (
    Connection,
    append,
    create_topic,
    dispatch,
    dispatch_all,
    drop_partitions,
    scalar,
    small_segments,
)
from tests.fixtures.postgres import Database

Row = tuple[Any, ...]


def counted(log: Connection, engine: Engine, topics: Sequence[str] = ("orders",), **times: datetime) -> list[Row]:
    """The statistics rows of all segments: topic, tag, hour, ticks, messages, bytes."""
    with engine.connect() as connection:
        counts = count_by_segment(connection, topics, **times)
    return [row for count in counts for row in log.execute(count.statement.encode()).fetchall()]


def hours(rows: Sequence[Row]) -> Counter[int | None]:
    """The number of messages by the whole hours until their dispatch; None if this time is unknown."""
    took: Counter[int | None] = Counter()
    for row in rows:
        took[None if row[3] is None else row[3] // (3600 * TICKS_PER_SECOND)] += row[4]
    return took


def move_clock(connection: Connection, to: timedelta) -> None:
    connection.execute("SELECT set_config('mqdb.clock_offset', %s, false)", [f"{to.total_seconds()} s"])


def test_messages_and_bytes_are_counted_by_topic_tag_and_hour(log: Connection, engine: Engine) -> None:
    orders, stock = create_topic(log, "orders", 2), create_topic(log, "stock")
    now = scalar(log, "SELECT mqdb.now()")
    to_the_hour = now.astimezone(UTC).replace(minute=30, second=0, microsecond=0) - now
    move_clock(log, to_the_hour)
    append(log, orders[0], 3, tag="new", body=b"12345")
    append(log, orders[1], 2, tag="new", body=b"1")
    append(log, orders[1], 1)
    append(log, stock[0], 7)
    move_clock(log, to_the_hour + timedelta(hours=1))
    append(log, orders[0], 4, tag="new", body=b"12")
    dispatch_all(log)

    totals: dict[Row, Row] = {}
    for topic, tag, hour, _ticks, messages, size in counted(log, engine):
        before = totals.get((topic, tag, hour), (0, 0))
        totals[topic, tag, hour] = (before[0] + messages, before[1] + size)

    hour = (now + to_the_hour).replace(minute=0)
    assert totals == {
        ("orders", "new", hour): (5, 17),
        ("orders", None, hour): (1, 4),
        ("orders", "new", hour + timedelta(hours=1)): (4, 8),
    }


def test_the_time_is_that_of_the_batch_that_dispatched_the_message(log: Connection, engine: Engine, queue: int) -> None:
    for _ in range(3):
        append(log, queue)
    move_clock(log, timedelta(hours=5))
    assert dispatch(log, max_rows=2).messages == 2
    move_clock(log, timedelta(hours=20))
    assert dispatch(log, max_rows=2).messages == 1

    assert hours(counted(log, engine)) == {5: 2, 20: 1}


def test_a_straggler_counts_from_its_own_batch(log: Connection, engine: Engine, queue: int, database: Database) -> None:
    late = database.connect(autocommit=False)
    append(late, queue)
    append(log, queue, 2)
    move_clock(log, timedelta(hours=5))
    dispatch_all(log)
    late.commit()
    move_clock(log, timedelta(hours=60))
    dispatch_all(log)

    assert hours(counted(log, engine)) == {5: 2, 60: 1}


def test_the_key_index_has_batches_of_its_own(log: Connection, engine: Engine, queue: int) -> None:
    append(log, queue)
    move_clock(log, timedelta(hours=5))
    dispatch_all(log)
    move_clock(log, timedelta(hours=60))
    log.execute("SELECT mqdb.index_keys()")

    assert hours(counted(log, engine)) == {5: 1}


def test_without_its_checkpoint_the_time_is_not_known(log: Connection, engine: Engine, queue: int) -> None:
    append(log, queue, 2)
    dispatch_all(log)
    log.execute("DELETE FROM mqdb.checkpoint")
    log.execute(
        """INSERT INTO mqdb.checkpoint (service, seq, prev, cur, done_pos, tail_pos, segment, messages)
           SELECT 'dispatch', 9, pg_current_snapshot(), pg_current_snapshot(), last_value, last_value, 1, 0
           FROM mqdb.log_pos"""
    )
    append(log, queue)
    dispatch_all(log)

    assert hours(counted(log, engine)) == {None: 2, 0: 1}


def test_over_a_restore_the_time_is_not_known(log: Connection, engine: Engine, queue: int) -> None:
    append(log, queue, 2)
    dispatch_all(log)
    append(log, queue, 3)
    log.execute("UPDATE mqdb.broker SET system_identifier = 1")
    log.execute("SELECT set_config('mqdb.identity', '', false)")
    assert dispatch(log).outcome == "ADOPTED"
    append(log, queue, 4)
    move_clock(log, timedelta(hours=5))
    dispatch_all(log)

    assert hours(counted(log, engine)) == {None: 5, 5: 4}


def test_all_segments_are_counted_with_what_came_late(
    log: Connection, engine: Engine, queue: int, database: Database
) -> None:
    small_segments(log, 10, ahead=8)
    late = database.connect(autocommit=False)
    append(late, queue, 4)
    for _ in range(6):
        append(log, queue, 7)
        dispatch_all(log)
    late.commit()
    dispatch_all(log)

    rows = counted(log, engine)

    assert sum(row[4] for row in rows) == 46
    assert None not in hours(rows)


def test_only_messages_of_the_time_asked_for_are_counted(log: Connection, engine: Engine, queue: int) -> None:
    moments = []
    for number in range(3):
        move_clock(log, timedelta(hours=number))
        moments.append(scalar(log, "SELECT mqdb.now()"))
        append(log, queue, number + 1)
    dispatch_all(log)

    assert sum(row[4] for row in counted(log, engine, since=moments[1])) == 5
    assert sum(row[4] for row in counted(log, engine, since=moments[1], until=moments[2])) == 2
    assert counted(log, engine, until=moments[0]) == []


def test_what_comes_after_the_plan_is_not_counted(log: Connection, engine: Engine, queue: int) -> None:
    append(log, queue, 2)
    dispatch_all(log)
    with engine.connect() as connection:
        (count,) = count_by_segment(connection, ["orders"])
    append(log, queue, 5)
    dispatch_all(log)

    assert sum(row[4] for row in log.execute(count.statement.encode())) == 2


def test_what_is_not_dispatched_is_not_counted(log: Connection, engine: Engine, queue: int) -> None:
    append(log, queue, 2)

    assert counted(log, engine) == []


def test_a_topic_that_does_not_exist_is_refused(log: Connection, engine: Engine, queue: int) -> None:
    with pytest.raises(TopicNotFound) as refused:
        counted(log, engine, ["orders", "nowhere"])

    assert refused.value.topic == "nowhere"


# -- as Spark does it -----------------------------------------------------------------------------


def reader(database: Database, topics: Sequence[str] = ("orders",), **times: datetime) -> DataSourceReader:
    """A reader as Spark sends it to the processes that plan and read."""
    moments = {name: time.isoformat() for name, time in times.items()}
    source = StatisticsSource({"url": database.dsn, "topics": json.dumps(topics), **moments})
    copy: DataSourceReader = pickle.loads(pickle.dumps(source.reader(StructType())))
    return copy


def read(plan: DataSourceReader, partitions: Sequence[InputPartition]) -> list[Row]:
    copies = [pickle.loads(pickle.dumps(partition)) for partition in partitions]
    return [row for partition in copies for row in plan.read(partition)]


def test_a_task_gives_the_rows_of_its_segment(log: Connection, database: Database, queue: int, engine: Engine) -> None:
    append(log, queue, 3, tag="new")
    append(log, queue, 2)
    dispatch_all(log)
    plan = reader(database, since=datetime(2000, 1, 1, tzinfo=UTC), until=datetime(2200, 1, 1, tzinfo=UTC))

    assert sorted(read(plan, plan.partitions()), key=str) == sorted(counted(log, engine), key=str)


def test_nothing_to_count_is_a_task_without_rows(database: Database, log: Connection, queue: int) -> None:
    plan = reader(database)

    partitions = plan.partitions()

    assert len(partitions) == 1
    assert read(plan, partitions) == []


def test_a_segment_that_is_gone_is_an_error_and_no_gap(log: Connection, database: Database, queue: int) -> None:
    append(log, queue, 2)
    dispatch_all(log)
    plan = reader(database)
    partitions = plan.partitions()
    drop_partitions(log, [1])

    with pytest.raises(SegmentDropped) as dropped:
        read(plan, partitions)

    assert dropped.value.segment == 1
    assert str(pickle.loads(pickle.dumps(dropped.value))) == str(dropped.value)
