"""`mqdb worker`: processes that consume, are killed, replaced or stopped, and report their errors."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

import psutil
import pytest
from sqlalchemy import Connection, text

from mqdb.cli.worker.order import Order
from mqdb.cli.worker.supervisor import Supervisor, Worker
from mqdb_client import Admin, Message, Producer
from tests.fixtures import warm_process
from tests.fixtures.broker import append, topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import is_alive, wait_until

TASKS = """
import os
from mqdb_client import App, ConsumeFromWhere, ReceivedMessage

app = App("shop")
for group in ("billing", "audit"):
    app.configure_group(group, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)

@app.listener("orders", group="billing", retries=3)
async def bill(body: str) -> None:
    if body == "bad":
        raise ValueError(body)
    os.write(1, f"got {os.getpid()} {body}\\n".encode())

@app.listener("orders", group="audit", tag="paid")
def audit(message: ReceivedMessage) -> None:
    os.write(1, f"audited {message.tag}\\n".encode())
"""


class WorkerProcess:
    """A running `mqdb worker`, and the output of all its processes."""

    def __init__(self, directory: Path, dsn: str, *arguments: str) -> None:
        environment = os.environ | {"MQDB_DSN": dsn, "MQDB_HOME": str(directory)}
        command = [sys.executable, "-m", "mqdb", "worker", *arguments]
        self.process = warm_process.start(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=str(directory)
        )
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.lines)),
            threading.Thread(target=self._read, args=(self.process.stderr, self.errors)),
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(pipe: IO[str], lines: list[str]) -> None:
        for line in pipe:
            lines.append(line.rstrip())

    @property
    def got(self) -> list[str]:
        """The bodies that billing has consumed."""
        return [line.split(maxsplit=2)[2] for line in self.lines if line.startswith("got ")]

    @property
    def pids(self) -> list[int]:
        """The pids of the worker's processes."""
        return [each.pid for each in psutil.Process(self.process.pid).children() if is_alive(each.pid)]

    def ready(self) -> int:
        """The number of processes that have reported that they are consuming."""
        return sum("a worker consumes" in line for line in self.errors)

    def wait_for_ready(self, count: int) -> None:
        wait_until(lambda: self.ready() >= count or self.process.poll() is not None, 60)
        assert self.process.poll() is None, "\n".join(self.errors)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """The exit code, once the process and all holders of its output have exited."""
        code = self.process.wait(60)
        for reader in self._readers:
            reader.join(30)
            assert not reader.is_alive(), "a process is left"
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()  # the others end when they find themselves alone
        self.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        sys.stderr.write("\n".join(self.errors))  # for the report, if the test has failed


Work: TypeAlias = Callable[..., WorkerProcess]


@pytest.fixture
def work(database: Database, tmp_path: Path) -> Iterator[Work]:
    """Starts workers of TASKS."""
    (tmp_path / "tasks.py").write_text(TASKS)
    started: list[WorkerProcess] = []

    def start(*arguments: str) -> WorkerProcess:
        started.append(WorkerProcess(tmp_path, database.dsn, *arguments))
        return started[-1]

    yield start
    for each in started:
        each.close()


def send(database: Database, bodies: Sequence[str]) -> None:
    with Producer("senders", database.dsn) as producer:
        for body in bodies:
            producer.send(Message("orders", body, "paid"))


def test_a_process_that_is_killed_gets_a_successor_and_nothing_is_lost(
    broker: Connection, database: Database, work: Work
) -> None:
    topic(broker, "orders", queues=4)
    worker = work("tasks:app", "--processes", "2", "--groups", "billing")
    worker.wait_for_ready(2)
    wait_until(lambda: listeners(worker))  # which another thread reads
    assert listeners(worker) == ["  billing  orders (*) → tasks.bill, 3 retries"]
    send(database, [f"{number}" for number in range(40)])
    before = worker.pids

    os.kill(before[0], signal.SIGKILL)
    send(database, [f"{number}" for number in range(40, 80)])
    worker.wait_for_ready(3)

    assert len(worker.pids) == 2
    assert before[0] not in worker.pids
    assert any("ended by signal 9; its successor starts in" in line for line in worker.errors)
    wait_until(lambda: {*worker.got} == {f"{number}" for number in range(80)})
    assert worker.end() == 0


