"""`mqdb transaction` lists half messages, and ends them by hand."""

from datetime import datetime
from pathlib import Path

import pytest
from sqlalchemy import Connection

from mqdb.cli.times import shown_time
from mqdb.common.unique_id import format_unique_id
from mqdb_client import Message
from tests.fixtures.broker import topic
from tests.fixtures.command_line import Place
from tests.fixtures.dead_letters import json_lines
from tests.fixtures.delay import delivered
from tests.fixtures.log import create_topic, dispatch_all
from tests.fixtures.postgres import Database
from tests.fixtures.producers import TwoBrokers
from tests.fixtures.transactions import COMMIT, SECOND, Asked, Checker, StartProducer, send_half


@pytest.fixture
def place(database: Database, tmp_path: Path) -> Place:
    """A broker without a broker process."""
    return Place(tmp_path, database.dsn)


def test_half_messages_without_an_end_are_listed(place: Place, broker: Connection) -> None:
    route = topic(broker)
    send_half(broker, route).end(broker, COMMIT)
    half = send_half(broker, route, group="billing")

    (row,) = json_lines(place.done("transaction", "list", "--json"))
    table = place.done("transaction", "list")

    assert str(shown_time(datetime.fromisoformat(row.pop("stored")))) in table
    assert row == {
        "transaction_id": format_unique_id(half.unique_id),
        "group": "billing",
        "topic": "orders",
        "state": "prepared",
        "checks": 0,
        "next_check": None,
        "asked": None,
        "ended": None,
        "log_pos": half.log_pos,
    }


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--state", "committed"), ["0"]),
        (("--state", "discarded"), ["1"]),
        (("--state", "prepared", "--state", "discarded"), ["1", "2"]),
        (("--group", "others"), []),
    ],
    ids=["committed", "discarded", "two states", "group"],
)
def test_the_list_can_be_narrowed(place: Place, broker: Connection, options: tuple[str, ...], found: list[str]) -> None:
    route = topic(broker)
    committed, discarded = send_half(broker, route), send_half(broker, route)
    committed.end(broker, COMMIT)
    Checker(broker, reserved=6 * SECOND).after(7 * SECOND)
    halves = [committed, discarded, send_half(broker, route)]

    rows = json_lines(place.done("transaction", "list", "--json", *options))

    assert [row["log_pos"] for row in rows] == [halves[int(number)].log_pos for number in found]


def test_where_there_is_none_it_says_so(place: Place) -> None:
    assert place.done("transaction", "list") == "There are no such half messages.\n"


@pytest.mark.parametrize(
    ("outcome", "said", "bodies"),
    [("commit", "committed", ["half"]), ("rollback", "rolled back", [])],
    ids=["commit", "rollback"],
)
def test_a_half_message_is_ended_by_hand(
    place: Place, broker: Connection, outcome: str, said: str, bodies: list[str]
) -> None:
    name = format_unique_id(send_half(broker, topic(broker)).unique_id)

    printed = place.done("transaction", "resolve", name.lower(), outcome, "--yes")

    assert printed == f"half message {name} is {said}\n"
    assert delivered(broker) == bodies


def test_what_was_discarded_is_asked_about_again(place: Place, broker: Connection) -> None:
    half = send_half(broker, topic(broker))
    Checker(broker, reserved=6 * SECOND).after(7 * SECOND)

    printed = place.done("transaction", "resolve", format_unique_id(half.unique_id), "resume", "--yes")

    assert printed == f"half message {format_unique_id(half.unique_id)} is prepared\n"


def test_nothing_is_done_unless_somebody_says_yes(place: Place, broker: Connection) -> None:
    name = format_unique_id(send_half(broker, topic(broker)).unique_id)

    outcome = place.call("transaction", "resolve", name, "commit")

    assert (outcome.code, delivered(broker)) == (1, [])
    assert outcome.errors == f"mqdb: Commit half message {name}? No terminal to confirm it; add --yes\n"


@pytest.mark.parametrize("outcome", ["commit", "rollback", "resume"])
def test_what_has_ended_is_left_alone(place: Place, broker: Connection, outcome: str) -> None:
    half = send_half(broker, topic(broker))
    half.end(broker, COMMIT)

    answer = place.call("transaction", "resolve", format_unique_id(half.unique_id), outcome, "--yes")

    assert answer.code == 1
    assert "is COMMITTED; " in answer.errors
    assert delivered(broker) == ["half"]


def test_an_id_that_nobody_knows_is_an_error(place: Place) -> None:
    answer = place.call("transaction", "resolve", "0" * 32, "commit", "--yes")

    assert (answer.code, answer.text) == (1, "")
    assert answer.errors == f"mqdb: there is no half message at id {'0' * 32}; see: mqdb transaction list\n"


def test_of_several_brokers_the_one_that_has_it_ends_it(
    two_brokers: TwoBrokers, tmp_path: Path, transactional_producer: StartProducer
) -> None:
    for each in (two_brokers.a, two_brokers.b):
        create_topic(each.connect(), "orders")
    place = Place(tmp_path, two_brokers.dsn)
    sent = transactional_producer(Asked(), dsn=two_brokers.dsn).send_in_transaction(Message("orders", "half"))
    dispatch_all(two_brokers.a.connect())
    dispatch_all(two_brokers.b.connect())

    printed = place.done("transaction", "resolve", sent.transaction_id, "commit", "--yes")

    assert printed == f"half message {sent.transaction_id} is committed on {sent.queue.broker_name}\n"
