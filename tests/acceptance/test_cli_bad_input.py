"""A user's mistake leads to exit code 1 and one line that names the value and the remedy.

No traceback, nothing stored.
"""

import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from mqdb.embedded import EmbeddedPostgres
from mqdb.embedded.ports import candidates, is_free
from mqdb.store import migrations
from tests.fixtures import command_line
from tests.fixtures.command_line import Outcome, Place, served
from tests.fixtures.fuzz import fuzz_cases, fuzz_random
from tests.fixtures.postgres import Database, new_database, query, quick_home

MEGABYTE = 1024 * 1024


@contextmanager
def place_with_topic(home: Path, dsn: str) -> Iterator[Place]:
    with served(Place(home, dsn)) as place:
        place.done("topic", "create", "orders", "--queues", "1")
        yield place


@pytest.fixture
def place(database: Database, tmp_path: Path) -> Iterator[Place]:
    with place_with_topic(tmp_path, database.dsn) as place:
        yield place


@pytest.fixture(scope="module")
def untouched(
    postgres: EmbeddedPostgres, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """One place for all commands that are refused and change nothing."""
    with (
        new_database(postgres, template_database) as database,
        place_with_topic(tmp_path_factory.mktemp("home"), database.dsn) as place,
    ):
        yield place


def free_port() -> int:
    return next(port for port in candidates(0, None) if is_free(port))


def assert_refused(outcome: Outcome, *parts: str) -> None:
    """The command was refused as in the fixture, and wrote nothing to standard output."""
    command_line.assert_refused(outcome, *parts)
    assert outcome.text == ""


def stored(place: Place, topic: str = "orders") -> str:
    return place.done("consume", topic, "--exit")


# -- messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["orders", ""], ["the body is empty", "at least 1 byte"]),
        (["orders", "good", ""], ["the body is empty"]),
        (["orders", "x", "-p", "KEYS=x"], ["property 'KEYS' is reserved", "choose another name"]),
        (["orders", "x", "-p", "a"], ["property = 'a'", "NAME=VALUE"]),
        (["orders", "x", "-p", "a="], ["property 'a'", "blank"]),
        (["orders", "x", "-k", "two words"], ["'two words'", "contains a blank"]),
        (["two words", "x"], ["topic name 'two words'", "1 to 127 characters"]),
        (["", "x"], ["topic name ''", "is empty"]),
        (["SCHEDULE_TOPIC_XXXX", "x"], ["'SCHEDULE_TOPIC_XXXX' belongs to the broker"]),
        (["orders", "x", "-f", "orders.txt"], ["file = 'orders.txt'", "not both"]),
        (["orders", "-f", "/nowhere/orders.txt"], ["'/nowhere/orders.txt'", "No such file or directory"]),
        (["orders", "-f", "/"], ["file = '/'", "Is a directory"]),
        (["orders", "--tag-column", "tag"], ["column = 'tag'", "--format csv or jsonl"]),
        (["orders", "--null", "NA"], ["null = 'NA'", "--format csv or jsonl"]),
        (["orders", "x", "--format", "csv"], ["format = 'csv'", "is for files and standard input"]),
        (["orders", "x", "--tag-column", "c"], ["tag_column = 'c'", "is for files and standard input"]),
        (["orders", "x", "--key-column", "c"], ["key_column = 'c'", "is for files and standard input"]),
        (["orders", "x", "--property-column", "c"], ["property_column = 'c'", "is for files and standard input"]),
        (["orders", "x", "--sharding-column", "c"], ["sharding_column = 'c'", "is for files and standard input"]),
        (["orders", "x", "--body-column", "c"], ["body_column = 'c'", "is for files and standard input"]),
        (["orders", "x", "--null", "NA"], ["null = 'NA'", "is for files and standard input"]),
    ],
    ids=" ".join,
)
def test_a_message_that_no_broker_would_store_is_refused(
    untouched: Place, arguments: list[str], parts: list[str]
) -> None:
    assert_refused(untouched.call("send", *arguments), *parts)

    assert stored(untouched) == ""


def test_an_oversized_body_is_refused_with_its_size_and_the_limit(place: Place) -> None:
    largest = b"x" * (4 * MEGABYTE)
    place.done("send", "orders", "--format", "raw", "--quiet", stdin=largest)

    refused = place.call("send", "orders", "--format", "raw", stdin=largest + b"x")

    assert_refused(refused, "the body has 4,194,305 bytes, the limit is 4,194,304")
    assert len(stored(place)) == len(largest) + 1


