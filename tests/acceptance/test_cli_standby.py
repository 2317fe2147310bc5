"""On a standby, reading commands work, and writing commands report that they need the primary."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import typer

from mqdb.cli.app import app
from mqdb.server import Server
from mqdb.settings import load_settings
from tests.fixtures.command_line import assert_refused
from tests.fixtures.processes import wait_until
from tests.fixtures.proxy import Proxy
from tests.fixtures.stocked_standby import Stocked
from tests.fixtures.web import ANY_PORT, get, scrape

ID, LETTER, TIMER, HALF = "{message_id}", "{letter_id}", "{timer}", "{half_id}"

#: A reading command, and what it prints of what is there.
READING = {
    "topic list": ([], "orders"),
    "topic show": (["orders"], "orders"),
    "message show": ([ID], "order-17"),
    "message find": (["orders", "--key", "order-17"], ID),
    "message trace": ([ID], "orders"),
    "group list": ([], "billing"),
    "group show": (["billing"], "billing"),
    "consumer list": ([], "client-1"),
    "delay list": ([], "1s"),
    "cron list": ([], "nightly"),
    "dlq list": (["billing"], LETTER),
    "dlq show": ([LETTER], "shop.NoPrice"),
    "dlq export": (["billing"], "shop.NoPrice"),
    "transaction list": ([], HALF),
    "timer list": ([], "orders"),
    "acl list": ([], "No role except"),
    "acl check": (["mqdb", "--send", "orders"], ""),
    "operation list": ([], "nightly"),
    "selector explain": (["price > 10", "--topic", "orders"], "price"),
    "consume": (["orders", "--exit"], "one"),
    "doctor": (["--only", "connection"], "answers"),
}

WRITING = {
    "migrate": [],
    "send": ["orders", "two"],
    "topic create": ["bills"],
    "topic set": ["orders", "--queues", "4"],
    "topic delete": ["orders", "--force", "--yes"],
    "group set": ["billing", "--retry-max-times", "3"],
    "group delete": ["billing", "--yes"],
    "group offset reset": ["billing", "orders", "--to", "earliest", "--yes"],
    "group offset clone": ["billing", "billing-2", "--yes"],
    "consumer status": ["client-1"],
    "consumer consume": ["client-1", "--group", "billing", "--message-id", ID],
    "delay skip": ["1", "--yes"],
    "cron add": ["weekly", "--cron", "0 3 * * 1", "--topic", "orders", "--body", "tick"],
    "cron pause": ["nightly"],
    "cron resume": ["nightly"],
    "cron remove": ["nightly"],
    "dlq redrive": ["billing", "--yes"],
    "transaction resolve": [HALF, "commit", "--yes"],
    "timer recall": [TIMER],
    "acl grant": ["mqdb", "--send", "orders"],
    "acl revoke": ["mqdb", "--send", "orders"],
    "acl secret": ["mqdb", "--none"],
    "acl apply": ["{rights}", "--yes"],
}

#: What a command says that is refused, and what it says if it finds before that there is nothing to write.
SENTENCE = [" is a standby, or set to read-only; the primary is needed: "]
REFUSED = {"delay skip": ["has not lost its next message"]}

#: Commands with tests of their own below, and those that ask no broker that is given, or need a JVM.
ELSEWHERE = {
    "serve",
    "web",
    "remoting",
    "grpc",
    "worker",
    "demo",
    "config",
    "dsn",
    "psql",
    "spark archive",
    "spark package",
    "spark replay",
    "spark dlq-report",
    "spark stats",
    "spark to-table",
    "spark to-parquet",
    "spark mirror",
    *(f"bench {load}" for load in ("produce", "consume", "latency", "dispatch")),
}


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    below = getattr(command, "commands", None)
    if below is None:
        yield " ".join(path)
        return
    for name, each in below.items():
        yield from commands(each, (*path, name))


def test_every_command_is_sorted() -> None:
    assert sorted(commands(typer.main.get_command(app))) == sorted([*READING, *WRITING, *ELSEWHERE])


@pytest.mark.parametrize("command", READING)
def test_a_reading_command_works_at_a_standby(stocked: Stocked, command: str) -> None:
    arguments, shown = READING[command]

    outcome = stocked.place.call(*command.split(), *(stocked.filled(each) for each in arguments))

    assert (outcome.code, outcome.errors) == (0, "")
    assert stocked.filled(shown) in outcome.text


def test_a_command_that_says_more_names_the_standby_and_its_lag(stocked: Stocked) -> None:
    outcome = stocked.place.call("group", "list", "-v")

    assert outcome.code == 0
    assert "reads from a standby" in outcome.errors
    assert "behind_bytes=0" in outcome.errors
    assert "replayed_seconds=" in outcome.errors


@pytest.mark.parametrize("command", WRITING)
def test_a_writing_command_says_that_the_primary_is_needed(stocked: Stocked, command: str) -> None:
    arguments = [stocked.filled(each) for each in WRITING[command]]

    outcome = stocked.place.call(*command.split(), *arguments)

    assert_refused(outcome, *REFUSED.get(command, SENTENCE))


# -- services -------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["serve", "remoting", "grpc"])
def test_services_end_at_a_standby(stocked: Stocked, command: str) -> None:
    outcome = stocked.place.run(command, MQDB_REMOTING="127.0.0.1:0", MQDB_GRPC="127.0.0.1:0")

    assert_refused(outcome, *SENTENCE)


def test_serve_waits_for_the_primary_if_it_is_asked_to(stocked: Stocked, way: Proxy) -> None:
    place = replace(stocked.place, dsn=way.dsn)
    with place.running("serve", "--wait-for-primary") as process:
        assert "waiting for the primary" in process.error_line()
        way.lead_to(stocked.standby.primary.dsn)
        process.line_with("serves broker-a")
        code, errors = process.interrupt()

    assert code == 0
    assert "Traceback" not in errors


def test_a_wait_for_the_primary_is_interrupted(stocked: Stocked) -> None:
    with stocked.place.running("serve", MQDB_WAIT_FOR_PRIMARY="true") as process:
        assert "waiting for the primary" in process.error_line()
        code, errors = process.interrupt()

    assert (code, "Traceback" in errors) == (0, False)


def test_a_process_that_waits_says_so(stocked: Stocked, way: Proxy) -> None:
    with Server(load_settings(dsn=way.dsn, http=ANY_PORT, wait_for_primary=True)) as server:
        wait_until(lambda: scrape(server)["mqdb_server_is_standby"] == 1)
        ready, alive = get(server, "/readyz"), get(server, "/healthz")
        way.lead_to(stocked.standby.primary.dsn)
        wait_until(lambda: server.is_leader and scrape(server)["mqdb_server_is_standby"] == 0)

    assert (ready.status, alive.status) == (503, 200)
    assert "is a standby" in ready.body


@pytest.fixture
def way(stocked: Stocked) -> Iterator[Proxy]:
    """One address that leads to the standby first. The primary waits for no standby."""
    with stocked.standby.dismissed(), Proxy(stocked.standby.primary.dsn) as way:
        way.lead_to(stocked.standby.dsn)
        yield way
