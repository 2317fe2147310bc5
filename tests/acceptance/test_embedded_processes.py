"""Several processes share one embedded PostgreSQL and are killed, both as root and as a plain user."""

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import filelock
import psutil
import psycopg
import pytest

import mqdb
from mqdb.embedded import attach, find_postgres
from mqdb.embedded.account import Account, run_as, service_account
from mqdb.embedded.binaries import binaries_for
from mqdb.embedded.home import Home
from mqdb.embedded.leftovers import end_server, postmaster_pid
from tests.fixtures.busy_machine import within
from tests.fixtures.clusters import give_cluster
from tests.fixtures.postgres import query, quick_home
from tests.fixtures.processes import is_alive, wait_until

SCRIPT = Path(__file__).with_name("embedded_process.py")
# What is promised after a kill of the owner; usual are a few tenths of a second.
TAKEOVER_SECONDS = 5.0


@dataclass
class User:
    """The user of a test's processes, with a Python, an environment and a home."""

    account: Account | None
    python: str
    environ: dict[str, str]
    home: Path


class SharingProcess:
    """A running embedded_process.py."""

    def __init__(self, user: User, *words: str) -> None:
        self.home = user.home
        self.process = subprocess.Popen(
            [user.python, user.environ["SCRIPT"], str(user.home), *words],
            user=user.account.uid if user.account else None,
            group=user.account.gid if user.account else None,
            extra_groups=[] if user.account else None,
            env=user.environ,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reports: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._reports.put(json.loads(line))

    def report(self, seconds: float = 30) -> dict[str, Any]:
        """The next change of the process's role."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self._reports.get(timeout=0.1)
            except queue.Empty:
                if self.process.poll() is not None:
                    pytest.fail(f"ended early: {self.errors()}")
                assert time.monotonic() < deadline, "no report"

    def has_report(self) -> bool:
        return not self._reports.empty()

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """Ask the process to exit, by closing its input."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(timeout=30)

    def clean_up(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self._reader.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()


@pytest.fixture(params=[pytest.param("root", marks=pytest.mark.long), "plain user"])
def user(request: pytest.FixtureRequest) -> Iterator[User]:
    """A user whose home has a cluster."""
    is_root = os.geteuid() == 0
    if request.param == "root" and not is_root:
        pytest.skip("needs root")
    with quick_home() as place:
        if request.param == "plain user" and is_root:
            user = replace(request.getfixturevalue("stranger"), home=place / "private" / "home")
        else:
            user = User(None, sys.executable, environ_with(packages_of(mqdb, psycopg), SCRIPT), place / "home")
        user.home.mkdir(parents=True)
        give_cluster(user.home, is_migrated=False)
        if user.account is not None:
            user.home.parent.chmod(0o700)
            subprocess.run(["chown", "-R", f"{user.account.uid}:{user.account.gid}", user.home.parent], check=True)
        yield user


def packages_of(*modules: ModuleType) -> str:
    return os.pathsep.join(str(Path(module.__file__ or "").parents[1]) for module in modules)


def environ_with(packages: str, script: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": packages, "SCRIPT": str(script)}


@pytest.fixture(scope="module")
def stranger() -> Iterator[User]:
    """A user who can reach neither a checkout nor a Python below /root, and who gets copies of the necessary files."""
    account = service_account({"MQDB_PG_USER": "nobody"})
    assert account is not None
    with quick_home() as place:
        binaries = binaries_for(account, find_postgres(), place / "runtime")
        packages = place / "packages"
        copied = [Path(module.__file__).parent for module in (mqdb, psycopg, filelock) if module.__file__]
        site_packages = copied[1].parent
        copied += [*site_packages.glob("psycopg_binary*"), *site_packages.glob("mqdb-*.dist-info")]
        for package in copied:
            # With what is compiled of it, or each process would compile it again.
            shutil.copytree(package, packages / package.name)
        for module in (site_packages / "typing_extensions.py", SCRIPT):
            shutil.copy(module, packages)
        subprocess.run(["chmod", "-R", "a+rX", packages], check=True)
        environ = environ_with(str(packages), packages / SCRIPT.name) | {
            "PYTHONDONTWRITEBYTECODE": "1",
            "MQDB_PG_BIN": str(binaries.bin_dir),
            "HOME": str(place),
        }
        yield User(account, python_for(account), environ, place)


def python_for(account: Account) -> str:
    """A Python for the account: this Python may lie in /root, and the copied packages need the same version."""
    wanted = f"{sys.version_info.major}.{sys.version_info.minor}"
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    for python in (sys.executable, f"/usr/bin/python{wanted}", f"/usr/local/bin/python{wanted}"):
        with suppress(OSError):
            if run_as(account, [python, "-c", program], cwd=Path("/")).stdout.strip() == wanted:
                return python
    pytest.skip(f"no Python {wanted} that user {account.name!r} can run")


@pytest.fixture
def start(user: User) -> Iterator[Callable[..., SharingProcess]]:
    started: list[SharingProcess] = []

    def start_one(*words: str) -> SharingProcess:
        started.append(SharingProcess(user, *words))
        return started[-1]

    yield start_one
    for process in started:
        process.clean_up()
    end_server(Home(user.home).data)


def postmaster(home: Path) -> int:
    pid = postmaster_pid(Home(home).data)
    assert pid is not None
    return pid


def answers(dsn: str) -> bool:
    try:
        return query(dsn, "select 1") == 1
    except psycopg.OperationalError:
        return False


def test_the_first_owns_the_second_attaches_and_no_process_is_left_behind(
    start: Callable[[], SharingProcess], user: User
) -> None:
    first = start()
    owner = first.report()
    second = start()
    guest = second.report()

    assert (owner["is_owner"], guest["is_owner"]) == (True, False)
    assert owner["dsn"] == guest["dsn"]
    running = attach(user.home)
    assert running is not None
    assert running.pid == first.process.pid

    family = [psutil.Process(pid) for pid in (first.process.pid, second.process.pid)]
    family += [child for process in family for child in process.children(recursive=True)]
    assert second.end() == 0
    assert answers(owner["dsn"])
    assert first.end() == 0
    wait_until(lambda: not any(is_alive(process.pid) for process in family))
    assert len(family) > 4


def test_two_that_start_together_in_a_new_home_share_one_server(
    start: Callable[[], SharingProcess], user: User
) -> None:
    shutil.rmtree(user.home)
    both = [start(), start()]

    reports = [process.report() for process in both]

    assert sorted(report["is_owner"] for report in reports) == [False, True]
    assert reports[0]["dsn"] == reports[1]["dsn"]


def test_the_server_ends_with_its_killed_owner_and_the_data_are_there_next_time(
    start: Callable[[], SharingProcess], user: User
) -> None:
    owner = start()
    dsn = owner.report()["dsn"]
    query(dsn, "create table kept as select 42 as answer")
    server = psutil.Process(postmaster(user.home))
    family = [server.pid, *(child.pid for child in server.children())]
    with closing(psycopg.connect(dsn)):  # a session must not hold up the end
        owner.kill()
        wait_until(lambda: not any(is_alive(pid) for pid in family))

    assert start().report() == {"is_owner": True, "dsn": dsn}
    assert query(dsn, "table kept") == 42
    log = (user.home / "postgres.log").read_text()
    assert "database system is shut down" in log  # cleanly: no recovery was needed
    assert "automatic recovery" not in log


def test_an_attached_process_takes_over_when_the_owner_is_killed(
    start: Callable[[], SharingProcess], user: User
) -> None:
    # Given an owner, an attached process, and sessions in the middle of something
    owner = start()
    dsn = owner.report()["dsn"]
    heir = start()
    heir.report()
    query(dsn, "create table kept as select 42 as answer")
    before = postmaster(user.home)
    with closing(psycopg.connect(dsn)) as busy, closing(psycopg.connect(dsn)) as idle:
        idle.execute("insert into kept values (43)")
        busy.pgconn.send_query(b"select count(*) from generate_series(1, 100000000000) as n where n * n = 3")

        # When the owner is killed
        with within(TAKEOVER_SECONDS):
            owner.kill()

            # Then the other one owns a new server at the same address, in time, with what was committed
            wait_until(lambda: not is_alive(before), 60)
            wait_until(lambda: answers(dsn), 60)
    assert heir.report() == {"is_owner": True, "dsn": dsn}
    assert postmaster(user.home) != before
    assert query(dsn, "table kept") == 42
    running = attach(user.home)
    assert running is not None
    assert running.pid == heir.process.pid


def test_an_attached_process_takes_over_when_the_owner_ends_in_order(start: Callable[[], SharingProcess]) -> None:
    owner = start()
    dsn = owner.report()["dsn"]
    heir = start()
    heir.report()

    assert owner.end() == 0

    with within(TAKEOVER_SECONDS):
        assert heir.report(60) == {"is_owner": True, "dsn": dsn}
    assert answers(dsn)


def test_owner_and_postmaster_killed_together_are_replaced(start: Callable[[], SharingProcess], user: User) -> None:
    owner = start()
    dsn = owner.report()["dsn"]
    heir = start()
    heir.report()
    query(dsn, "create table kept as select 42 as answer")
    server = postmaster(user.home)
    os.kill(owner.process.pid, signal.SIGSTOP)  # so that it cannot restart what is killed next
    os.kill(server, signal.SIGKILL)
    owner.kill()

    assert heir.report() == {"is_owner": True, "dsn": dsn}  # after a recovery, which takes as long as it takes
    assert query(dsn, "table kept") == 42


def test_of_two_attached_processes_exactly_one_takes_over(start: Callable[[], SharingProcess]) -> None:
    owner = start()
    dsn = owner.report()["dsn"]
    heirs = [start(), start()]
    for heir in heirs:
        heir.report()

    owner.kill()
    wait_until(lambda: any(heir.has_report() for heir in heirs))
    wait_until(lambda: answers(dsn))
    new_owner, other = sorted(heirs, key=lambda heir: not heir.has_report())
    assert new_owner.report()["is_owner"]
    assert not other.has_report()

    # And the one that came too late is the next in line.
    with within(TAKEOVER_SECONDS):
        new_owner.kill()
        assert other.report(60) == {"is_owner": True, "dsn": dsn}


def test_an_owner_replaces_its_killed_postmaster(start: Callable[[], SharingProcess], user: User) -> None:
    owner = start()
    dsn = owner.report()["dsn"]
    query(dsn, "create table kept as select 42 as answer")
    before = postmaster(user.home)

    os.kill(before, signal.SIGKILL)
    wait_until(lambda: not is_alive(before))
    wait_until(lambda: answers(dsn))

    assert query(dsn, "table kept") == 42
    assert postmaster(user.home) != before
    assert owner.end() == 0


# -- a server that outlives its owner -------------------------------------------------------------


def test_a_server_that_outlives_its_killed_owner_is_adopted_and_ends_with_the_next_one_that_is_told_to(
    start: Callable[..., SharingProcess], user: User
) -> None:
    owner = start("outlives")
    dsn = owner.report()["dsn"]
    before = postmaster(user.home)
    with closing(psycopg.connect(dsn, autocommit=True)) as session:
        owner.kill()
        heir = start("outlives")
        assert heir.report() == {"is_owner": True, "dsn": dsn}

        assert session.execute("select 1").fetchone() == (1,)
    assert postmaster(user.home) == before
    running = attach(user.home)
    assert running is not None
    assert running.pid == heir.process.pid
    assert heir.end() == 0
    assert not is_alive(before)


def test_an_attached_process_adopts_without_an_interruption(start: Callable[..., SharingProcess], user: User) -> None:
    owner, heirs = start("outlives"), list[SharingProcess]()
    dsn = owner.report()["dsn"]
    heirs.append(start("outlives"))
    heirs[0].report()
    with closing(psycopg.connect(dsn, autocommit=True)) as session:
        with within(TAKEOVER_SECONDS):
            owner.kill()
            assert heirs[0].report(60) == {"is_owner": True, "dsn": dsn}

        assert session.execute("select 1").fetchone() == (1,)


def test_an_adopted_server_that_dies_is_replaced(start: Callable[..., SharingProcess], user: User) -> None:
    owner = start("outlives")
    dsn = owner.report()["dsn"]
    owner.kill()
    start("outlives").report()
    before = postmaster(user.home)

    os.kill(before, signal.SIGKILL)

    wait_until(lambda: not is_alive(before))
    wait_until(lambda: answers(dsn))
    assert postmaster(user.home) != before


def test_a_server_that_has_stayed_is_replaced_where_the_next_owner_wants_it_otherwise(
    start: Callable[..., SharingProcess], user: User
) -> None:
    owner = start("outlives")
    dsn = owner.report()["dsn"]
    owner.kill()
    before = postmaster(user.home)

    heir = start()  # whose server is to end with it

    assert heir.report() == {"is_owner": True, "dsn": dsn}
    after = postmaster(user.home)
    assert after != before
    heir.kill()
    wait_until(lambda: not is_alive(after))
