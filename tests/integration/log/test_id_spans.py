"""Unique ids without an index entry are found by the time that they contain, however wrong that time is."""

import random
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import Engine, text

from mqdb.store.engine import transaction
from mqdb.store.log import message_index
from mqdb.store.segments import segments
from tests.fixtures.log import (
    MADE_ID,
    Connection,
    append,
    close_segments,
    create_topic,
    dispatch_all,
    drop_partitions,
    index_all,
    index_keys,
    scalar,
    small_segments,
)
from tests.fixtures.postgres import Database
from tests.fixtures.variants import usually

NONE = timedelta(0)
HOUR = timedelta(hours=1)


def stored(log: Connection) -> set[tuple[UUID, int, int]]:
    return set(log.execute("SELECT msg_id, log_pos, queue_key FROM mqdb.commit_log").fetchall())


def found(engine: Engine, log: Connection, after_pos: int = 0) -> set[tuple[UUID, int, int]]:
    """The results of a look-up of all stored ids."""
    with engine.connect() as connection, transaction(connection):
        return set(message_index.find(connection, [row[0] for row in stored(log)], after_pos))


def entries(log: Connection) -> int:
    return int(scalar(log, "SELECT count(*) FROM mqdb.message_index"))


def test_ids_that_tell_when_they_were_made_need_no_entry(log: Connection, engine: Engine, queue: int) -> None:
    append(log, queue, 2_000, ahead=NONE)

    index_all(log, 5_000)

    assert entries(log) == 0
    assert scalar(log, "SELECT count(*) FROM mqdb.id_span") == 2
    assert found(engine, log) == stored(log)
    assert found(engine, log, 1_990) == {row for row in stored(log) if row[1] > 1_990}


def test_keys_have_entries(log: Connection, queue: int) -> None:
    append(log, queue, 20, ahead=NONE, keys="a b")

    index_all(log)

    assert entries(log) == 40


@pytest.mark.parametrize(
    "ahead",
    [-HOUR, HOUR, timedelta(days=-40), None],
    ids=["behind", "ahead", "in another month", "an id without a time"],
)
def test_what_a_wrong_clock_has_made_has_an_entry(
    log: Connection, engine: Engine, queue: int, ahead: timedelta | None
) -> None:
    append(log, queue, 20, ahead=ahead)
    append(log, queue, 20, ahead=NONE)

    index_all(log)

    assert entries(log) == 20
    assert found(engine, log) == stored(log)


def test_ids_are_found_across_the_end_of_a_month(log: Connection, engine: Engine, queue: int) -> None:
    """The last ids of a month are the largest, and their records are stored in the next one."""
    log.execute(
        f"""INSERT INTO mqdb.commit_log
                (queue_key, store_time, born_time, tags_code, msg_id, born_host, properties, body)
            SELECT %s, m.made + interval '10 ms', m.made, 0, {MADE_ID}, 'test', '{{}}', ''
            FROM generate_series(-20, 20) AS ms, LATERAL (
                SELECT date_trunc('month', mqdb.now(), 'UTC') + ms * interval '1 ms' AS made) m""",
        [queue],
    )

    index_all(log)

    assert scalar(log, "SELECT max(upper(made_ms)) FROM mqdb.id_span") < 1_000
    assert found(engine, log) == stored(log)


def test_a_segment_is_sealed_without_entries_and_takes_its_spans_along(log: Connection, engine: Engine) -> None:
    small_segments(log, 20)
    (queue,) = create_topic(log, "orders")
    append(log, queue, 30, ahead=NONE)
    dispatch_all(log)
    close_segments(log)
    assert not scalar(log, "SELECT mqdb.seal_segment(1)")
    index_all(log)

    assert scalar(log, "SELECT mqdb.seal_segment(1)")
    log.execute("UPDATE mqdb.segment SET state = 'drained' WHERE segment = 1")
    drop_partitions(log, [1])
    with engine.connect() as connection, connection.begin():
        segments.forget(connection, 1)

    assert scalar(log, "SELECT count(*) FROM mqdb.id_span") == 1
    assert found(engine, log) == stored(log)


