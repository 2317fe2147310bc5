"""The demo as a process: it accounts for every message and leaves nothing behind."""

import re
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.fixtures.command_line import Place, Running, without_waits
from tests.fixtures.postgres import quick_home
from tests.fixtures.processes import is_alive, wait_until

# Five processes start and end; a busy machine takes its time for that.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Descendants:
    """All descendants that a running command has had."""

    def __init__(self, server: Running) -> None:
        self._process = psutil.Process(server.pid)
        self._seen: set[int] = set()
        self._is_over = threading.Event()
        self._watcher = threading.Thread(target=self._watch)

    def __enter__(self) -> "Descendants":
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._watcher.join()

    def are_gone(self) -> bool:
        assert self._seen
        return not any(is_alive(pid) for pid in self._seen)

    def _watch(self) -> None:
        while not self._is_over.wait(0.2):
            try:
                self._seen.update(child.pid for child in self._process.children(recursive=True))
            except psutil.NoSuchProcess:
                return


def account(lines: list[str]) -> list[list[str]]:
    """The rows of the table: group, tags, members, sent, matched, received, lost, duplicated."""
    (first,) = (number for number, line in enumerate(lines) if line.startswith("group") and "matched" in line)
    return [re.split(r"\s{2,}", line.strip()) for line in lines[first + 2 : first + 4]]


EXACT = [
    ["united-american", "UA || AA", "2", "5,166", "1,453", "1,453", "0", "0"],
    ["all-carriers", "*", "1", "5,166", "5,166", "5,166", "0", "0"],
]


@pytest.mark.parametrize("time_", ["first", pytest.param("second", marks=pytest.mark.long)])
def test_the_demo_is_exact_each_time_and_leaves_no_process_and_no_directory(tmp_path: Path, time_: str) -> None:
    # A database that somebody has set up for themselves is not the demo's to fill.
    place = Place(tmp_path, "postgresql://nobody@127.0.0.1:1/nothing")
    with place.running("demo") as demo, Descendants(demo) as descendants:
        output, errors = demo.process.communicate(timeout=240)

    assert (demo.process.returncode, without_waits(errors)) == (0, "")
    lines = output.splitlines()
    assert account(lines) == EXACT
    assert "violations: 0" in output
    assert any(line.startswith("published 3,666 of 5,166") or "published 5,166 of 5,166" in line for line in lines)
    assert "SELECT tags AS carrier" in output
    assert re.search(r"^B6 +958 +10\.9$", output, re.MULTILINE)
    home = Path(lines[0].removeprefix("starting a broker in "))
    assert "PGPASSWORD=" in lines[-1]
    assert str(home) in lines[-1]
    assert not home.exists()
    wait_until(descendants.are_gone)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def kept_home() -> Iterator[Path]:
    with quick_home() as home:
        yield home


@pytest.mark.long
def test_a_kept_demo_stays_until_ctrl_c_and_can_be_run_again_in_the_same_home(kept_home: Path) -> None:
    place = Place(kept_home)
    for runs in (1, 2):
        with place.running("demo", "--keep") as demo, Descendants(demo) as descendants:
            lines = []
            while "Ctrl-C" not in (line := demo.line_with("")):
                lines.append(line)
            assert account(lines) == EXACT
            assert place.done("consume", "flights", "--exit").count("\n") == runs * 5_166

            code, errors = demo.interrupt()
            assert (code, without_waits(errors)) == (0, "")

        wait_until(descendants.are_gone)
    assert (kept_home / "data").is_dir()


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_stopped_half_way_cleans_up(tmp_path: Path, how: signal.Signals) -> None:
    with Place(tmp_path).running("demo") as demo, Descendants(demo) as descendants:
        home = Path(demo.line().removeprefix("starting a broker in "))
        assert home.is_dir()
        demo.line_with("publishing")

        code, errors = demo.end(how)

    assert (code, without_waits(errors)) == (128 + how, "")
    wait_until(descendants.are_gone)
    assert not home.exists()


@pytest.mark.long
def test_a_demo_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    with Place(tmp_path).running("demo") as demo, Descendants(demo) as descendants:
        home = Path(demo.line().removeprefix("starting a broker in "))
        try:
            demo.line_with("publishing")
            demo.line_with("received")

            demo.end(signal.SIGKILL)

            wait_until(descendants.are_gone, seconds=60)
        finally:
            shutil.rmtree(home)
