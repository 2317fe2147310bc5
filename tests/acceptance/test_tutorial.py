"""docs/tutorial.md, word for word: its commands in three terminals, its programs, and its clicks in a browser."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from mqdb.embedded.ports import candidates, is_free
from tests.fixtures.browser import new_page
from tests.fixtures.clusters import give_cluster
from tests.fixtures.command_line import Place
from tests.fixtures.postgres import quick_home
from tests.fixtures.processes import wait_until
from tests.fixtures.variants import usually

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "tutorial.md"

ID: Final = re.compile(r"\b[0-9A-F]{32}\b")
END: Final = "end of the command"


class Terminal:
    """A shell that keeps its directory and its variables."""

    def __init__(self, directory: Path, environ: Mapping[str, str], *, shows_errors: bool) -> None:
        """Standard error is shown together with standard output, or left out as the page leaves out logs."""
        self._shell = subprocess.Popen(
            ["/bin/bash"],
            cwd=directory,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if shows_errors else None,
            text=True,
            start_new_session=True,
        )

    def type(self, command: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{command}\n")
        self._shell.stdin.flush()

    def line(self) -> str:
        """The next line, without trailing blanks."""
        assert self._shell.stdout is not None
        line = self._shell.stdout.readline()
        assert line, "the shell has ended"
        return line.rstrip()

    def run(self, command: str) -> list[str]:
        """Type a command; returns the lines that it prints until it ends."""
        self.type(f"{command}\necho {END}")
        lines: list[str] = []
        while (line := self.line()) != END:
            lines.append(line)
        return lines

    def interrupt(self) -> int:
        """Press Ctrl-C; returns the exit code of the interrupted program."""
        os.killpg(self._shell.pid, signal.SIGINT)
        output, _ = self._shell.communicate("echo code $?\n", timeout=60)
        return int(output.rpartition("code ")[2])

    def close(self) -> None:
        if self._shell.poll() is None:
            os.killpg(self._shell.pid, signal.SIGTERM)
            self._shell.communicate(timeout=60)


class Reader:
    """A reader who follows the page, with terminals for the broker, for the worker and for the other commands."""

    def __init__(self, directory: Path, home: Path, browser: "Page", *, installs: bool) -> None:
        """`home` holds the broker's data, instead of the default home. The page starts in the directory."""
        self._shop = directory / "shop"
        self._browser = browser
        self._installs = installs
        self._environ = Place(home).environ({})
        if installs:
            del self._environ["PYTHONPATH"]
        self.terminals = {"serve": Terminal(directory, self._environ, shows_errors=False)}
        self._message_id = ""
        port = next(port for port in candidates(0, None) if is_free(port))
        #: What differs between the machine of the page and this one.
        self._changes = {
            r"/home/ada/\.local/share/mqdb": str(home),
            r"127\.0\.0\.1:8090": f"127.0.0.1:{port}",
            r"token=\w+": "token=",
            r"mqdb [\d.]+ serves": "mqdb ... serves",
        }

    def read(self) -> None:
        """Follow all steps of the page."""
        text = PAGE.read_text(encoding="utf-8")
        for theirs, ours in self._changes.items():
            text, count = re.subn(theirs, ours, text)
            assert count > 0, theirs
        for step in re.findall(r"^(?:```.*?^```|\d\. .*?$)", text, re.MULTILINE | re.DOTALL):
            match step.split(maxsplit=1)[0]:
                case "```python":
                    program = step.removeprefix("```python\n").removesuffix("```")
                    (self._shop / program.splitlines()[0].removeprefix("# ")).write_text(program)
                case "```console":
                    self._type(step.removesuffix("```"))
                case "```text":
                    expected = step.splitlines()[1:-1]
                    assert [self.terminals["worker"].line() for _ in expected] == expected
                case _:
                    self._click(step)

    def _type(self, block: str) -> None:
        """Run the commands of a block in its terminal."""
        first = not (self._shop / ".venv").exists()
        name = next((name for name in ("serve", "worker") if first or f" mqdb {name}" in block), "commands")
        if name not in self.terminals:
            self.terminals[name] = Terminal(self._shop, self._environ, shows_errors=name == "commands")
        terminal = self.terminals[name]
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *expected = step.splitlines()
            if f"mqdb {name}" in command:
                terminal.type(command)
                self._compare(expected, [self._greeting(terminal) for _ in expected])
            elif 'psql -c "SELECT ' in command:
                self._select(terminal, command, expected)
            elif command.startswith(("python3 -m venv ", "pip install ")):
                self._install(terminal, command)
            else:
                self._compare(expected, terminal.run(command))

    def _select(self, terminal: Terminal, command: str, expected: list[str]) -> None:
        """Repeat a query until the rows appear: a sent or failed message becomes visible a moment later."""
        printed: list[str] = []

        def is_shown() -> bool:
            printed[:] = terminal.run(command)
            del printed[len(expected) :]  # the empty line at the end
            return printed == expected

        try:
            wait_until(is_shown)
        finally:
            assert printed == expected

    def _install(self, terminal: Terminal, command: str) -> None:
        """Create the environment, or link `.venv/bin/activate` to that of the tests: an installation takes a minute."""
        programs = self._shop / ".venv" / "bin"
        if self._installs:
            terminal.run(command)  # pip prints a lot, which the page does not show
        elif not programs.exists():
            programs.mkdir(parents=True)
            (programs / "activate").write_text(f'export PATH="{Path(sys.executable).parent}:$PATH"\n')

    def _compare(self, expected: list[str], printed: list[str]) -> None:
        """Check the output. Three dots match anything, and ids differ."""
        text = "\n".join(printed)
        if found := ID.search(text):
            self._message_id = found[0]
        pattern = re.escape(ID.sub("ID", "\n".join(expected))).replace(re.escape("..."), ".*")
        assert re.fullmatch(pattern, ID.sub("ID", text), re.DOTALL), f"not as on the page: {text}"

    # -- the dashboard ----------------------------------------------------------------------------

    def _greeting(self, terminal: Terminal) -> str:
        """The next line of the broker or the worker. A link to the dashboard is opened."""
        line = terminal.line()
        if line.startswith("  clients  MQDB_HOME="):
            line = terminal.line()  # the usual home needs no such line
        if line.startswith("  open     "):
            self._browser.goto(line.split()[1])
        return line

    def _click(self, step: str) -> None:
        """Perform a numbered step of the page.

        Words in italics name links and buttons, below the heading in quotes. If two words are code, the second replaces
        the first.
        """
        page = self._browser
        for heading, name in re.findall(r'(?:Below "([^"]+)"[^*]*)?\*(.+?)\*', step):
            sections = page.locator("section").filter(has=page.get_by_role("heading", name=heading, exact=True))
            place = sections if heading else page
            link, button = (place.get_by_role(role, name=name, exact=True) for role in ("link", "button"))
            link.or_(button).first.click()
        if "the id of the message" in step:
            page.get_by_role("link", name=self._message_id).click()
        if words := re.findall(r"`(\w+)`", step):
            wrong, right = words
            body = page.get_by_role("textbox", name="Body")
            body.fill(body.input_value().replace(wrong, right))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("installs", usually(False, of=[False, True]))
def test_a_reader_follows_the_tutorial(browser: "Browser", tmp_path: Path, installs: bool) -> None:
    (tmp_path / "mqdb").symlink_to(ROOT)
    with quick_home() as home, new_page(browser) as page:
        if not installs:
            give_cluster(home)
        reader = Reader(tmp_path, home, page, installs=installs)
        try:
            reader.read()
            assert [reader.terminals[name].interrupt() for name in ("worker", "serve")] == [0, 0]
        finally:
            for terminal in reversed(reader.terminals.values()):
                terminal.close()
