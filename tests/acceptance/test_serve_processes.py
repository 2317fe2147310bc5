"""Several broker processes on one database are killed and stopped: the services continue within 5 s.

There are no clients with dispatchers, so every dispatched message was dispatched by one of these processes.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from mqdb.embedded import attach
from mqdb.embedded.home import Home
from mqdb.embedded.leftovers import postmaster_pid
from tests.fixtures.busy_machine import within
from tests.fixtures.clusters import home_with_cluster
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import is_alive, wait_until
from tests.fixtures.serve import ServeProcess, Starter, is_dispatched, leader_pid, query, send

#: What is promised after a kill; usual is a tenth of a second, and 3.2 s after a hang.
TAKEOVER_SECONDS = 5.0


@pytest.fixture
def topic(database: Database) -> str:
    """A topic in the shared database."""
    create_topic(database.connect(), "orders")
    return "orders"


@pytest.fixture
def pair(serve: Starter, database: Database, topic: str) -> tuple[ServeProcess, ServeProcess]:
    """A leader and a follower."""
    leader = serve(dsn=database.dsn)
    assert leader_pid(database.dsn) == leader.pid
    follower = serve(dsn=database.dsn)
    send(database.dsn, "before")
    wait_until(lambda: is_dispatched(database.dsn, "before"))
    return leader, follower


@pytest.fixture
def home() -> Iterator[Path]:
    with home_with_cluster() as place:
        yield place


def dsn_of(home: Path) -> str:
    running = attach(home)
    assert running is not None
    return running.dsn


def wait_for_dispatch(dsn: str, body: str) -> None:
    """Sends a message as soon as possible; returns when the message has its offset."""

    def is_sent() -> bool:
        try:
            send(dsn, body)
        except psycopg.OperationalError:
            return False
        return True

    wait_until(is_sent, 60)
    wait_until(lambda: is_dispatched(dsn, body), 60)


def epoch(dsn: str) -> int:
    return int(query(dsn, "SELECT epoch FROM mqdb.leader")[0][0])


def dispatchers(dsn: str) -> int:
    """The number of processes with a dispatcher's connection."""
    return int(query(dsn, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mqdb dispatcher'")[0][0])


# -- two processes on a database that somebody else runs ----------------------------------------


def test_a_killed_leader_is_followed(pair: tuple[ServeProcess, ServeProcess], database: Database) -> None:
    leader, follower = pair

    with within(TAKEOVER_SECONDS):
        leader.kill()
        wait_for_dispatch(database.dsn, "after")

    assert leader_pid(database.dsn) == follower.pid
    assert epoch(database.dsn) == 2


def test_a_leader_that_hangs_is_followed_and_steps_down_when_it_wakes(
    pair: tuple[ServeProcess, ServeProcess], database: Database
) -> None:
    leader, follower = pair

    with within(TAKEOVER_SECONDS):
        leader.signal(signal.SIGSTOP)
        wait_for_dispatch(database.dsn, "after")
    assert leader_pid(database.dsn) == follower.pid
    leader.signal(signal.SIGCONT)

    wait_until(lambda: "lost leadership" in leader.log())
    wait_until(lambda: dispatchers(database.dsn) == 1)
    assert (leader_pid(database.dsn), epoch(database.dsn)) == (follower.pid, 2)
    with within(TAKEOVER_SECONDS):
        follower.kill()
        wait_for_dispatch(database.dsn, "led again")
    assert (leader_pid(database.dsn), epoch(database.dsn)) == (leader.pid, 3)


def test_a_leader_that_is_asked_to_end_hands_over_and_leaves_nothing(
    pair: tuple[ServeProcess, ServeProcess], database: Database
) -> None:
    leader, follower = pair

    assert leader.end() == 0

    with within(TAKEOVER_SECONDS):
        wait_for_dispatch(database.dsn, "after")
    assert follower.end() == 0
    mine = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'mqdb%%'"
    wait_until(lambda: query(database.dsn, mine) == [])
    assert query(database.dsn, "SELECT expires_at < mqdb.now() FROM mqdb.leader") == [(True,)]


# -- the embedded PostgreSQL --------------------------------------------------------------------


def test_a_killed_postgres_comes_back_and_the_services_with_it(home: Path, serve: Starter) -> None:
    process = serve(home=home)
    dsn = dsn_of(home)
    with psycopg.connect(dsn, autocommit=True) as connection:
        create_topic(connection, "orders")
    wait_for_dispatch(dsn, "before")
    postmaster = postmaster_pid(Home(home).data)
    assert postmaster is not None

    with within(TAKEOVER_SECONDS):
        os.kill(postmaster, signal.SIGKILL)
        wait_for_dispatch(dsn, "after")

    assert is_dispatched(dsn, "before")
    assert process.end() == 0
    assert not is_alive(postmaster)
    assert attach(home) is None


def test_an_attached_process_takes_the_database_over_and_the_services_go_on(home: Path, serve: Starter) -> None:
    owner = serve(home=home)
    dsn = dsn_of(home)
    with psycopg.connect(dsn, autocommit=True) as connection:
        create_topic(connection, "orders")
    attached = serve(home=home)
    wait_for_dispatch(dsn, "before")

    with within(TAKEOVER_SECONDS):
        owner.kill()
        wait_for_dispatch(dsn, "after")

    assert is_dispatched(dsn, "before")
    assert leader_pid(dsn) == attached.pid
    assert urlsplit(dsn_of(home)).port == urlsplit(dsn).port
    assert attached.end() == 0
    assert attach(home) is None
