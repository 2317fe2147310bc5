"""`mqdb topic set` changes the number of queues or the permission, on one broker and on several."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqdb.embedded.ports import candidates, is_free
from tests.fixtures.command_line import Place, served
from tests.fixtures.postgres import Database
from tests.fixtures.producers import TwoBrokers


@pytest.fixture
def place(database: Database, tmp_path: Path) -> Place:
    """A broker without a broker process: topic changes do not need one."""
    return Place(tmp_path, database.dsn)


@pytest.fixture
def served_place(place: Place) -> Iterator[Place]:
    """The broker, for tests that send."""
    with served(place) as served_place:
        yield served_place


@pytest.fixture
def two(two_brokers: TwoBrokers, tmp_path: Path) -> Place:
    """Two brokers without broker processes."""
    return Place(tmp_path, two_brokers.dsn)


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def counts(place: Place, name: str = "orders") -> list[tuple[int, int]]:
    """The numbers of read and write queues on each broker that has the topic."""
    listed = lines(place.done("topic", "list", "--json"))
    return [(each["read_queues"], each["write_queues"]) for each in listed if each["topic"] == name]


# -- one broker -------------------------------------------------------------------------------


def test_a_topic_that_was_made_automatically_gets_more_queues_and_keeps_its_messages(served_place: Place) -> None:
    served_place.done("send", "orders", "one", "two", "three")
    assert counts(served_place) == [(4, 4)]

    assert served_place.done("topic", "set", "orders", "--queues", "16") == (
        "topic orders: read queues 16, write queues 16, perm RW-, order no, type NORMAL\n"
    )

    shown = json.loads(served_place.done("topic", "show", "orders", "--json"))
    assert [each["queue"] for each in shown["queues"]] == list(range(16))
    assert sum(each["messages"] for each in shown["queues"]) == 3


def test_what_create_refuses_names_the_command_that_changes_the_topic(place: Place) -> None:
    place.done("topic", "create", "a|b")

    refused = place.call("topic", "create", "a|b", "--queues", "16")

    assert (refused.code, refused.text) == (1, "")
    assert refused.errors == (
        "mqdb: topic 'a|b' already exists with other settings; see: mqdb topic show 'a|b'; "
        "change them with: mqdb topic set 'a|b'\n"
    )
    place.done("topic", "set", "a|b", "--queues", "16")
    assert place.done("topic", "create", "a|b", "--queues", "16") == "topic a|b has 16 queues\n"


def test_each_setting_is_changed_alone(place: Place) -> None:
    place.done("topic", "create", "orders", "--queues", "4", "--order", "--type", "fifo")
    began = {"topic": "orders", "read_queues": 4, "write_queues": 4, "perm": "RW-", "order": True, "type": "FIFO"}
    changes: list[tuple[str, str | None, dict[str, Any]]] = [
        ("--write-queues", "6", {"write_queues": 6}),
        ("--read-queues", "8", {"read_queues": 8}),
        ("--perm", "4", {"perm": "R--"}),
        ("--no-order", None, {"order": False}),
        ("--type", "delay", {"type": "DELAY"}),
        ("--queues", "2", {"read_queues": 2, "write_queues": 2}),
    ]

    for option, value, change in changes:
        began |= change
        given = [option] if value is None else [option, value]
        assert json.loads(place.done("topic", "set", "orders", *given, "--json")) == began | {"unread": []}

    assert json.loads(place.done("topic", "list", "--json")) == began


def test_queues_to_read_and_to_write_may_be_given_beside_the_number_of_both(place: Place) -> None:
    place.done("topic", "create", "orders")

    place.done("topic", "set", "orders", "--queues", "4", "--write-queues", "2")

    assert counts(place) == [(4, 2)]


def test_a_topic_without_the_permission_to_write_takes_no_messages(place: Place) -> None:
    place.done("topic", "create", "orders")
    place.done("topic", "set", "orders", "--perm", "4")

    assert "takes no messages" in place.call("send", "orders", "x").errors

    place.done("topic", "set", "orders", "--perm", "6")
    place.done("send", "orders", "x")


def test_messages_in_queues_that_are_no_longer_read_are_named_with_the_way_back(served_place: Place) -> None:
    served_place.done("topic", "create", "orders", "--queues", "4")
    for sharding_key in ("a", "b"):  # Java's hashCode says queue 1 and 2
        served_place.done("send", "orders", "x", "y", "--sharding-key", sharding_key)

    assert served_place.done("topic", "set", "orders", "--write-queues", "1") == (
        "topic orders: read queues 4, write queues 1, perm RW-, order no, type NORMAL\n"
    )
    _, note = served_place.done("topic", "set", "orders", "--read-queues", "1").splitlines()
    assert note == (
        "note: queues from 1 on are no longer read, but have messages not consumed by any group (4); "
        "to read them again: mqdb topic set orders --read-queues 3"
    )
    assert json.loads(served_place.done("topic", "set", "orders", "--read-queues", "1", "--json"))["unread"] == [
        {"queue": 1, "group": None, "messages": 2},
        {"queue": 2, "group": None, "messages": 2},
    ]

    served_place.done("topic", "set", "orders", "--read-queues", "4")
    assert len(served_place.done("consume", "orders", "--group", "billing", "--count", "4").splitlines()) == 4
    assert served_place.done("topic", "set", "orders", "--queues", "1").count("\n") == 1


def test_queues_that_are_written_and_not_read_are_named(place: Place) -> None:
    place.done("topic", "create", "orders", "--queues", "4")

    _, note = place.done("topic", "set", "orders", "--write-queues", "16").splitlines()

    assert note == (
        "note: messages are written to 16 queues and read from 4; to read all: mqdb topic set orders --read-queues 16"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["young", "--queues", "4"], "topic 'young' does not exist; create it with: mqdb topic create young"),
        (
            ["orders"],
            "topic = 'orders': nothing to change; add one of --queues, --read-queues, --write-queues, --perm, ",
        ),
        (["orders", "--queues", "0"], "read_queue_nums = 0: must be from 1 to 65,536"),
        (["orders", "--write-queues", "65537"], "write_queue_nums = 65537: must be from 1 to 65,536"),
        (["orders", "--perm", "8"], "perm = 8: must be from 0 to 7: the sum of 4 (read), 2 (write), 1 (inherit)"),
        (["orders", "--queues", "4", "--broker", "x"], "broker = 'x': there is no such broker; "),
        (["TBW102", "--queues", "16"], "topic name 'TBW102': belongs to the broker"),
        (["SCHEDULE_TOPIC_XXXX", "--perm", "6"], "topic name 'SCHEDULE_TOPIC_XXXX': belongs to the broker"),
    ],
    ids=[
        "no such topic",
        "nothing to change",
        "no queues",
        "too many queues",
        "no such permission",
        "no such broker",
        "template",
        "schedule topic",
    ],
)
def test_what_cannot_be_set_is_refused_in_one_sentence(place: Place, arguments: list[str], sentence: str) -> None:
    place.done("topic", "create", "orders")

    refused = place.call("topic", "set", *arguments)

    assert (refused.code, refused.text) == (1, "")
    assert refused.errors.startswith(f"mqdb: {sentence}")
    assert refused.errors.count("\n") == 1
    assert counts(place) == [(8, 8)]


# -- several brokers --------------------------------------------------------------------------


def test_a_topic_is_changed_on_all_brokers_or_on_those_that_are_named(two: Place) -> None:
    two.done("topic", "create", "orders", "--queues", "2")

    assert two.done("topic", "set", "orders", "--queues", "4") == (
        "topic orders on broker-a: read queues 4, write queues 4, perm RW-, order no, type NORMAL\n"
        "topic orders on broker-b: read queues 4, write queues 4, perm RW-, order no, type NORMAL\n"
    )
    _, note = two.done("topic", "set", "orders", "--write-queues", "6", "--broker", "broker-b").splitlines()

    assert note.startswith("note on broker-b: messages are written to 6 queues and read from 4; ")
    assert counts(two) == [(4, 4), (4, 6)]
    set_ = lines(two.done("topic", "set", "orders", "--queues", "8", "--json"))
    assert [(each["broker"], each["read_queues"]) for each in set_] == [("broker-a", 8), ("broker-b", 8)]


def test_a_topic_of_one_broker_is_changed_there(two: Place) -> None:
    two.done("topic", "create", "orders", "--broker", "broker-b")

    assert two.done("topic", "set", "orders", "--queues", "9").startswith("topic orders on broker-b: read queues 9, ")

    assert counts(two) == [(9, 9)]
    refused = two.call("topic", "set", "bills", "--queues", "9")
    assert refused.errors == "mqdb: topic 'bills' does not exist; create it with: mqdb topic create bills\n"


def test_where_a_broker_is_down_the_topic_is_changed_on_the_others(place: Place) -> None:
    place.done("topic", "create", "orders")
    port = next(port for port in candidates(0, None) if is_free(port))
    lame = Place(place.home, f"broker-a={place.dsn};broker-c=postgresql://u:geheim@127.0.0.1:{port}/db")

    outcome = lame.call("topic", "set", "orders", "--queues", "9")

    assert (outcome.code, counts(place)) == (1, [(9, 9)])
    assert outcome.text.startswith("topic orders on broker-a: read queues 9, ")
    assert outcome.errors.startswith("mqdb: broker-c: no broker at ")
    assert outcome.errors.endswith("; done on broker-a\n")
