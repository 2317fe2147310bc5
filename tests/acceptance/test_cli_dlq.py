"""`mqdb dlq` lists, shows, exports and redrives dead letters on one broker or several."""

import base64
import json
import os
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection

from mqdb.common.compression import Compression, compressed_flag
from mqdb.embedded.ports import candidates, is_free
from tests.fixtures.command_line import Place, assert_refused
from tests.fixtures.dead_letters import FAILURE, bury, create_group, json_lines, letter_id, redriven
from tests.fixtures.postgres import Database
from tests.fixtures.producers import TwoBrokers

NOBODY = "0A0B0C0D1E2F00000000000000000001"


@pytest.fixture
def place(database: Database, tmp_path: Path) -> Place:
    """A broker without a broker process: `mqdb dlq` dispatches by itself."""
    return Place(tmp_path, database.dsn)


# -- list and show --------------------------------------------------------------------------------


def test_without_a_group_the_causes_of_death_are_counted(place: Place, broker: Connection) -> None:
    assert place.done("dlq", "list") == "No dead letter queue has such a message.\n"
    for number in range(3):
        bury(broker, str(number))
    bury(broker, "late", "shipping", failure=replace(FAILURE, exception="TimeoutError"))

    lines = json_lines(place.done("dlq", "list", "--json"))
    shown = place.done("dlq", "list")

    causes = [(each["group"], each["topic"], each["exception"], each["messages"]) for each in lines]
    assert causes == [("billing", "orders", "shop.NoPrice", 3), ("shipping", "orders", "TimeoutError", 1)]
    assert [line.split()[:5] for line in shown.splitlines()[2:]] == [
        ["billing", "orders", "shop.NoPrice", "3", "0"],
        ["shipping", "orders", "TimeoutError", "1", "0"],
    ]


def test_the_letters_of_a_group_are_listed_with_the_youngest_first(place: Place, broker: Connection) -> None:
    letters = [bury(broker, body, tag=body, keys=("order-17",)) for body in ("first", "second")]
    bury(broker, "of another", "shipping")

    shown = place.done("dlq", "list", "billing").splitlines()
    lines = json_lines(place.done("dlq", "list", "billing", "--json"))

    assert [letter_id(broker, log_pos) in row for row, log_pos in zip(shown[2:], letters[::-1], strict=True)] == [
        True
    ] * 2
    assert "second  order-17        17  shop.NoPrice  no price for order-17" in shown[2]
    assert [each["log_pos"] for each in lines] == letters[::-1]
    assert lines[0]["error"] == "no price for order-17"
    assert json_lines(place.done("dlq", "list", "billing", "--json", "--limit", "1")) == lines[:1]


def test_letters_are_chosen_by_options(place: Place, broker: Connection) -> None:
    paid = bury(broker, "a", tag="paid")
    late = bury(broker, "b", topic="returns", failure=replace(FAILURE, exception="TimeoutError", message="100%"))

    def found(*options: str) -> list[int]:
        return [each["log_pos"] for each in json_lines(place.done("dlq", "list", "billing", "--json", *options))]

    assert found("--topic", "returns") == [late]
    assert found("--tag", "new || paid") == [paid]
    assert found("--exception", "timeout") == [late]
    assert found("--since", "1h") == [late, paid]
    assert found("--until", "1h") == []
    assert found("--since", "2000-01-01T00:00:00Z", "--until", "2000-01-02") == []
    assert found("--id", letter_id(broker, paid), "--id", NOBODY) == [paid]
    assert found("--where", "error like '%100%%' or text = 'c'") == [late]


