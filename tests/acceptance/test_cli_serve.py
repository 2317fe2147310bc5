"""`mqdb serve` as a process: its output, the commands that work beside it, and its end."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from mqdb.embedded import attach
from mqdb.embedded.home import Home
from mqdb.embedded.leftovers import postmaster_pid
from mqdb.embedded.starting import mark_starting
from mqdb.settings import load_settings
from mqdb_client import Message, Producer
from tests.fixtures.busy_machine import within
from tests.fixtures.clusters import home_with_cluster
from tests.fixtures.command_line import SECONDS, Place, Running
from tests.fixtures.postgres import OWNER_PASSWORD, Database, query, quick_home
from tests.fixtures.processes import is_alive, wait_until
from tests.fixtures.variants import usually


@pytest.fixture
def home() -> Iterator[Path]:
    with home_with_cluster() as home:
        yield home


@pytest.fixture
def empty_home() -> Iterator[Path]:
    with quick_home() as home:
        yield home


def wait_started(server: Running) -> list[str]:
    """The lines that `mqdb serve` prints when it starts."""
    lines = [server.line_with(" serves ")]
    while "Ctrl-C" not in lines[-1]:
        lines.append(server.line_with(""))
    return lines


@pytest.mark.parametrize("how", usually(signal.SIGTERM, of=[signal.SIGINT, signal.SIGTERM]))
def test_a_signal_ends_serve_in_order_and_leaves_no_process(home: Path, how: signal.Signals) -> None:
    with Place(home).running("serve") as server:
        wait_started(server)
        below = psutil.Process(server.pid).children(recursive=True)
        assert any(each.name() == "postgres" for each in below)

        code, errors = server.end(how)

    assert code == 0
    assert "Traceback" not in errors
    wait_until(lambda: not any(is_alive(each.pid) for each in below))


def test_serve_says_where_it_is_and_the_psql_line_works(empty_home: Path) -> None:
    home = empty_home
    place = Place(home)
    with place.running("serve") as server:
        first, clients, psql, _ = wait_started(server)
        running = attach(home)
        assert running is not None

        assert f"serves broker-a on the embedded PostgreSQL in {home}" in first
        assert clients.split() == ["clients", f"MQDB_HOME={home}"]
        command = psql.strip().removeprefix("psql").strip()
        secret = (home / "password").read_text()
        assert secret not in command
        answer = subprocess.run(
            ["/bin/sh", "-c", f"{command} -At -c 'SELECT broker_name FROM mqdb.broker'"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert answer.stdout == "broker-a\n"
        assert str(running.port) in command
        # No other server of the tests is so well: it waits for its disk.
        wait_until(lambda: place.call("doctor").code == 0)


def test_serve_logs_variables_that_nothing_reads(home: Path) -> None:
    with Place(home).running("serve", MQDB_FILE_RESERVED_TIEM="geheim") as server:
        wait_started(server)
        _, errors = server.end(signal.SIGTERM)

    (line,) = [line for line in errors.splitlines() if "TIEM" in line]
    assert line.endswith(
        "ignored unknown environment variable MQDB_FILE_RESERVED_TIEM; did you mean MQDB_FILE_RESERVED_TIME?"
    )
    assert "geheim" not in errors


def test_commands_work_in_the_home_of_a_broker(home: Path) -> None:
    place = Place(home)
    with place.running("serve") as server:
        wait_started(server)

        place.done("topic", "create", "orders", "--queues", "1")
        place.run("send", "orders", "one", "two")

        assert place.run("consume", "orders", "--exit").text == "one\ntwo\n"
        assert place.call("migrate", "--current").text.endswith(", the newest\n")


def test_migrate_without_a_broker_starts_the_embedded_database_and_ends_it(empty_home: Path) -> None:
    migrated = Place(empty_home).call("migrate")

    assert (migrated.code, migrated.errors) == (0, "")
    assert migrated.text.startswith("the schema went from nothing to ")
    assert attach(empty_home) is None


def test_serve_on_a_database_of_ones_own_shows_no_password(tmp_path: Path, database: Database) -> None:
    encoded = database.dsn.partition("@")[0].rpartition(":")[2]
    with Place(tmp_path, database.dsn).running("serve") as server:
        greeting = "\n".join(wait_started(server))
        query(database.dsn, "select 1")

        code, errors = server.interrupt()

    assert code == 0
    assert encoded not in greeting + errors
    assert OWNER_PASSWORD not in greeting + errors
    [psql] = [line.strip() for line in greeting.splitlines() if "postgresql://" in line and "psql" in line]
    answer = subprocess.run(
        ["/bin/sh", "-c", f"{psql.removeprefix('psql').strip()} -At -c 'SELECT broker_name FROM mqdb.broker'"],
        env={**os.environ, "PGPASSWORD": OWNER_PASSWORD},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout == "broker-a\n"
    assert not os.listdir(tmp_path)


def test_serve_tells_systemd_and_logs_lines_of_json(tmp_path: Path, database: Database) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(SECONDS)
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000"}
        with Place(tmp_path, database.dsn).running("serve", "--log-format", "json", **environ) as server:
            told = [systemd.recv(100) for _ in range(3)]
            _, errors = server.end(signal.SIGTERM)
        while told[-1] == b"WATCHDOG=1":
            told.append(systemd.recv(100))

    assert (told[0], set(told[1:-1]), told[-1]) == (b"READY=1", {b"WATCHDOG=1"}, b"STOPPING=1")
    assert "stopping" in [json.loads(line)["msg"] for line in errors.splitlines()]


def test_another_port_than_the_one_that_the_home_has_is_not_passed_over(home: Path) -> None:
    place = Place(home)
    with place.running("serve") as server:
        wait_started(server)
        running = attach(home)
        assert running is not None
        with place.running("serve", "--port", str(running.port)) as agreeing:
            wait_started(agreeing)
            _, said = agreeing.interrupt()

        with place.running("serve", "--port", str(running.port + 1)) as other:
            wait_started(other)
            code, warned = other.interrupt()

    assert "another port" not in said
    assert code == 0
    assert f"PostgreSQL of this home already runs on port {running.port}, not on port" in warned


def test_a_port_is_refused_where_the_database_is_not_embedded(tmp_path: Path, database: Database) -> None:
    refused = Place(tmp_path, database.dsn).call("serve", "--port", "5433")

    assert refused.code == 1
    assert refused.errors.startswith("mqdb: ")
    assert "port = 5433: is for the embedded PostgreSQL" in refused.errors


def test_commands_wait_for_a_broker_that_is_starting(home: Path) -> None:
    place = Place(home)
    with ExitStack() as starting, place.running("serve") as server:
        starting.enter_context(mark_starting(Home(home)))
        wait_started(server)
        with place.running("topic", "create", "orders", "--queues", "1") as command:
            assert command.process.stderr is not None
            assert "waiting for a broker that is starting" in command.process.stderr.readline()
            starting.close()

            assert command.process.wait(SECONDS) == 0


def test_clients_go_on_while_serve_is_killed_and_the_next_one_adopts_the_database(home: Path) -> None:
    place = Place(home)
    with place.running("serve") as first:
        wait_started(first)
        place.call("topic", "create", "orders", "--queues", "1")
        postmaster = postmaster_pid(Home(home).data)
        assert postmaster is not None
        with Producer("senders", settings=load_settings(home=home)) as producer:
            producer.send(Message("orders", "before"))

            first.process.kill()
            first.process.wait()

            with within(5):
                producer.send(Message("orders", "after"))
    assert place.call("consume", "orders", "--exit").text == "before\nafter\n"
    assert place.call("migrate", "--current").code == 0

    with place.running("serve", "-v") as second:
        wait_started(second)
        assert postmaster_pid(Home(home).data) == postmaster
        code, _ = second.end(signal.SIGTERM)

    assert code == 0
    assert not is_alive(postmaster)
    assert attach(home) is None


@pytest.fixture
def terminal() -> Iterator[None]:
    """Handle SIGHUP as under a shell: a process started by nohup ignores it, and so do its children."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("terminal")
def test_the_end_of_its_terminal_ends_serve_in_order(home: Path) -> None:
    with Place(home).running("serve") as server:
        wait_started(server)

        code, _ = server.end(signal.SIGHUP)

    assert code == 0
    assert attach(home) is None


def test_a_role_of_any_name_needs_nothing_but_its_database(tmp_path: Path, empty_database: Database) -> None:
    place = Place(tmp_path, empty_database.dsn)
    with place.running("serve") as server:
        wait_started(server)

        assert place.done("topic", "create", "orders", "--queues", "1")
        place.done("send", "orders", "one", "two")

        assert place.call("consume", "orders", "--group", "billing", "--exit").text == "one\ntwo\n"
        wait_until(lambda: query(empty_database.dsn, "SELECT count(*) FROM mqdb.message WHERE topic = 'orders'") == 2)
        code, errors = server.interrupt()

    assert (code, "ERROR" in errors) == (0, False), errors
