"""`mqdb doctor`: its output and its exit code."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqdb.broker.doctor.examine import ALL_CHECKS
from mqdb_client import Doctor
from tests.fixtures.command_line import Place, served
from tests.fixtures.dead_letters import json_lines
from tests.fixtures.postgres import Database, query, with_parts

#: The server of the tests runs without fsync.
HEALTHY = ",".join(check.name for check in ALL_CHECKS if check.name != "durability")


@pytest.fixture(scope="module")
def place(shared_database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A running broker."""
    with served(Place(tmp_path_factory.mktemp("home"), shared_database.dsn)) as place:
        place.done("topic", "create", "orders")
        yield place


def test_a_healthy_broker(place: Place) -> None:
    found = json_lines(place.done("doctor", "--only", HEALTHY, "--json"))

    assert [each["check"] for each in found] == HEALTHY.split(",")
    assert [each for each in found if each["status"] not in ("OK", "INFO") or each["remedy"]] == []
    assert {tuple(each) for each in found} == {("check", "status", "seen", "remedy", "figures", "error")}


def test_warnings_end_with_1_and_stand_first_with_their_remedy(place: Place) -> None:
    place.done("cron", "add", "tick", "--cron", "@hourly", "--topic", "orders", "--body", "x")
    place.done("cron", "pause", "tick")

    warned = place.call("doctor", "--only", "leader,paused-crons", "--only", "wal-level")
    place.done("cron", "resume", "tick")
    resumed = place.call("doctor", "--only", "paused-crons")

    assert (warned.code, warned.errors) == (1, "")
    lines = [line.split() for line in warned.text.splitlines()[2:] if line.strip()]
    assert lines[:2] == [
        ["WARN", "paused-crons", "cron", "tick", "is", "paused"],
        [">", "mqdb", "cron", "resume", "tick"],
    ]
    assert [line[:2] for line in lines[2:]] == [["INFO", "wal-level"], ["OK", "leader"]]
    assert resumed.code == 0


def test_failures_end_with_2(place: Place) -> None:
    found = place.call("doctor", "--only", "durability", "--json")

    assert (found.code, found.errors) == (2, "")
    assert {each["status"] for each in json_lines(found.text)} == {"FAIL"}
    assert "ALTER SYSTEM SET fsync = on;" in place.call("doctor").text


def test_thresholds_are_arguments(place: Place) -> None:
    strict = place.call("doctor", "--only", "connections", "--threshold", "connections_warn_share=0")
    stricter = place.call("doctor", "--only", "connections", "--threshold", "connections_fail_share=0.0")

    assert (strict.code, stricter.code) == (1, 2)


def test_retention_is_that_of_the_settings(place: Place) -> None:
    listed = place.done("doctor", "--list", "--only", "retention", "--json", MQDB_FILE_RESERVED_TIME="7d")

    assert "168.0 h" in json_lines(listed)[0]["problem"]


def test_a_check_that_fails_ends_with_1(place: Place, shared_database: Database) -> None:
    with shared_database.connect(autocommit=False) as other:
        other.execute("LOCK TABLE mqdb.cron")
        late = place.call("doctor", "--only", "crons", "--threshold", "statement_timeout_seconds=0.05", "--json")
        other.rollback()

    assert (late.code, json_lines(late.text)[0]["status"]) == (1, "UNKNOWN")


def test_the_checks_are_listed_without_a_broker(tmp_path: Path) -> None:
    listed = json_lines(Place(tmp_path).done("doctor", "--list", "--json"))

    assert [each["check"] for each in listed] == [check.name for check in Doctor.checks()]
    assert "{" not in str([each["problem"] for each in listed])


@pytest.mark.parametrize("is_embedded", [True, False])
def test_a_broker_that_cannot_be_reached_fails(shared_database: Database, tmp_path: Path, is_embedded: bool) -> None:
    dsn = None if is_embedded else with_parts(shared_database.dsn, database="nowhere")

    found = Place(tmp_path, dsn).call("doctor", "--json")

    assert (found.code, found.errors) == (2, "")
    assert [(each["check"], each["status"]) for each in json_lines(found.text)] == [
        ("environment", "OK"),
        ("connection", "FAIL"),
    ]


def test_several_brokers_have_a_column(place: Place, shared_database: Database) -> None:
    name = query(shared_database.dsn, "SELECT broker_name FROM mqdb.broker")
    down = with_parts(shared_database.dsn, database="nowhere")
    both = Place(place.home, f"{name}={shared_database.dsn};broker-c={down}")

    found = both.call("doctor", "--only", "leader", "--json")
    one = both.call("doctor", "--only", "leader", "--broker", str(name))

    assert found.code == 2
    assert [(each["broker"], each["check"], each["status"]) for each in json_lines(found.text)] == [
        (name, "leader", "OK"),
        ("broker-c", "connection", "FAIL"),
    ]
    assert one.code == 0
    assert "broker-c" not in one.text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--only", "leeder"], "is not a check"),
        (["--threshold", "leader=1"], "is not a threshold"),
        (["--threshold", "lag_warn_seconds=soon"], "must be written NAME=NUMBER"),
        (["--broker", "broker-x"], "there is no such broker"),
    ],
)
def test_a_wrong_argument_is_one_line(place: Place, arguments: list[str], sentence: str) -> None:
    refused = place.call("doctor", *arguments)

    assert (refused.code, refused.text) == (1, "")
    assert sentence in refused.errors
    assert refused.errors.count("\n") == 1


def test_a_variable_that_nothing_reads_is_a_warning(place: Place) -> None:
    warned = place.call("doctor", "--only", "environment", "--json", MQDB_FILE_RESERVED_TIEM="geheim")
    listed = place.done("doctor", "--list", "--only", "environment", "--json")

    assert (warned.code, warned.errors) == (1, "")
    (found,) = json_lines(warned.text)
    assert found["seen"].endswith(
        "MQDB_FILE_RESERVED_TIEM is not known and is ignored; did you mean MQDB_FILE_RESERVED_TIME?"
    )
    assert "geheim" not in warned.text
    assert json_lines(listed)[0]["check"] == "environment"
    assert json_lines(place.done("doctor", "--only", "environment", "--json"))[0]["status"] == "OK"


def test_it_is_also_told_where_no_broker_runs(tmp_path: Path) -> None:
    warned = Place(tmp_path).call("doctor", "--json", MQDB_DNS="geheim")

    assert [(each["check"], each["status"]) for each in json_lines(warned.text)] == [
        ("environment", "WARN"),
        ("connection", "FAIL"),
    ]
