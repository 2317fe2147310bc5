"""Appends that place their records: when they do so, when they leave it to dispatch, and what others see."""

from collections.abc import Callable

import pytest
from sqlalchemy import Engine

from mqdb.broker.log import send
from mqdb.store.dispatch.unread import progress
from mqdb.store.engine import create_engine
from tests.fixtures.interleaving import Sessions, Violation
from tests.fixtures.log import (
    Connection,
    append,
    append_placed,
    create_topic,
    dispatch,
    dispatch_all,
    index_all,
    pass_second,
    positions,
    replace_in_function,
    scalar,
    settle,
    small_segments,
    some_records,
)
from tests.fixtures.postgres import Database
from tests.integration.dispatch.test_dispatch_property import play_all

#: The dispatcher has not heard that somebody has woken it.
STILL_ASLEEP = "SELECT setval('mqdb.dispatcher_state', 1)"


@pytest.fixture
def queue(log: Connection) -> int:
    """A queue in a log without undispatched records."""
    [queue] = create_topic(log, "orders")
    dispatch(log)  # the database may be a copy, and is adopted then
    settle(log)
    return queue


def test_records_get_their_places_with_the_append(log: Connection, queue: int) -> None:
    one = append_placed(log, queue)
    many = append_placed(log, queue, 250)

    assert [offset for _, offset in one + many] == list(range(251))
    assert positions(log, queue) == [log_pos for log_pos, _ in one + many]
    assert scalar(log, "SELECT count(xid) FROM mqdb.commit_log") == 0
    assert dispatch(log).outcome == "IDLE"


def test_the_queues_of_one_append_count_by_themselves(log: Connection, queue: int) -> None:
    other, third = create_topic(log, "others", 2)
    keys = [queue, other, queue, third, other, queue]
    log.execute("SELECT * FROM mqdb.take_places(%s, %s)", [[queue], [0]])

    _, *offsets = scalar(log, "SELECT mqdb.take_places(%s, %s)", [keys, [0] * 6])

    assert offsets == [1, 0, 2, 0, 1, 3]


def test_an_arrival_is_announced(database: Database, log: Connection, queue: int) -> None:
    listener = database.connect()
    listener.execute("LISTEN mqdb_arrivals")
    append_placed(log, queue, 3)

    assert [found.payload for found in listener.notifies(timeout=10, stop_after=1)] == [f"a:{queue}"]


def with_the_lock_taken(database: Database, _log: Connection, _queue: int) -> None:
    other = database.connect(autocommit=False)
    other.execute("LOCK TABLE mqdb.lock_dispatch IN SHARE UPDATE EXCLUSIVE MODE")


def beside_one_that_is_under_way(database: Database, _log: Connection, queue: int) -> None:
    append(database.connect(autocommit=False), queue)


def behind_many_that_wait(_database: Database, log: Connection, queue: int) -> None:
    append(log, queue, 101)


def in_a_round_that_is_not_over(database: Database, log: Connection, queue: int) -> None:
    """Append during an unfinished round.

    The round's first checkpoint has the seq of the checkpoint that the mark relies on, which was rolled back.
    """
    append(log, queue, 2)
    log.execute(STILL_ASLEEP)
    other = database.connect(autocommit=False)
    assert append_placed(other, queue)[0][1] == 3
    other.rollback()
    assert dispatch(log, 1).more


def in_a_restored_database(_database: Database, log: Connection, queue: int) -> None:
    append(log, queue)
    log.execute("UPDATE mqdb.broker SET database_oid = 1")


def with_asynchronous_commits(_database: Database, log: Connection, _queue: int) -> None:
    """Use asynchronous commits. A crash undoes such a commit, when the offset may already be stored elsewhere."""
    log.execute("SET synchronous_commit = off")


def in_a_transaction_with_one_snapshot(_database: Database, log: Connection, _queue: int) -> None:
    """Use a transaction with one snapshot, which is older than the lock."""
    log.execute("SET default_transaction_isolation = 'repeatable read'")


@pytest.mark.parametrize(
    "prepare",
    [
        with_the_lock_taken,
        beside_one_that_is_under_way,
        behind_many_that_wait,
        in_a_round_that_is_not_over,
        in_a_restored_database,
        with_asynchronous_commits,
        in_a_transaction_with_one_snapshot,
    ],
    ids=lambda prepare: prepare.__name__,
)
@pytest.mark.parametrize("count", [1, 3])
def test_it_leaves_to_dispatch_what_it_cannot_place(
    database: Database, log: Connection, queue: int, prepare: Callable[[Database, Connection, int], None], count: int
) -> None:
    append_placed(log, queue)
    prepare(database, log, queue)
    log.execute(STILL_ASLEEP)

    sent = append_placed(log, queue, count)

    assert [offset for _, offset in sent] == [None] * count
    database.close()
    log = database.connect()
    dispatch_all(log)
    assert positions(log, queue)[-count:] == [log_pos for log_pos, _ in sent]
    settle(log)
    [(_, offset)] = append_placed(log, queue)
    assert offset == len(positions(log, queue)) - 1


