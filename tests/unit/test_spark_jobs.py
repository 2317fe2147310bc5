"""Archive and replay: the decisions made without Spark and without a database."""

import pickle
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from mqdb.broker.archive import SegmentContents
from mqdb.cli.spark.replay import parse_offsets
from mqdb.cli.spark.running import spark_session
from mqdb.errors import ExtraMissing, MqdbError, ParameterInvalid
from mqdb.pipeline import errors
from mqdb.pipeline.errors import ArchiveIncomplete, ArchiveMismatch
from mqdb.pipeline.jobs.archive_files import hour_name
from mqdb.pipeline.jobs.archiving import QueueFound, check_found
from mqdb.pipeline.jobs.job import cause_of
from mqdb.pipeline.jobs.replaying import Origin, chosen
from mqdb.pipeline.read.offsets import Queue
from mqdb.store.segments.archived_segments import ArchivedSegment
from tests.fixtures.command_line import Place

NOON = datetime(2026, 7, 14, 12, tzinfo=UTC)
CONTENTS = SegmentContents(7, {"orders": {0: (10, 15), 1: (0, 1)}})
WHOLE = {Queue("orders", 0): QueueFound(5, 5, 10, 14), Queue("orders", 1): QueueFound(1, 1, 0, 0)}


# -- what is read back ----------------------------------------------------------------------------


def test_a_segment_that_is_read_back_whole_is_right() -> None:
    assert CONTENTS.messages == 6
    check_found(CONTENTS, WHOLE)


@pytest.mark.parametrize(
    "found",
    [
        WHOLE | {Queue("orders", 0): QueueFound(4, 4, 10, 14)},
        WHOLE | {Queue("orders", 0): QueueFound(6, 5, 10, 14)},
        WHOLE | {Queue("orders", 0): QueueFound(5, 5, 11, 15)},
        WHOLE | {Queue("orders", 2): QueueFound(1, 1, 0, 0)},
        {Queue("orders", 0): WHOLE[Queue("orders", 0)]},
        {},
    ],
    ids=["missing", "twice", "others", "a-queue-too-many", "a-queue-too-few", "nothing"],
)
def test_anything_else_is_no_archive(found: dict[Queue, QueueFound]) -> None:
    with pytest.raises(ArchiveMismatch, match="segment 7 does not match"):
        check_found(CONTENTS, found)


def test_hours_are_those_of_utc() -> None:
    assert hour_name(datetime(2026, 7, 14, 1, 59, tzinfo=timezone(timedelta(hours=2)))) == "2026-07-13-23"


# -- which segments are replayed ------------------------------------------------------------------


def archived(segment: int, hour: int, **queues: tuple[int, int]) -> ArchivedSegment:
    """A segment of one hour; `q0` is queue 0."""
    offsets = {"orders": {int(name[1:]): ends for name, ends in queues.items()}}
    begin = NOON + timedelta(hours=hour)
    end = begin + timedelta(minutes=59)
    return ArchivedSegment(segment, f"file:/archive/{segment}", None, offsets, 1, 1, begin, end)


FIRST, SECOND, THIRD = archived(1, 0, q0=(0, 10)), archived(2, 1, q0=(10, 20), q1=(0, 5)), archived(3, 2, q0=(20, 30))
ALL = [FIRST, SECOND, THIRD]


@pytest.mark.parametrize(
    ("since", "until", "offsets", "expected"),
    [
        (None, None, {}, ALL),
        (NOON + timedelta(hours=1), None, {}, [SECOND, THIRD]),
        (None, NOON + timedelta(hours=1), {}, [FIRST]),
        (NOON + timedelta(hours=9), None, {}, []),
        (None, None, {0: (5, 15)}, [FIRST, SECOND]),
        (None, None, {1: (0, 5)}, [SECOND]),
        (None, None, {0: (29, 30), 1: (4, 5)}, [SECOND, THIRD]),
    ],
    ids=["all", "since", "until", "too-young", "offsets", "other-queue", "two-queues"],
)
def test_times_and_offsets_choose_segments(
    since: datetime | None,
    until: datetime | None,
    offsets: dict[int, tuple[int, int]],
    expected: list[ArchivedSegment],
) -> None:
    assert chosen(ALL, Origin("orders", offsets=offsets), since, until) == expected


