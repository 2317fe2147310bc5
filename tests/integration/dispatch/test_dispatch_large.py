"""A transaction with many records: no dispatch statement takes more of them than requested."""

from datetime import timedelta

import pytest
from sqlalchemy import Engine

from mqdb.broker.schedule.timers import deliver_due
from mqdb.store.engine import transaction
from mqdb.store.log import message_index
from tests.fixtures.delay import move_clock
from tests.fixtures.log import (
    LANES,
    Batch,
    Connection,
    append,
    create_topic,
    dispatch,
    dispatch_all,
    entries_read_by_dispatch,
    index_all,
    index_keys,
    positions,
    scalar,
)
from tests.fixtures.postgres import Database


@pytest.fixture
def queue(log: Connection) -> int:
    """The key of a queue."""
    return create_topic(log, "orders")[0]


@pytest.mark.parametrize("service", ["dispatch", "index_keys"])
@pytest.mark.parametrize("kind", ["late", "younger"])
def test_no_batch_takes_more_stragglers_than_it_was_asked_for(
    log: Connection, database: Database, queue: int, service: str, kind: str
) -> None:
    """No batch takes more stragglers than requested.

    The transaction of kind `late` was in progress when the previous round began; `younger` has taken its positions and
    received its xid since.
    """
    writer, other = database.connect(), database.connect()
    writer.execute("BEGIN")
    if kind == "late":
        append(writer, queue, 1)
        append(other, queue, 1)
        _call_until_idle(log, service)
        append(writer, queue, 24)
        append(other, queue, 1)
        _call_until_idle(log, service)
    else:
        held = [scalar(log, "SELECT nextval('mqdb.log_pos')") for _ in range(25)]
        append(other, queue, 2)
        _call_until_idle(log, service)
        for position in held:
            append(writer, queue, log_pos=position)
    writer.execute("COMMIT")
    if service == "index_keys":  # which follows dispatch
        dispatch_all(log)

    found = []
    while (batch := Batch(*log.execute(f"SELECT * FROM mqdb.{service}(10)".encode()).fetchall()[0])).outcome != "IDLE":
        found.append(batch.messages)

    assert sum(found) == 25
    assert max(found) == 10


def _call_until_idle(connection: Connection, service: str, max_rows: int = 1000) -> None:
    if service == "index_keys":  # which follows dispatch
        dispatch_all(connection)
    statement = f"SELECT * FROM mqdb.{service}({max_rows})".encode()
    while Batch(*connection.execute(statement).fetchall()[0]).outcome != "IDLE":
        pass


@pytest.mark.parametrize("service", ["dispatch", "index_keys"])
def test_no_batch_passes_over_too_many_records_in_progress(
    log: Connection, database: Database, queue: int, service: str
) -> None:
    writer = database.connect()
    writer.execute("BEGIN")
    append(writer, queue, 1_000)
    append(log, queue)
    _call_until_idle(log, service, 10)

    walked = log.execute(
        "SELECT done_pos - lag(done_pos) OVER (ORDER BY seq) FROM mqdb.checkpoint WHERE service = %s",
        [service.removesuffix("_keys")],
    ).fetchall()
    assert 0 < max(row[0] for row in walked if row[0] is not None) <= 200
    assert sum(row[0] for row in walked if row[0] is not None) >= 1_001


def test_a_time_out_of_the_session_stops_no_dispatch_for_good(log: Connection, database: Database, queue: int) -> None:
    """A session's time-out does not stop dispatch for good.

    A transaction of many sends commits behind other traffic, and each statement takes a part of it.
    """
    writer = database.connect()
    writer.execute("BEGIN")
    append(writer, queue, 20_000)
    append(log, queue, 1)
    dispatch_all(log)
    writer.execute("COMMIT")
    session = database.connect()
    session.execute("SET statement_timeout = '2s'")

    assert dispatch_all(session, 2_000) == 20_000