def listeners(worker: WorkerProcess) -> list[str]:
    """The lines in which a worker reports what it consumes."""
    return [line for line in worker.lines if "→" in line]


def test_once_ends_when_all_is_consumed_and_tells_of_failures(
    broker: Connection, database: Database, work: Work
) -> None:
    append(broker, topic(broker, "orders"), "one", "two")
    first = work("tasks", "--once")

    assert first.wait() == 0
    assert sorted(first.got) == ["one", "two"]
    send(database, ["bad", "three"])
    second = work("tasks", "--once")
    assert second.wait() == 1
    assert second.got == ["three"]
    assert second.lines.count("audited paid") == 2


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["tasks:application"], "tasks has no App with this name; it has app"),
        (["tasks", "--http", "nowhere"], "must be host:port"),
        pytest.param(["nothing"], "there is no module nothing here", marks=pytest.mark.long),
        pytest.param(["tasks app"], "must be written MODULE:NAME", marks=pytest.mark.long),
        pytest.param(["tasks", "--groups", "nobody"], "it has billing, audit", marks=pytest.mark.long),
    ],
)
def test_what_a_restart_does_not_mend_ends_with_its_own_code(work: Work, arguments: list[str], reason: str) -> None:
    worker = work(*arguments)

    assert worker.wait() == 78
    assert reason in "\n".join(worker.errors)


def test_groups_that_are_none_are_not_all(work: Work) -> None:
    worker = work("tasks", "--groups", " , ")

    assert worker.wait() == 1
    assert "names no group; omit the option to run all groups" in "\n".join(worker.errors)


FORKS = """
import os, time
if os.fork() == 0:
    open("forked", "w").write(str(os.getpid()))
    time.sleep(600)
raise SystemExit
"""


@pytest.mark.long
def test_what_a_process_has_forked_keeps_no_thread_of_the_supervisor(tmp_path: Path) -> None:
    (tmp_path / "forks.py").write_text(FORKS)
    ended = threading.Event()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    with contextlib.chdir(tmp_path):
        Worker(4711, Order("forks"), environment, lambda _: ended.set())
        assert ended.wait(60)
        wait_until(lambda: Path("forked").exists() and Path("forked").read_text())
        try:
            wait_until(lambda: not any(thread.name == "worker-4711-says" for thread in threading.enumerate()))
        finally:
            os.kill(int(Path("forked").read_text()), signal.SIGKILL)


@pytest.mark.long
def test_a_change_that_comes_while_a_process_fails_is_not_waited_for() -> None:
    supervisor = Supervisor(Order("nothing_like_this"), 1, reloads=True)
    supervisor._start(1)
    first = supervisor._workers[1]
    supervisor.reload()
    wait_until(lambda: first.process.returncode == 78)

    while supervisor._workers.get(1) in (first, None):
        supervisor._step()

    assert not supervisor._waits_for_change
    supervisor._workers[1].signal(signal.SIGKILL)


def test_a_process_that_ends_by_a_signal_to_all_gets_no_successor(caplog: pytest.LogCaptureFixture) -> None:
    supervisor = Supervisor(Order("nothing_like_this"), 1)
    supervisor._start(1)
    supervisor._workers[1].signal(signal.SIGKILL)
    wait_until(lambda: not supervisor._news.empty())
    supervisor._signals = 1

    supervisor._step()

    assert (supervisor._workers, supervisor._code) == ({}, 1)
    assert "its successor starts" not in caplog.text


