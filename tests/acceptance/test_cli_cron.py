"""`mqdb cron`: recurring sends, from the command line to a consumer."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from mqdb.cli.times import shown_time
from mqdb.service.cron_sender import CronSender
from tests.fixtures.command_line import Place, served
from tests.fixtures.postgres import Database, query
from tests.fixtures.processes import wait_until


@pytest.fixture
def place(database: Database, tmp_path: Path) -> Place:
    """A broker with a topic; no server is running."""
    place = Place(tmp_path, database.dsn)
    place.done("topic", "create", "orders", "--queues", "1")
    return place


@pytest.fixture
def at_work(place: Place) -> Iterator[Place]:
    """The place with a running server."""
    with served(place, CronSender):
        yield place


def listed(place: Place) -> list[dict[str, Any]]:
    return [json.loads(line) for line in place.done("cron", "list", "--json").splitlines()]


def let_it_be_due(place: Place, name: str) -> None:
    query(place.dsn or "", f"UPDATE mqdb.cron SET next_at = date_trunc('minute', mqdb.now()) WHERE name = '{name}'")


def test_a_recurring_message_comes_to_a_consumer(at_work: Place, tmp_path: Path) -> None:
    body = tmp_path / "report.json"
    body.write_text('{"a": 1}')
    options = ("--tag", "daily", "--key", "k1", "--key", "k2", "--property", "origin=shop")
    at_work.done("cron", "add", "report", "--cron", "0 0 1 1 *", "--topic", "orders", "--file", str(body), *options)
    let_it_be_due(at_work, "report")
    wait_until(lambda: listed(at_work)[0]["sent"] == 1)

    printed = at_work.done("consume", "orders", "--count", "1", "--format", "json")

    message = json.loads(printed)
    assert (message["body"], message["tag"], message["keys"]) == ('{"a": 1}', "daily", ["k1", "k2"])
    assert message["properties"]["origin"] == "shop"
    assert message["properties"]["MQDB_CRON_NAME"] == "report"
    assert message["properties"]["MQDB_CRON_TIME"].endswith(":00Z")


def test_recurring_sends_are_listed_with_their_next_times(place: Place) -> None:
    assert place.done("cron", "list") == "There are no recurring sends yet.\n"
    tick = ("--cron", "0 9 * * 1-5", "--timezone", "Europe/Berlin", "--topic", "orders", "--body", "tick")
    said = place.done("cron", "add", "tick", *tick, "--catch-up", "all")
    place.done("cron", "add", "other", "--cron", "@hourly", "--topic", "orders", "--body", "other")

    other, row = listed(place)

    assert said == f"cron tick sends to topic orders, first at {shown_time(datetime.fromisoformat(row['next']))}\n"
    assert row | {"next": ""} == {
        "name": "tick",
        "cron": "0 9 * * 1-5",
        "timezone": "Europe/Berlin",
        "topic": "orders",
        "catch_up": "all",
        "paused": False,
        "next": "",
        "last": None,
        "sent": 0,
        "skipped": 0,
        "application": None,
    }
    assert (other["timezone"], other["catch_up"]) == ("UTC", "once")
    assert "tick" in place.done("cron", "list")


def test_a_recurring_send_is_paused_resumed_and_removed(place: Place) -> None:
    place.done("cron", "add", "tick", "--cron", "@yearly", "--topic", "orders", "--body", "tick")

    assert place.done("cron", "pause", "tick") == "cron tick is paused\n"
    (paused,) = listed(place)
    said = place.done("cron", "resume", "tick")
    (resumed,) = listed(place)
    assert place.done("cron", "remove", "tick") == "cron tick is removed\n"

    assert (paused["paused"], paused["next"], resumed["paused"]) == (True, None, False)
    assert said == f"cron tick fires next at {shown_time(datetime.fromisoformat(resumed['next']))}\n"
    assert listed(place) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"--cron": "* * * *"}, "mqdb: cron '* * * *': has 4 fields; write 5: minute hour day-of-month month"),
        ({"--cron": "0 0 30 2 *"}, "mqdb: cron '0 0 30 2 *': there is no day 30 in month 2, which has 29 days"),
        ({"--cron": "61 * * * *"}, "mqdb: cron '61 * * * *': minute '61': must be from 0 to 59"),
        (
            {"--cron": "0 0 12 ? * 2-6"},
            "mqdb: cron '0 0 12 ? * 2-6': day of week '2-6': with a ? as in Quartz",
        ),
        ({"--timezone": "Europe/Berlino"}, "mqdb: timezone = 'Europe/Berlino': there is no such time zone"),
        ({"--topic": "nothing"}, "mqdb: topic 'nothing' does not exist; create it with: mqdb topic create nothing"),
        ({"--topic": "SCHEDULE_TOPIC_XXXX"}, "mqdb: topic 'SCHEDULE_TOPIC_XXXX' belongs to the broker"),
        ({"--body": ""}, "mqdb: the body is empty"),
        ({"--file": "/no/such/file"}, "mqdb: file = '/no/such/file': give --body or --file, but not both"),
        ({"--property": "a"}, "mqdb: property = 'a': must be written NAME=VALUE"),
        ({"--property": "MQDB_CRON_NAME=a"}, "mqdb: property 'MQDB_CRON_NAME' is reserved"),
        ({"--catch-up": "twice"}, "mqdb: invalid value for '--catch-up'"),
        ({"--broker": "nobody"}, "mqdb: broker = 'nobody': there is no such broker"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(place: Place, change: dict[str, str], sentence: str) -> None:
    options = {"--cron": "@daily", "--topic": "orders", "--body": "tick"} | change

    refused = place.call("cron", "add", "tick", *(word for option in options.items() for word in option))

    assert (refused.code, refused.text) == (1, "")
    assert refused.errors.startswith(sentence)
    assert refused.errors.count("\n") == 1
    assert listed(place) == []


def test_a_name_that_is_taken_or_unknown_is_refused(place: Place) -> None:
    add = ("cron", "add", "tick", "--cron", "@daily", "--topic", "orders", "--body", "tick")
    place.done(*add)

    assert place.call(*add).errors == "mqdb: cron 'tick' already exists; remove it first: mqdb cron remove tick\n"
    for verb in ("pause", "resume", "remove"):
        refused = place.call("cron", verb, "tock")
        assert (refused.code, refused.errors) == (1, "mqdb: cron 'tock' does not exist; see: mqdb cron list\n")


def test_of_several_brokers_one_sends(database: Database, second_database: Database, tmp_path: Path) -> None:
    query(second_database.dsn, "update mqdb.broker set broker_name = 'broker-b'")
    place = Place(tmp_path, f"broker-a={database.dsn};broker-b={second_database.dsn}")
    place.done("topic", "create", "orders", "--queues", "1")
    add = ("cron", "add", "tick", "--cron", "@daily", "--topic", "orders", "--body", "tick")

    refused = place.call(*add)
    place.done(*add, "--broker", "broker-b")

    assert refused.errors.startswith(
        "mqdb: broker = None: only one broker may send the messages; add --broker with one of"
    )
    assert [(row["name"], row["broker"]) for row in listed(place)] == [("tick", "broker-b")]
    assert place.done("cron", "remove", "tick") == "cron tick is removed on broker-b\n"
