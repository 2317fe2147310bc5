"""`mqdb delay`: lists messages in the delay levels, and lets a level continue past a lost message."""

import os
import pty
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from mqdb.cli.times import shown_time
from tests.fixtures import warm_process
from tests.fixtures.broker import topic
from tests.fixtures.command_line import SECONDS, Place
from tests.fixtures.dead_letters import json_lines
from tests.fixtures.delay import delay, steps
from tests.fixtures.postgres import Database
from tests.fixtures.producers import TwoBrokers


@pytest.fixture
def place(database: Database, tmp_path: Path) -> Place:
    """A broker without a broker process."""
    return Place(tmp_path, database.dsn)


def lose(connection: Connection, level: int = 5) -> int:
    """Make a level of a broker wait for a message that the log has lost, with another message behind it.

    Returns the position of the lost message.
    """
    topic(connection, "orders")
    lost, _ = delay(connection, level, "lost", "next")
    connection.execute(text("DELETE FROM mqdb.commit_log WHERE log_pos = :lost"), {"lost": lost})
    return lost


def test_the_levels_are_listed_with_what_waits(place: Place, broker: Connection) -> None:
    topic(broker, "orders")
    delay(broker, 18, "a", "b", "c")

    printed = json_lines(place.done("delay", "list", "--json"))
    table = place.done("delay", "list")

    assert [row["level"] for row in printed] == [*range(1, 19)]
    assert printed[0] == {
        "level": 1,
        "delay": "1s",
        "waiting": 0,
        "next_due": None,
        "late_seconds": None,
        "lost_offset": None,
        "lost_log_pos": None,
    }
    last = printed[-1]
    assert (last["delay"], last["waiting"], last["late_seconds"], last["lost_offset"]) == ("2h", 3, 0.0, None)
    assert table.count("\n") == 2 + 18
    assert str(shown_time(datetime.fromisoformat(last["next_due"]))) in table


def test_a_level_that_stands_still_goes_on_when_somebody_says_so(place: Place, broker: Connection) -> None:
    lost = lose(broker)
    (listed,) = [row for row in json_lines(place.done("delay", "list", "--json")) if row["lost_offset"] is not None]

    printed = place.done("delay", "skip", "5", "--reason", "bad disk", "--yes")

    assert (listed["level"], listed["waiting"], listed["lost_offset"], listed["lost_log_pos"]) == (5, 2, 0, lost)
    assert printed == "delay level 5 goes on behind offset 0\n"
    assert steps(broker, 5) == [(1, 1, 0)]
    (noted,) = json_lines(place.done("operation", "list", "--topic", "SCHEDULE_TOPIC_XXXX", "--json"))
    assert (noted["verb"], noted["object"], noted["reason"]) == ("delay.skip", "level 5", "bad disk")


@pytest.mark.parametrize(
    ("level", "sentence"),
    [
        ("4", "delay level 4 has not lost its next message; see: mqdb delay list"),
        ("19", "level = 19: the delay levels are 1 to 18"),
        ("5", "Never deliver the lost message of delay level 5 at offset 0? No terminal to confirm it; add --yes"),
    ],
    ids=["nothing is lost", "no such level", "nobody is there"],
)
def test_a_step_that_is_refused_changes_nothing(place: Place, broker: Connection, level: str, sentence: str) -> None:
    lose(broker)

    refused = place.call("delay", "skip", level)

    assert (refused.code, refused.text, refused.errors) == (1, "", f"mqdb: {sentence}\n")
    assert steps(broker, 5) == []


@pytest.mark.parametrize(("answer", "taken"), [(b"y\n", [(1, 1, 0)]), (b"n\n", [])], ids=["yes", "no"])
def test_on_a_terminal_it_asks(
    place: Place, broker: Connection, answer: bytes, taken: list[tuple[int, int, int]]
) -> None:
    lose(broker)
    terminal, its_end = pty.openpty()
    os.write(terminal, answer)

    command = [sys.executable, "-m", "mqdb", "delay", "skip", "5"]
    pipe = subprocess.PIPE
    with warm_process.start(command, stdin=its_end, stdout=pipe, stderr=pipe, env=place.environ({})) as process:
        process.communicate(timeout=SECONDS)
    os.close(terminal)
    os.close(its_end)

    assert steps(broker, 5) == taken


def test_of_several_brokers_those_go_on_that_stand_still(
    two_brokers: TwoBrokers, both: tuple[Connection, Connection], tmp_path: Path
) -> None:
    place = Place(tmp_path, two_brokers.dsn)
    _, second = both
    lose(second)

    printed = place.done("delay", "skip", "5", "--yes")

    assert printed == "delay level 5 goes on behind offset 0 on broker-b\n"
    assert [steps(connection, 5) for connection in both] == [[], [(1, 1, 0)]]
    refused = place.call("delay", "skip", "5", "--broker", "broker-a", "--yes")
    assert refused.errors == "mqdb: delay level 5 has not lost its next message; see: mqdb delay list\n"
