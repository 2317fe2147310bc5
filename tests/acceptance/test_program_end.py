"""A program that ends without shutting down its producer does exit, and sends under way are finished."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import stall, stored_bodies
from tests.fixtures.variants import usually

_PROGRAM = Path(__file__).with_name("exit_process.py")
SECONDS = 60
COUNT = 2_000


@contextmanager
def program(database: Database, how: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, str(_PROGRAM), database.dsn, how, str(COUNT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def topic(database: Database) -> None:
    create_topic(database.connect(), "orders", 4)


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize("how", usually("open", of=["open", "generator", "del", "fork"]))
def test_what_is_under_way_when_the_program_ends_is_sent_and_its_group_is_left(database: Database, how: str) -> None:
    locker = stall(database)
    with program(database, how) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "end\n"
        locker.rollback()

        _, complaints = process.communicate(timeout=SECONDS)

    assert process.returncode == 0
    assert complaints == ""
    assert stored_bodies(database) == ["x"] * COUNT
    wait_until(lambda: database.rows("SELECT count(*) FROM mqdb.client") == [(0,)])


@pytest.mark.usefixtures("topic")
def test_a_shutdown_waits_for_no_thread_that_is_gone(database: Database) -> None:
    stall(database)
    with program(database, "late") as process:
        process.communicate(timeout=SECONDS)

    assert process.returncode == 0
    assert stored_bodies(database) == []
