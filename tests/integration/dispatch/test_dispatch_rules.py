"""The rules of dispatch, one by one. Each rule was found by breaking something."""

from itertools import product

import psycopg
import pytest
from psycopg import errors as pg

from tests.fixtures.log import (
    Connection,
    append,
    begin_with_a_position,
    checkpoint,
    create_topic,
    dispatch,
    dispatch_all,
    entries_read_by_dispatch,
    index_keys,
    positions,
    scalar,
    small_segments,
)
from tests.fixtures.postgres import Database

# -- who may dispatch ---------------------------------------------------------------------------


SERVICES = ("dispatch", "index_keys")


def test_only_read_committed_is_accepted(log: Connection) -> None:
    """Dispatch only accepts READ COMMITTED.

    A snapshot older than the lock would write a checkpoint that runs backwards.
    """
    for service, level in product(SERVICES, ("REPEATABLE READ", "SERIALIZABLE")):
        log.execute(f"BEGIN ISOLATION LEVEL {level}")

        with pytest.raises(psycopg.Error, match="needs READ COMMITTED") as refused:
            log.execute(f"SELECT mqdb.{service}()")

        assert refused.value.sqlstate == "MQ109", (service, level)
        log.execute("ROLLBACK")


def test_a_transaction_that_has_written_is_refused(log: Connection, queue: int) -> None:
    """Dispatch refuses a transaction that has written.

    The transaction's own records are invisible to its snapshots, and the next round would treat them as dispatched.
    """
    for service, is_rolled_back in product(SERVICES, (False, True)):
        log.execute("BEGIN")
        log.execute("SAVEPOINT before")
        append(log, queue)
        if is_rolled_back:
            log.execute("ROLLBACK TO before")

        with pytest.raises(psycopg.Error, match="has written") as refused:
            log.execute(f"SELECT mqdb.{service}()")

        assert refused.value.sqlstate == "MQ109", (service, is_rolled_back)
        log.execute("ROLLBACK")


@pytest.mark.parametrize("service", SERVICES)
def test_one_session_at_a_time(log: Connection, database: Database, queue: int, service: str) -> None:
    append(log, queue)
    other = database.connect()
    other.execute("BEGIN")
    other.execute(f"SELECT mqdb.{service}()")

    assert log.execute(f"SELECT * FROM mqdb.{service}()").fetchone() == ("LOCKED", 0, False)
    other.execute("COMMIT")
    assert scalar(log, f"SELECT outcome FROM mqdb.{service}()") == "IDLE"


def test_dispatch_and_index_run_side_by_side(log: Connection, database: Database, queue: int) -> None:
    append(log, queue)
    other = database.connect()
    other.execute("BEGIN")
    other.execute("SELECT mqdb.index_keys()")

    assert dispatch(log).outcome == "DISPATCHED"


def test_a_dispatch_that_dies_has_done_nothing(log: Connection, database: Database, queue: int) -> None:
    sent = append(log, queue, 3)
    other = database.connect()
    other.execute("BEGIN")
    dispatch(other)
    other.execute("ROLLBACK")

    assert positions(log, queue) == []
    assert dispatch_all(log) == 3
    assert positions(log, queue) == sent


def test_a_second_leader_is_fenced_by_the_key_of_the_checkpoint(log: Connection, queue: int) -> None:
    append(log, queue)
    dispatch(log)

    with pytest.raises(pg.UniqueViolation):
        log.execute(
            """INSERT INTO mqdb.checkpoint (service, seq, prev, cur, done_pos, tail_pos, segment, messages)
               SELECT service, seq, prev, cur, done_pos, tail_pos, segment, messages FROM mqdb.checkpoint
               WHERE service = 'dispatch' ORDER BY seq DESC LIMIT 1"""
        )


def test_checkpoints_are_numbered_without_gaps(log: Connection, queue: int) -> None:
    first = checkpoint(log).seq
    for _ in range(3):
        append(log, queue)
        dispatch(log)

    rows = log.execute("SELECT seq FROM mqdb.checkpoint WHERE service = 'dispatch' AND seq >= %s ORDER BY seq", [first])
    assert [row[0] for row in rows] == list(range(first, first + 4))


# -- which records ------------------------------------------------------------------------------


