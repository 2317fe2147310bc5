"""`mqdb bench` as processes: its output and what it leaves behind. The tests do not assert any speed."""

import json
from pathlib import Path

import pytest

from tests.fixtures.command_line import Place, served
from tests.fixtures.postgres import Database, query

COMMANDS = {
    "produce": (["-c", "2", "-T", "0.1", "--batch", "3"], ["send", "send_batch"]),
    "consume": (["-n", "100"], ["consume"]),
    "latency": (["--rate", "100", "-T", "0.2"], ["latency"]),
    "dispatch": (["-n", "100"], ["dispatch"]),
}


@pytest.fixture
def place(tmp_path: Path, database: Database) -> Place:
    return Place(tmp_path, database.dsn)


@pytest.mark.parametrize("command", COMMANDS)
def test_it_measures_a_database_that_is_given_and_leaves_records_only(
    command: str, place: Place, database: Database
) -> None:
    arguments, names = COMMANDS[command]

    with served(place):
        report = json.loads(place.done("bench", command, *arguments, "--json", "--dsn", database.dsn))

    assert [figure["figure"] for figure in report["figures"]] == names
    assert all(figure["messages"] > 0 and figure["messages_per_second"] > 0 for figure in report["figures"])
    assert query(database.dsn, "SELECT count(*) FROM mqdb.topic WHERE topic LIKE '%mqdb_bench%'") == 0
    assert query(database.dsn, "SELECT count(*) FROM mqdb.subscription_group") == 0


def test_latency_is_that_of_all_messages(place: Place, database: Database) -> None:
    with served(place):
        said = place.done("bench", "latency", "--rate", "100", "-T", "0.2", "--json", "--dsn", database.dsn)

    [figure] = json.loads(said)["figures"]
    assert figure["messages"] == 20
    assert 0 < figure["median_ms"] <= figure["p99_ms"] <= figure["max_ms"]


@pytest.mark.long
def test_without_a_dsn_it_measures_a_server_of_its_own(place: Place, database: Database) -> None:
    said = place.done("bench", "produce", "-c", "1", "-T", "0.1")

    assert "send_batch" in said
    assert query(database.dsn, "SELECT count(*) FROM mqdb.commit_log") == 0


def test_it_refuses_several_brokers(place: Place, database: Database) -> None:
    outcome = place.run("bench", "consume", "--dsn", f"a={database.dsn};b={database.dsn}")

    assert (outcome.code, outcome.text) == (1, "")
    assert "names several brokers; mqdb bench needs exactly one" in outcome.errors
