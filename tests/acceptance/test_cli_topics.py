"""`mqdb topic`, `mqdb migrate` and `mqdb config` as processes."""

import json
from pathlib import Path

import pytest

from tests.fixtures.command_line import Place
from tests.fixtures.postgres import Database


@pytest.fixture
def place(database: Database, tmp_path: Path) -> Place:
    """A broker without a broker process."""
    return Place(tmp_path, database.dsn)


def test_a_topic_is_created_listed_shown_and_deleted(place: Place) -> None:
    assert place.done("topic", "create", "orders", "--queues", "2", "--order", "--type", "fifo") == (
        "topic orders has 2 queues\n"
    )
    assert json.loads(place.done("topic", "list", "--json")) == {
        "topic": "orders",
        "read_queues": 2,
        "write_queues": 2,
        "perm": "RW-",
        "order": True,
        "type": "FIFO",
    }
    shown = place.done("topic", "show", "orders")
    assert "orders: read queues 2, write queues 2, perm RW-, order yes, type FIFO" in shown
    assert "No group has read this topic yet." in shown
    assert place.done("topic", "delete", "orders", "--yes") == "topic orders is deleted\n"
    assert place.done("topic", "list", "--json") == ""
    assert place.done("topic", "list") == "There are no topics yet.\n"


def test_the_list_has_the_topics_of_the_broker_itself_only_when_asked(place: Place) -> None:
    place.done("topic", "create", "orders")

    assert "TBW102" not in place.done("topic", "list")
    assert "TBW102" in place.done("topic", "list", "--all")


def test_a_topic_shows_its_messages_and_how_far_each_group_has_read_them(place: Place) -> None:
    place.done("topic", "create", "orders", "--queues", "1")
    place.done("send", "orders", "one", "two", "three")
    place.done("consume", "orders", "--group", "billing", "--count", "2")

    shown = json.loads(place.done("topic", "show", "orders", "--json"))

    (queue,) = shown["queues"]
    assert (queue["min_offset"], queue["max_offset"], queue["messages"]) == (0, 3, 3)
    assert queue["last_stored"] is not None
    read = {"group": "billing", "queue": 0, "next_offset": 2, "lag": 1, "waiting": 0, "owner": None}
    assert shown["groups"] == [read]


def test_a_topic_is_not_deleted_when_nobody_is_there_to_confirm(place: Place) -> None:
    place.done("topic", "create", "orders")

    refused = place.run("topic", "delete", "orders")

    question = "Delete topic orders and all its messages?"
    assert (refused.code, refused.errors) == (1, f"mqdb: {question} No terminal to confirm it; add --yes\n")
    assert '"orders"' in place.done("topic", "list", "--json")


def test_a_topic_that_something_names_is_deleted_with_it_by_force_only(database: Database, tmp_path: Path) -> None:
    """A topic that a cron or a waiting message uses is deleted only with --force, together with its users.

    This also holds if no process dispatches the sent messages.
    """
    place = Place(tmp_path, database.dsn)
    place.done("topic", "create", "orders")
    place.done("cron", "add", "tick", "--cron", "@yearly", "--topic", "orders", "--body", "happy new year")
    place.done("send", "orders", "later", "--delay", "1h")

    refused = place.call("topic", "delete", "orders", "--yes")
    asked = place.call("topic", "delete", "orders", "--force")
    done = place.done("topic", "delete", "orders", "--force", "--yes")

    users = "crons (1: tick) and scheduled messages (1)"
    assert (refused.code, refused.errors) == (
        1,
        f"mqdb: topic 'orders' is used by {users}; to delete it with them: mqdb topic delete orders --force\n",
    )
    assert f"Delete topic orders and all its messages, with {users}?" in asked.errors
    assert done == f"topic orders is deleted, with {users}\n"
    assert place.done("cron", "list", "--json") == place.done("timer", "list", "--json") == ""


@pytest.mark.parametrize("options", [(), ("--yes",)], ids=" ".join)
def test_of_a_topic_that_is_not_there_the_deletion_is_not_confirmed(place: Place, options: tuple[str, ...]) -> None:
    refused = place.call("topic", "delete", "young", *options)

    assert (refused.code, refused.errors) == (1, "mqdb: topic 'young' does not exist\n")


def test_migrate_makes_the_schema_once_and_says_where_it_stands(empty_database: Database, tmp_path: Path) -> None:
    place = Place(tmp_path, empty_database.dsn)

    assert place.done("migrate", "--current").startswith("no schema mqdb; this mqdb uses ")
    assert place.done("migrate", "--broker-name", "broker-b").startswith("the schema went from nothing to ")
    assert place.done("migrate", "--current").endswith(", the newest\n")
    assert place.done("migrate").startswith("the schema is at ")
    named = Place(tmp_path, f"broker-b={place.dsn}")
    assert "TBW102" in named.done("topic", "list", "--all")


def test_migrate_prints_the_sql_without_any_database(tmp_path: Path) -> None:
    printed = Place(tmp_path).done("migrate", "--sql")

    assert "CREATE SCHEMA mqdb;" in printed
    assert printed.rstrip().endswith("COMMIT;")


def test_config_shows_each_setting_with_its_origin_and_no_password(tmp_path: Path) -> None:
    (tmp_path / "mqdb.toml").write_text('cluster_name = "of-file"\n')
    place = Place(tmp_path)

    shown = json.loads(
        place.done("config", "--json", "--dsn", "postgresql://u:geheim@h/db", MQDB_FILE_RESERVED_TIME="30d")
    )

    assert shown["dsn"] == {"value": "postgresql://u:***@h/db", "origin": "argument"}
    assert shown["file_reserved_time"] == {"value": "30d", "origin": "environment MQDB_FILE_RESERVED_TIME"}
    assert shown["cluster_name"] == {"value": "of-file", "origin": f"file {tmp_path / 'mqdb.toml'}"}
    assert shown["port"] == {"value": 0, "origin": "default"}
    table = place.done("config")
    assert "of-file" in table
    assert f"file {tmp_path / 'mqdb.toml'}" in table


def test_config_names_variables_that_nothing_reads(tmp_path: Path) -> None:
    shown = Place(tmp_path).call("config", "--json", MQDB_PROT="geheim")

    assert shown.code == 0
    assert shown.errors.endswith("variable MQDB_PROT; did you mean MQDB_PORT?\n")
    assert "geheim" not in shown.text + shown.errors
    json.loads(shown.text)


def test_an_option_of_every_command_may_stand_before_or_behind_the_command(tmp_path: Path) -> None:
    before, behind = tmp_path / "before", tmp_path / "behind"

    for arguments in (["--home", str(before), "config"], ["config", "--home", str(before)]):
        assert str(before) in Place(tmp_path).done(*arguments)
    both = Place(tmp_path).done("--home", str(before), "config", "--home", str(behind))
    assert str(behind) in both