@pytest.mark.long
@pytest.mark.parametrize("wait_seconds", [0.2, 0.4, 0.6])
def test_ctrl_c_while_processes_start_ends_well(
    broker: Connection, database: Database, tmp_path: Path, work: Work, wait_seconds: float
) -> None:
    """In a terminal all processes receive the Ctrl-C."""
    environment = os.environ | {"MQDB_DSN": database.dsn, "MQDB_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "mqdb", "worker", "tasks"]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, cwd=tmp_path, start_new_session=True, **options) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        time.sleep(wait_seconds)
        os.killpg(worker.pid, signal.SIGINT)
        _, errors = worker.communicate(timeout=60)

    assert (worker.returncode, "Traceback" in errors) == (0, False)


@pytest.mark.long
def test_a_variable_that_nothing_reads_is_logged_once(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQDB_DEFAULT_TOPIC_QUEUES", "geheim")
    worker = work("tasks:application")

    assert worker.wait() == 78
    (line,) = [line for line in worker.errors if "MQDB_DEFAULT_TOPIC_QUEUES" in line]
    assert line.rstrip().endswith("did you mean MQDB_DEFAULT_TOPIC_QUEUE_NUMS?")
    assert "geheim" not in "".join(worker.errors)


@pytest.mark.parametrize(
    ("module", "error"),
    [
        ("import nothing_like_this", "ModuleNotFoundError: No module named 'nothing_like_this'"),
        ("import sys\nsys.exit('no configuration')", "SystemExit: no configuration"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        (
            "class Odd(Exception):\n    __cause__ = property(lambda _: 1 / 0)\n\nraise Odd('no stock')",
            "tasks.Odd: no stock",
        ),
    ],
)
def test_a_broken_module_ends_with_its_traceback(work: Work, tmp_path: Path, module: str, error: str) -> None:
    (tmp_path / "tasks.py").write_text(f"{module}\n")

    worker = work("tasks")

    assert worker.wait() == 78
    assert error in worker.errors


@pytest.mark.long
def test_a_broker_that_is_away_is_waited_for(work: Work, tmp_path: Path) -> None:
    worker = WorkerProcess(tmp_path, "postgresql://127.0.0.1:1/nowhere", "tasks")
    try:
        wait_until(lambda: any("could not start the worker" in line for line in worker.errors), 60)
        assert worker.end(signal.SIGINT) == 0
    finally:
        worker.close()


@pytest.mark.long
def test_reload_runs_the_new_code_also_after_a_mistake(
    broker: Connection, database: Database, work: Work, tmp_path: Path
) -> None:
    topic(broker, "orders")
    worker = work("tasks", "--reload", "--groups", "billing")
    worker.wait_for_ready(1)

    (tmp_path / "tasks.py").write_text("syntax error\n")
    wait_until(lambda: any("waiting for a change" in line for line in worker.errors), 60)
    (tmp_path / "tasks.py").write_text(TASKS.replace("got", "got anew:"))
    worker.wait_for_ready(2)
    send(database, ["one"])

    wait_until(lambda: any(line.startswith("got anew:") for line in worker.lines))
    assert worker.end() == 0


@pytest.mark.long
def test_probes_and_metrics_are_of_all_processes(broker: Connection, database: Database, work: Work) -> None:
    topic(broker, "orders")
    worker = work("tasks", "--processes", "2", "--http", "127.0.0.1:0")
    worker.wait_for_ready(2)
    found = re.search(r"http://[0-9.:]+", "\n".join(worker.lines))
    assert found is not None
    send(database, [f"{number}" for number in range(20)])
    wait_until(lambda: len(worker.got) == 20)

    def page(path: str) -> str:
        with urllib.request.urlopen(f"{found[0]}/{path}") as answer:
            return str(answer.read().decode())

    for path in ("healthz", "readyz"):
        assert json.loads(page(path))["checks"] == {"worker 1": "ok", "worker 2": "ok"}
    total = 'mqdb_client_consumed_messages_total{consumer_group="billing",result="SUCCESS",topic="orders"} 20.0'
    assert total in page("metrics")
    # One of both has looked.
    wait_until(lambda: 'mqdb_client_broker_away{broker="broker-a"} 0.0' in page("metrics"))
    assert re.search(r'mqdb_client_server_info{broker="broker-a",server="[^"]+",timeline="1"} 1.0', page("metrics"))

    # A process that has ended is without no broker, but what it has counted stays.
    killed = worker.pids[0]
    files = Path(psutil.Process(killed).environ()["PROMETHEUS_MULTIPROC_DIR"])
    assert list(files.glob(f"gauge_livemax_{killed}.db"))
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not list(files.glob(f"gauge_livemax_{killed}.db")))
    assert total in page("metrics")


DIES_ONCE = """
import os
if not os.path.exists("died"):
    open("died", "w").close()
    os._exit(9)
"""
NO_LISTENERS = "from mqdb_client import App\n\napp = App('shop')\n"


@pytest.mark.long
def test_a_cron_that_the_code_has_no_more_is_told_and_pruned(broker: Connection, work: Work, tmp_path: Path) -> None:
    cron = "\n\n@app.cron('@hourly')\ndef tidy() -> None: ...\n"
    (tmp_path / "tasks.py").write_text(TASKS + cron)
    worker = work("tasks")
    wait_until(lambda: any(line.startswith("  cron tidy: @hourly UTC, next") for line in worker.lines), 60)
    assert worker.end() == 0
    (tmp_path / "tasks.py").write_text(DIES_ONCE + NO_LISTENERS)

    for arguments, told, left in [([], "goes on", 1), (["--prune"], "is removed", 0)]:
        (tmp_path / "died").unlink(missing_ok=True)
        worker = work("tasks", *arguments)
        wait_until(lambda: any("cron tidy is no longer in the code" in line for line in worker.lines), 60)  # noqa: B023 - called here only
        assert any(told in line for line in worker.lines)
        assert any(line.startswith("  no listeners: ") for line in worker.lines)
        assert worker.end() == 0
        assert broker.scalar(text("SELECT count(*) FROM mqdb.cron")) == left


@pytest.mark.long
def test_a_successor_of_a_process_that_has_pruned_does_not_prune_again(
    broker: Connection, database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "quiet.py").write_text(NO_LISTENERS)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    order = Order("quiet", dsn=database.dsn, home=str(tmp_path), prunes=True)
    supervisor = Supervisor(order, 1, environment)
    supervisor._start(1)
    first = supervisor._workers[1]
    wait_until(lambda: first.has_announced, 60)
    first.signal(signal.SIGKILL)

    while supervisor._workers.get(1) in (first, None):
        supervisor._step()
    successor = supervisor._workers[1]
    wait_until(lambda: successor.is_ready, 60)
    supervisor._stop()
    while supervisor._workers:
        supervisor._step()

    assert (supervisor._code, capfd.readouterr().out.count("  no listeners: ")) == (0, 1)


@pytest.mark.long
def test_without_its_supervisor_a_process_ends(broker: Connection, work: Work) -> None:
    worker = work("tasks", "--groups", "billing")
    worker.wait_for_ready(1)

    worker.end(signal.SIGKILL)  # it waits until nobody holds the output any more


@pytest.mark.long
@pytest.mark.timeout(300)
def test_four_processes_that_are_killed_at_random_lose_nothing(
    broker: Connection, database: Database, work: Work
) -> None:
    seed = random.randrange(1_000_000)
    sys.stderr.write(f"seed {seed}\n")
    chance = random.Random(seed)
    topic(broker, "orders", queues=8)
    worker = work("tasks", "--processes", "4", "--groups", "billing")
    worker.wait_for_ready(4)
    until, sent = time.monotonic() + 120, 0
    with Producer("senders", database.dsn) as producer:
        while time.monotonic() < until:
            for _ in range(50):
                producer.send(Message("orders", f"{sent}"))
                sent += 1
            if pids := worker.pids:
                os.kill(chance.choice(pids), signal.SIGKILL)
            time.sleep(chance.uniform(0.2, 3.0))

    wait_until(lambda: {*worker.got} == {f"{number}" for number in range(sent)}, 90)
    with Admin(database.dsn) as admin:
        wait_until(lambda: all(each.lag == 0 for each in admin.groups.topics("billing")))
    assert worker.end() == 0