def test_the_very_first_message_is_dispatched(log: Connection, queue: int) -> None:
    """The very first message is dispatched.

    Positions up to the tail of an adopted database count as dispatched, but an unused sequence has no tail yet.
    """
    sent = append(log, queue)

    dispatch_all(log)

    assert positions(log, queue) == sent


def test_rolled_back_records_never_appear(log: Connection, queue: int) -> None:
    log.execute("BEGIN")
    append(log, queue, 2)
    log.execute("ROLLBACK")
    log.execute("BEGIN")
    kept = append(log, queue)
    log.execute("SAVEPOINT here")
    append(log, queue)
    log.execute("ROLLBACK TO here")
    kept += append(log, queue)
    log.execute("COMMIT")

    dispatch_all(log)

    assert positions(log, queue) == kept


def test_a_transaction_in_progress_holds_back_only_its_own_records(
    log: Connection, database: Database, queue: int
) -> None:
    writer = database.connect()
    writer.execute("BEGIN")
    late = append(writer, queue)
    early = append(log, queue)

    assert dispatch_all(log) == 1
    assert positions(log, queue) == early

    late += append(writer, queue)
    writer.execute("COMMIT")
    assert dispatch_all(log) == 2
    assert positions(log, queue) == early + late


def test_a_late_committer_is_found_though_no_position_is_taken_any_more(
    log: Connection, database: Database, queue: int
) -> None:
    """A late committer is found even if no further position is taken.

    A poll that only checked the sequence would miss it.
    """
    writer = database.connect()
    writer.execute("BEGIN")
    late = append(writer, queue)
    early = append(log, queue, 3)
    dispatch_all(log)
    last_value = scalar(log, "SELECT last_value FROM mqdb.log_pos")

    writer.execute("COMMIT")
    dispatch_all(log)

    assert positions(log, queue) == early + late
    assert scalar(log, "SELECT last_value FROM mqdb.log_pos") == last_value


def test_a_late_committer_is_found_in_the_last_round_of_many(log: Connection, database: Database, queue: int) -> None:
    writer = database.connect()
    writer.execute("BEGIN")
    late = append(writer, queue)
    early = []
    for _ in range(5):
        early += append(log, queue)
        dispatch_all(log)

    writer.execute("COMMIT")
    dispatch_all(log)

    assert positions(log, queue) == early + late


def test_a_position_may_be_older_than_the_xid_of_its_record(log: Connection, database: Database, queue: int) -> None:
    """A position may be older than the xid of its record.

    No snapshot has seen the transaction when dispatch passes the position.
    """
    writer = database.connect()
    held = begin_with_a_position(writer)
    early = append(log, queue, 2)
    dispatch_all(log)

    append(writer, queue, log_pos=held)
    writer.execute("COMMIT")
    dispatch_all(log)

    assert positions(log, queue) == [*early, held]


def test_an_xid_may_be_older_than_many_checkpoints(log: Connection, database: Database, queue: int) -> None:
    writer = database.connect()
    writer.execute("BEGIN")
    writer.execute("SELECT pg_current_xact_id()")
    early = []
    for _ in range(3):
        early += append(log, queue)
        dispatch_all(log)
    late = append(writer, queue)
    between = append(log, queue)
    dispatch_all(log)

    writer.execute("COMMIT")
    dispatch_all(log)

    assert positions(log, queue) == early + between + late


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_prepared_transaction_is_in_progress_until_its_end(
    log: Connection, database: Database, queue: int, end: str
) -> None:
    writer = database.connect()
    writer.execute("BEGIN")
    prepared = append(writer, queue)
    writer.execute("PREPARE TRANSACTION 'orders'")
    writer.close()
    early = append(log, queue)
    dispatch_all(log)
    assert positions(log, queue) == early

    log.execute(f"{end} PREPARED 'orders'")
    dispatch_all(log)

    assert positions(log, queue) == early + (prepared if end == "COMMIT" else [])


def test_messages_of_a_deleted_topic_are_left_out_and_block_nothing(log: Connection, queue: int) -> None:
    other = create_topic(log, "short-lived")[0]
    append(log, other, 3)
    log.execute("DELETE FROM mqdb.topic WHERE topic = 'short-lived'")
    sent = append(log, queue)

    dispatch_all(log, max_rows=2)

    assert positions(log, other) == []
    assert positions(log, queue) == sent
    assert dispatch(log).outcome == "IDLE"


