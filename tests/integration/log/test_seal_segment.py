"""Sealing: from then on nothing is written to the segment, and everything in it is dispatched and indexed."""

import psycopg
import pytest

from tests.fixtures.log import (
    Connection,
    append,
    begin_with_a_position,
    close_segments,
    dispatch_all,
    index_all,
    scalar,
    small_segments,
)
from tests.fixtures.postgres import Database


@pytest.fixture
def full_segment(log: Connection, queue: int) -> int:
    """A closed segment of four records, dispatched and indexed; returns its number."""
    small_segments(log, 4)
    append(log, queue, 4)
    close_segments(log)
    dispatch_all(log)
    index_all(log)
    return 1


def test_a_closed_segment_is_sealed_when_all_of_it_is_dispatched(log: Connection, full_segment: int) -> None:
    assert scalar(log, "SELECT mqdb.seal_segment(%s)", [full_segment])

    row = log.execute("SELECT state, sealed_at FROM mqdb.segment WHERE segment = %s", [full_segment]).fetchone()
    assert row is not None
    assert row[0] == "sealed"
    assert row[1] is not None


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("prepared", [False, True], ids=["open", "prepared"])
def test_a_segment_is_not_sealed_while_somebody_may_write_to_it(
    log: Connection, database: Database, queue: int, end: str, prepared: bool
) -> None:
    small_segments(log, 4)
    writer = database.connect()
    writer.execute("BEGIN")
    append(writer, queue)
    append(log, queue, 4)
    close_segments(log)
    dispatch_all(log)
    index_all(log)
    if prepared:
        writer.execute("PREPARE TRANSACTION 'orders'")
    assert not scalar(log, "SELECT mqdb.seal_segment(1)")

    writer.execute(f"{end} PREPARED 'orders'" if prepared else end)
    dispatch_all(log)
    index_all(log)

    assert scalar(log, "SELECT mqdb.seal_segment(1)")


@pytest.mark.parametrize("is_dispatched", [False, True], ids=["nothing", "dispatch only"])
def test_a_segment_is_not_sealed_while_something_is_left_to_do(
    log: Connection, queue: int, is_dispatched: bool
) -> None:
    small_segments(log, 4)
    append(log, queue, 4)
    close_segments(log)
    if is_dispatched:
        dispatch_all(log)

    assert not scalar(log, "SELECT mqdb.seal_segment(1)")

    append(log, queue, log_pos=scalar(log, "SELECT nextval('mqdb.log_pos')"))
    assert scalar(log, "SELECT state FROM mqdb.segment WHERE segment = 1") == "closed"


def test_an_open_segment_is_not_sealed(log: Connection) -> None:
    with pytest.raises(psycopg.Error, match="number = 1: there is no such segment, or it is not closed"):
        log.execute("SELECT mqdb.seal_segment(1)")


def test_sealing_needs_read_committed_too(log: Connection, full_segment: int) -> None:
    """Sealing requires READ COMMITTED, too.

    A snapshot older than the lock would miss the record of a writer that has just committed.
    """
    log.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")

    with pytest.raises(psycopg.Error, match="needs READ COMMITTED") as refused:
        log.execute("SELECT mqdb.seal_segment(%s)", [full_segment])

    assert refused.value.sqlstate == "MQ109"


def test_a_record_that_comes_too_late_for_a_sealed_segment_is_refused(
    log: Connection, database: Database, queue: int
) -> None:
    small_segments(log, 4)
    writer = database.connect()
    held = begin_with_a_position(writer)
    append(log, queue, 4)
    close_segments(log)
    dispatch_all(log)
    index_all(log)
    assert scalar(log, "SELECT mqdb.seal_segment(1)")

    with pytest.raises(psycopg.Error, match="sealed") as refused:
        append(writer, queue, log_pos=held)

    assert refused.value.sqlstate == "MQ401"


def test_messages_of_a_deleted_topic_do_not_keep_a_segment_from_being_sealed(log: Connection, queue: int) -> None:
    small_segments(log, 4)
    append(log, queue, 4)
    log.execute("DELETE FROM mqdb.topic WHERE topic = 'orders'")
    close_segments(log)
    dispatch_all(log)

    assert scalar(log, "SELECT mqdb.seal_segment(1)")