def test_oversized_properties_are_refused(untouched: Place) -> None:
    assert_refused(untouched.call("send", "orders", "x", "-p", f"a={'x' * 32_767}"), "the limit is 32,767")


@pytest.mark.parametrize(
    ("lines", "parts"),
    [
        ("id,body\n1,one\n2,\n", ["standard input, line 3", "is empty"]),
        ("id,body\n1,one\n2\n", ["standard input, line 3", "has 1 fields, the header has 2"]),
        ('id,body\n1,one\n2,"two\n', ["standard input, line 3", "is not CSV"]),
        ("id,text\n1,one\n", ["column = 'body'", "the columns are id, text"]),
    ],
)
def test_of_a_batch_with_a_bad_record_nothing_is_stored(untouched: Place, lines: str, parts: list[str]) -> None:
    refused = untouched.call("send", "orders", "--format", "csv", "--body-column", "body", stdin=lines)

    assert_refused(refused, *parts)
    assert stored(untouched) == ""


def test_a_bad_record_after_many_good_ones_says_how_many_were_sent(place: Place) -> None:
    records = [json.dumps({"body": str(number)}) for number in range(1_500)] + ["{"]

    refused = place.call("send", "orders", "--format", "jsonl", "--body-column", "body", stdin="\n".join(records))

    assert_refused(refused, "standard input, line 1,501: is not JSON", "1,000 messages were sent before")
    assert stored(place).count("\n") == 1_000


def test_an_unknown_topic_is_refused_where_topics_are_not_created_automatically(place: Place) -> None:
    refused = place.run("send", "young", "x", MQDB_AUTO_CREATE_TOPIC_ENABLE="false")

    assert_refused(refused, "topic 'young' does not exist; create it with: mqdb topic create young")
    assert "young" not in place.done("topic", "list")


# -- topics, groups, offsets ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["topic", "show", "young"], ["topic 'young' does not exist", "mqdb topic create young"]),
        (["topic", "delete", "young", "--yes"], ["topic 'young' does not exist"]),
        (["topic", "delete", "TBW102", "--yes"], ["topic name 'TBW102'", "belongs to the broker"]),
        (["topic", "create", "ümlaut"], ["topic name 'ümlaut'", "holds 'ü'"]),
        (["topic", "create", "x" * 128], ["has 128 characters", "1 to 127"]),
        (["topic", "create", "young", "--queues", "0"], ["read_queue_nums = 0", "1 to 65,536"]),
        (["topic", "create", "young", "--perm", "8"], ["perm = 8", "from 0 to 7"]),
        (["topic", "create", "orders"], ["topic 'orders' already exists with other settings"]),
        (["consume", "young"], ["topic 'young' does not exist"]),
        (["consume", "young", "--group", "billing"], ["topic 'young' does not exist"]),
        (["consume", "orders", "--group", "two words"], ["group name 'two words'"]),
        (["consume", "orders", "--group", "DEFAULT_CONSUMER"], ["'DEFAULT_CONSUMER'", "is reserved"]),
        (["consume", "orders", "--tag", "||"], ["tag expression '||'", "contains no tag"]),
        (["consume", "orders", "--from-offset", "middle"], ["from_offset = 'middle'", "first, last"]),
        (["consume", "orders", "-o", "7", "-g", "billing"], ["from_offset = '7'", "leave --group out"]),
        (["migrate", "--broker-name", "a b"], ["broker_name = 'a b'"]),
        (["migrate", "--since", "0001"], ["since = '0001'", "only applies to --sql"]),
        (["migrate", "--sql", "--since", "9999"], ["since = '9999'", f"the versions are: {migrations.head()}"]),
        (["topic", "list", "--broker", "broker-x"], ["broker = 'broker-x'", "the brokers are: broker-a"]),
        (["consume", "orders", "--broker", "broker-x"], ["broker = 'broker-x'", "the brokers are: broker-a"]),
    ],
    ids=" ".join,
)
def test_a_command_that_cannot_be_obeyed_is_refused(untouched: Place, arguments: list[str], parts: list[str]) -> None:
    assert_refused(untouched.call(*arguments), *parts)