def test_it_places_nothing_while_the_dispatcher_is_awake(log: Connection, queue: int) -> None:
    log.execute("SELECT mqdb.stay_awake()")

    assert append_placed(log, queue)[0][1] is None


def test_it_places_nothing_while_dispatch_wants_large_batches(log: Connection, queue: int) -> None:
    settle(log, places=False)

    assert append_placed(log, queue)[0][1] is None


def behind_a_record_that_waits(_database: Database, log: Connection, queue: int) -> list[int]:
    return append(log, queue)


def behind_one_that_was_rolled_back(database: Database, _log: Connection, queue: int) -> list[int]:
    other = database.connect(autocommit=False)
    append(other, queue)
    other.rollback()
    return []


def with_the_mark_of_another_history(_database: Database, log: Connection, _queue: int) -> list[int]:
    """Set the mark of another history, as a restored dump has it."""
    log.execute("SELECT setval('mqdb.placed', pg_sequence_last_value('mqdb.placed') # 4711)")
    return []


def behind_an_append_that_has_placed_others_and_was_rolled_back(
    database: Database, log: Connection, queue: int
) -> list[int]:
    sent = append(log, queue)
    log.execute(STILL_ASLEEP)
    other = database.connect(autocommit=False)
    assert append_placed(other, queue)[0][1] == 2
    other.rollback()
    return sent


@pytest.mark.parametrize(
    "prepare",
    [
        behind_a_record_that_waits,
        behind_one_that_was_rolled_back,
        with_the_mark_of_another_history,
        behind_an_append_that_has_placed_others_and_was_rolled_back,
    ],
    ids=lambda prepare: prepare.__name__,
)
def test_it_places_first_what_waits(
    database: Database, log: Connection, queue: int, prepare: Callable[[Database, Connection, int], list[int]]
) -> None:
    before = append_placed(log, queue)
    waiting = prepare(database, log, queue)
    log.execute(STILL_ASLEEP)

    one = append_placed(log, queue)
    many = append_placed(log, queue, 3)

    expected = [*(log_pos for log_pos, _ in before), *waiting, *(log_pos for log_pos, _ in one + many)]
    assert positions(log, queue) == expected
    assert [offset for _, offset in one + many] == list(range(1 + len(waiting), len(expected)))


def test_a_sender_that_does_not_read_its_answer_keeps_no_lock(database: Database, log: Connection, queue: int) -> None:
    """A sender that does not read its answer keeps no lock, even if it is stopped or far away.

    The statement and its commit are one message to the server.
    """
    listener, sender = database.connect(), database.connect()
    listener.execute("LISTEN mqdb_arrivals")
    statement, values = send.statement_for(some_records(queue, 1), places=True)
    sender.pgconn.send_query_params(
        statement.text.encode(), statement.pack(values), statement.oids, statement.formats, statement.formats[0]
    )
    sender.pgconn.flush()
    assert [found.payload for found in listener.notifies(timeout=10, stop_after=1)] == [f"a:{queue}"]

    assert dispatch(log).outcome == "IDLE"
    assert append_placed(log, queue)[0][1] == 1


def test_an_append_that_takes_three_round_trips_places_nothing(database: Database, log: Connection, queue: int) -> None:
    """An append that takes three round trips places nothing.

    An append takes three behind a pooler if READ COMMITTED is not the default, and would keep the lock for two of them.
    """
    database.set_default("default_transaction_isolation", "repeatable read")
    engine = create_engine(database.dsn, prepared=False)

    with engine.connect() as connection:
        [place] = send.append(connection, some_records(queue, 1))
    engine.dispose()

    assert place.queue_offset is None


def test_a_queue_that_is_gone_leaves_no_entry(log: Connection, queue: int) -> None:
    log.execute("SELECT * FROM mqdb.take_places(%s, %s)", [[queue, 4711], [0, 0]])
    log.execute("SELECT * FROM mqdb.take_places(%s, %s)", [[4711], [0]])

    assert positions(log, queue) == []