def test_a_topic_and_its_first_message_may_come_in_one_transaction(log: Connection) -> None:
    log.execute("BEGIN")
    queue = create_topic(log, "young")[0]
    sent = append(log, queue)
    log.execute("COMMIT")

    dispatch_all(log)

    assert positions(log, queue) == sent


# -- rounds and checkpoints ---------------------------------------------------------------------


def test_a_round_is_cut_into_batches_and_says_so(log: Connection, queue: int) -> None:
    sent = [append(log, queue)[0] for _ in range(5)]

    batches = [dispatch(log, max_rows=2) for _ in range(4)]

    assert batches == [("DISPATCHED", 2, True), ("DISPATCHED", 2, True), ("DISPATCHED", 1, False), ("IDLE", 0, False)]
    assert positions(log, queue) == sent


def test_a_round_has_one_snapshot(log: Connection, database: Database, queue: int) -> None:
    """A round has one snapshot.

    Records that become visible during a round wait for the next one, so none is lost or taken twice.
    """
    writer = database.connect()
    writer.execute("BEGIN")
    late = append(writer, queue)
    early = append(log, queue, 2)
    late += append(writer, queue)
    early += append(log, queue, 2)
    dispatch(log, max_rows=1)

    writer.execute("COMMIT")
    late += append(log, queue)
    while dispatch(log, max_rows=1).more:
        pass
    assert positions(log, queue) == early

    dispatch_all(log, max_rows=1)
    assert positions(log, queue) == early + late


def test_the_end_of_a_round_is_not_called_idle(log: Connection, database: Database, queue: int) -> None:
    """The end of a round is not reported as IDLE.

    A loop that stops at IDLE has dispatched everything committed before its last call.
    """
    writer = database.connect()
    early = append(log, queue)
    writer.execute("BEGIN")
    late = append(writer, queue)
    dispatch(log, max_rows=1)
    writer.execute("COMMIT")

    assert dispatch(log, max_rows=1) == ("DISPATCHED", 0, False)
    dispatch_all(log, max_rows=1)
    assert positions(log, queue) == early + late


def test_a_batch_without_messages_goes_on_behind_the_end_of_a_segment(log: Connection) -> None:
    small_segments(log, 5)
    queue = create_topic(log, "orders")[0]
    log.execute("BEGIN")
    append(log, queue, 5)
    log.execute("ROLLBACK")
    sent = append(log, queue)

    assert dispatch(log) == ("DISPATCHED", 0, True)
    assert dispatch(log) == ("DISPATCHED", 1, False)
    assert positions(log, queue) == sent


def test_an_idle_dispatch_writes_no_checkpoint_and_takes_no_xid(
    log: Connection, database: Database, queue: int
) -> None:
    append(log, queue)
    dispatch_all(log)
    before = checkpoint(log)
    scalar(database.connect(), "SELECT pg_current_xact_id()")  # another snapshot than that of the checkpoint
    log.execute("SET mqdb.clock_offset = '1 hour'")

    log.execute("BEGIN")
    batch = dispatch(log)

    assert batch == ("IDLE", 0, False)
    assert scalar(log, "SELECT pg_current_xact_id_if_assigned()") is None
    log.execute("COMMIT")
    assert checkpoint(log) == before


def test_an_empty_checkpoint_comes_at_most_once_a_second(log: Connection, database: Database, queue: int) -> None:
    """An idle checkpoint is written at most once a second while others take positions.

    The test uses minutes instead of seconds, because the machine may be busy.
    """
    writer = database.connect()
    writer.execute("BEGIN")
    seqs = []
    for clock_offset in ("-1 minute", "1 minute", "30 seconds", "2 minutes", "3 hours"):
        log.execute(f"SET mqdb.clock_offset = '{clock_offset}'")
        if clock_offset != "3 hours":
            append(writer, queue)
        assert dispatch(log).outcome == "IDLE"
        seqs.append(checkpoint(log).seq)

    first = seqs[0]
    assert seqs == [first, first + 1, first + 1, first + 2, first + 2]


