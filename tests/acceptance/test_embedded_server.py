"""The embedded server in this process: its life, its crashes, and bad input."""

import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Self

import psutil
import psycopg
import pytest

from mqdb.embedded import EmbeddedPostgres, PostgresBinaries, attach, find_postgres
from mqdb.embedded.account import postgres_environment, service_account
from mqdb.embedded.binaries import inspect_folder
from mqdb.embedded.home import Home
from mqdb.embedded.leftovers import postmaster_pid
from mqdb.embedded.process import ServerProcess
from mqdb.embedded.tuning import as_arguments, server_settings
from mqdb.errors import (
    BrokerUnavailable,
    DataDirectoryBusy,
    DataDirectoryUnusable,
    IllegalState,
    ParameterInvalid,
    PortInUse,
    PostgresFailed,
    PostgresNotFound,
    PostgresVersionMismatch,
)
from mqdb_client import Producer
from tests.fixtures.busy_machine import within
from tests.fixtures.clusters import give_cluster
from tests.fixtures.postgres import query, quick_home
from tests.fixtures.processes import is_alive, wait_until

is_root = os.geteuid() == 0
as_root = pytest.mark.skipif(not is_root, reason="needs root")


@pytest.fixture
def home() -> Iterator[Path]:
    with quick_home() as path:
        yield path


@pytest.fixture
def cluster(home: Path) -> None:
    """A cluster, for tests to which it does not matter how the home got it."""
    give_cluster(home, is_migrated=False)


@pytest.fixture
def server(home: Path, cluster: None) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(home, durable=False) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed() -> Iterator[EmbeddedPostgres]:
    """A server for all tests that only read it."""
    with quick_home() as home:
        give_cluster(home, is_migrated=False)
        with EmbeddedPostgres(home, durable=False) as running:
            yield running


def kill(server: EmbeddedPostgres) -> None:
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not server.is_running())


# -- its life -----------------------------------------------------------------------------------


def test_data_survive_a_stop_and_the_address_stays_the_same(home: Path) -> None:
    with EmbeddedPostgres(home) as first:
        address = first.dsn
        query(first.dsn, "create table kept as select 42 as answer")

    with EmbeddedPostgres(home) as second:
        assert query(address, "table kept") == 42
        assert second.dsn == address


def test_nothing_runs_after_the_stop(server: EmbeddedPostgres) -> None:
    processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    with closing(psycopg.connect(server.dsn)):  # a session must not hold up the end
        server.stop()

    _, alive = psutil.wait_procs(processes, timeout=30)
    assert len(processes) > 3
    assert alive == []
    assert attach(server.home) is None


def test_clients_are_no_superusers_and_need_the_password(undisturbed: EmbeddedPostgres) -> None:
    assert query(undisturbed.dsn, "select rolsuper from pg_roles where rolname = current_user") is False
    assert query(undisturbed.dsn, "show server_encoding") == "UTF8"
    assert query(undisturbed.dsn, "select datcollate from pg_database where datname = current_database()") == "C"

    with pytest.raises(psycopg.OperationalError, match="no password supplied"):
        psycopg.connect(f"host=127.0.0.1 port={undisturbed.port} user=mqdb dbname=mqdb passfile=/dev/null")


def test_what_clients_know_does_not_make_a_superuser(undisturbed: EmbeddedPostgres) -> None:
    assert query(undisturbed.superuser_dsn, "select rolsuper from pg_roles where rolname = current_user") is True
    running = attach(undisturbed.home)
    assert running is not None

    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(running.dsn, user="postgres", dbname="postgres")


def test_nobody_else_can_read_or_lock_a_file_of_the_home(undisturbed: EmbeddedPostgres) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in undisturbed.home.iterdir()}

    assert modes == {
        "data": 0o700,
        "mqdb.lock": 0o600,
        "password": 0o600,
        "postgres.log": 0o600,
        "run.json": 0o600,
        "superuser-password": 0o600,
    }


# What a server may ask for. Source: PostgreSQL, "Message Formats", Authentication*.
CLEARTEXT, MD5, NOTHING = 3, 5, 0


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("wanted", [CLEARTEXT, MD5, NOTHING], ids=["clear text", "md5", "no password"])
def test_a_stranger_on_the_port_is_told_no_password(home: Path, wanted: int) -> None:
    """While the server is down, any user of the machine can listen on its port."""
    with EmbeddedPostgres(home, durable=False) as server:
        port, ways = server.port, [server.dsn, server.superuser_dsn]

    with Stranger(port, wanted) as stranger:
        for dsn in ways:
            with pytest.raises(psycopg.OperationalError, match=r'requirement "scram-sha-256" failed'):
                psycopg.connect(dsn)
        assert attach(home) is None
        with pytest.raises(BrokerUnavailable, match="scram-sha-256"):
            Producer("senders", ways[0]).start()
        # The next start finds the port taken, and takes another one.
        with EmbeddedPostgres(home, durable=False) as server:
            assert server.port != port

    assert stranger.visits >= 4
    assert stranger.heard == b""


