"""`mqdb timer` lists messages that wait for their delivery time, and recalls one."""

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection

from mqdb.common.recall_handle import RecallHandle, encode_handle
from tests.fixtures.broker import topic
from tests.fixtures.command_line import Place
from tests.fixtures.dead_letters import json_lines
from tests.fixtures.postgres import Database
from tests.fixtures.timers import deliver_all, timer

HOUR = timedelta(hours=1)


@pytest.fixture
def place(database: Database, tmp_path: Path) -> Place:
    """A broker without a broker process."""
    return Place(tmp_path, database.dsn)


def keys(place: Place, *options: str) -> list[str]:
    return [row["keys"] for row in json_lines(place.done("timer", "list", "--json", *options))]


def test_what_waits_is_listed_by_its_time(place: Place, broker: Connection) -> None:
    topic(broker, queues=4)
    topic(broker, "others")
    timer(broker, 3 * HOUR, "x", tag="third")
    [second] = timer(broker, 2 * HOUR, "x", tag="second", queue_id=3)
    deliver_all(broker)
    timer(broker, HOUR, "x", tag="first")
    timer(broker, 4 * HOUR, "x", tag="fourth", topic="others")

    [_, row, _, _] = json_lines(place.done("timer", "list", "--json"))
    assert {name: row[name] for name in ("topic", "queue_id", "message_id", "tag", "keys")} == {
        "topic": "orders",
        "queue_id": 3,
        "message_id": second,
        "tag": "second",
        "keys": "second",
    }
    assert keys(place) == ["first", "second", "third", "fourth"]
    assert keys(place, "--last", "-n", "2") == ["fourth", "third"]
    assert keys(place, "--topic", "others") == ["fourth"]
    assert second in place.done("timer", "list")


def test_where_nothing_waits_it_says_so(place: Place, broker: Connection) -> None:
    assert "No messages are waiting" in place.done("timer", "list")


@pytest.mark.parametrize("by", ["handle", "message id"])
def test_a_message_is_taken_back_once(place: Place, broker: Connection, by: str) -> None:
    topic(broker)
    [unique_id] = timer(broker, HOUR, "x")
    handle = encode_handle(RecallHandle("orders", "broker-a", 0, unique_id))
    given = handle if by == "handle" else unique_id

    assert place.done("timer", "recall", given) == f"recalled {given}\n"
    again = place.call("timer", "recall", given)
    assert (again.code, "may have been recalled" in again.errors) == (1, True)
    assert keys(place) == []


def test_a_message_that_was_delivered_is_told_so(place: Place, broker: Connection) -> None:
    topic(broker)
    [unique_id] = timer(broker, -HOUR, "x")
    deliver_all(broker)

    found = place.call("timer", "recall", unique_id)

    assert (found.code, found.errors) == (1, f"mqdb: message {unique_id}: it was already delivered\n")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("no handle", "recall handle 'no handle'"),
        (encode_handle(RecallHandle("orders", "broker-z", 0, "0" * 31 + "1")), "is of broker 'broker-z'"),
    ],
    ids=["no handle", "another broker"],
)
def test_what_is_no_handle_of_the_broker_is_refused(place: Place, broker: Connection, given: str, reason: str) -> None:
    found = place.call("timer", "recall", given)

    assert (found.code, reason in found.errors, found.errors.count("\n")) == (1, True, 1)