def test_a_big_open_transaction_is_not_read_again_and_again(log: Connection, database: Database, queue: int) -> None:
    writer = database.connect()
    writer.execute("BEGIN")
    sent = append(writer, queue, 1000)
    # The first snapshot ends at this transaction, being the newest; the second has it among those in progress. If
    # autovacuum has begun a newer one, so has the first.
    log.execute("SET mqdb.clock_offset = '1 minute'")
    assert entries_read_by_dispatch(log) >= 1000
    log.execute("SET mqdb.clock_offset = '2 minutes'")
    entries_read_by_dispatch(log)

    assert entries_read_by_dispatch(log) == 0
    assert checkpoint(log).done_pos == sent[-1]

    writer.execute("COMMIT")
    dispatch_all(log)
    assert positions(log, queue) == sent


def test_an_aborted_transaction_is_not_read(log: Connection, database: Database, queue: int) -> None:
    """An aborted transaction is not read.

    The transaction's xid counts as one that has just ended until a checkpoint says that it is over.
    """
    writer = database.connect()
    writer.execute("BEGIN")
    append(writer, queue, 1000)
    append(log, queue)
    dispatch_all(log)
    writer.execute("ROLLBACK")

    for clock_offset in ("1 minute", "2 minutes"):
        log.execute(f"SET mqdb.clock_offset = '{clock_offset}'")
        assert entries_read_by_dispatch(log) == 0


# -- segments -----------------------------------------------------------------------------------


def test_offsets_go_on_after_segments_in_which_the_queue_had_no_message(log: Connection) -> None:
    small_segments(log, 4)
    rare, busy = create_topic(log, "orders", 2)
    sent = append(log, rare, 2)
    for _ in range(4):
        append(log, busy, 4)
        dispatch_all(log)
    assert scalar(log, "SELECT max(segment) FROM mqdb.consume_queue WHERE queue_key = %s", [rare]) == 1
    assert scalar(log, "SELECT end_offset FROM mqdb.queue WHERE queue_key = %s", [rare]) == 2

    sent += append(log, rare, 2)
    dispatch_all(log)

    assert positions(log, rare) == sent
    assert len(positions(log, busy)) == 16


def test_a_batch_never_crosses_the_end_of_a_segment(log: Connection) -> None:
    small_segments(log, 4, ahead=3)
    queue = create_topic(log, "orders")[0]
    sent = append(log, queue, 10)

    batches = [dispatch(log) for _ in range(3)]

    assert [batch.messages for batch in batches] == [4, 4, 2]
    assert positions(log, queue) == sent
    assert scalar(
        log,
        """SELECT bool_and(log_pos >= start_pos AND log_pos < end_pos)
           FROM mqdb.consume_queue JOIN mqdb.segment USING (segment)""",
    )


def test_dispatch_makes_partitions_when_the_keeper_is_late(log: Connection) -> None:
    small_segments(log, 4)
    queue = create_topic(log, "orders")[0]

    sent = []
    for _ in range(10):
        sent += append(log, queue, 3)
        dispatch_all(log)

    assert positions(log, queue) == sent
    ahead = "SELECT count(*) FROM mqdb.segment WHERE start_pos > (SELECT last_value FROM mqdb.log_pos)"
    assert scalar(log, ahead) >= 2


def test_a_segment_knows_the_lowest_position_that_a_late_committer_has_brought(
    log: Connection, database: Database
) -> None:
    """A segment stores the lowest position that a late committer has brought.

    Retention keeps the record as long as an entry refers to it.
    """
    small_segments(log, 4)
    queue = create_topic(log, "orders")[0]
    writer = database.connect()
    writer.execute("BEGIN")
    (late,) = append(writer, queue)
    append(log, queue, 6)
    dispatch_all(log)

    writer.execute("COMMIT")
    dispatch_all(log)

    entry = "SELECT segment FROM mqdb.consume_queue WHERE log_pos = %s"
    lowest = "SELECT lowest_log_pos FROM mqdb.segment WHERE segment = %s"
    assert scalar(log, entry, [late]) == 2
    assert scalar(log, lowest, [2]) == late


