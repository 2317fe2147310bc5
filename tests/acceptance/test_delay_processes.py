"""Delayed messages while the delivering process or the database is killed with -9: each arrives exactly once."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from psycopg import OperationalError

from mqdb.embedded import attach
from mqdb.embedded.home import Home
from mqdb.embedded.leftovers import postmaster_pid
from tests.fixtures.clusters import home_with_cluster
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.serve import Starter, leader_pid, query

MESSAGES = 4_000

#: They fall due one after the other in the second and a half from two seconds on.
_DELAY = """
INSERT INTO mqdb.commit_log (queue_key, born_time, tags_code, msg_id, born_host, properties, body)
SELECT q.queue_key, mqdb.now(), (extract(epoch FROM mqdb.now()) * 1000)::bigint + 2000 + n * 1500 / %(count)s,
       gen_random_uuid(), 'test', '{"DELAY": "2", "REAL_TOPIC": "orders", "REAL_QID": "0"}', convert_to(n::text, 'UTF8')
FROM generate_series(1, %(count)s) n, mqdb.queue q JOIN mqdb.topic t USING (topic_id)
WHERE t.topic = 'SCHEDULE_TOPIC_XXXX' AND q.queue_id = 1 ORDER BY n RETURNING 1
"""


@pytest.fixture
def home() -> Iterator[Path]:
    with home_with_cluster() as place:
        yield place


def prepare(dsn: str) -> None:
    """A topic, and delayed messages for it."""
    with Database(dsn).connect() as connection:
        create_topic(connection, "orders")
        connection.execute(_DELAY, {"count": MESSAGES})


def has_delivered(dsn: str, messages: int) -> bool:
    """Whether `messages` messages have been delivered by now; also False while the server does not answer."""
    with suppress(OperationalError):
        rows = query(dsn, "SELECT coalesce(sum(messages), 0) FROM mqdb.delay_offset")
        return int(rows[0][0]) >= messages
    return False


def came(dsn: str) -> list[int]:
    """The numbers of the messages in the topic, as delivered."""
    statement = "SELECT text::integer FROM mqdb.message WHERE topic = 'orders' ORDER BY queue_offset"
    return [number for (number,) in query(dsn, statement)]


@pytest.mark.long
def test_killed_leaders_lose_and_double_no_delayed_message(serve: Starter, database: Database) -> None:
    alive = {process.pid: process for process in (serve(dsn=database.dsn) for _ in range(3))}
    prepare(database.dsn)
    for share in (1, 2):
        wait_until(partial(has_delivered, database.dsn, MESSAGES * share // 4))
        wait_until(lambda: leader_pid(database.dsn) in alive)
        alive.pop(leader_pid(database.dsn)).kill()

    wait_until(lambda: len(came(database.dsn)) >= MESSAGES, 20)

    assert came(database.dsn) == list(range(1, MESSAGES + 1))


@pytest.mark.long
def test_a_killed_database_loses_and_doubles_no_delayed_message(home: Path, serve: Starter) -> None:
    serve(home=home)
    running = attach(home)
    assert running is not None
    prepare(running.dsn)
    wait_until(partial(has_delivered, running.dsn, MESSAGES // 3))
    postmaster = postmaster_pid(Home(home).data)
    assert postmaster is not None

    os.kill(postmaster, signal.SIGKILL)

    def all_came() -> bool:
        again = attach(home)
        return again is not None and has_delivered(again.dsn, MESSAGES) and len(came(again.dsn)) >= MESSAGES

    wait_until(all_came, 30)
    again = attach(home)
    assert again is not None
    assert came(again.dsn) == list(range(1, MESSAGES + 1))