class Stranger:
    """A foreign server that accepts every client, and requests a password by its own method."""

    def __init__(self, port: int, wanted: int) -> None:
        salt = b"salt" if wanted == MD5 else b""
        self._question = b"R" + struct.pack("!II", 8 + len(salt), wanted) + salt
        self._listener = socket.create_server(("127.0.0.1", port))
        self._thread = threading.Thread(target=self._serve)
        self.visits = 0
        #: What they answered.
        self.heard = b""

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                visitor, _ = self._listener.accept()
                with visitor:
                    self.visits += 1
                    visitor.settimeout(10)
                    with suppress(ConnectionError):
                        visitor.recv(10_000)
                        visitor.sendall(self._question)
                        self.heard += visitor.recv(10_000)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def test_password_appears_neither_in_the_log_nor_on_a_command_line(home: Path) -> None:
    with EmbeddedPostgres(home, settings={"log_statement": "all"}) as server:
        password = (home / "password").read_text()
        commands = [" ".join(process.cmdline()) for process in psutil.process_iter() if process.pid == server.pid]

        assert "create role" in (home / "postgres.log").read_text()
        assert password not in (home / "postgres.log").read_text()
        assert commands
        assert password not in commands[0]


@pytest.mark.usefixtures("cluster")
def test_settings_reach_the_server(home: Path) -> None:
    with EmbeddedPostgres(home, settings={"work_mem": "9MB"}, durable=False) as server:
        assert query(server.dsn, "show work_mem") == "9MB"
        assert query(server.dsn, "show max_connections") == "200"
        assert query(server.dsn, "show fsync") == "off"


@pytest.mark.usefixtures("cluster")
def test_a_server_may_be_started_from_a_thread_that_ends(home: Path) -> None:
    server = EmbeddedPostgres(home, durable=False)
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    try:
        # The kernel signals the end of a parent thread at once, and the server would log it.
        assert query(server.dsn, "select pg_sleep(0.3)::text") == ""
        assert "shutdown request" not in (home / "postgres.log").read_text()
    finally:
        server.stop()


def test_ctrl_c_does_not_hit_the_server(undisturbed: EmbeddedPostgres) -> None:
    assert os.getpgid(undisturbed.pid) == undisturbed.pid


def test_a_server_is_found_by_others_in_its_home(undisturbed: EmbeddedPostgres) -> None:
    running = attach(undisturbed.home)

    assert running is not None
    assert (running.dsn, running.port) == (undisturbed.dsn, undisturbed.port)
    assert (running.pid, running.postgres_pid) == (os.getpid(), undisturbed.pid)


def test_without_a_start_there_is_no_address(home: Path) -> None:
    server = EmbeddedPostgres(home)

    with pytest.raises(IllegalState, match="not started"):
        _ = server.dsn
    server.stop()
    assert not server.is_running()


def test_starting_twice_is_refused_and_harmless(undisturbed: EmbeddedPostgres) -> None:
    with pytest.raises(IllegalState, match="started already"):
        undisturbed.start()

    assert query(undisturbed.dsn, "select 1") == 1


def test_restart_keeps_address_and_data(server: EmbeddedPostgres) -> None:
    address, pid = server.dsn, server.pid
    query(address, "create table kept as select 42 as answer")

    server.restart()

    assert server.dsn == address
    assert server.pid != pid
    assert query(address, "table kept") == 42


# -- its deaths ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("cluster")
def test_a_killed_postmaster_is_replaced_and_committed_data_are_there(home: Path) -> None:
    with EmbeddedPostgres(home) as server:
        address = server.dsn
        query(address, "create table kept as select 42 as answer")
        kill(server)

        assert server.supervise_once()

        assert server.dsn == address
        assert query(address, "table kept") == 42
        assert not server.supervise_once()


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="elsewhere a busy backend ends by itself, later")
def test_a_backend_that_computes_does_not_keep_the_server_from_coming_back(server: EmbeddedPostgres) -> None:
    # Given a session that never waits for anything, and so does not notice the end of its postmaster
    with closing(psycopg.connect(server.dsn, autocommit=True)) as connection:
        backend = connection.info.backend_pid
        connection.pgconn.send_query(b"select count(*) from generate_series(1, 100000000000) as n where n * n = 3")
        active = f"select 1 from pg_stat_activity where pid = {backend} and state = 'active'"
        wait_until(lambda: query(server.dsn, active))
        kill(server)
        assert is_alive(backend)

        # When the server is started again, then that backend is gone, and soon
        with within(5):
            assert server.supervise_once()
        assert not is_alive(backend)
        assert query(server.dsn, "select 1") == 1