def test_a_letter_is_shown_with_its_whole_story(place: Place, broker: Connection) -> None:
    log_pos = bury(broker, "an order\nof two lines", tag="paid", keys=("order-17",), properties={"colour": "blue"})
    message_id = letter_id(broker, log_pos)
    place.done("dlq", "redrive", "billing", "--yes")

    shown = place.done("dlq", "show", message_id)

    for line in (
        message_id,
        "group       billing",
        "topic       orders",
        "from        queue 3, offset 41, position 1,234",
        "exception   shop.NoPrice",
        "error       no price for order-17",
        "at          10.0.0.1@7",
        "property    colour=blue",
        "  line 1",
        "body, 21 bytes:",
        "an order",
        "of two lines",
    ):
        assert line in shown.splitlines()
    (redrive,) = [line for line in shown.splitlines() if "REDRIVEN" in line]
    assert "its group  unchanged" in redrive
    (described,) = json_lines(place.done("dlq", "show", message_id.lower(), "--json"))
    assert described["traceback"] == FAILURE.traceback
    assert [each["status"] for each in described["redrives"]] == ["REDRIVEN"]


def test_what_strangers_have_sent_does_not_reach_a_terminal_as_it_is(place: Place, broker: Connection) -> None:
    bell = "\x1b]0;owned\x07"
    log_pos = bury(broker, bell, tag=f"t{bell}", failure=replace(FAILURE, exception=bell, message=bell, traceback=bell))

    commands = ["show", letter_id(broker, log_pos)], ["list", "billing"], ["list"]
    shown = "".join(place.done("dlq", *command) for command in commands)

    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "\\x1b]0;owned\\x07" in shown
    assert "00000000  1b 5d 30 3b 6f 77 6e 65 64 07                    .]0;owned." in shown


@pytest.mark.parametrize(
    ("command", "lists"),
    [
        (["dlq", "show", "billing"], "mqdb dlq list billing"),
        (["dlq", "show", "my group"], "mqdb dlq list 'my group'"),
        (["message", "show", "billing"], "mqdb message find TOPIC"),
        (["message", "trace", "billing"], "mqdb message find TOPIC"),
        (["transaction", "resolve", "billing", "commit"], "mqdb transaction list"),
    ],
)
def test_a_text_that_is_no_id_is_told_what_lists_ids(place: Place, command: list[str], lists: str) -> None:
    reason = f"must be the id of a message, 32 hexadecimal digits; this command lists ids: {lists}"

    assert_refused(place.call(*command), f"message id = {command[2]!r}: {reason}")


def test_a_message_that_is_in_no_dead_letter_queue_is_one_sentence(place: Place) -> None:
    assert_refused(place.call("dlq", "show", NOBODY), f"no dead letter queue holds message {NOBODY}")


# -- export ---------------------------------------------------------------------------------------


def test_a_group_that_does_not_exist_is_not_one_without_dead_letters(
    place: Place, broker: Connection, tmp_path: Path
) -> None:
    create_group(broker, "healthy")
    nothing = "No dead letter queue has such a message.\n"
    for command in (["list"], ["export", "-o", str(tmp_path / "dead.jsonl")], ["redrive", "--yes"]):
        assert_refused(place.call("dlq", *command, "biling"), "'biling'")
    assert place.done("dlq", "list", "healthy") == nothing
    assert not any(tmp_path.glob("dead*"))


def test_letters_are_exported_with_their_bodies(place: Place, broker: Connection, tmp_path: Path) -> None:
    packed = compressed_flag(Compression.ZLIB)
    bury(broker, "text")
    bury(broker, "Grüße")
    bury(broker, bytes(range(256)))
    bury(broker, stored=zlib.compress(b"packed"), sys_flag=packed)
    bury(broker, group="shipping", stored=b"broken", sys_flag=packed)
    file = tmp_path / "dead.jsonl"

    said = place.done("dlq", "export", "--output", str(file))

    lines = json_lines(file.read_text())
    assert said == f"5 messages are in {file}\n"
    assert [(each["encoding"], each["compression"]) for each in lines] == [
        ("text", None),
        ("text", None),
        ("base64", None),
        ("text", None),
        ("base64", "ZLIB"),
    ]
    assert [each["body"] for each in lines if each["encoding"] == "text"] == ["text", "Grüße", "packed"]
    assert [base64.b64decode(lines[number]["body"]) for number in (2, 4)] == [bytes(range(256)), b"broken"]
    assert [each["group"] for each in lines] == ["billing"] * 4 + ["shipping"]
    assert lines[0]["traceback"] == FAILURE.traceback
    assert os.listdir(tmp_path) == ["dead.jsonl"]


