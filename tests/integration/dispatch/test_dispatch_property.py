"""Dispatch under random interleavings loses, duplicates and reorders nothing, and offsets are dense and never change.

MQDB_DISPATCH_SEEDS, else MQDB_FUZZ_CASES, is the number of seeds to play. A failing seed is printed with its steps.
"""

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine

from tests.fixtures.fuzz import fuzz_cases
from tests.fixtures.interleaving import Interleaving, Sessions, Violation
from tests.fixtures.log import (
    Connection,
    append,
    create_topic,
    dispatch,
    dispatch_all,
    index_all,
    index_keys,
    positions,
    replace_in_function,
    small_segments,
)
from tests.fixtures.postgres import Database

SEEDS = int(os.environ.get("MQDB_DISPATCH_SEEDS", fuzz_cases()))


def play_all(sessions: Sessions, seeds: range) -> None:
    for seed in seeds:
        interleaving = Interleaving(sessions, seed)
        try:
            interleaving.play()
        except Exception as error:
            error.add_note(f"seed {seed}:\n" + "\n".join(interleaving.history))
            sessions.reset()
            raise


@pytest.mark.timeout(60 + SEEDS)
def test_every_committed_message_gets_one_offset_and_keeps_it(database: Database, engine: Engine) -> None:
    with engine.connect() as retention:
        play_all(Sessions(database, retention), range(SEEDS))


DISPATCH_RECORDS = "mqdb.dispatch_records(mqdb.batch, integer[], boolean, integer)"
NEXT_BATCH = "mqdb.next_batch(mqdb.checkpoint, pg_snapshot, bigint)"

#: function, text in it, replacement: each takes away one thing that dispatch cannot do without.
MUTATIONS = {
    "late committers forgotten": (NEXT_BATCH, "pg_snapshot_xip(batch.prev) AS x", "pg_snapshot_xip('1:1:') AS x"),
    "positions older than the transaction forgotten": (
        NEXT_BATCH,
        "pg_snapshot_xmax(batch.cur))::",
        "pg_snapshot_xmax(batch.prev))::",
    ),
    "stragglers taken again by the next batch": (
        NEXT_BATCH,
        "THEN last.straggler_pos ELSE",
        "THEN last.straggler_pos - (last.messages > 1)::integer ELSE",
    ),
    "a transaction's other stragglers forgotten after a full batch": (
        NEXT_BATCH,
        "THEN last.straggler_pos ELSE",
        "THEN 9000000000000000000 ELSE",
    ),
    "snapshot not frozen for the round": (
        NEXT_BATCH,
        "batch.cur := last.cur",
        "batch.cur := pg_current_snapshot()",
    ),
    "empty rounds remembered though a batch found something": (
        "mqdb.end_batch(text, mqdb.batch, bigint, integer, xid8, integer, bigint)",
        "messages = 0 AND",
        "",
    ),
    "last offsets forgotten at the end of a segment": (
        "mqdb.dispatch(integer)",
        "batch.segment > batch.last_segment",
        "false",
    ),
    "queues of a large transaction forgotten": (
        "mqdb.open_lane(xid8, bigint)",
        "SELECT lane, array_agg(w.queue_key)",
        "SELECT lane, ARRAY[max(w.queue_key)]",
    ),
    "a lane that ends before it has caught up": (
        "mqdb.lane_batch(mqdb.dispatch_lane, integer)",
        "done.walked_to = main.tail_pos AND",
        "",
    ),
    "records of dispatch taken by a lane as well": (
        DISPATCH_RECORDS,
        "(cl.queue_key = ANY (lane_keys)) = in_lane",
        "(in_lane OR cl.queue_key <> ALL (lane_keys))",
    ),
    "sealed before it is complete": ("mqdb.seal_segment(integer)", "RAISE lock_not_available", "NULL"),
}


#: Where to begin with a mutation that few seeds find.
FIRST_SEEDS = {
    "positions older than the transaction forgotten": 65,
    "records of dispatch taken by a lane as well": 107,
    "sealed before it is complete": 34,
}


@pytest.mark.parametrize(
    "mutation",
    [
        # One of them shows that the property can fail; `do.py test --all` shows it of all.
        pytest.param(name, marks=() if name == "sealed before it is complete" else pytest.mark.long)
        for name in MUTATIONS
    ],
)
def test_the_property_fails_when_dispatch_is_broken(database: Database, engine: Engine, mutation: str) -> None:
    with engine.connect() as retention:
        sessions = Sessions(database, retention)
        replace_in_function(sessions.observer, *MUTATIONS[mutation])

        with pytest.raises(Violation):
            play_all(sessions, range(first := FIRST_SEEDS.get(mutation, 0), first + 200))