@pytest.mark.parametrize(
    ("segments", "offsets", "first", "past"),
    [
        ([FIRST, THIRD], {}, 10, 20),
        ([FIRST, THIRD], {0: (5, 25)}, 10, 20),
        (ALL, {0: (25, 31)}, 30, 31),
        ([SECOND, THIRD], {0: (9, 12)}, 9, 10),
        (ALL, {4: (0, 1)}, 0, 1),
        ([FIRST, archived(4, 3, q0=(0, 3))], {}, 10, 11),
    ],
    ids=["between", "between-offsets", "after", "before", "no-such-queue", "topic-made-again"],
)
def test_what_the_archive_lacks_is_said(
    segments: list[ArchivedSegment], offsets: dict[int, tuple[int, int]], first: int, past: int
) -> None:
    with pytest.raises(ArchiveIncomplete) as caught:
        chosen(segments, Origin("orders", offsets=offsets), None, None)

    assert (caught.value.first, caught.value.past) == (first, past)
    assert chosen(segments, Origin("orders", offsets=offsets, allow_gaps=True), None, None) is not None


def test_an_empty_range_of_offsets_is_refused() -> None:
    with pytest.raises(ParameterInvalid, match="queue 0"):
        Origin("orders", offsets={0: (5, 5)})


# -- the command line -----------------------------------------------------------------------------


def test_offsets_are_ranges_of_queues() -> None:
    assert parse_offsets(["0:100-200", "13:0-1"]) == {0: (100, 200), 13: (0, 1)}


@pytest.mark.parametrize("texts", [["0"], ["0:1"], ["a:1-2"], ["0:-1-2"], ["0:1-2", "0:3-4"]], ids="|".join)
def test_anything_else_is_a_sentence(texts: list[str]) -> None:
    with pytest.raises(ParameterInvalid, match="offsets = "):
        parse_offsets(texts)


def test_a_job_works_on_one_broker(tmp_path: Path) -> None:
    dsn = "broker-a=postgresql://127.0.0.1:1/a;broker-b=postgresql://127.0.0.1:1/b"

    outcome = Place(tmp_path).call("spark", "archive", "/archive", "--dsn", dsn)

    said = "mqdb: option --broker: is missing; a job works on one of the brokers broker-a, broker-b\n"
    assert (outcome.code, outcome.errors) == (1, said)


def test_without_the_extra_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)

    with pytest.raises(ExtraMissing, match=r'run: pip install "mqdb\[spark\]"$'), spark_session(1):
        pass


# -- errors ---------------------------------------------------------------------------------------

OF_A_WORKER = """An error occurred while calling o61.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times
Traceback (most recent call last):
  File "worker.py", line 1, in read
psycopg.errors.UndefinedTable: relation does not exist

The above exception was the direct cause of the following exception:

mqdb.pipeline.errors.DataLoss: data loss: topic 'orders', queue 0: it is gone

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:645)
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (OF_A_WORKER, "data loss: topic 'orders', queue 0: it is gone"),
        ("[X] failed: Traceback\n  File\nValueError: no such thing\n\n\tat java", "ValueError: no such thing"),
        ("[PATH_ALREADY_EXISTS] Path file:/x is there.\nmore", "[PATH_ALREADY_EXISTS] Path file:/x is there."),
        ("An error occurred while calling o1.save.\n: java.io.IOException: full\n\tat", "java.io.IOException: full"),
        ("", "Spark stopped the job without a message"),
    ],
    ids=["of-mqdb", "of-python", "of-spark", "of-java", "empty"],
)
def test_an_error_of_spark_is_told_in_one_line(text: str, cause: str) -> None:
    assert cause_of(text) == cause


@pytest.mark.parametrize(
    "error",
    [
        errors.ArchiveBusy(),
        ArchiveMismatch(7, "orders", 0, "5 messages", "nothing"),
        ArchiveIncomplete("orders", 0, 10, 20),
        errors.JobFailed("disk full"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_pickle(error: MqdbError) -> None:
    copy: Any = pickle.loads(pickle.dumps(error))

    assert (type(copy), str(copy)) == (type(error), str(error))