def test_a_topic_that_nobody_may_read_is_not_consumed(place: Place) -> None:
    place.done("topic", "create", "silent", "--perm", "2")

    assert_refused(place.call("consume", "silent"), "topic = 'silent'", "its perm 2")


# -- the way to the database ----------------------------------------------------------------------

COMMANDS = [("topic", "list"), ("send", "orders", "x"), ("consume", "orders"), ("migrate",), ("serve",)]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_dsn_that_is_none_is_refused_without_its_password(tmp_path: Path, command: tuple[str, ...]) -> None:
    refused = Place(tmp_path).call(*command, "--dsn", "mysql://u:geheim@h/db")

    assert_refused(refused, "dsn = '***'", "from argument", "postgresql://user:password@host:port/database")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_database_that_is_down_is_named_without_its_password(tmp_path: Path, command: tuple[str, ...]) -> None:
    port = free_port()

    refused = Place(tmp_path, f"postgresql://u:geheim@127.0.0.1:{port}/db").call(*command)

    assert_refused(refused, "no broker at ", f"127.0.0.1:{port}/db", "refused")
    assert "geheim" not in refused.errors


def test_a_wrong_password_is_refused_without_being_shown(place: Place, database: Database) -> None:
    parts = urlsplit(database.dsn)
    wrong = parts._replace(netloc=f"{parts.username}:geheim@{parts.hostname}:{parts.port}").geturl()

    refused = place.run("topic", "list", "--dsn", wrong)

    assert_refused(refused, "password authentication failed", ":***@")
    assert "geheim" not in refused.errors


def test_a_database_of_another_name_is_refused(untouched: Place) -> None:
    for command in COMMANDS[:3]:
        refused = untouched.call(*command, "--dsn", f"broker-x={untouched.dsn}")
        assert_refused(refused, "this database is broker 'broker-a', not 'broker-x'")


@pytest.mark.parametrize("command", COMMANDS[:3], ids=" ".join)
def test_a_database_without_a_schema_is_refused_with_the_way_to_make_one(
    empty_database: Database, tmp_path: Path, command: tuple[str, ...]
) -> None:
    place = Place(tmp_path, empty_database.dsn)
    assert_refused(place.call(*command), "has no mqdb schema", "mqdb migrate")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_schema_of_a_newer_mqdb_is_refused_and_left_alone(
    database: Database, tmp_path: Path, command: tuple[str, ...]
) -> None:
    query(database.dsn, "update mqdb.alembic_version set version_num = '9999'")

    refused = Place(tmp_path, database.dsn).call(*command)

    assert_refused(refused, "the schema is at version 9999", "pip install --upgrade mqdb")
    assert query(database.dsn, "select version_num from mqdb.alembic_version") == "9999"


@pytest.mark.parametrize("command", ["serve", "demo --keep"])
def test_several_brokers_are_refused_where_one_is_worked_on(untouched: Place, command: str) -> None:
    refused = untouched.call(*command.split(), "--dsn", f"broker-a={untouched.dsn};broker-b={untouched.dsn}")

    assert_refused(refused, "from argument", "lists several brokers, broker-a, broker-b", "one with --dsn")


# -- the embedded PostgreSQL ----------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS[:3], ids=" ".join)
def test_without_a_broker_in_the_home_a_command_says_how_to_start_one(tmp_path: Path, command: tuple[str, ...]) -> None:
    assert_refused(Place(tmp_path).call(*command), str(tmp_path), "mqdb serve")


def test_where_the_schema_stands_is_asked_without_making_a_database() -> None:
    with quick_home() as place:
        home = place / "home"

        refused = Place(home).call("migrate", "--current")

        assert_refused(refused, str(home), "no database in this home yet", "mqdb serve")
        assert not home.exists()


@pytest.mark.parametrize("command", COMMANDS[3:], ids=" ".join)
def test_a_home_that_is_no_directory_is_refused(tmp_path: Path, command: tuple[str, ...]) -> None:
    home = tmp_path / "home"
    home.write_text("")

    assert_refused(Place(home).call(*command), f"data directory {home}", "set MQDB_HOME to another directory")


@pytest.mark.skipif(os.name == "posix" and os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_home_that_may_not_be_read_is_refused(tmp_path: Path, command: tuple[str, ...]) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0)

    assert_refused(Place(home).call(*command), str(home), "ermission denied")