UNFROZEN_STRAGGLERS = (
    NEXT_BATCH,
    "coalesce(last.stragglers_cur, new_cur)",
    "CASE WHEN batch.is_first THEN new_cur ELSE pg_current_snapshot() END",
)


@pytest.mark.parametrize("is_broken", [False, True])
def test_who_commits_between_two_batches_of_stragglers_is_not_lost(
    database: Database, log: Connection, is_broken: bool
) -> None:
    """A transaction that commits between two batches of stragglers is not lost.

    The snapshot is frozen until the last of them. Random interleavings seldom reach this case.
    """
    [queue] = create_topic(log, "orders")
    dispatch(log)
    if is_broken:
        replace_in_function(log, *UNFROZEN_STRAGGLERS)
    late, early = database.connect(autocommit=False), database.connect(autocommit=False)
    low = append(late, queue)
    stragglers = append(early, queue, 3)
    first = append(log, queue)
    dispatch_all(log)
    early.commit()
    assert dispatch(log, 1).more
    late.commit()

    dispatch_all(log)

    assert positions(log, queue) == [*first, *stragglers, *([] if is_broken else low)]


class Writer:
    """Sends many transactions, one after another; records the positions of the committed ones."""

    def __init__(self, connection: Connection, queue_key: int, seed: int) -> None:
        self.connection = connection
        self.queue_key = queue_key
        self.random = random.Random(seed)
        self.committed: list[int] = []

    def run(self) -> None:
        for _ in range(120):
            if self.random.random() < 0.4:
                self.committed += append(self.connection, self.queue_key, self.random.randint(1, 3))
            else:
                self._run_transaction()

    def _run_transaction(self) -> None:
        sent = []
        self.connection.execute("BEGIN")
        for _ in range(self.random.randint(1, 4)):
            sent += append(self.connection, self.queue_key)
        if self.random.random() < 0.3:
            self.connection.execute("SAVEPOINT here")
            append(self.connection, self.queue_key)
            self.connection.execute("ROLLBACK TO here")
        if self.random.random() < 0.8:
            self.connection.execute("COMMIT")
            self.committed += sent
        else:
            self.connection.execute("ROLLBACK")


def test_writers_dispatchers_and_readers_at_once(database: Database, log: Connection) -> None:
    """Writers, dispatchers and readers run at once.

    This covers races within one call of dispatch, which the steps of one thread cannot reach.
    """
    small_segments(log, 300, ahead=40)
    (queue,) = create_topic(log, "orders")
    writers = [Writer(database.connect(), queue, seed) for seed in range(4)]
    dispatchers = [database.connect(), database.connect()]
    indexer, reader = database.connect(), database.connect()
    done = threading.Event()
    seen: list[int] = []

    def keep_dispatching(connection: Connection, seed: int) -> None:
        sizes = random.Random(seed)
        while not done.is_set():
            dispatch(connection, sizes.randint(1, 20))

    def keep_indexing() -> None:
        while not done.is_set():
            index_keys(indexer, 50)

    def keep_reading() -> None:
        while not done.is_set():
            rows = reader.execute(
                """SELECT queue_offset, log_pos FROM mqdb.consume_queue
                   WHERE queue_key = %s AND queue_offset >= %s ORDER BY queue_offset""",
                [queue, len(seen)],
            ).fetchall()
            assert [row[0] for row in rows] == list(range(len(seen), len(seen) + len(rows)))
            seen.extend(row[1] for row in rows)

    with ThreadPoolExecutor(8) as pool:
        services = [pool.submit(keep_dispatching, connection, seed) for seed, connection in enumerate(dispatchers)]
        services += [pool.submit(keep_indexing), pool.submit(keep_reading)]
        try:
            for writing in [pool.submit(writer.run) for writer in writers]:
                writing.result()
        finally:
            done.set()
        for service in services:
            service.result()
    dispatch_all(log)
    index_all(log)

    order = positions(log, queue)
    assert order[: len(seen)] == seen
    assert sorted(order) == sorted(log_pos for writer in writers for log_pos in writer.committed)
    place = {log_pos: offset for offset, log_pos in enumerate(order)}
    for writer in writers:
        offsets = [place[log_pos] for log_pos in writer.committed]
        assert offsets == sorted(offsets)
    indexed = [row[0] for row in log.execute("SELECT log_pos FROM mqdb.message_index ORDER BY log_pos")]
    assert indexed == sorted(order)
