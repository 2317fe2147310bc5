"""`mqdb selector explain`, and reading with an SQL92 filter on the command line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqdb.embedded import EmbeddedPostgres
from tests.fixtures.command_line import Place, served
from tests.fixtures.postgres import Database, new_database


@pytest.fixture(scope="module")
def database(postgres: EmbeddedPostgres, template_database: str) -> Iterator[Database]:
    """The database of `place`, shared by all tests."""
    with new_database(postgres, template_database) as database:
        yield database


@pytest.fixture(scope="module")
def place(database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A broker that all tests share: ten messages in topic `orders`, with `a` from 0 to 9, the odd ones with a tag."""
    with served(Place(tmp_path_factory.mktemp("home"), database.dsn)) as place:
        place.done("topic", "create", "orders", "--queues", "2")
        columns = ("--body-column", "a", "--property-column", "a", "--tag-column", "tag")
        lines = [f"{number},{'odd' if number % 2 else ''}" for number in range(10)]
        place.done("send", "orders", "--format", "csv", *columns, stdin="\n".join(["a,tag", *lines]))
        yield place


def explained(place: Place, *arguments: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(place.done("selector", "explain", *arguments, "--json"))
    return answer


# -- explain ------------------------------------------------------------------------------------


def test_without_a_topic_it_needs_no_broker(tmp_path: Path) -> None:
    answer = explained(Place(tmp_path), "b = 'it''s' AND (a > 1.5 OR TAGS IS NULL)")

    assert answer["properties"] == ["TAGS", "a", "b"]
    assert answer["tree"] == [
        "AND",
        "  =",
        "    property b",
        "    text 'it''s'",
        "  OR",
        "    >",
        "      property a",
        "      double 1.5",
        "    IS NULL",
        "      property TAGS",
    ]
    assert "'it''s'" in answer["sql"]
    assert answer["trials"] == []


def test_an_expression_may_begin_with_a_minus(tmp_path: Path) -> None:
    answer: dict[str, Any] = json.loads(Place(tmp_path).done("selector", "explain", "--json", "--", "-a > 0"))

    assert answer["tree"] == [">", "  minus", "    property a", "  int 0"]


def test_people_get_a_tree_the_sql_and_the_warnings(tmp_path: Path) -> None:
    printed = Place(tmp_path).done("selector", "explain", "NOT a = 'x' AND b = 'y'")

    assert "├── =\n│   ├── NOT\n│   │   └── property a\n" in printed
    assert "Properties: a, b" in printed
    assert "NOT a = 'x': NOT binds tighter" in printed


def test_the_sql_is_what_psql_takes(place: Place, database: Database) -> None:
    expression = r"b = 'back\slash 100%' OR a BETWEEN 2 AND 4.5 OR TAGS IN ('x') OR -a = 1 OR KEYS CONTAINS '%'"
    sql = explained(place, expression)["sql"]

    rows = database.connect().execute(f"SELECT text FROM mqdb.message WHERE {sql} ORDER BY text").fetchall()

    assert rows == [("2",), ("3",), ("4",)]


def test_with_a_topic_it_says_how_many_match_and_what_a_pull_costs(place: Place) -> None:
    answer = explained(place, "a >= 7 AND TAGS = 'odd'", "--topic", "orders")

    (trial,) = answer["trials"]
    assert (trial["topic"], trial["examined"], trial["matched"], trial["scanned"]) == ("orders", 10, 2, 10)
    plan = "\n".join(trial["plan"])
    assert "queue_run" in plan
    assert "Buffers:" in plan
    assert "Execution Time:" in plan


def test_only_the_latest_messages_count_if_asked(place: Place) -> None:
    printed = place.done("selector", "explain", "a >= 5", "--topic", "orders", "--last", "3")

    assert "orders: 3 of the last 3 messages match" in printed


def test_a_topic_that_is_not_there(place: Place) -> None:
    outcome = place.call("selector", "explain", "a = 'x'", "--topic", "nowhere")

    assert outcome.code == 1
    assert "topic 'nowhere' does not exist" in outcome.errors


def test_an_expression_that_does_not_compile_is_shown_with_the_place(tmp_path: Path) -> None:
    outcome = Place(tmp_path).call("selector", "explain", "a = 1 + 2")

    assert outcome.code == 1
    lines = outcome.errors.splitlines()
    caret = next(line for line in lines if line.strip() == "^")
    line = lines[lines.index(caret) - 1]
    assert line.endswith("a = 1 + 2")
    assert line[caret.index("^") :] == "+ 2"


# -- consume ------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [(), ("--group", "readers")], ids=["alone", "in a group"])
def test_messages_are_read_by_sql92(place: Place, group: tuple[str, ...]) -> None:
    printed = place.done("consume", "orders", "--exit", "--sql", "a > 2 AND TAGS = 'odd'", *group)

    assert sorted(printed.split()) == ["3", "5", "7", "9"]


def test_a_filter_is_of_one_kind(place: Place) -> None:
    outcome = place.call("consume", "orders", "--exit", "--sql", "a > 2", "--tag", "odd")

    assert outcome.code == 1
    assert "--tag or by --sql" in outcome.errors
