"""On a terminal no command prints a message's control characters; elsewhere bodies are printed unchanged."""

import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine

from mqdb.common.message import Message
from mqdb.store.topics.topics import find_topic
from tests.fixtures import warm_process
from tests.fixtures.broker import append, dispatch_all
from tests.fixtures.command_line import Place
from tests.fixtures.postgres import Database

#: Retitles the window, rings, and begins a colour by a C1 character.
HOSTILE = "\x1b]0;mine\x07\x9b31m"
SHOWN = r"\x1b]0;mine\x07\x9b31m"

#: What rich may print: colours, and how it hides and shows the cursor.
OURS = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def place(database: Database, engine: Engine, tmp_path: Path) -> Place:
    """A broker in which every named object has a hostile name."""
    place = Place(tmp_path, database.dsn)
    place.done("topic", "create", "orders", "--queues", "1")
    message = Message("orders", HOSTILE, HOSTILE, HOSTILE.replace(" ", ""), properties={f"p{HOSTILE}": HOSTILE})
    with engine.connect() as broker:
        route = find_topic(broker, "orders")
        assert route is not None
        append(broker, route, message)
        dispatch_all(broker)
    connection = database.connect()
    connection.execute(
        "INSERT INTO mqdb.client (client_id, kind, group_name, language, version) VALUES (%s, 'CONSUMER', %s, %s, %s)",
        [HOSTILE] * 4,
    )
    connection.execute(
        "INSERT INTO mqdb.topic (topic, read_queue_nums, write_queue_nums, perm) VALUES (%s, 1, 1, 6)", [f"t{HOSTILE}"]
    )
    connection.execute(
        "INSERT INTO mqdb.cron (name, cron, topic, body, next_at) VALUES (%s, %s, %s, '', '2100-01-01')", [HOSTILE] * 3
    )
    return place


def on_a_terminal(place: Place, *arguments: str) -> bytes:
    """Everything that a command prints when its standard output and standard error are the same terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "mqdb", *arguments]
    with warm_process.start(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=place.environ({"COLUMNS": "400", "TERM": "xterm"})
    ) as process:
        os.close(theirs)
        printed = b""
        while True:
            try:
                part = os.read(ours, 65_536)
            except OSError:  # the other end is closed
                break
            printed += part
        process.wait(60)
    os.close(ours)
    return printed


@pytest.mark.parametrize(
    ("arguments", "shows"),
    [
        (["consume", "orders", "--exit"], SHOWN),
        (["consume", "orders", "--exit", "--json"], r"\u001b]0;mine\u0007\u009b31m"),
        (["-vv", "consume", "orders", "--exit"], SHOWN),
        (["topic", "list"], SHOWN),
        (["consumer", "list"], SHOWN),
        (["consumer", "status", HOSTILE], SHOWN),
        (["cron", "list"], SHOWN),
        (["cron", "remove", HOSTILE], SHOWN),
        (["topic", "show", HOSTILE], SHOWN),
        (["selector", "explain", f"a = '{HOSTILE}'"], SHOWN),
        ([HOSTILE], SHOWN),
    ],
    ids=lambda value: ascii(value)[:60],
)
def test_no_terminal_gets_a_control_character_of_a_stranger(place: Place, arguments: list[str], shows: str) -> None:
    printed = on_a_terminal(place, *arguments)

    rest = OURS.sub(b"", printed).decode()
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", rest), printed
    assert b"Traceback" not in printed
    assert shows in rest.replace("\\\\", "\\")


def test_what_is_no_terminal_gets_the_body_as_it_is(place: Place) -> None:
    assert place.run("consume", "orders", "--exit").output == HOSTILE.encode() + b"\n"


def test_json_holds_no_control_character_anywhere(place: Place) -> None:
    output = place.run("consume", "orders", "--exit", "--json").output.decode()

    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", output)
    assert r"\u009b31m" in output


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", ">&-"])
def test_closed_standard_files_do_no_harm(closed: str) -> None:
    """A socket that gets a file descriptor below 3 would be written to, also by child processes."""
    shell = f"exec {shlex.quote(sys.executable)} -m mqdb --version {closed}"

    assert subprocess.run(["bash", "-c", shell], capture_output=True, check=False).returncode == 0