def test_a_postmaster_pid_file_that_names_another_living_process_is_no_obstacle(server: EmbeddedPostgres) -> None:
    """After a crash the pid may belong to another process, as in every restarted container."""
    kill(server)
    data = server.home / "data"
    account = service_account()
    with subprocess.Popen(["sleep", "600"], user=account.uid if account else None) as stranger:
        try:
            lines = (data / "postmaster.pid").read_text().splitlines()
            (data / "postmaster.pid").write_text("\n".join([str(stranger.pid), *lines[1:]]) + "\n")

            assert server.supervise_once()

            assert stranger.poll() is None
            assert postmaster_pid(data) == server.pid
        finally:
            stranger.kill()


@pytest.mark.usefixtures("cluster")
def test_the_pipe_watcher_of_other_systems_ends_the_server_with_its_owner(home: Path) -> None:
    # Given a server bound to its owner by a pipe instead of the kernel's signal
    with EmbeddedPostgres(home, durable=False) as prepared:
        port, binaries = prepared.port, prepared.binaries
    settings = server_settings(port, {}, durable=False)
    command = [str(binaries.program("postgres")), "-D", str(home / "data"), *as_arguments(settings)]
    with (home / "postgres.log").open("ab") as log:
        process = ServerProcess(command, account=service_account(), cwd=home, output=log.fileno(), with_pipe=True)
    wait_until(lambda: attach(home))

    # When the pipe closes without a word, as it does when the owner is killed
    os.close(process._owner_end)
    process._owner_end = -1

    # Then the server shuts down
    assert process.exited.wait(30)
    assert process.returncode == 0


@pytest.mark.usefixtures("cluster")
def test_the_pipe_watcher_leaves_when_the_server_was_stopped(home: Path) -> None:
    with EmbeddedPostgres(home, durable=False) as prepared:
        port, binaries = prepared.port, prepared.binaries
    settings = server_settings(port, {}, durable=False)
    command = [str(binaries.program("postgres")), "-D", str(home / "data"), *as_arguments(settings)]
    with (home / "postgres.log").open("ab") as log:
        process = ServerProcess(command, account=service_account(), cwd=home, output=log.fileno(), with_pipe=True)
    wait_until(lambda: attach(home))
    watchers = [other for other in psutil.process_iter() if is_watcher(other, process.pid, home)]
    assert len(watchers) == 1

    process.stop()

    assert psutil.wait_procs(watchers, timeout=30)[1] == []


def is_watcher(process: psutil.Process, server_pid: int, home: Path) -> bool:
    """Whether a process is the watcher, a fork of the launcher that shows the launcher's command line."""
    try:
        command = " ".join(process.cmdline())
        return process.pid != server_pid and "launcher.py" in command and str(home) in command
    except psutil.NoSuchProcess:
        return False


# -- bad input ----------------------------------------------------------------------------------


def test_a_second_owner_is_refused(undisturbed: EmbeddedPostgres) -> None:
    with pytest.raises(DataDirectoryBusy) as caught:
        EmbeddedPostgres(undisturbed.home).start()

    assert str(undisturbed.home) in str(caught.value)
    assert query(undisturbed.dsn, "select 1") == 1


@pytest.mark.usefixtures("cluster")
def test_a_wished_port_is_used_and_a_taken_one_is_named(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PortInUse) as caught:
            EmbeddedPostgres(home, port=port, durable=False).start()
        assert f"port {port}" in str(caught.value)

    with EmbeddedPostgres(home, port=port, durable=False) as server:
        assert server.port == port


@pytest.mark.usefixtures("cluster")
def test_without_a_wish_another_port_is_found_when_the_previous_one_is_taken(home: Path) -> None:
    with EmbeddedPostgres(home, durable=False) as server:
        previous = server.port

    with socket.create_server(("127.0.0.1", previous)), EmbeddedPostgres(home, durable=False) as server:
        assert server.port != previous
        assert query(server.dsn, "select 1") == 1


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_that_cannot_exist_is_refused(home: Path, port: int) -> None:
    with pytest.raises(ParameterInvalid, match=str(port)):
        EmbeddedPostgres(home, port=port)


@pytest.mark.usefixtures("cluster")
def test_a_setting_that_postgres_refuses_is_shown_with_its_words_and_leaves_nothing_running(home: Path) -> None:
    with pytest.raises(PostgresFailed) as caught:
        EmbeddedPostgres(home, settings={"shared_buffers": "tiny"}, durable=False).start()

    assert "exited with code 1" in str(caught.value)
    assert 'invalid value for parameter "shared_buffers": "tiny"' in str(caught.value)
    with EmbeddedPostgres(home, durable=False) as server:  # the lock is free, the cluster intact
        assert server.is_running()


