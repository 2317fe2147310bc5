"""`mqdb send` and `mqdb consume` as processes, used like kcat."""

import itertools
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from mqdb.embedded import EmbeddedPostgres
from tests.fixtures import warm_process
from tests.fixtures.command_line import SECONDS, Place, served, without_waits
from tests.fixtures.postgres import Database, new_database, query
from tests.fixtures.variants import usually

ID = r"[0-9A-F]{32}"


_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def place(
    postgres: EmbeddedPostgres, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """A running broker that all tests share; each test uses its own topic and group."""
    with (
        new_database(postgres, template_database) as database,
        served(Place(tmp_path_factory.mktemp("home"), database.dsn)) as place,
    ):
        yield place


@pytest.fixture
def orders(place: Place) -> str:
    """A new topic with one queue, so that order can be checked."""
    topic = f"orders-{next(_numbers)}"
    place.done("topic", "create", topic, "--queues", "1")
    return topic


@pytest.fixture
def billing() -> str:
    """The name of an unused group."""
    return f"billing-{next(_numbers)}"


@pytest.fixture(params=[False, True], ids=["reader", "group"])
def group(request: pytest.FixtureRequest, billing: str) -> tuple[str, ...]:
    """The options of a reader, and those of a member of a group."""
    return ("--group", billing) if request.param else ()


def messages(place: Place, topic: str, *options: str) -> list[dict[str, Any]]:
    printed = place.done("consume", topic, "--exit", "--format", "json", *options)
    return [json.loads(line) for line in printed.splitlines()]


# -- what goes in comes out -----------------------------------------------------------------------


def test_each_argument_is_a_message_and_its_id_is_printed(place: Place, orders: str) -> None:
    printed = place.done(
        *("send", orders, "one", "two words", "--tag", "new", "-k", "k1", "-k", "k2", "-p", "a=b=c", "-p", "d=e")
    )

    ids = printed.split()
    assert all(re.fullmatch(ID, each) for each in ids)
    first, second = messages(place, orders)
    assert [first["message_id"], second["message_id"]] == ids
    assert (first["body"], second["body"]) == ("one", "two words")
    assert (first["tag"], first["keys"], first["topic"], first["queue_offset"]) == ("new", ["k1", "k2"], orders, 0)
    assert {name: first["properties"][name] for name in ("a", "d", "TAGS", "KEYS")} == {
        "a": "b=c",
        "d": "e",
        "TAGS": "new",
        "KEYS": "k1 k2",
    }
    assert place.done("consume", orders, "-e") == "one\ntwo words\n"


def test_lines_of_standard_input_are_messages_and_empty_ones_are_not(place: Place, orders: str) -> None:
    place.done("send", orders, stdin="one\r\n\ntwo")
    place.done("send", orders, "-", stdin="three\n")

    assert place.done("consume", orders, "-e") == "one\ntwo\nthree\n"


def test_lines_of_files_are_messages(place: Place, orders: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "b.txt").write_text("two\n")

    place.done("send", orders, "-f", str(tmp_path / "a.txt"), "--file", str(tmp_path / "b.txt"))

    assert place.done("consume", orders, "-e") == "one\ntwo\n"


def test_a_raw_file_is_one_message_byte_by_byte(place: Place, orders: str, tmp_path: Path) -> None:
    content = b"\x89PNG\r\n\x00\xff\n"
    (tmp_path / "picture").write_bytes(content)

    place.done("send", orders, "-f", str(tmp_path / "picture"), "--format", "raw")

    assert place.run("consume", orders, "-e").output == content + b"\n"


def test_csv_records_come_back_with_tag_keys_and_properties_as_mapped(
    place: Place, orders: str, tmp_path: Path
) -> None:
    lines = files("mqdb.cli").joinpath("demo_data", "flights.csv").read_text().splitlines(keepends=True)
    # The last flights of a day were cancelled: no departure time, and some without an aircraft.
    flights = [lines[0], *lines[930:945], *lines[1780:1787]]
    (tmp_path / "flights.csv").write_text("".join(flights))

    place.done(
        *("send", orders, "-f", str(tmp_path / "flights.csv"), "--quiet"),
        *("--tag-column", "carrier", "--key-column", "flight", "--key-column", "tailnum"),
        *("--property-column", "origin", "--property-column", "dep_delay", "--null", "NA"),
    )

    header = flights[0].strip().split(",")
    received = messages(place, orders)
    assert len(received) == len(flights) - 1
    for message, line in zip(received, flights[1:], strict=True):
        record = {
            name: None if value == "NA" else value for name, value in zip(header, line.strip().split(","), strict=True)
        }
        assert json.loads(message["body"]) == record
        assert message["tag"] == record["carrier"]
        assert message["keys"] == [each for each in (record["flight"], record["tailnum"]) if each is not None]
        assert message["properties"].get("origin") == record["origin"]
        assert message["properties"].get("dep_delay") == record["dep_delay"]
    assert any("dep_delay" not in message["properties"] for message in received)


def test_what_consume_prints_as_json_can_be_sent_again(place: Place, orders: str) -> None:
    place.done("send", orders, "Grüezi", "--tag", "new", "-k", "k1", "-k", "k2")
    printed = place.done("consume", orders, "-e", "--format", "json")

    place.done(
        *("send", orders, "--format", "jsonl", "--body-column", "body", "--tag-column", "tag"),
        *("--key-column", "keys"),
        stdin=printed,
    )

    first, second = messages(place, orders)
    assert [second[name] for name in ("body", "tag", "keys")] == [first[name] for name in ("body", "tag", "keys")]


def test_a_field_that_no_json_record_has_is_named(place: Place, orders: str) -> None:
    options = ("--format", "jsonl", "--tag-column", "status", "--key-column", "nix")

    sent = place.call("send", orders, *options, stdin='{"id": 1}\n{"status": "paid"}\n')

    assert (sent.code, sent.errors) == (0, "mqdb: no record of standard input has 'nix'\n")
    assert [each["tag"] for each in messages(place, orders)] == [None, "paid"]
    assert place.done("send", orders, *options, stdin="") == ""


def test_messages_of_one_sharding_key_stay_in_order_in_one_queue(place: Place, tmp_path: Path) -> None:
    place.done("topic", "create", "sharded", "--queues", "8")
    records = "".join(f"{number % 7},{number}\n" for number in range(700))
    (tmp_path / "wide.csv").write_text(f"customer,number\n{records}")

    place.done(
        *(
            "send",
            "sharded",
            "-f",
            str(tmp_path / "wide.csv"),
            "--sharding-column",
            "customer",
            "--body-column",
            "number",
        ),
        *("--tag-column", "customer", "--quiet"),
    )

    places: dict[str, list[tuple[int, int]]] = {}
    for message in sorted(messages(place, "sharded"), key=lambda each: int(each["body"])):
        places.setdefault(message["tag"], []).append((message["queue_id"], message["queue_offset"]))
    assert len(places) == 7
    for way in places.values():
        assert way == sorted(way)
        assert len({queue_id for queue_id, _ in way}) == 1


def test_many_messages_are_summed_up_and_none_is_missing(place: Place, orders: str) -> None:
    numbers = "".join(f"{number}\n" for number in range(2_500))

    printed = place.done("send", orders, stdin=numbers)

    assert re.fullmatch(rf"sent 2,500 messages to topic {orders} in \d+\.\d\d s \([\d,]+/s\)\n", printed)
    # Batches go to queues in turn; there is only one.
    assert place.done("consume", orders, "-e") == numbers


def test_a_topic_that_is_not_there_is_created_by_the_first_message(place: Place) -> None:
    assert place.done("send", "young", "first", "--quiet") == ""

    listed = map(json.loads, place.done("topic", "list", "--json").splitlines())
    assert [topic["write_queues"] for topic in listed if topic["topic"] == "young"] == [4]
    assert place.done("consume", "young", "-e") == "first\n"


def test_a_line_of_a_pipe_is_sent_before_the_pipe_ends(place: Place, orders: str) -> None:
    with place.running("consume", orders) as consumer, place.running("send", orders) as sender:
        sender.write("one\n")
        assert consumer.line() == "one"
        sender.write("two\nthree\n")
        assert [consumer.line(), consumer.line()] == ["two", "three"]


# -- what consume chooses -------------------------------------------------------------------------


def test_consume_takes_as_many_as_asked_with_the_tags_from_the_offset_on(place: Place, orders: str) -> None:
    for tag in ("a", "b", "c"):
        place.done("send", orders, f"{tag}1", f"{tag}2", "--tag", tag)

    assert place.done("consume", orders, "-e", "--count", "2") == "a1\na2\n"
    assert place.done("consume", orders, "-e", "--tag", "c || a") == "a1\na2\nc1\nc2\n"
    assert place.done("consume", orders, "-e", "--from-offset", "3") == "b2\nc1\nc2\n"
    assert place.done("consume", orders, "-e", "-o", "last") == ""
    assert place.done("consume", orders, "-e", "-o", "5", "-t", "a") == ""


def test_json_is_short_for_its_format(place: Place, orders: str) -> None:
    place.done("send", orders, "one")

    assert place.done("consume", orders, "-e", "--json") == place.done("consume", orders, "-e", "--format", "json")


def test_a_reader_from_the_end_gets_what_comes_later(place: Place, orders: str) -> None:
    place.done("send", orders, "early")

    with place.running("consume", orders, "--from-offset", "last", "-v") as reader:
        # It has looked up the end as soon as it says so.
        assert reader.process.stderr is not None
        assert "reading" in reader.process.stderr.readline()
        place.done("send", orders, "late")
        assert reader.line() == "late"


def test_a_reader_commits_nothing(place: Place, orders: str) -> None:
    place.done("send", orders, "one")

    assert place.done("consume", orders, "-e") == place.done("consume", orders, "-e") == "one\n"
    assert json.loads(place.done("topic", "show", orders, "--json"))["groups"] == []


def test_a_group_goes_on_where_it_stopped_and_gets_each_message_once(place: Place, billing: str) -> None:
    place.done("topic", "create", "wide", "--queues", "4")
    for batch in ("abc", "def", "ghi", "jkl"):
        place.done("send", "wide", *batch)

    parts = [
        place.done("consume", "wide", "--group", billing, "--count", "5").split(),
        place.done("consume", "wide", "--group", billing, "--count", "1").split(),
        place.done("consume", "wide", "--group", billing, "--exit").split(),
    ]

    assert [len(part) for part in parts] == [5, 1, 6]
    assert sorted(each for part in parts for each in part) == list("abcdefghijkl")
    assert place.done("consume", "wide", "--group", billing, "--exit") == ""


def test_a_new_group_may_begin_at_the_end(place: Place, orders: str, billing: str) -> None:
    place.done("send", orders, "early")
    assert place.done("consume", orders, "--group", billing, "--from-offset", "last", "--exit") == ""
    place.done("send", orders, "late")

    assert place.done("consume", orders, "--group", billing, "--exit") == "late\n"


def test_a_group_with_a_tag_reads_over_what_it_does_not_want(place: Place, orders: str, billing: str) -> None:
    place.done("send", orders, "a", "--tag", "a")
    place.done("send", orders, "b", "--tag", "b")

    assert place.done("consume", orders, "--group", billing, "--tag", "b", "--exit") == "b\n"


def test_messages_are_sent_and_read_where_no_broker_is_at_work(database: Database, tmp_path: Path) -> None:
    place = Place(tmp_path, database.dsn)

    place.done("send", "orders", "one")

    assert place.done("consume", "orders", "--exit") == "one\n"
    assert place.run("consume", "orders", "--exit", "--group", "billing").text == "one\n"


# -- how it ends ----------------------------------------------------------------------------------


def test_ctrl_c_ends_consume_quietly(place: Place, orders: str, group: tuple[str, ...]) -> None:
    place.done("send", orders, "one")
    with place.running("consume", orders, *group) as consumer:
        assert consumer.line() == "one"

        code, errors = consumer.interrupt()

    assert (code, without_waits(errors)) == (130, "")

    if group:
        assert place.done("consume", orders, *group, "--exit") == ""


def test_a_group_is_left_in_order_when_consume_is_terminated(place: Place, orders: str, billing: str) -> None:
    place.done("send", orders, "one")
    with place.running("consume", orders, "--group", billing) as consumer:
        assert consumer.line() == "one"

        code, errors = consumer.end(signal.SIGTERM)

    assert (code, without_waits(errors)) == (143, "")

    (progress,) = json.loads(place.done("topic", "show", orders, "--json"))["groups"]
    assert (progress["next_offset"], progress["owner"]) == (1, None)


#: More than a pipe holds: consume hangs in the write.
WIDE = "x" * 200_000

SHORT_SHUTDOWN = """
import functools, sys
from datetime import timedelta
import mqdb_client
mqdb_client.PushConsumer = functools.partial(mqdb_client.PushConsumer, shutdown_timeout=timedelta(seconds=1))
from mqdb.cli import main
main()
"""


def test_consume_whose_reader_hangs_gives_up_in_time(place: Place, orders: str, billing: str, tmp_path: Path) -> None:
    place.done("send", orders, stdin=WIDE)
    program = tmp_path / "short_shutdown.py"
    program.write_text(SHORT_SHUTDOWN)
    command = [sys.executable, str(program), "consume", orders, "--group", billing]
    with warm_process.start(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=place.environ({})
    ) as consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        assert consumer.stdout.read(1) == "x"

        consumer.terminate()

        assert consumer.wait(SECONDS) == 1
        first, *others, last = consumer.stderr.read().splitlines()
    assert " waits for 1 running listeners, " in first
    assert without_waits("\n".join(others)) == ""
    assert last == (
        f"mqdb: left group '{billing}' after 1 s while 1 of its listeners were running; "
        "their messages will be redelivered"
    )
    assert place.done("consume", orders, "--group", billing, "--exit") == f"{WIDE}\n"


@pytest.mark.parametrize("how", usually(signal.SIGINT, of=[signal.SIGINT, signal.SIGTERM]))
def test_a_second_signal_ends_consume_at_once_without_a_traceback(
    place: Place, orders: str, billing: str, how: signal.Signals
) -> None:
    place.done("send", orders, stdin=WIDE)
    with place.running("consume", orders, "--group", billing) as consumer:
        assert consumer.process.stdout is not None
        assert consumer.process.stderr is not None
        assert consumer.process.stdout.read(1) == "x"
        consumer.process.send_signal(how)
        assert " waits for 1 running listeners" in consumer.process.stderr.readline()

        assert consumer.end(how) == (-how, "")


def test_consume_ends_quietly_when_its_reader_is_gone(place: Place, orders: str, group: tuple[str, ...]) -> None:
    place.done("send", orders, stdin="".join(f"{number}\n" for number in range(2_000)))
    with place.running("consume", orders, *group) as consumer:
        assert consumer.line() == "0"
        assert consumer.process.stdout is not None
        consumer.process.stdout.close()
        place.done("send", orders, "one more", "--quiet")  # it may have printed all others before

        assert consumer.process.wait(60) != 0

        assert consumer.process.stderr is not None
        assert without_waits(consumer.process.stderr.read()) == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("unbuffered", usually("", of=["", "1"]), ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    "command",
    ["topic list", "consume ORDERS --exit", "consume ORDERS --group BILLING --exit"],
)
def test_output_that_cannot_be_written_is_one_line(
    place: Place, orders: str, billing: str, command: str, unbuffered: str
) -> None:
    place.done("send", orders, "one")
    # How Python itself begins and ends is the same for all commands.
    start = subprocess.Popen if command == "topic list" else warm_process.start
    arguments = command.replace("ORDERS", orders).replace("BILLING", billing).split()

    with Path("/dev/full").open("wb") as full:
        process = start(
            [sys.executable, "-m", "mqdb", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            env=place.environ({"PYTHONUNBUFFERED": unbuffered}),
        )
    _, errors = process.communicate(timeout=SECONDS)

    assert errors.decode() == "mqdb: cannot write to standard output: No space left on device\n"
    assert process.returncode == 1


def test_ctrl_c_ends_send_quietly_with_all_lines_sent(place: Place, orders: str) -> None:
    with place.running("send", orders) as sender:
        sender.write("one\n")
        assert place.call("consume", orders, "--count", "1").text == "one\n"

        assert sender.interrupt() == (130, "")


def test_a_body_that_cannot_be_decompressed_ends_consume_with_its_sentence(
    place: Place, orders: str, group: tuple[str, ...]
) -> None:
    place.done("send", orders, "good", "broken")
    assert place.dsn is not None
    query(place.dsn, "UPDATE mqdb.commit_log SET sys_flag = 1 WHERE body = 'broken'")  # says ZLIB

    ended = place.call("consume", orders, *group)

    assert (ended.code, ended.text) == (1, "good\n")
    assert re.fullmatch(r"mqdb: .*cannot be decompressed.*\n", ended.errors)
