"""A database moved by pg_dump and pg_restore.

The xids have lost their meaning, but no message is lost or duplicated.
"""

import subprocess
from collections.abc import Iterator

import pytest
from psycopg import errors as pg

from mqdb.embedded import EmbeddedPostgres
from mqdb.embedded.account import postgres_environment
from tests.fixtures.log import (
    LANES,
    Connection,
    append,
    checkpoint,
    close_segments,
    create_topic,
    dispatch,
    dispatch_all,
    drop_partitions,
    index_all,
    index_keys,
    positions,
    scalar,
    small_segments,
)
from tests.fixtures.postgres import Database, libpq_15, new_database, owner_dsn, server_with_owner
from tests.fixtures.variants import usually

#: More than a new cluster uses up until a restore is complete.
MANY_XIDS = 20_000


@pytest.fixture(scope="module")
def fresh_server() -> Iterator[EmbeddedPostgres]:
    """A second cluster, whose xids start again from low numbers."""
    with server_with_owner() as server:
        yield server


@pytest.fixture(params=usually("another cluster", of=["another database", "another cluster"]))
def target(request: pytest.FixtureRequest, postgres: EmbeddedPostgres) -> Iterator[Database]:
    """An empty database to restore into."""
    server = postgres if request.param == "another database" else request.getfixturevalue("fresh_server")
    with new_database(server) as database:
        yield database


@pytest.fixture
def source(log: Connection) -> Connection:
    """A database whose xids are far ahead of those of a new cluster."""
    burn_xids(log, max(0, MANY_XIDS - current_xid(log)))
    return log


def burn_xids(connection: Connection, count: int) -> None:
    connection.execute(f"DO $$ BEGIN FOR i IN 1..{count} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")


def current_xid(connection: Connection) -> int:
    return int(scalar(connection, "SELECT pg_current_xact_id()::text"))


def copy(source: Connection, target: Database, postgres: EmbeddedPostgres) -> Connection:
    """Dump and restore as an administrator would; returns a connection to the copy."""
    dump = run(postgres, "pg_dump", "--format=custom", f"--dbname={libpq_15(dsn_of(source, postgres))}")
    run(postgres, "pg_restore", "--exit-on-error", f"--dbname={libpq_15(target.dsn)}", given=dump)
    return target.connect()


