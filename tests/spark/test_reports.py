"""Spark's counts match the log: dead letters by cause, and messages by topic, tag and hour."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import Connection, text

from mqdb.common.property import FailureProperty
from mqdb.errors import GroupNotFound, ParameterInvalid, TopicNotFound
from mqdb.pipeline.jobs.dead_letter_counting import dlq_report
from mqdb.pipeline.jobs.dead_letter_page import page
from mqdb.pipeline.jobs.dead_letter_report import Count
from mqdb.pipeline.jobs.statistics import stats, topic_totals
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.dead_letters import FAILURE, bury, create_group
from tests.fixtures.postgres import Database


@pytest.fixture
def buried(broker: Connection) -> Connection:
    """Five dead letters: three with one cause, one with another, and one in another group without a cause."""
    for number in range(3):
        failure = replace(FAILURE, message=f"no price for order-{number} at 'shop {number}'")
        bury(broker, group="billing", failure=failure, attempts=15 + number)
    bury(broker, group="billing", topic="stock", failure=replace(FAILURE, exception="TimeoutError", message="7 s"))
    unsaid = {
        FailureProperty.EXCEPTION.value: "",
        FailureProperty.MESSAGE.value: "",
        FailureProperty.ATTEMPT.value: "x",
    }
    bury(broker, group="mail", properties=unsaid)
    dispatch_all(broker)
    return broker


def move_clock(connection: Connection, to: timedelta) -> None:
    setting = text("SELECT set_config('mqdb.clock_offset', :offset, false)")
    connection.execute(setting, {"offset": f"{to.total_seconds()} s"})


# -- dead letters ---------------------------------------------------------------------------------


def test_dead_letters_are_counted_by_cause(spark: SparkSession, database: Database, buried: Connection) -> None:
    report = dlq_report(spark, database.dsn)

    assert (report.messages, report.causes_found) == (5, 3)
    assert [(each.group, each.topic, each.exception, each.error, each.messages) for each in report.causes] == [
        ("billing", "orders", "shop.NoPrice", "no price for order-<n> at <value>", 3),
        ("billing", "stock", "TimeoutError", "<n> s", 1),
        ("mail", "orders", None, None, 1),
    ]
    first = report.causes[0]
    assert (first.fewest_attempts, first.most_attempts) == (15, 17)
    assert first.example == "no price for order-2 at 'shop 2'"
    assert report.by_group == (Count("billing", 4), Count("mail", 1))
    assert report.by_topic == (Count("orders", 4), Count("stock", 1))
    assert report.by_exception == (Count("shop.NoPrice", 3), Count(None, 1), Count("TimeoutError", 1))
    assert report.by_attempts == (Count(15, 1), Count(16, 1), Count(17, 2), Count(None, 1))


def test_times_are_those_of_death_and_hours_are_of_utc(
    spark: SparkSession, database: Database, broker: Connection
) -> None:
    for hours in (0, 2):
        move_clock(broker, timedelta(hours=hours))
        bury(broker)
    dispatch_all(broker)
    died = [row[0] for row in broker.execute(text("SELECT store_time FROM mqdb.dlq ORDER BY log_pos"))]

    report = dlq_report(spark, database.dsn)

    (cause,) = report.causes
    assert [cause.first_died, cause.last_died] == died
    assert [count.hour for count in report.by_hour] == [
        time.astimezone(UTC).replace(minute=0, second=0, microsecond=0) for time in died
    ]


@pytest.mark.long
def test_only_groups_and_times_asked_for_are_counted(
    spark: SparkSession, database: Database, buried: Connection, tmp_path: Path
) -> None:
    create_group(buried, "quiet")
    html = tmp_path / "dead.html"

    report = dlq_report(spark, database.dsn, groups=["mail", "quiet"], since=timedelta(hours=1), html=html)

    assert report.by_group == (Count("mail", 1),)
    assert html.read_text("utf-8") == page(report)
    assert dlq_report(spark, database.dsn, since=datetime.now(UTC) + timedelta(hours=1)).messages == 0
    assert dlq_report(spark, database.dsn, groups=["quiet"]).messages == 0
    with pytest.raises(GroupNotFound):
        dlq_report(spark, database.dsn, groups=["nobody"])


# -- statistics -----------------------------------------------------------------------------------


@pytest.fixture
def sent(broker: Connection) -> Connection:
    """Four messages dispatched after 1 s, one after 60 s, and one in another topic."""
    orders, stock = topic(broker, "orders", 2), topic(broker, "stock")
    append(broker, orders, "12345", "12345", tag="new")
    append(broker, orders, "123", "123", queue_id=1, tag="new")
    append(broker, stock, "1")
    move_clock(broker, timedelta(seconds=1))
    dispatch_all(broker)
    move_clock(broker, timedelta(0))
    append(broker, orders, "1234", tag="new")
    move_clock(broker, timedelta(seconds=60))
    dispatch_all(broker)
    return broker


def test_messages_are_counted_with_their_times_to_dispatch(
    spark: SparkSession, database: Database, sent: Connection
) -> None:
    rows = stats(spark, database.dsn, ["orders"]).collect()

    assert sum(row.messages for row in rows) == sum(row.timed for row in rows) == 5
    assert sum(row.bytes for row in rows) == 20
    assert {(row.topic, row.tag) for row in rows} == {("orders", "new")}
    if len(rows) == 1:  # else the hour has changed between two sends
        assert 1_000 <= rows[0].p50_dispatch_ms < 30_000
        assert 57_000 <= rows[0].p99_dispatch_ms < 90_000


def test_without_checkpoints_there_are_no_times(spark: SparkSession, database: Database, sent: Connection) -> None:
    newest = "(SELECT max(seq) FROM mqdb.checkpoint WHERE service = 'dispatch')"
    sent.execute(text(f"DELETE FROM mqdb.checkpoint WHERE service = 'dispatch' AND seq < {newest}"))

    rows = stats(spark, database.dsn, ["stock"]).collect()

    assert [(row.messages, row.timed, row.p50_dispatch_ms, row.p99_dispatch_ms) for row in rows] == [(1, 0, None, None)]


@pytest.mark.long
def test_parquet_holds_the_rows_and_is_not_overwritten(
    spark: SparkSession, database: Database, sent: Connection, tmp_path: Path
) -> None:
    path = tmp_path / "stats"

    written = stats(spark, database.dsn, parquet=path)

    assert sorted(written.collect()) == sorted(stats(spark, database.dsn).collect())
    assert [(total.topic, total.messages, total.bytes) for total in topic_totals(written)] == [
        ("orders", 5, 20),
        ("stock", 1, 1),
    ]
    with pytest.raises(ParameterInvalid, match="does not exist"):
        stats(spark, database.dsn, parquet=path)


def test_nothing_to_count_is_no_error_but_an_unknown_topic_is(
    spark: SparkSession, database: Database, broker: Connection
) -> None:
    topic(broker, "orders")

    assert stats(spark, database.dsn).collect() == []
    with pytest.raises(TopicNotFound):
        stats(spark, database.dsn, ["nowhere"])