def test_an_export_goes_to_standard_output_and_obeys_its_options(place: Place, broker: Connection) -> None:
    bury(broker, "a")
    bury(broker, "b", tag="paid")

    assert [each["body"] for each in json_lines(place.done("dlq", "export", "billing", "--tag", "paid"))] == ["b"]


def test_an_export_that_fails_leaves_what_was_there(place: Place, broker: Connection, tmp_path: Path) -> None:
    file = tmp_path / "dead.jsonl"
    file.write_text("of yesterday")
    bury(broker)

    assert_refused(place.call("dlq", "export", "-o", str(file), "--where", "nosuch > 3"), "nosuch")
    assert_refused(place.call("dlq", "export", "-o", "/nowhere/dead.jsonl"), "No such file or directory")

    assert [file.read_text(), *os.listdir(tmp_path)] == ["of yesterday", "dead.jsonl"]


# -- several brokers ------------------------------------------------------------------------------


def test_letters_of_all_brokers_are_listed_shown_exported_and_redriven(
    two_brokers: TwoBrokers, both: tuple[Connection, Connection], tmp_path: Path
) -> None:
    place = Place(tmp_path, two_brokers.dsn)
    first, second = both
    in_a, in_b = bury(first, "in a"), bury(second, "in b")
    message_id = letter_id(second, in_b)

    listed = json_lines(place.done("dlq", "list", "billing", "--json"))
    assert [(each["broker"], each["log_pos"]) for each in listed] == [("broker-a", in_a), ("broker-b", in_b)]
    assert [line.split()[0] for line in place.done("dlq", "list").splitlines()[2:]] == ["broker-a", "broker-b"]
    assert "broker      broker-b" in place.done("dlq", "show", message_id)
    assert [each["broker"] for each in json_lines(place.done("dlq", "export"))] == ["broker-a", "broker-b"]
    assert [each["body"] for each in json_lines(place.done("dlq", "export", "--broker", "broker-b"))] == ["in b"]

    summary = place.done("dlq", "redrive", "billing", "--yes").splitlines()
    assert [line.split()[:3] for line in summary[2:]] == [["broker-a", "REDRIVEN", "1"], ["broker-b", "REDRIVEN", "1"]]
    assert len(redriven(first)) == len(redriven(second)) == 1
    only = bury(second, "in b", "shipping")
    assert [each["log_pos"] for each in json_lines(place.done("dlq", "list", "shipping", "--json"))] == [only]
    summary = place.done("dlq", "redrive", "shipping", "--yes").splitlines()
    assert summary[2].split()[:3] == ["broker-b", "REDRIVEN", "1"]


def test_a_body_is_for_one_message_of_all_brokers(
    two_brokers: TwoBrokers, both: tuple[Connection, Connection], tmp_path: Path
) -> None:
    for connection in both:
        bury(connection)

    refused = Place(tmp_path, two_brokers.dsn).call("dlq", "redrive", "billing", "--yes", "--body", "x")

    assert_refused(refused, "body = '2 messages'")


def test_where_a_broker_is_down_the_others_do_what_they_can(place: Place, broker: Connection, tmp_path: Path) -> None:
    log_pos = bury(broker)
    message_id = letter_id(broker, log_pos)
    port = next(port for port in candidates(0, None) if is_free(port))
    lame = Place(tmp_path, f"broker-a={place.dsn};broker-c=postgresql://u:geheim@127.0.0.1:{port}/db")

    outcomes = [
        lame.call("dlq", "list", "--json"),
        lame.call("dlq", "show", message_id, "--json"),
        lame.call("dlq", "export"),
        lame.call("dlq", "redrive", "billing", "--yes", "--json"),
    ]

    for outcome in outcomes:
        assert_refused(outcome, "broker-c: no broker at ", "; done on broker-a")
        assert [json.loads(line)["broker"] for line in outcome.text.splitlines()] == ["broker-a"]
        assert "geheim" not in outcome.errors
    assert len(redriven(broker)) == 1