def test_one_entry_for_each_offset_of_each_queue(log: Connection, database: Database) -> None:
    """Each offset of each queue has one entry.

    No key can enforce this, because it would need the segment; the lock of dispatch does.
    """
    small_segments(log, 4, ahead=20)
    queues = create_topic(log, "orders", 3)
    writer = database.connect()
    for number in range(12):
        writer.execute("BEGIN")
        for queue in queues:
            append(writer, queue)
            append(log, queue)
        dispatch(log, max_rows=number % 4 + 1)
        writer.execute("COMMIT")
    dispatch_all(log, max_rows=3)

    twice = """SELECT queue_key, queue_offset FROM mqdb.consume_queue
               GROUP BY queue_key, queue_offset HAVING count(*) > 1"""
    assert log.execute(twice).fetchall() == []
    assert [len(positions(log, queue)) for queue in queues] == [24, 24, 24]


# -- durability and announcements ---------------------------------------------------------------


def test_a_dispatch_waits_for_the_disk_and_for_no_standby_whatever_the_session_has_chosen(
    log: Connection, queue: int
) -> None:
    """Dispatch waits for the disk, and for no standby, whatever the session has chosen.

    Offsets that any reader has seen must survive a crash.
    """
    for chosen in ("off", "local", "remote_write", "on", "remote_apply"):
        append(log, queue)
        log.execute(f"SET synchronous_commit = {chosen}")

        log.execute("BEGIN")
        assert dispatch(log).messages == 1
        inside = scalar(log, "SHOW synchronous_commit")
        log.execute("COMMIT")

        assert inside == "local", chosen
        assert scalar(log, "SHOW synchronous_commit") == chosen


def test_an_idle_dispatch_leaves_the_durability_of_its_transaction_alone(log: Connection) -> None:
    log.execute("SET synchronous_commit = off")

    log.execute("BEGIN")
    assert dispatch(log).outcome == "IDLE"

    assert scalar(log, "SHOW synchronous_commit") == "off"


def announcements(listener: Connection, log: Connection) -> list[str]:
    """The announcements that the listener has received so far."""
    log.execute("NOTIFY mqdb_arrivals, 'end'")
    heard: list[str] = []
    for notification in listener.notifies(timeout=10):
        if notification.payload == "end":
            return heard
        heard.append(notification.payload)
    raise AssertionError("no end")


def test_dispatch_announces_the_queues_that_got_messages(log: Connection, database: Database) -> None:
    first, _, third = create_topic(log, "orders", 3)
    listener = database.connect()
    listener.execute("LISTEN mqdb_arrivals")
    append(log, first, 2)
    append(log, third)

    dispatch_all(log)

    (heard,) = announcements(listener, log)
    assert heard.startswith("a:")
    assert sorted(heard[2:].split(",")) == sorted([str(first), str(third)])


def test_more_queues_than_fit_are_announced_by_a_star(log: Connection, database: Database) -> None:
    listener = database.connect()
    listener.execute("LISTEN mqdb_arrivals")
    log.execute("SELECT setval(pg_get_serial_sequence('mqdb.queue', 'queue_key'), 1000000)")
    for queue in create_topic(log, "wide", 1000):
        append(log, queue)

    dispatch_all(log)

    assert announcements(listener, log) == ["a:*"]


def test_nothing_but_arrivals_is_announced(log: Connection, database: Database, queue: int) -> None:
    """Only arrivals are announced. A NOTIFY in a sending transaction would serialise all commits of the server."""
    listener = database.connect()
    listener.execute("LISTEN mqdb")
    listener.execute("LISTEN mqdb_arrivals")
    append(log, queue)
    log.execute("SELECT mqdb.send('orders', 'by SQL')")
    log.execute("SELECT mqdb.ensure_segments(5)")
    index_keys(log)
    other = create_topic(log, "short-lived")[0]
    append(log, other)
    log.execute("DELETE FROM mqdb.topic WHERE topic IN ('orders', 'short-lived')")
    dispatch_all(log)

    assert announcements(listener, log) == []


def test_an_arrival_is_announced_when_it_can_be_read(log: Connection, database: Database, queue: int) -> None:
    listener = database.connect()
    listener.execute("LISTEN mqdb_arrivals")
    append(log, queue)
    other = database.connect()
    other.execute("BEGIN")
    dispatch(other)
    assert announcements(listener, log) == []

    other.execute("COMMIT")

    assert announcements(listener, log) == [f"a:{queue}"]
