"""`mqdb group` shows, changes and deletes groups, and sets their offsets."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from getpass import getuser
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from mqdb.broker.consumers.groups import update_group
from mqdb.broker.consumers.send_back import SendBackRequest, send_back
from mqdb.common.failure import Failure
from mqdb.common.message import MessageQueue
from mqdb.common.retry import Retry
from mqdb.embedded import EmbeddedPostgres
from mqdb.store.engine import create_engine
from tests.fixtures import warm_process
from tests.fixtures.command_line import Place, assert_refused, served
from tests.fixtures.consumers import Inbox, Member
from tests.fixtures.postgres import KNOW_ITSELF, Database, new_database, query
from tests.fixtures.processes import wait_until


@pytest.fixture(scope="module")
def original(
    postgres: EmbeddedPostgres, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Database]:
    """A topic with one queue of four messages, of which group `billing` has not consumed the last."""
    with new_database(postgres, template_database) as database:
        with served(Place(tmp_path_factory.mktemp("home"), database.dsn)) as place:
            place.done("topic", "create", "orders", "--queues", "1")
            place.done("send", "orders", "one", "two", "three", "four")
            place.done("group", "set", "billing")
            place.done("group", "offset", "reset", "billing", "orders", "--to", "3", "--yes")
        yield database


@pytest.fixture
def database(postgres: EmbeddedPostgres, original: Database) -> Iterator[Database]:
    """A copy of the database for one test."""
    with new_database(postgres, original.name) as copy:
        query(copy.dsn, KNOW_ITSELF)
        yield copy


@pytest.fixture
def place(database: Database, tmp_path: Path) -> Place:
    """A broker with the copied database, without a broker process: consumers dispatch by themselves."""
    return Place(tmp_path, database.dsn)


def rows(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]


def orders(printed: str) -> list[dict[str, Any]]:
    """The printed rows for topic orders; the group also has a retry topic."""
    return [row for row in rows(printed) if row["topic"] == "orders"]


# -- list, show, set, delete --------------------------------------------------------------------


def test_groups_are_listed_with_their_lag(place: Place) -> None:
    (group,) = rows(place.done("group", "list", "--json"))

    assert (group["group"], group["members"], group["model"], group["lag"]) == ("billing", 0, None, 1)
    assert group["lag_seconds"] >= 0
    assert "billing" in place.done("group", "list")


def test_without_a_group_the_list_says_so(second_database: Database, tmp_path: Path) -> None:
    place = Place(tmp_path, second_database.dsn)

    assert place.done("group", "list") == "There are no groups yet.\n"
    assert place.done("group", "list", "--json") == ""


def test_a_group_is_shown_with_settings_subscriptions_members_and_queues(place: Place, member: Member) -> None:
    inbox = Inbox()
    member(inbox, group="billing", persist_consumer_offset_interval=timedelta(milliseconds=20))
    inbox.wait_for(1)
    wait_until(lambda: orders_of(place)["lag"] == 0)

    (shown,) = rows(place.done("group", "show", "billing", "--json"))
    printed = place.done("group", "show", "billing")

    assert (shown["retry_max_times"], shown["consume"]) == (16, True)
    assert [each for each in shown["subscriptions"] if each["topic"] == "orders"] == [
        {"topic": "orders", "type": "TAG", "expression": "*", "version": shown["subscription_version"]}
    ]
    (one,) = shown["members"]
    assert (one["model"], one["language"]) == ("CLUSTERING", "PYTHON")
    assert 0 <= one["silent_seconds"] < 60
    owners = {each["owner"] for each in shown["queues"] if each["topic"] == "orders"}
    assert owners == {one["client_id"]}
    for text in ("billing: consume yes", "retry max times 16", one["client_id"], "orders"):
        assert text in printed


def orders_of(place: Place, group: str = "billing") -> dict[str, Any]:
    (shown,) = rows(place.done("group", "show", group, "--json"))
    (queue,) = [each for each in shown["queues"] if each["topic"] == "orders"]
    assert isinstance(queue, dict)
    return queue


def test_a_message_that_waits_for_its_retry_is_listed_and_shown(place: Place, engine: Engine) -> None:
    queue, failure = MessageQueue("orders", "broker-a", 0), Failure.later("m", datetime.now(UTC))
    with engine.connect() as connection:
        (first,) = connection.exec_driver_sql("SELECT log_pos FROM mqdb.message WHERE text = 'one'").scalars()
        send_back(connection, "billing", [SendBackRequest(first, queue, 0, failure, Retry(18))])

    wait_until(lambda: orders_of(place)["waiting"] == 1)

    (group,) = rows(place.done("group", "list", "--json"))
    (of_topic,) = json.loads(place.done("topic", "show", "orders", "--json"))["groups"]
    assert (group["lag"], group["waiting"]) == (of_topic["lag"], of_topic["waiting"]) == (1, 1)
    for command in (("group", "list"), ("group", "show", "billing"), ("topic", "show", "orders")):
        assert "waiting" in place.done(*command)


def test_a_group_that_nobody_knows_is_an_error(place: Place) -> None:
    for arguments in (("show", "nobody"), ("delete", "nobody", "--yes"), ("offset", "reset", "nobody", "orders")):
        extra = ("--to", "latest", "--yes") if "reset" in arguments else ()
        refused = place.call("group", *arguments, *extra)
        assert (refused.code, refused.text) == (1, "")
        assert refused.errors.startswith("mqdb: group 'nobody' does not exist")


def test_settings_are_changed_one_by_one_and_a_new_group_is_made(place: Place) -> None:
    place.done("group", "set", "billing", "--retry-max-times", "3")
    printed = place.done("group", "set", "billing", "--no-consume")
    place.done("group", "set", "new-one", "--retry-queues", "2", "--retry-delays", "1s..5s", "--consume-from", "first")

    of_it = "consume no, broadcast yes, retry queues 1, retry max times 3, consume mode pull, orderly no, "
    of_it += "retry delays ladder, consume from last"
    assert printed == f"group billing: {of_it}\n"
    assert "retry queues 2" in place.done("group", "show", "new-one")
    refused = place.call("group", "set", "no group", "--retry-max-times", "3")
    assert (refused.code, "group name 'no group'" in refused.errors) == (1, True)


def test_a_group_is_deleted_with_its_topics_when_asked(place: Place) -> None:
    place.done("topic", "create", "%DLQ%billing", "--queues", "1")

    assert place.done("group", "delete", "billing", "--yes", "--with-topics").startswith("group billing is deleted")

    assert place.done("group", "list", "--json") == ""
    assert "%" not in place.done("topic", "list")


def test_a_group_with_live_members_is_not_deleted(place: Place, member: Member) -> None:
    consumer = member(Inbox(), group="billing")

    refused = place.call("group", "delete", "billing", "--yes")
    consumer.shutdown()

    assert refused.code == 1
    assert "has live members" in refused.errors
    assert place.done("group", "delete", "billing", "--yes").startswith("group billing is deleted")


@pytest.mark.parametrize(
    "arguments", [("delete", "billing"), ("offset", "reset", "billing", "orders", "--to", "earliest")]
)
def test_nothing_is_done_when_nobody_is_there_to_confirm(place: Place, arguments: tuple[str, ...]) -> None:
    refused = place.call("group", *arguments)

    assert (refused.code, refused.text) == (1, "")
    assert refused.errors.rstrip().endswith("No terminal to confirm it; add --yes")
    assert orders_of(place)["next_offset"] == 3


# -- offsets ------------------------------------------------------------------------------------


def test_a_reset_is_shown_first_then_done_and_remembered(place: Place) -> None:
    reset = ("group", "offset", "reset", "billing", "orders", "--to", "1", "--reason", "wrong prices", "--json")
    expected = {"topic": "orders", "queue": 0, "old_offset": 3, "new_offset": 1, "come_again": 2, "skipped": 0}

    assert rows(place.done(*reset, "--dry-run")) == [expected]
    assert orders_of(place)["next_offset"] == 3
    assert rows(place.done(*reset, "--yes")) == [expected]
    assert orders_of(place)["next_offset"] == 1
    noted = rows(place.done("operation", "list", "--group", "billing", "--json"))[0]
    assert (noted["verb"], noted["actor"], noted["reason"]) == ("offset.reset", getuser(), "wrong prices")
    assert (noted["before"], noted["after"]) == ({"orders": {"0": 3}}, {"orders": {"0": 1}})
    assert "offset.reset" in place.done("operation", "list", "--actor", getuser())
    assert place.done("operation", "list", "--topic", "nowhere") == "There are no such changes.\n"
    assert place.done("consume", "orders", "--group", "billing", "--exit") == "two\nthree\nfour\n"


def test_a_reset_to_a_time(place: Place) -> None:
    reset = ("group", "offset", "reset", "billing", "orders", "--yes", "--json", "--to")

    found = [rows(place.done(*reset, time))[0]["new_offset"] for time in ("1h", "2099-01-01", "@0", "@-1")]

    assert found == [0, 4, 0, 4]


def test_a_reset_asks_on_a_terminal(place: Place) -> None:
    def answered(answer: bytes) -> str:
        ours, theirs = pty.openpty()
        arguments = ["group", "offset", "reset", "billing", "orders", "--to", "earliest"]
        process = warm_process.start(
            [sys.executable, "-m", "mqdb", *arguments],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=place.environ({}),
            cwd="/",
        )
        os.close(theirs)
        os.write(ours, answer)
        printed, _ = process.communicate(timeout=60)
        os.close(ours)
        return str(printed.decode())

    refused = answered(b"n\n")
    before = orders_of(place)["next_offset"]
    answered(b"y\n")

    assert "Reset group billing in topic orders to earliest? [y/N]:" in refused
    assert "come again" in refused
    assert (before, orders_of(place)["next_offset"]) == (3, 0)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("billing", "orders", "--to", "5"), "mqdb: to = 5: queue 0 of topic 'orders' has offsets 0 to 4"),
        (("billing", "orders", "--to", "soon"), "mqdb: to = 'soon': must be earliest, latest"),
        (("billing", "nothing", "--to", "0"), "mqdb: topic 'nothing' does not exist"),
        (("billing", "orders", "--to", "0", "--queue", "7"), "mqdb: topic 'orders' has queues 0 to 0, not 7"),
    ],
)
def test_a_reset_that_makes_no_sense_is_refused(place: Place, arguments: tuple[str, ...], sentence: str) -> None:
    refused = place.call("group", "offset", "reset", *arguments, "--yes")

    assert refused.code == 1
    assert refused.errors.startswith(sentence)
    assert orders_of(place)["next_offset"] == 3


def test_a_clone_goes_on_where_its_source_stands(place: Place) -> None:
    place.done("group", "offset", "clone", "billing", "audit", "--yes")

    assert orders_of(place, "audit")["next_offset"] == 3
    assert place.done("consume", "orders", "--group", "audit", "--exit") == "four\n"


# -- several brokers ----------------------------------------------------------------------------


def test_of_several_brokers_each_has_the_group_for_itself(
    database: Database, second_database: Database, tmp_path: Path
) -> None:
    query(second_database.dsn, "update mqdb.broker set broker_name = 'broker-b'")
    engine = create_engine(second_database.dsn)
    with engine.connect() as connection:
        update_group(connection, "only-b", retry_max_times=1)
    engine.dispose()
    place = Place(tmp_path, f"broker-a={database.dsn};broker-b={second_database.dsn}")
    place.done("topic", "create", "orders", "--queues", "1")
    place.done("group", "set", "both", "--retry-max-times", "2")

    listed = rows(place.done("group", "list", "--json"))
    changed = rows(place.done("group", "offset", "reset", "only-b", "orders", "--to", "latest", "--yes", "--json"))

    assert [(row["group"], row["broker"]) for row in listed] == [
        ("billing", "broker-a"),
        ("both", "broker-a"),
        ("both", "broker-b"),
        ("only-b", "broker-b"),
    ]
    assert [row["broker"] for row in changed] == ["broker-b"]
    assert len(rows(place.done("group", "show", "both", "--json", "--broker", "broker-b"))) == 1
    assert place.done("group", "delete", "both", "--yes") == (
        "group both is deleted on broker-a\ngroup both is deleted on broker-b\n"
    )


# -- pop ------------------------------------------------------------------------------------------


def test_a_group_is_set_to_pop_and_its_messages_are_printed(place: Place) -> None:
    set_to = place.done("group", "set", "workers", "--consume-mode", "pop", "--orderly")
    assert "consume mode pop, orderly yes" in set_to

    printed = place.done("consume", "orders", "--group", "workers", "--pop", "--exit")
    assert printed.split() == ["one", "two", "three", "four"]
    [shown] = rows(place.done("group", "show", "workers", "--json"))
    assert [(queue["next_offset"], queue["in_flight"]) for queue in shown["queues"] if queue["topic"] == "orders"] == [
        (4, 0)
    ]


def test_a_group_that_pulls_goes_on_where_it_has_popped_to(place: Place) -> None:
    place.done("group", "set", "workers", "--consume-mode", "pop")
    assert place.done("consume", "orders", "--group", "workers", "--pop", "--count", "1").split() == ["one"]
    place.done("group", "set", "workers", "--consume-mode", "pull")
    assert place.done("consume", "orders", "--group", "workers", "--exit").split() == ["two", "three", "four"]


def test_only_members_pop(place: Place) -> None:
    assert_refused(
        place.call("consume", "orders", "--pop"), "only members of a group pop messages; name a group with --group"
    )
