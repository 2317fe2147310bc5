"""Entries of the consume queues are stored in runs, and read one by one."""

import random

import psycopg
import pytest
from psycopg import Connection

from mqdb.selector.tags import tag_code
from tests.fixtures.log import append, create_topic, dispatch, dispatch_all, positions, scalar, small_segments
from tests.fixtures.variants import usually

SEEDS = 8
TAGS = (None, "A", "B", "rare")
PAST_ALL = 2**63 - 1

RUNS = """
SELECT last_offset, coalesce(cardinality(positions), 1) FROM mqdb.queue_run WHERE queue_key = %s ORDER BY last_offset
"""


def runs(log: Connection, queue_key: int) -> list[tuple[int, int]]:
    """The last offset and the number of entries of each run."""
    return log.execute(RUNS, [queue_key]).fetchall()


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (1, [(0, 1)]),
        (2, [(1, 2)]),
        (100, [(99, 100)]),
        (101, [(99, 100), (100, 1)]),
        (250, [(99, 100), (199, 100), (249, 50)]),
    ],
)
def test_a_batch_makes_runs_of_up_to_100(
    log: Connection, queue: int, messages: int, expected: list[tuple[int, int]]
) -> None:
    stored = append(log, queue, messages)

    dispatch(log)

    assert runs(log, queue) == expected
    assert positions(log, queue) == stored


def test_the_next_batch_begins_a_run_of_its_own(log: Connection, queue: int) -> None:
    for messages in (3, 1, 2):
        append(log, queue, messages)
        dispatch(log)

    assert runs(log, queue) == [(2, 3), (3, 1), (5, 2)]


def test_a_run_is_of_one_queue(log: Connection) -> None:
    first, second = create_topic(log, "orders", 2)
    for queue_key in (first, second, first, second, second):
        append(log, queue_key)

    dispatch(log)

    assert (runs(log, first), runs(log, second)) == ([(1, 2)], [(2, 3)])


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"log_pos": 1},
        {"tags_code": 1},
        {"log_pos": 1, "tags_code": 1, "positions": [1, 2], "codes": [1, 1]},
        {"positions": [1, 2]},
        {"codes": [1, 2]},
        {"positions": [1], "codes": [1]},
        {"positions": [1, 2, 3], "codes": [1, 2]},
        {"positions": [1] * 101, "codes": [1] * 101},
    ],
    ids=str,
)
def test_a_row_is_one_entry_or_several(log: Connection, queue: int, columns: dict[str, object]) -> None:
    names = "".join(f", {name}" for name in columns)
    values = ", %s" * len(columns)

    with pytest.raises(psycopg.errors.CheckViolation, match=r"one_or_many|longest_run"):
        log.execute(
            f"INSERT INTO mqdb.queue_run (last_offset, queue_key, segment{names}) VALUES (0, %s, 1{values})",
            [queue, *columns.values()],
        )


def test_the_largest_run_has_no_other_place_than_its_row(log: Connection, queue: int) -> None:
    append(log, queue, 100)
    dispatch(log)

    toast = """SELECT count(*) FROM pg_class WHERE relname ~ '^queue_run' AND reltoastrelid <> 0"""
    assert scalar(log, toast) == 0
    assert scalar(log, "SELECT pg_column_size(r.*) FROM mqdb.queue_run r") < 2000


def test_they_come_in_order_however_the_statement_is_planned(log: Connection, queue: int) -> None:
    """Entries come in order however the statement is planned, although nothing is sorted by queue_offset."""
    append(log, queue, 730)
    dispatch_all(log, 350)
    log.execute("ANALYZE mqdb.queue_run")
    asked = """SELECT e.queue_offset FROM mqdb.entries(%s, 50) e
               LEFT JOIN LATERAL (SELECT FROM mqdb.commit_log cl WHERE cl.log_pos = e.log_pos LIMIT 1) r ON true
               ORDER BY e.last_offset LIMIT 500"""

    for off in ((), ("indexscan",), ("indexscan", "seqscan"), ("nestloop", "material"), ("sort", "mergejoin")):
        for kind in off:
            log.execute(f"SET enable_{kind} = off")
        for prepare in (False, True):
            found = log.execute(asked, [queue], prepare=prepare).fetchall()

            assert [offset for (offset,) in found] == list(range(50, 550)), off
        for kind in off:
            log.execute(f"RESET enable_{kind}")


@pytest.mark.parametrize("seed", usually(0, of=range(SEEDS)))
def test_entries_are_those_of_the_messages(log: Connection, seed: int) -> None:
    """The entries equal those counted in Python, for any part of a queue, and any runs and segments."""
    chance = random.Random(seed)
    small_segments(log, chance.choice([60, 400, 100_000]), ahead=20)
    queue_keys = create_topic(log, "orders", 2)
    sent: dict[int, list[tuple[int, int]]] = {key: [] for key in queue_keys}  # position and code, by offset
    for _ in range(30):
        key, tag = chance.choice(queue_keys), chance.choice(TAGS)
        stored = append(log, key, chance.choice([1, 1, 2, 9, 60]), tag=tag)
        sent[key] += [(log_pos, tag_code(tag or "")) for log_pos in stored]
        if chance.random() < 0.5:
            dispatch_all(log, chance.choice([7, 1000]))
    dispatch_all(log)

    for key in queue_keys:
        everything = log.execute(
            """SELECT queue_offset, log_pos, tags_code, segment, last_offset FROM mqdb.consume_queue
               WHERE queue_key = %s ORDER BY queue_offset""",
            [key],
        ).fetchall()
        assert [row[:3] for row in everything] == [(offset, *entry) for offset, entry in enumerate(sent[key])]
        for _ in range(60):
            first = chance.choice([-5, 0, chance.randrange(len(everything) + 3)])
            past = chance.choice([PAST_ALL, first, first + chance.randrange(300)])
            segments = sorted(chance.choices(range(12), k=2)) if chance.random() < 0.5 else [0, 2**31 - 1]
            codes = [tag_code(tag or "") for tag in chance.sample(TAGS, 2)] if chance.random() < 0.5 else None

            found = log.execute(
                "SELECT * FROM mqdb.entries(%s, %s, %s, %s, %s, %s)", [key, first, past, *segments, codes]
            )

            assert found.fetchall() == [
                row
                for row in everything
                if first <= row[0] < past
                and segments[0] <= row[3] <= segments[1]
                and (codes is None or row[2] in codes)
            ], (seed, key, first, past, segments, codes)