def run(postgres: EmbeddedPostgres, program: str, *arguments: str, given: bytes = b"") -> bytes:
    done = subprocess.run(
        [postgres.binaries.program(program), *arguments],
        input=given,
        capture_output=True,
        env=postgres_environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def dsn_of(connection: Connection, postgres: EmbeddedPostgres) -> str:
    return owner_dsn(postgres, connection.info.dbname)


def adopt_all(connection: Connection) -> int:
    """Adopt until everything is compared; returns the number of dispatched messages."""
    messages = 0
    while (batch := dispatch(connection)).more:
        assert batch.outcome == "ADOPTED"
        messages += batch.messages
    assert batch.outcome == "ADOPTED"
    return messages + batch.messages


def index_entries(connection: Connection) -> tuple[int, int]:
    """The number of index entries, and of distinct ones."""
    row = connection.execute("SELECT count(*), count(DISTINCT (key_hash, log_pos)) FROM mqdb.message_index").fetchone()
    assert row is not None
    return row[0], row[1]


def test_nothing_is_lost_or_doubled(
    source: Connection, database: Database, target: Database, postgres: EmbeddedPostgres
) -> None:
    # given: messages dispatched and indexed, dispatched only, neither; a round under way; two transactions in
    # progress, one of them prepared; several segments
    small_segments(source, 8, ahead=8)
    first, second = create_topic(source, "orders", 2)
    in_progress, prepared = database.connect(), database.connect()
    for writer in (in_progress, prepared):
        writer.execute("BEGIN")
        append(writer, first, 2)
    prepared.execute("PREPARE TRANSACTION 'orders'")
    append(source, first, 7, keys="a b")
    append(source, second, 7)
    dispatch_all(source)
    index_all(source)
    append(source, second, 9)
    dispatch_all(source)
    append(source, first, 4, keys="c")
    assert dispatch(source, max_rows=2).more
    index_keys(source, max_rows=1)
    append(source, second, 3)
    before = {queue: positions(source, queue) for queue in (first, second)}

    # when
    copied = copy(source, target, postgres)
    sent_before_adoption = append(copied, second, 2)

    # then
    waiting = scalar(copied, "SELECT count(*) FROM mqdb.commit_log") - len(before[first] + before[second])
    assert index_keys(copied).outcome == "FOREIGN"
    assert adopt_all(copied) == waiting
    assert dispatch(copied).outcome == "IDLE"
    assert index_keys(copied).outcome == "IDLE"

    stored = dict(copied.execute("SELECT log_pos, queue_key FROM mqdb.commit_log ORDER BY log_pos").fetchall())
    for queue in (first, second):
        after = positions(copied, queue)
        rest = [log_pos for log_pos, key in stored.items() if key == queue and log_pos not in before[queue]]
        assert after == before[queue] + rest
    assert positions(copied, second)[-2:] == sent_before_adoption
    assert index_entries(copied) == (len(stored) + 2 * 7 + 4,) * 2

    database.connect().execute("ROLLBACK PREPARED 'orders'")


def test_sends_go_on_and_old_xids_are_never_mistaken_for_new_ones(
    source: Connection, target: Database, postgres: EmbeddedPostgres
) -> None:
    """Sends continue, and old xids are never mistaken for new ones.

    A new cluster will assign the xids in old records to other transactions one day.
    """
    small_segments(source, 8, ahead=4)
    (queue,) = create_topic(source, "orders")
    append(source, queue, 5)
    dispatch_all(source)
    append(source, queue, 5)
    copied = copy(source, target, postgres)
    assert adopt_all(copied) == 5
    expected = positions(copied, queue)

    # in steps past all the old xids, while the old records are still in unsealed segments
    highest = scalar(copied, "SELECT max(xid::text::bigint) FROM mqdb.commit_log")
    step = max(0, highest - current_xid(copied)) // 20
    writer = target.connect()
    for _ in range(25):
        burn_xids(copied, step)
        writer.execute("BEGIN")
        late = append(writer, queue)
        expected += append(copied, queue)
        dispatch_all(copied)
        writer.execute("COMMIT")
        expected += late
        dispatch_all(copied)

    assert current_xid(copied) > highest
    assert positions(copied, queue) == expected
    assert index_all(copied) == 50
    copied.execute("UPDATE mqdb.segment SET state = 'closed' WHERE end_pos <= (SELECT last_value FROM mqdb.log_pos)")
    assert scalar(copied, "SELECT bool_and(mqdb.seal_segment(segment)) FROM mqdb.segment WHERE state = 'closed'")


def test_a_database_without_messages_takes_its_first(
    source: Connection, target: Database, postgres: EmbeddedPostgres
) -> None:
    dispatch(source)
    copied = copy(source, target, postgres)
    dispatch(copied)
    (queue,) = create_topic(copied, "orders")

    sent = append(copied, queue)
    dispatch_all(copied)

    assert positions(copied, queue) == sent == [1]


def test_a_late_committer_at_the_end_of_a_segment_keeps_its_offset(
    source: Connection, database: Database, target: Database, postgres: EmbeddedPostgres
) -> None:
    """A late committer at the end of a segment keeps its offset.

    The late record's entry lies in a segment that no position has reached yet.
    """
    small_segments(source, 4)
    (queue,) = create_topic(source, "orders")
    first, second = database.connect(), database.connect()
    for writer in (first, second):
        writer.execute("BEGIN")
        append(writer, queue)
    append(source, queue, 2)
    dispatch_all(source)
    first.execute("COMMIT")
    dispatch_all(source)
    second.execute("COMMIT")
    before = positions(source, queue)
    assert checkpoint(source).segment == 2

    copied = copy(source, target, postgres)
    dispatch_all(copied)
    last = append(copied, queue)
    dispatch_all(copied)

    assert positions(copied, queue) == [*before, 2, *last]


def test_records_that_retention_has_taken_out_of_the_consume_queue_stay_out(
    source: Connection, target: Database, postgres: EmbeddedPostgres
) -> None:
    """Records that retention has removed from the consume queue are not added again.

    A drained segment no longer has a consume queue; its records are not new.
    """
    small_segments(source, 4, ahead=4)
    (queue,) = create_topic(source, "orders")
    append(source, queue, 6)
    dispatch_all(source)
    index_all(source)
    source.execute("UPDATE mqdb.segment SET state = 'closed' WHERE segment = 1")
    assert scalar(source, "SELECT mqdb.seal_segment(1)")
    source.execute("UPDATE mqdb.segment SET state = 'drained' WHERE segment = 1")
    source.execute("UPDATE mqdb.queue SET base_offset = 4 WHERE queue_key = %s", [queue])
    drop_partitions(source, [1], parents=["queue_run", "message_index"])

    copied = copy(source, target, postgres)
    assert dispatch(copied) == ("ADOPTED", 0, False)
    sent = append(copied, queue)
    dispatch_all(copied)

    rows = copied.execute("SELECT queue_offset, log_pos FROM mqdb.consume_queue ORDER BY queue_offset").fetchall()
    assert rows == [(4, 5), (5, 6), (6, sent[0])]


def test_adoption_waits_for_those_who_write(source: Connection, target: Database, postgres: EmbeddedPostgres) -> None:
    (queue,) = create_topic(source, "orders")
    append(source, queue)
    copied = copy(source, target, postgres)
    writer = target.connect()
    writer.execute("BEGIN")
    append(writer, queue)

    with pytest.raises(pg.LockNotAvailable):
        dispatch(copied)

    writer.execute("COMMIT")
    assert dispatch(copied) == ("ADOPTED", 2, False)


@pytest.fixture
def segments_to_adopt(
    source: Connection, database: Database, target: Database, postgres: EmbeddedPostgres
) -> tuple[Connection, int, list[int]]:
    """A restored database, one of its queues, and the order of its messages.

    3 of 4 segments have messages to dispatch.
    """
    small_segments(source, 4, ahead=4)
    (queue,) = create_topic(source, "orders")
    late = database.connect()
    late.execute("BEGIN")
    held = append(late, queue, 2, keys="k")
    early = append(source, queue, 5)
    dispatch_all(source)
    index_all(source)
    late.execute("COMMIT")
    rest = append(source, queue, 7, keys="k")
    copied = copy(source, target, postgres)
    return copied, queue, [*early, *held, *rest]


def test_each_call_adopts_one_segment(segments_to_adopt: tuple[Connection, int, list[int]]) -> None:
    copied, queue, order = segments_to_adopt

    assert dispatch(copied) == ("ADOPTED", 2, True)
    assert [checkpoint(copied, service).floor_pos for service in ("dispatch", "index")] == [4, 4]
    assert positions(copied, queue) == order[:7]
    assert index_keys(copied).outcome == "FOREIGN"
    assert dispatch(copied) == ("ADOPTED", 1, True)
    assert dispatch(copied) == ("ADOPTED", 4, True)
    assert dispatch(copied) == ("ADOPTED", 2, False)

    assert dispatch(copied).outcome == "IDLE"
    assert index_keys(copied).outcome == "IDLE"
    assert positions(copied, queue) == order
    assert index_entries(copied) == (len(order) + 9,) * 2


def test_an_adoption_that_dies_goes_on_where_its_last_call_was(
    segments_to_adopt: tuple[Connection, int, list[int]], target: Database
) -> None:
    """An interrupted adoption continues where its last call ended.

    Messages are sent after the interruption, and a compared segment is sealed.
    """
    copied, queue, order = segments_to_adopt
    dispatch(copied)
    with target.connect() as dying:
        dying.execute("BEGIN")
        assert dispatch(dying).messages == 1
        dying.execute("ROLLBACK")
    order += append(copied, queue, 6)
    close_segments(copied)
    assert scalar(copied, "SELECT mqdb.seal_segment(1)")
    assert not scalar(copied, "SELECT mqdb.seal_segment(2)")

    assert adopt_all(copied) == 13
    order += append(copied, queue)
    dispatch_all(copied)
    index_all(copied)

    assert positions(copied, queue) == order
    assert index_entries(copied) == (len(order) + 9,) * 2
    assert scalar(copied, "SELECT bool_and(mqdb.seal_segment(segment)) FROM mqdb.segment WHERE state = 'closed'")


def test_a_lane_that_was_open_is_adopted_with_the_rest(
    source: Connection, database: Database, target: Database, postgres: EmbeddedPostgres
) -> None:
    small_segments(source, 8, ahead=12)
    large, small = create_topic(source, "orders", 2)
    writer = database.connect()
    writer.execute("BEGIN")
    append(writer, large, 40)
    append(source, small)
    dispatch_all(source)
    writer.execute("COMMIT")
    append(source, large, 3)
    append(source, small, 3)
    while not scalar(source, LANES):
        dispatch(source, 5)
    dispatch(source, 5)
    assert 0 < len(positions(source, large)) < 40

    copied = copy(source, target, postgres)
    adopt_all(copied)
    index_all(copied)

    stored = "SELECT array_agg(log_pos ORDER BY log_pos) FROM mqdb.commit_log WHERE queue_key = %s"
    assert positions(copied, large) == scalar(copied, stored, [large])
    assert scalar(copied, "SELECT count(*) FROM mqdb.dispatch_lane") == 0
    # Its xid may be that of another transaction one day, whose queues are others.
    assert scalar(copied, LANES) == 0
    sent = append(copied, large)
    dispatch_all(copied)
    assert positions(copied, large)[-1:] == sent


@pytest.mark.parametrize("first", ["dispatch", "a send"])
def test_sequences_that_were_not_carried_over_go_on_behind_their_tables(
    log: Connection, database: Database, first: str
) -> None:
    """Sequences that were not carried over continue after the values in their tables.

    This is the state after logical replication, which copies only rows.
    """
    (queue,) = create_topic(log, "orders")
    before = append(log, queue, 5)
    dispatch_all(log)
    last_key = scalar(log, "SELECT max(queue_key) FROM mqdb.queue")
    log.execute("UPDATE mqdb.broker SET database_oid = 1")
    log.execute("SELECT setval(seqrelid, seqmin, false) FROM pg_sequence WHERE seqrelid::regclass::text LIKE 'mqdb.%'")
    copied = database.connect()
    warnings: list[str] = []
    copied.add_notice_handler(lambda said: warnings.append(said.message_primary or ""))

    if first == "a send":
        with pytest.raises(pg.CheckViolation):
            append(copied, queue)
        copied.execute("SELECT mqdb.ensure_segments(2)")  # as a producer does then
    adopt_all(copied)
    after = append(copied, queue)
    dispatch_all(copied)

    assert positions(copied, queue) == before + after
    assert create_topic(copied, "payments") == [last_key + 1]
    assert [warning.split(" was at ")[0] for warning in warnings].count("sequence mqdb.log_pos") == 1