@pytest.mark.usefixtures("cluster")
def test_a_data_directory_that_may_not_be_read_is_named(home: Path) -> None:
    data = home / "data"
    if is_root:  # who may read everything, but hands PostgreSQL to somebody who may not
        os.chown(data, 0, 0)
    else:
        data.chmod(0)
    try:
        with pytest.raises(DataDirectoryUnusable) as caught:
            EmbeddedPostgres(home).start()
    finally:
        data.chmod(0o700)

    assert str(data) in str(caught.value)


@as_root
def test_a_home_below_a_private_directory_is_refused_and_the_directory_left_as_it_is(home: Path) -> None:
    private = home / "private"
    private.mkdir(mode=0o700)

    with pytest.raises(DataDirectoryUnusable) as caught:
        EmbeddedPostgres(private / "home").start()

    assert f"may not enter {private} (mode 0700)" in str(caught.value)
    assert private.stat().st_mode & 0o7777 == 0o700


@as_root
def test_programs_below_a_private_directory_are_copied_into_the_home(home: Path) -> None:
    """The README's commands must work in a checkout in /root with its virtual environment."""
    source = find_postgres(environ={})
    site_packages = source.bin_dir.parents[2]
    private = home / "private"
    private.mkdir(mode=0o700)
    for part in (source.bin_dir.parents[0].relative_to(site_packages), Path(f"{source.bin_dir.parents[1].name}.libs")):
        shutil.copytree(site_packages / part, private / part)
    hidden = inspect_folder(private / source.bin_dir.relative_to(site_packages))
    assert hidden is not None

    for _ in ("copied", "found again"):
        with EmbeddedPostgres(home / "open", binaries=hidden, durable=False) as server:
            assert server.binaries.bin_dir.is_relative_to(home / "open" / "runtime")
            assert query(server.dsn, "select 1") == 1

    assert private.stat().st_mode & 0o7777 == 0o700


@as_root
def test_programs_that_the_account_cannot_run_and_that_are_no_wheel_are_refused(home: Path) -> None:
    private = home / "private"
    private.mkdir(mode=0o700)
    shutil.copytree(find_postgres().bin_dir, private / "bin")

    with pytest.raises(PostgresNotFound, match="cannot execute"):
        EmbeddedPostgres(home / "open", binaries=PostgresBinaries(private / "bin", find_postgres().version)).start()


@pytest.mark.usefixtures("cluster")
def test_a_password_file_of_another_cluster_is_named(home: Path) -> None:
    Home(home).superuser_password_file.write_text("guessed")

    with pytest.raises(DataDirectoryUnusable, match="superuser-password does not fit"):
        EmbeddedPostgres(home).start()


# -- PostgreSQL 15, the oldest version ----------------------------------------------------------


@pytest.fixture(scope="module")
def oldest() -> PostgresBinaries:
    folder = os.environ.get("MQDB_PG15_BIN", "/usr/lib/postgresql/15/bin")
    binaries = inspect_folder(Path(folder))
    if binaries is None:
        pytest.skip(f"no PostgreSQL 15 in {folder}")
    return binaries


def test_postgres_15_lives_dies_and_comes_back(home: Path, oldest: PostgresBinaries) -> None:
    with EmbeddedPostgres(home, binaries=oldest) as server:
        assert query(server.dsn, "show server_version_num") == f"15{oldest.version[1]:04}"
        query(server.dsn, "create table kept as select 42 as answer")
        kill(server)
        assert server.supervise_once()
        assert query(server.dsn, "table kept") == 42


def test_a_directory_of_postgres_15_is_served_by_15_and_refused_by_18(home: Path, oldest: PostgresBinaries) -> None:
    with EmbeddedPostgres(home, binaries=oldest, durable=False):
        pass

    with pytest.raises(PostgresVersionMismatch) as caught:
        EmbeddedPostgres(home, binaries=find_postgres(environ={})).start()
    with EmbeddedPostgres(home, durable=False) as server:
        assert server.binaries.major == 15

    assert "written by PostgreSQL 15" in str(caught.value)


def test_a_directory_of_postgres_18_is_refused_by_15(home: Path, oldest: PostgresBinaries) -> None:
    newest = find_postgres(environ={})
    with EmbeddedPostgres(home, binaries=newest, durable=False):
        pass

    with pytest.raises(PostgresVersionMismatch) as caught:
        EmbeddedPostgres(home, binaries=oldest).start()

    assert f"written by PostgreSQL {newest.major}" in str(caught.value)
    assert str(oldest) in str(caught.value)
    assert "MQDB_PG_BIN" in str(caught.value)


def test_the_search_follows_the_data_directory_not_mqdb_pg_bin(oldest: PostgresBinaries) -> None:
    found = find_postgres(18, environ=postgres_environment() | {"MQDB_PG_BIN": str(oldest.bin_dir)})

    assert found.major == 18