def test_messages_are_found_by_their_id_while_the_index_takes_stragglers(
    log: Connection, database: Database, engine: Engine, queue: int
) -> None:
    writer = database.connect()
    writer.execute("BEGIN")
    append(writer, queue, 9)
    append(log, queue, 1)
    dispatch_all(log)
    index_all(log)
    writer.execute("COMMIT")
    dispatch_all(log)
    ids = [row[0] for row in log.execute("SELECT msg_id FROM mqdb.commit_log")]

    taken = 0
    while taken < 9:
        taken += index_keys(log, 2).messages
        with engine.connect() as connection, transaction(connection):
            found = message_index.find(connection, ids, 0)
        assert sorted(msg_id for msg_id, _, _ in found) == sorted(ids)


@pytest.mark.parametrize("statistics", ["never analyzed", "analyzed"])
def test_a_round_without_messages_reads_none_of_the_log(log: Connection, queue: int, statistics: str) -> None:
    append(log, queue, 5_000)
    dispatch_all(log)
    if statistics == "analyzed":
        log.execute("ANALYZE")
    log.execute("SELECT pg_current_xact_id()")

    assert entries_read_by_dispatch(log) == 0


# -- the lane -----------------------------------------------------------------------------------


def test_messages_of_other_queues_do_not_wait_for_a_large_transaction(log: Connection, database: Database) -> None:
    """Messages in other queues do not wait for a large transaction.

    Later messages in the transaction's own queues wait: no message overtakes one that was committed before its send.
    """
    large, small = create_topic(log, "large")[0], create_topic(log, "small")[0]
    writer = database.connect()
    writer.execute("BEGIN")
    first = append(writer, large, 10_000)
    append(log, small)
    dispatch_all(log)
    writer.execute("COMMIT")
    calls = 0
    while not scalar(log, LANES):
        dispatch(log, 100)
    behind = append(log, large)
    probe = append(log, small)
    while probe[0] not in positions(log, small):
        calls += 1
        dispatch(log, 100)
        assert behind[0] not in positions(log, large)

    assert calls <= 3
    assert len(positions(log, large)) < 1_000
    dispatch_all(log, 100)
    assert positions(log, large) == first + behind
    assert scalar(log, "SELECT count(*) FROM mqdb.dispatch_lane") == 0
    assert scalar(log, LANES) == 0


def test_the_lane_ends_while_others_go_on(log: Connection, database: Database) -> None:
    large, small = create_topic(log, "large")[0], create_topic(log, "small")[0]
    writer = database.connect()
    writer.execute("BEGIN")
    append(writer, large, 300)
    append(log, small)
    dispatch_all(log)
    writer.execute("COMMIT")
    while not scalar(log, LANES):
        dispatch(log, 100)

    for _ in range(50):
        append(log, small)
        append(log, large)
        dispatch(log, 100)

    assert scalar(log, "SELECT count(*) FROM mqdb.dispatch_lane") == 0
    assert len(positions(log, large)) == 350


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_no_call_reads_all_of_a_second_large_transaction(log: Connection, database: Database, end: str) -> None:
    """No call reads all of a second large transaction.

    The second transaction was rolled back, or has written to the queue of the first, so that dispatch skips it.
    """
    large, small = create_topic(log, "large")[0], create_topic(log, "small")[0]
    first, second = database.connect(), database.connect()
    for writer, count in ((first, 2_000), (second, 10_000)):
        writer.execute("BEGIN")
        append(writer, large, count)
    append(log, small)
    dispatch_all(log)
    first.execute("COMMIT")
    while not scalar(log, LANES):
        dispatch(log, 100)
    second.execute(end)
    append(log, small)

    assert max(entries_read_by_dispatch(log, 100) for _ in range(5)) <= 2 * 20 * 100 + 100
    assert dispatch_all(log, 1_000) > 0