def test_a_data_directory_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "holiday.jpg").write_text("")

    assert_refused(
        Place(tmp_path).run("serve"), f"data directory {tmp_path / 'data'}", "contains files but no PG_VERSION"
    )


def test_a_port_that_is_taken_is_refused_with_the_way_to_choose_another(postgres: EmbeddedPostgres) -> None:
    with quick_home() as home:
        refused = Place(home).run("serve", "--port", str(postgres.port))

    assert_refused(refused, f"port {postgres.port} of 127.0.0.1 is in use", "--port")


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "environ", "parts"),
    [
        ("port = \n", {}, ["mqdb.toml", "is not TOML", "line 1"]),
        ("prot = 1\n", {}, ["prot = 1", "did you mean port?"]),
        ("", {"MQDB_PORT": "high"}, ["port = 'high'", "environment MQDB_PORT"]),
        ("", {"MQDB_CONFIG": "/nowhere/mqdb.toml"}, ["'/nowhere/mqdb.toml'", "there is no such file"]),
        ("", {"MQDB_FILE_RESERVED_TIME": "3"}, ["file_reserved_time = '3'", "72h"]),
    ],
)
def test_a_bad_setting_is_refused_with_its_source(
    tmp_path: Path, file: str, environ: dict[str, str], parts: list[str]
) -> None:
    (tmp_path / "mqdb.toml").write_text(file)
    for command in (("config",), ("topic", "list"), ("serve",)):
        assert_refused(Place(tmp_path).call(*command, **environ), *parts)


DEEP = 50_000


