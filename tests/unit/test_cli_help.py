"""The help of the command line."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from mqdb.cli.app import app, run


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The names of all commands and groups, the root included."""
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


EVERY_COMMAND = list(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("path", EVERY_COMMAND, ids=" ".join)
def test_the_help_of_every_command_shows_an_example_and_the_options_of_every_command(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*path, "-h" if len(path) == 1 else "--help"]) == 0

    printed = capsys.readouterr().out
    _, _, examples = printed.partition("Examples")
    assert " ".join(("mqdb", *path)) in examples
    for option in ("--dsn", "--home", "--config", "--verbose"):
        assert option in printed


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0

    assert "mqdb serve" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--colour"], "mqdb: no such option: --colour; see: mqdb --help"),
        (["topics"], "mqdb: no such command 'topics'"),
        (["topic", "create"], "mqdb: missing argument 'TOPIC'; see: mqdb topic create --help"),
        (["topic", "create", "t", "--queues", "many"], "mqdb: invalid value for '--queues'"),
        (["topic", "create", "t", "--type", "BIG"], "mqdb: invalid value for '--type'"),
        (["consume", "t", "--count", "0"], "mqdb: invalid value for '--count' / '-c'"),
    ],
)
def test_a_wrong_command_line_is_one_line_that_says_what_and_where_to_look(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 1

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(sentence)
    assert printed.err.count("\n") == 1


def test_ctrl_c_during_the_imports_ends_quietly() -> None:
    program = """
import sys

class Interrupted:
    def find_spec(self, name, path, target=None):
        if name == "mqdb.cli.app":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
from mqdb.cli import main
main()
"""

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)

    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")
