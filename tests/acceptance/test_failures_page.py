"""docs/failures.md, word for word: the program of a failing message, the commands and the lines that they print."""

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from mqdb.service.delay_deliverer import DelayDeliverer
from tests.fixtures import warm_process
from tests.fixtures.command_line import Place, served
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "failures.md"
ID = re.compile(r"[0-9A-F]{32}")


def section() -> str:
    text = PAGE.read_text(encoding="utf-8").partition("## From the failure to the repair\n")[2]
    return text.partition("\n## ")[0]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", section(), re.DOTALL)


def steps() -> list[tuple[list[str], list[str]]]:
    """Each command of the section with its printed lines."""
    found: list[tuple[list[str], list[str]]] = []
    for line in "".join(blocks("console")).splitlines():
        if line.startswith("$ "):
            found.append((shlex.split(line[2:]), []))
        else:
            found[-1][1].append(line)
    return found


@pytest.fixture
def place(database: Database, tmp_path: Path) -> Iterator[Place]:
    """A broker with the topic of the example; the whole retry ladder takes 2 s."""
    with served(Place(tmp_path, database.dsn), DelayDeliverer, message_delay_level="1s") as place:
        place.done("topic", "create", "orders")
        yield place


def consume(place: Place, program: Path, expected: list[str]) -> list[str]:
    """The lines of the program until it has printed all expected lines; then the program is interrupted."""
    process = warm_process.start(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=place.environ({}),
    )
    with process:
        assert process.stdout is not None
        lines = [process.stdout.readline().rstrip() for _ in expected]
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert (rest, process.returncode) == ("", 0)
    return lines


def test_the_story_of_a_message_that_fails(place: Place, tmp_path: Path, database: Database) -> None:
    [program] = blocks("python")
    path = tmp_path / "billing.py"
    path.write_text(program)
    [query] = blocks("sql")
    [table] = blocks("text")
    ids: dict[str, str] = {}

    for command, expected in steps():
        words = [ids.get(word, word) for word in command]
        if words[0] == "python":
            assert consume(place, path, expected) == expected
            if not ids.keys() & {"asked"}:
                wait_until(lambda: rows_of(database, query))  # it is dispatched a moment later
                assert rows_of(database, query) == [cells(line) for line in table.splitlines()[2:]]
                ids["asked"] = ""
            continue
        printed = [line.rstrip() for line in place.done(*words[1:]).splitlines()]
        ids |= dict(zip(found_ids(expected), found_ids(printed), strict=True))
        assert [ID.sub("ID", line) for line in printed] == [ID.sub("ID", line) for line in expected]


def found_ids(lines: list[str]) -> list[str]:
    return ID.findall("\n".join(lines))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")]


def rows_of(database: Database, query: str) -> list[list[str]]:
    with psycopg.connect(database.dsn) as connection:
        rows = connection.execute(query.encode()).fetchall()
    return [[str(value) for value in row] for row in rows]