@pytest.mark.parametrize(
    ("file", "environ", "parts"),
    [
        ("port = " + "[" * DEEP + "]" * DEEP, {}, ["mqdb.toml", "is not TOML"]),
        ("port = " + "{a = " * DEEP + "1" + "}" * DEEP, {}, ["mqdb.toml", "is not TOML"]),
        ("port = " + "9" * 5_000, {}, ["mqdb.toml", "is not TOML"]),
        ("", {"MQDB_PORT": "9" * 5_000}, ["port = '999", "environment MQDB_PORT"]),
        ("", {"MQDB_HOME": "~nosuchuser"}, ["home = '~nosuchuser'", "environment MQDB_HOME", "does not exist here"]),
        ("", {"MQDB_CONFIG": "~nosuchuser/mqdb.toml"}, ["config = '~nosuchuser/mqdb.toml'", "does not exist here"]),
        ("", {"MQDB_CONFIG": "x" * 100_000}, ["config = '", "cannot be read"]),
        ("", {"MQDB_HOME": "postgresql://u:geheim@h/db"}, ["home = '***'", "set it as dsn"]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_no_text_of_a_setting_ends_in_a_traceback(
    tmp_path: Path, file: str, environ: dict[str, str], parts: list[str]
) -> None:
    (tmp_path / "mqdb.toml").write_text(file)

    refused = Place(tmp_path).call("config", **environ)

    assert_refused(refused, *parts)
    assert len(refused.errors) < 4_200


@pytest.mark.parametrize("option", ["--home", "--config"])
def test_a_path_of_a_user_that_there_is_not_is_refused(tmp_path: Path, option: str) -> None:
    refused = Place(tmp_path).call("config", option, "~nosuchuser/x")
    assert_refused(refused, "'~nosuchuser/x'", "user that does not exist", "argument")


@pytest.mark.parametrize(
    "arguments",
    [
        ["send", "orders", b"\xff"],
        ["topic", "show", b"\xff"],
        ["consumer", "status", b"\xff"],
        ["cron", "remove", b"\xff"],
        ["topic", "list", "--dsn", b"\xff"],
        [b"\xff"],
        ["consume", "orders", "--sql", b"a = '\xff'"],
    ],
    ids=repr,
)
def test_an_argument_that_is_not_utf8_is_refused(untouched: Place, arguments: list[str | bytes]) -> None:
    refused = untouched.call(*(os.fsdecode(argument) for argument in arguments))

    assert_refused(
        refused, f"argument {[isinstance(each, bytes) for each in arguments].index(True) + 1}", "is not UTF-8"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "show", "x" * 40_000],
        ["consume", "orders", "--count", "9" * 5_000],
        ["consume", "orders", "--from-offset", "9" * 5_000],
        ["consume", "orders", "--from-offset", "9" * 19],
        ["group", "offset", "reset", "readers", "orders", "--to", "9" * 5_000],
        ["group", "offset", "reset", "readers", "orders", "--to", "@" + "9" * 5_000],
        ["send", "orders", "x", "--delay", "9" * 5_000 + "s"],
        ["send", "orders", "x", "--delay-level", "9" * 5_000],
        ["consumer", "status", "x" * 40_000],
        ["cron", "add", "c", "9" * 5_000 + " * * * *", "orders", "x"],
        ["timer", "recall", "x" * 40_000],
        ["dlq", "show", "x" * 40_000],
        ["x" * 40_000],
        ["send", "orders", "x", "--" + "x" * 40_000],
        ["send", "orders", "x", "-p", "a" * 40_000 + "=b"],
    ],
    ids=lambda arguments: " ".join(arguments)[:40],
)
def test_no_long_argument_ends_in_a_traceback_or_fills_the_screen(untouched: Place, arguments: list[str]) -> None:
    refused = untouched.call(*arguments)

    assert_refused(refused)
    assert len(refused.errors) < 4_200


@pytest.mark.parametrize("line", ["[" * DEEP, '{"a":' * DEEP, '{"a": ' + "9" * 5_000 + "}"], ids=lambda line: line[:9])
def test_json_that_is_too_deep_or_too_long_is_refused(untouched: Place, line: str) -> None:
    refused = untouched.call(
        "send", "orders", "--file", "-", "--format", "jsonl", "--tag-column", "a", stdin=line + "\n"
    )

    assert_refused(refused, "line 1", "is not JSON")
    assert stored(untouched) == ""


@pytest.mark.timeout(60 + fuzz_cases() // 5)
def test_no_command_line_ends_in_a_traceback(place: Place) -> None:
    chance = fuzz_random()
    for _ in range(fuzz_cases()):
        arguments = [any_argument(chance) for _ in range(chance.randrange(1, 6))]

        outcome = place.call(*chance.choice(BEGINNINGS), *arguments)

        assert outcome.code in (0, 1), arguments
        assert outcome.code == 0 or len(outcome.errors) < 4_200, arguments


BEGINNINGS = [
    ["topic", "show"],
    ["topic", "create"],
    ["send", "orders"],
    ["consume", "orders", "--exit"],
    ["group", "set"],
    ["group", "offset", "reset"],
    ["consumer", "status"],
    ["cron", "add"],
    ["dlq", "list"],
    ["dlq", "show"],
    ["timer", "recall"],
    ["transaction", "resolve"],
    ["selector", "explain"],
    ["delay", "skip"],
    ["config"],
    [],
]


def any_argument(chance: random.Random) -> str:
    """A word, an option with a value, or an argument that is neither."""
    words = [
        "orders",
        "readers",
        "",
        "-",
        "--",
        "0",
        "-1",
        "9" * 5_000,
        "x" * 40_000,
        "~nosuchuser",
        "\udcff",
        "%DLQ%g",
        "a = 1",
        "* * * * *",
        "2026-07-14",
        "30m",
        "@5",
        "'",
        "[bold]",
        "\x1b[31m",
        "\u202e",
        "é",
        "NaN",
        "1e400",
    ]
    options = [
        "--tag",
        "--sql",
        "--delay",
        "--deliver-at",
        "--format=jsonl",
        "--queues",
        "--perm",
        "--to",
        "--json",
        "--count",
        "--group",
        "--broker",
        "--from-offset",
        "--limit",
        "--where",
        "--key",
        "-p",
        "--null",
        "-e",
    ]
    return chance.choice(chance.choice((words, options)))


def test_the_demo_does_not_take_a_database_that_it_would_remove(tmp_path: Path) -> None:
    for option in (["--home", str(tmp_path)], ["--dsn", "postgresql://h/db"]):
        assert_refused(Place(tmp_path).call("demo", *option), option[1], "--keep")


# -- for those who look for the fault in mqdb -----------------------------------------------------


def test_with_mqdb_debug_the_traceback_is_shown(tmp_path: Path) -> None:
    shown = Place(tmp_path).run("topic", "list", MQDB_DEBUG="1")

    assert shown.code == 1
    assert "Traceback" in shown.errors
    assert "mqdb.errors.BrokerUnavailable" in shown.errors