def test_a_timer_of_a_large_transaction_can_be_recalled_before_it_is_dispatched(
    log: Connection, database: Database
) -> None:
    create_topic(log, "orders")
    writer = database.connect()
    writer.execute("BEGIN")
    writer.execute(
        """SELECT count(mqdb.send('orders', 'x', deliver_at => clock_timestamp() + interval '1 day'))
           FROM generate_series(1, 500)"""
    )
    append(log, create_topic(log, "before")[0])
    dispatch_all(log)
    writer.execute("COMMIT")
    last = scalar(log, "SELECT mqdb.unique_id_text(msg_id) FROM mqdb.commit_log ORDER BY log_pos DESC OFFSET 1 LIMIT 1")
    while not scalar(log, LANES):
        dispatch(log, 10)
    other = create_topic(log, "others")[0]
    append(log, other)
    dispatch(log, 10)

    assert scalar(log, "SELECT mqdb.recall('orders', %s)", [last]) == "RECALLED"
    assert dispatch_all(log, 10) > 0


def test_each_large_transaction_has_a_lane_of_its_own(log: Connection, database: Database) -> None:
    """Each large transaction has its own lane.

    A second large transaction does not hold up other queues while the first one has a lane. A queue with records of
    both waits for both.
    """
    one, both, two, small = create_topic(log, "large", 3) + create_topic(log, "small")
    first, second = database.connect(), database.connect()
    for writer, queues in ((first, (one, both)), (second, (both, two))):
        writer.execute("BEGIN")
        for queue in queues:
            append(writer, queue, 2_000)
    append(log, small)
    dispatch_all(log)
    first.execute("COMMIT")
    while not scalar(log, LANES):
        dispatch(log, 100)
    second.execute("COMMIT")
    while scalar(log, LANES) < 2:
        dispatch(log, 100)
    probe = append(log, small)
    calls = 0
    while probe[0] not in positions(log, small):
        calls += 1
        assert dispatch(log, 100).messages <= 150

    assert calls <= 3
    dispatch_all(log, 100)
    assert scalar(log, LANES) == 0
    assert [len(positions(log, queue)) for queue in (one, both, two, small)] == [2_000, 4_000, 2_000, 2]


def test_the_queues_of_a_large_transaction_are_found_without_its_records(log: Connection, database: Database) -> None:
    queues, small = create_topic(log, "large", 20), create_topic(log, "small")[0]
    writer = database.connect()
    writer.execute("BEGIN")
    for _ in range(5):
        for queue in queues:
            append(writer, queue, 200)
    append(log, small)
    dispatch_all(log)
    writer.execute("COMMIT")

    # For each queue a page or two of the index.
    assert entries_read_by_dispatch(log, 100) <= 20 * 100 + 100 + 2 * len(queues)
    assert scalar(log, "SELECT array_length(queue_keys, 1) FROM mqdb.dispatch_lane") == len(queues)
    assert dispatch_all(log, 1_000) > 0


def test_a_timer_that_was_delivered_is_not_recalled_while_dispatch_is_amid_stragglers(
    log: Connection, database: Database, engine: Engine
) -> None:
    """A delivered timer is not recalled while dispatch is in the middle of stragglers.

    The checkpoint has the snapshot of the previous round, in which the message is not visible.
    """
    create_topic(log, "orders")
    writer = database.connect()
    writer.execute("BEGIN")
    writer.execute(
        """SELECT count(mqdb.send('orders', 'x', deliver_at => clock_timestamp() + interval '1 second'))
           FROM generate_series(1, 5)"""
    )
    append(log, create_topic(log, "others")[0])
    dispatch_all(log)
    writer.execute("COMMIT")
    ids = [
        row[0]
        for row in log.execute(
            "SELECT mqdb.unique_id_text(msg_id) FROM mqdb.commit_log WHERE tags_code > 0 ORDER BY log_pos"
        )
    ]
    assert dispatch(log, 3).messages == 3
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        move_clock(connection, timedelta(hours=1))
        assert deliver_due(connection).messages == 3

    answers = [scalar(log, "SELECT mqdb.recall('orders', %s)", [unique_id]) for unique_id in ids]
    assert answers == ["ALREADY_DELIVERED"] * 3 + ["RECALLED"] * 2
