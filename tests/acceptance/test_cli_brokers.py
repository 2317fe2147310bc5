"""Commands on several brokers do as much as possible, and an error names the brokers on which it failed."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mqdb.embedded.ports import candidates, is_free
from mqdb.store import migrations
from tests.fixtures.command_line import Outcome, Place, served
from tests.fixtures.postgres import Database
from tests.fixtures.producers import TwoBrokers


@pytest.fixture
def place(two_brokers: TwoBrokers, tmp_path: Path) -> Place:
    """Two brokers without broker processes."""
    return Place(tmp_path, two_brokers.dsn)


@pytest.fixture
def served_place(place: Place) -> Iterator[Place]:
    """The two brokers, for tests that send."""
    assert place.dsn is not None
    with ExitStack() as servers:
        for broker in place.dsn.split(";"):
            servers.enter_context(served(replace(place, dsn=broker)))
        yield replace(place, is_served=True)


@pytest.fixture
def lame(place: Place) -> Place:
    """The first broker of the place, and a broker that is down."""
    assert place.dsn is not None
    port = next(port for port in candidates(0, None) if is_free(port))
    up = place.dsn.partition(";")[0]
    return Place(place.home, f"{up};broker-c=postgresql://u:geheim@127.0.0.1:{port}/db")


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def assert_failed_on_c(outcome: Outcome, done: str) -> None:
    """The command printed one line that names the broker that is down, and the brokers that are not."""
    assert outcome.code == 1
    error = outcome.errors.splitlines()[-1]
    assert error.startswith("mqdb: broker-c: no broker at ")
    assert error.endswith(f"; done on {done}")
    assert "geheim" not in outcome.errors


# -- topics -----------------------------------------------------------------------------------


def test_a_topic_is_created_listed_shown_and_deleted_on_all_brokers(place: Place) -> None:
    assert place.done("topic", "create", "orders", "--queues", "2") == (
        "topic orders has 2 queues on broker-a\ntopic orders has 2 queues on broker-b\n"
    )
    listed = lines(place.done("topic", "list", "--json"))
    assert [(each["topic"], each["broker"], each["read_queues"]) for each in listed] == [
        ("orders", "broker-a", 2),
        ("orders", "broker-b", 2),
    ]
    shown = place.done("topic", "show", "orders")
    assert "orders: broker broker-a, read queues 2, write queues 2, perm RW-" in shown
    assert "orders: broker broker-b, read queues 2, write queues 2, perm RW-" in shown
    assert place.done("topic", "delete", "orders", "--yes") == (
        "topic orders is deleted on broker-a\ntopic orders is deleted on broker-b\n"
    )
    assert place.done("topic", "list") == "There are no topics yet.\n"


@pytest.mark.usefixtures("patient")
def test_the_tables_have_a_column_for_the_broker(served_place: Place) -> None:
    served_place.done("topic", "create", "orders", "--queues", "1")
    served_place.done("send", "orders", *map(str, range(4)))
    served_place.done("consume", "orders", "--group", "billing", "--exit")

    header, _, *rows = (line.split() for line in served_place.done("topic", "list").splitlines())
    assert header[:2] == ["topic", "broker"]
    assert [row[:2] for row in rows] == [["orders", "broker-a"], ["orders", "broker-b"]]
    shown = [line.split() for line in served_place.done("topic", "show", "orders").splitlines()]
    assert next(line for line in shown if line[:1] == ["broker"])[:3] == ["broker", "queue", "min"]
    assert sum(line[:2] == ["broker-a", "billing"] for line in shown) == 1
    assert sum(line[:2] == ["broker-b", "billing"] for line in shown) == 1


def test_a_broker_can_be_chosen_by_its_name(place: Place) -> None:
    assert place.done("topic", "create", "orders", "--broker", "broker-b") == "topic orders has 8 queues on broker-b\n"
    place.done("topic", "create", "bills")

    assert [each["topic"] for each in lines(place.done("topic", "list", "--json", "--broker", "broker-a"))] == ["bills"]
    (shown,) = lines(place.done("topic", "show", "bills", "--json", "--broker", "broker-b"))
    assert (shown["broker"], len(shown["queues"])) == ("broker-b", 8)
    assert place.done("topic", "delete", "bills", "--yes", "--broker", "broker-a") == (
        "topic bills is deleted on broker-a\n"
    )
    assert [each["broker"] for each in lines(place.done("topic", "list", "--json"))] == ["broker-b", "broker-b"]


@pytest.mark.parametrize(
    "command",
    ["topic create orders", "topic list", "topic show orders", "topic delete orders --yes", "consume orders"],
)
def test_an_unknown_broker_is_refused_with_the_names_that_there_are(place: Place, command: str) -> None:
    refused = place.call(*command.split(), "--broker", "broker-x")

    assert (refused.code, refused.text) == (1, "")
    assert refused.errors == (
        "mqdb: broker = 'broker-x': there is no such broker; the brokers are: broker-a, broker-b\n"
    )


def test_a_topic_of_one_broker_is_shown_and_deleted_there(place: Place) -> None:
    place.done("topic", "create", "orders", "--broker", "broker-b")

    assert [each["broker"] for each in lines(place.done("topic", "show", "orders", "--json"))] == ["broker-b"]
    assert place.done("topic", "delete", "orders", "--yes") == "topic orders is deleted on broker-b\n"


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        ("topic show", "; create it with: mqdb topic create orders"),
        ("topic delete --yes", ""),
        ("consume --group billing", "; create it with: mqdb topic create orders"),
    ],
)
def test_a_topic_that_no_broker_has_is_one_sentence(place: Place, command: str, advice: str) -> None:
    refused = place.call(*command.split(), "orders")

    assert (refused.code, refused.text) == (1, "")
    assert refused.errors == f"mqdb: topic 'orders' does not exist{advice}\n"


def test_where_a_broker_is_down_the_others_do_what_they_can(lame: Place) -> None:
    created = lame.call("topic", "create", "orders", "--queues", "1")
    listed = lame.call("topic", "list", "--json")
    shown = lame.call("topic", "show", "orders", "--json")
    deleted = lame.call("topic", "delete", "orders", "--yes")

    for outcome in (created, listed, shown, deleted):
        assert_failed_on_c(outcome, done="broker-a")
    assert created.text == "topic orders has 1 queues on broker-a\n"
    assert [each["broker"] for each in lines(listed.text)] == ["broker-a"]
    assert [each["broker"] for each in lines(shown.text)] == ["broker-a"]
    assert deleted.text == "topic orders is deleted on broker-a\n"


def test_what_no_broker_has_done_is_said_of_each(lame: Place) -> None:
    refused = lame.call("topic", "show", "orders")

    assert (refused.code, refused.text) == (1, "")
    assert "broker-a: topic 'orders' does not exist" in refused.errors
    assert "broker-c: no broker at " in refused.errors
    assert refused.errors.endswith("; done on none\n")


# -- messages ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
def test_messages_are_sent_to_all_brokers_and_a_group_reads_them_all(served_place: Place) -> None:
    served_place.done("topic", "create", "orders", "--queues", "2")

    records = "".join(f'{{"n": "{number}"}}\n' for number in range(20))
    options = ("--format", "jsonl", "--sharding-column", "n", "--body-column", "n", "--quiet")
    served_place.done("send", "orders", *options, stdin=records)

    parts = [
        served_place.done("consume", "orders", "--exit", "--broker", name).split() for name in ("broker-a", "broker-b")
    ]
    assert all(parts)
    assert sorted(int(body) for part in parts for body in part) == list(range(20))
    printed = lines(served_place.done("consume", "orders", "--group", "billing", "--exit", "--format", "json"))
    assert sorted(int(each["body"]) for each in printed) == list(range(20))
    assert {each["broker_name"] for each in printed} == {"broker-a", "broker-b"}
    assert served_place.done("consume", "orders", "--group", "billing", "--exit") == ""


def test_without_a_group_one_broker_has_to_be_named(place: Place) -> None:
    place.done("topic", "create", "orders")

    refused = place.call("consume", "orders")

    assert (refused.code, refused.text) == (1, "")
    assert refused.errors == (
        "mqdb: topic = 'orders': there are several brokers, broker-a, broker-b: "
        "name one with --broker, or read from all with --group\n"
    )


def test_a_group_does_not_choose_a_broker(place: Place) -> None:
    refused = place.call("consume", "orders", "--group", "billing", "--broker", "broker-a")

    assert (refused.code, refused.text) == (1, "")
    assert "broker = 'broker-a': a group reads from all brokers" in refused.errors


def test_a_group_reads_a_topic_that_one_broker_has(served_place: Place) -> None:
    served_place.done("topic", "create", "orders", "--broker", "broker-b")
    served_place.done("send", "orders", "one")

    assert served_place.done("consume", "orders", "--group", "billing", "--exit") == "one\n"


def test_a_group_reads_what_it_can_reach_and_says_what_it_could_not(lame: Place) -> None:
    lame.call("topic", "create", "orders", "--queues", "1")
    lame.call("send", "orders", "one", "two")

    read = lame.call("consume", "orders", "--group", "billing", "--exit")

    assert read.text == "one\ntwo\n"
    assert_failed_on_c(read, done="broker-a")


# -- the schema -------------------------------------------------------------------------------


@pytest.fixture
def new(empty_database: Database, second_empty_database: Database, tmp_path: Path) -> Place:
    """Two databases without a schema."""
    return Place(tmp_path, f"north={empty_database.dsn};south={second_empty_database.dsn}")


def test_migrate_goes_through_the_list_and_names_the_new_brokers(new: Place) -> None:
    before = new.done("migrate", "--current").splitlines()
    migrated = new.done("migrate").splitlines()

    assert [line.partition(";")[0] for line in before] == ["north: no schema mqdb", "south: no schema mqdb"]
    assert [line.rpartition(" ")[0] for line in migrated] == [
        "north: the schema went from nothing to",
        "south: the schema went from nothing to",
    ]
    assert [line.split(":")[0] for line in new.done("migrate").splitlines()] == ["north", "south"]
    assert new.done("topic", "create", "orders", "--queues", "1").count(" on ") == 2


def test_migrate_gives_no_broker_of_a_list_another_name(new: Place) -> None:
    refused = new.call("migrate", "--broker-name", "east")

    assert (refused.code, refused.text) == (1, "")
    assert "broker_name = 'east': is for one broker" in refused.errors


def test_migrate_goes_on_past_a_broker_that_is_down(lame: Place) -> None:
    migrated = lame.call("migrate")

    assert migrated.text.startswith("broker-a: the schema is at ")
    assert_failed_on_c(migrated, done="broker-a")


def test_migrate_prints_no_sql_from_the_newest_version_on(tmp_path: Path) -> None:
    printed = Place(tmp_path).done("migrate", "--sql", "--since", migrations.head())

    assert printed.startswith("BEGIN;")
    assert "CREATE" not in printed
    assert printed.rstrip().endswith("COMMIT;")