def test_a_straggler_with_keys_keeps_its_segment_from_being_sealed(log: Connection, database: Database) -> None:
    """A straggler with keys keeps its segment from being sealed.

    The straggler's position and id lie in a span, but a span has no keys.
    """
    small_segments(log, 20)
    (queue,) = create_topic(log, "orders")
    writer = database.connect()
    append(log, queue, 9, ahead=NONE)
    writer.execute("BEGIN")
    append(writer, queue, ahead=NONE, keys="a")
    append(log, queue, 20, ahead=NONE)
    index_all(log)
    writer.execute("COMMIT")
    dispatch_all(log)
    close_segments(log)

    assert not scalar(log, "SELECT mqdb.seal_segment(1)")
    index_all(log)
    assert scalar(log, "SELECT mqdb.seal_segment(1)")


def test_a_restored_database_gives_no_entries_to_what_has_a_span(log: Connection, engine: Engine, queue: int) -> None:
    append(log, queue, 20, ahead=NONE)
    dispatch_all(log)
    index_all(log)
    append(log, queue, 5, ahead=NONE)
    log.execute("UPDATE mqdb.broker SET system_identifier = system_identifier - 1")
    log.execute("SELECT set_config('mqdb.identity', '', false)")

    dispatch_all(log)

    assert entries(log) == 5
    assert found(engine, log) == stored(log)


def test_a_timer_is_recalled_by_its_time(log: Connection, engine: Engine) -> None:
    """A timer is recalled by its time, in a segment with so many ids that its own has no index entry."""
    timers = scalar(
        log, "SELECT queue_key FROM mqdb.queue JOIN mqdb.topic USING (topic_id) WHERE topic = mqdb.timer_topic()"
    )
    append(log, timers, 20, ahead=NONE)
    log.execute('UPDATE mqdb.commit_log SET properties = \'{"REAL_TOPIC": "orders"}\', tags_code = 253402300799999')
    dispatch_all(log)
    index_all(log)
    unique_id = scalar(log, "SELECT mqdb.unique_id_text(msg_id) FROM mqdb.commit_log WHERE log_pos = 7")
    create_topic(log, "orders")

    assert entries(log) == 0
    assert scalar(log, "SELECT mqdb.recall('orders', %s)", [unique_id]) == "RECALLED"


@pytest.mark.parametrize("seed", usually(0, of=range(3)))
def test_every_id_is_found_whatever_the_clocks_say(
    log: Connection, engine: Engine, database: Database, queue: int, seed: int
) -> None:
    """Every id is found, whatever the clocks say.

    Senders have their own clocks, transactions end late, and batches have all sizes.
    """
    dice = random.Random(seed)
    writers = [database.connect() for _ in range(3)]
    for writer in writers:
        writer.execute("BEGIN")
    skews = [NONE, NONE, NONE, timedelta(seconds=-0.9), timedelta(seconds=0.2), timedelta(seconds=2), -HOUR, None]
    for _ in range(40):
        writer = dice.choice([log, log, *writers])
        append(writer, queue, dice.choice([1, 3, 12, 40]), ahead=dice.choice(skews), keys=dice.choice([None, "k"]))
        if writer is not log and dice.random() < 0.4:
            writer.execute(dice.choice(["COMMIT", "COMMIT", "ROLLBACK"]))
            writer.execute("BEGIN")
        if dice.random() < 0.4:
            index_keys(log, dice.choice([2, 9, 60]))
            after_pos = dice.choice([0, dice.randint(0, 400)])
            assert found(engine, log, after_pos) == {row for row in stored(log) if row[1] > after_pos}
    for writer in writers:
        writer.execute("COMMIT")
    index_all(log)

    assert found(engine, log) == stored(log)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM mqdb.id_span"))