def test_an_append_that_fails_leaves_no_gap(log: Connection, queue: int) -> None:
    log.execute("BEGIN")
    append_placed(log, queue, 2)
    log.execute("ROLLBACK")

    assert [offset for _, offset in append_placed(log, queue)] == [0]


def test_rounds_pass_over_what_is_placed_and_say_once_a_second_how_far_they_are(log: Connection, queue: int) -> None:
    """Rounds skip placed records, and report their progress once a second.

    The key index follows these reports, and dispatch looks for late records from there on.
    """
    append_placed(log, queue)
    dispatch(log)  # the checkpoint before is old
    append_placed(log, queue, 19)
    before = scalar(log, "SELECT max(seq) FROM mqdb.checkpoint WHERE service = 'dispatch'")
    dispatch(log)
    assert scalar(log, "SELECT max(seq) FROM mqdb.checkpoint WHERE service = 'dispatch'") == before

    pass_second(log)

    done = log.execute(
        "SELECT seq, done_pos, messages FROM mqdb.checkpoint WHERE service = 'dispatch' ORDER BY seq DESC"
    )
    assert done.fetchone() == (before + 1, scalar(log, "SELECT last_value FROM mqdb.log_pos"), 0)
    assert index_all(log) == 20


def test_a_new_segment_is_entered_by_dispatch(database: Database, log: Connection) -> None:
    small_segments(log, 5, ahead=3)
    [queue] = create_topic(log, "orders")
    offsets: list[int | None] = []
    for _ in range(40):
        settle(log)
        offsets += [offset for _, offset in append_placed(log, queue)]

    dispatch_all(log)
    assert len(positions(log, queue)) == 40
    assert [offset for number, offset in enumerate(offsets) if offset not in (None, number)] == []
    assert sum(offset is not None for offset in offsets) > 20


def test_who_reads_many_queues_sees_that_something_was_placed(
    database: Database, log: Connection, queue: int, engine: Engine
) -> None:
    append_placed(log, queue)
    with engine.connect() as connection:
        before = progress(connection)
        append_placed(log, queue)
        after = progress(connection)
        sender = database.connect(autocommit=False)
        append_placed(sender, queue)
        meanwhile = progress(connection)
        sender.commit()
        last = progress(connection)

    assert None not in (before.seq, after.seq, last.seq)
    assert len({before, after, last}) == 3
    assert meanwhile.seq is None


TAKE_PLACES = "mqdb.take_places(integer[], bigint[])"
PLACE_WAITING = "mqdb.place_waiting()"

#: Each takes away one of the rules of take_places, or of what it relies on.
MUTATIONS = {
    "without the lock": (TAKE_PLACES, "LOCK TABLE mqdb.lock_dispatch IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;", ""),
    "whatever waits": (PLACE_WAITING, "IF done.outcome = 'LOCKED' OR done.more THEN", "IF false THEN"),
    "although others have drawn": (
        TAKE_PLACES,
        "settled_pos # history IS DISTINCT FROM pg_sequence_last_value('mqdb.placed')",
        "pg_sequence_last_value('mqdb.placed') IS NULL",
    ),
    "although one is under way": (PLACE_WAITING, "l.mode = 'RowExclusiveLock'", "false"),
    "although a round is not over": (TAKE_PLACES, "NOT reached.is_over OR", ""),
    "whatever became of the round before": (
        TAKE_PLACES,
        "reached.seq < pg_sequence_last_value('mqdb.placed_from')",
        "false",
    ),
}


@pytest.mark.parametrize(
    "mutation",
    [pytest.param(name, marks=() if name == "without the lock" else pytest.mark.long) for name in MUTATIONS],
)
def test_the_property_fails_without_each_of_the_rules(database: Database, engine: Engine, mutation: str) -> None:
    with engine.connect() as retention:
        sessions = Sessions(database, retention)
        replace_in_function(sessions.observer, *MUTATIONS[mutation])

        with pytest.raises(Violation):
            play_all(sessions, range(300))


def test_the_property_fails_if_what_is_placed_keeps_its_xid(database: Database, engine: Engine) -> None:
    """The property test fails if placed records keep their xid, because dispatch would find them, too."""
    with engine.connect() as retention:
        sessions = Sessions(database, retention)
        sessions.observer.execute(
            """CREATE FUNCTION keep_xid() RETURNS trigger LANGUAGE plpgsql
               AS $$ BEGIN NEW.xid := pg_current_xact_id(); RETURN NEW; END $$;
               CREATE TRIGGER keep_xid BEFORE INSERT ON mqdb.commit_log FOR EACH ROW EXECUTE FUNCTION keep_xid()"""
        )
        with pytest.raises(Violation):
            play_all(sessions, range(300))
