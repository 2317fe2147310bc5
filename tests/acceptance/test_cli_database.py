"""`mqdb dsn` and `mqdb psql`: the broker's database for other programs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.clusters import home_with_cluster
from tests.fixtures.command_line import Place, assert_refused
from tests.fixtures.postgres import Database, password_of, query, with_parts

QUERY = ("-At", "-c", "SELECT current_user, broker_name FROM mqdb.broker")


@pytest.fixture(scope="module")
def embedded() -> Iterator[Place]:
    """The home of a running broker."""
    with home_with_cluster() as home, Place(home).running("serve") as server:
        server.line_with("Ctrl-C")
        yield Place(home)


def test_the_dsn_of_the_embedded_broker_is_that_of_its_clients(embedded: Place) -> None:
    dsn = embedded.done("dsn").removesuffix("\n")

    assert query(dsn, "SELECT broker_name FROM mqdb.broker") == "broker-a"
    assert "require_auth=scram-sha-256" in dsn


def test_the_dsn_of_a_server_of_ones_own_is_printed_as_programs_take_it(tmp_path: Path, database: Database) -> None:
    named = database.dsn.replace("postgresql://", "here=postgresql+psycopg://")

    assert Place(tmp_path, named).done("dsn") == f"{database.dsn}\n"


@pytest.mark.parametrize("command", ["dsn", "psql"])
def test_without_a_broker_it_says_how_to_start_one(tmp_path: Path, command: str) -> None:
    assert_refused(Place(tmp_path).call(command), "no broker runs in this home; start one with `mqdb serve`")


@pytest.mark.parametrize("command", ["dsn", "psql"])
def test_of_several_brokers_one_has_to_be_chosen(tmp_path: Path, command: str) -> None:
    place = Place(tmp_path, "a=postgresql://h1/mqdb;b=postgresql://h2/mqdb")

    assert_refused(place.call(command), "lists several brokers, a, b; this command works on one")


def test_psql_opens_the_embedded_database_without_a_question(embedded: Place) -> None:
    outcome = embedded.run("psql", *QUERY)

    assert (outcome.code, outcome.text, outcome.errors) == (0, "mqdb|broker-a\n", "")


def test_psql_reads_standard_input_and_ends_with_its_own_exit_code(embedded: Place) -> None:
    outcome = embedded.run("psql", "--", "-v", "ON_ERROR_STOP=1", "-v", "one=1", stdin="SELECT :one / 0;")

    assert outcome.code == 3
    assert "division by zero" in outcome.errors


def test_psql_gets_the_password_of_a_server_of_ones_own_by_its_environment(tmp_path: Path, database: Database) -> None:
    place = Place(tmp_path, database.dsn)
    shown = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'psql'"

    outcome = place.run("psql", "-At", "-c", shown, "-c", "\\! tr '\\0' '\\n' < /proc/$PPID/cmdline")

    assert (outcome.code, outcome.errors) == (0, "")
    count, *arguments = outcome.text.splitlines()
    assert count == "1"
    assert not any(password_of(database.dsn) in each for each in arguments)
    assert any(each.startswith("postgresql://") for each in arguments)


def test_a_wrong_password_is_the_failure_of_psql(tmp_path: Path, database: Database) -> None:
    place = Place(tmp_path, with_parts(database.dsn, password="wrong"))

    outcome = place.run("psql", *QUERY)

    assert outcome.code == 2
    assert "password authentication failed" in outcome.errors


def test_without_psql_the_error_says_what_is_missing(tmp_path: Path, database: Database) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("initdb", "postgres"):
        (programs / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 18.1'\n")
        (programs / name).chmod(0o755)

    outcome = Place(tmp_path, database.dsn).call("psql", PATH=str(tmp_path), MQDB_PG_BIN=str(programs))

    assert_refused(outcome, "there is no psql on PATH")
