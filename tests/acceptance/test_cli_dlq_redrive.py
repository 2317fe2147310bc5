"""`mqdb dlq redrive`: the messages that it moves, repairs or refuses, and how it is stopped."""

import os
import stat
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from mqdb.common.compression import Compression, compressed_flag
from mqdb.common.received_message import ReceivedMessage
from mqdb_client import ConsumeConcurrentlyStatus
from mqdb_client.consumer.listeners.message_listener import ConsumeConcurrentlyContext
from tests.fixtures import warm_process
from tests.fixtures.broker import dispatch_all
from tests.fixtures.command_line import SECONDS, Place, assert_refused, served
from tests.fixtures.consumers import Inbox, Member
from tests.fixtures.dead_letters import bury, json_lines, letter_id, redriven, results, stored
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.variants import usually


@pytest.fixture
def place(database: Database, tmp_path: Path) -> Place:
    """A broker without a broker process: `mqdb dlq` dispatches by itself."""
    return Place(tmp_path, database.dsn)


def test_a_dry_run_lists_what_a_redrive_then_moves(place: Place, broker: Connection) -> None:
    letters = [bury(broker, str(number), tag="paid" if number % 2 else None) for number in range(4)]
    options = ("dlq", "redrive", "billing", "--tag", "paid")

    planned = json_lines(place.done(*options, "--dry-run", "--json"))
    listed = place.done(*options, "--dry-run")
    assert redriven(broker) == []
    moved = json_lines(place.done(*options, "--yes", "--json"))

    assert [(each["log_pos"], each["status"]) for each in planned] == [(letters[1], "READY"), (letters[3], "READY")]
    assert [line.split()[:2] for line in listed.splitlines()[:2]] == [["READY", each["msg_id"]] for each in planned]
    assert [(each["msg_id"], each["status"]) for each in moved] == [(each["msg_id"], "REDRIVEN") for each in planned]
    assert [each["new_log_pos"] for each in moved] == redriven(broker)


def test_a_redrive_ends_with_a_summary_and_takes_nothing_twice(place: Place, broker: Connection) -> None:
    for number in range(3):
        bury(broker, str(number))
    options = ("dlq", "redrive", "billing", "--yes")

    first = place.done(*options, "--limit", "2", "--each").splitlines()
    second = place.done(*options).splitlines()
    third = place.done(*options, "--edit")
    fourth = place.done(*options, "--again").splitlines()

    assert [line.split()[0] for line in first[:2]] == ["REDRIVEN", "REDRIVEN"]
    assert first[-1].split() == ["REDRIVEN", "2"]
    assert (second[2].split(), second[3]) == (
        ["REDRIVEN", "1"],
        "2 more were redriven before; --again includes them.",
    )
    assert third.splitlines()[0] == "No message meets these conditions."
    assert fourth[2].split() == ["REDRIVEN", "3"]
    assert len(redriven(broker)) == 6


def test_a_message_that_cannot_be_redriven_ends_in_a_row_and_an_error(place: Place, broker: Connection) -> None:
    bury(broker)
    place.done("topic", "create", "%RETRY%billing", "--queues", "1", "--perm", "4")

    outcome = place.call("dlq", "redrive", "billing", "--yes")

    assert "FAILED" in outcome.text
    assert "permission is 4, without the 2 of W" in outcome.text
    assert_refused(outcome, "1 of 1 messages could not be redriven")
    assert [row[1] for row in results(broker)] == ["FAILED"]


def test_messages_go_to_a_topic_for_all_its_groups(place: Place, broker: Connection) -> None:
    bury(broker, "an order")
    place.done("topic", "create", "orders-again", "--queues", "1")

    place.done("dlq", "redrive", "billing", "--to-topic", "orders-again", "--yes")

    with served(place):
        wait_until(lambda: place.done("consume", "orders-again", "--exit") == "an order\n")


@pytest.mark.parametrize("option", ["--body", "--body-file", "--edit"])
def test_a_message_is_repaired_and_redriven(place: Place, broker: Connection, tmp_path: Path, option: str) -> None:
    packed = zlib.compress(b"a brocken order")
    log_pos = bury(broker, stored=packed, sys_flag=compressed_flag(Compression.ZLIB))
    file = tmp_path / "body"
    file.write_bytes(b"a broken order")
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed "s/brocken/broken/" "$1" > "$1.new" && mv "$1.new" "$1"\n')
    editor.chmod(editor.stat().st_mode | stat.S_IXUSR)
    given = {"--body": ["a broken order"], "--body-file": [str(file)], "--edit": []}

    options = ("--id", letter_id(broker, log_pos), option, *given[option], "--yes")
    place.done("dlq", "redrive", "billing", *options, EDITOR=str(editor))

    (new_log_pos,) = redriven(broker)
    copy = stored(broker, new_log_pos)
    assert (copy["body"], copy["sys_flag"]) == (b"a broken order", 0)
    assert copy["msg_id"] == stored(broker, log_pos)["msg_id"]


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--body", "x"], ["body = '2 messages'", "choose it with --id"]),
        (["--edit"], ["edit = '2 messages'"]),
        (["--body", "x", "--edit"], ["give only one of --body, --body-file and --edit"]),
        (["--body", "", "--limit", "1"], ["the body is empty"]),
        (["--body-file", "/nowhere"], ["body_file = '/nowhere'", "No such file"]),
        (["--edit", "--limit", "1"], ["edit = 'true'", "did not change the body"]),
        (["--rate", "fast"], ["rate = 'fast'", "100/s"]),
        (["--rate", "0"], ["rate = '0'"]),
        (["--since", "yesterday"], ["since = 'yesterday'", "2h"]),
        (["--since", "99999999999d"], ["since = '99999999999d'"]),
        (["--id", "7"], ["message id = '7'", "32 hexadecimal digits"]),
        (["--tag", "||"], ["tag expression '||'"]),
        (["--to-topic", "nowhere"], ["topic 'nowhere' does not exist", "mqdb topic create nowhere"]),
        (["--to-topic", "read-only"], ["topic 'read-only' takes no messages"]),
        (["--to-topic", "SCHEDULE_TOPIC_XXXX"], ["belongs to the broker"]),
        (["--to-topic", "two words"], ["topic name 'two words'"]),
        (["--where", "attempts > 3; DROP TABLE mqdb.operation"], ["where = ", "syntax error", "at character 13"]),
        (["--broker", "broker-x"], ["broker = 'broker-x'"]),
    ],
    ids=" ".join,
)
def test_a_redrive_that_cannot_be_obeyed_is_refused_and_moves_nothing(
    place: Place, broker: Connection, options: list[str], parts: list[str]
) -> None:
    bury(broker, "a")
    bury(broker, "b")
    place.done("topic", "create", "read-only", "--perm", "4")

    refused = place.call("dlq", "redrive", "billing", "--yes", *options, EDITOR="true", VISUAL="")

    assert_refused(refused, *parts)
    assert refused.text == ""
    assert (redriven(broker), results(broker)) == ([], [])


def test_nothing_is_redriven_when_nobody_is_there_to_confirm(place: Place, broker: Connection) -> None:
    bury(broker)

    refused = place.call("dlq", "redrive", "billing")

    assert_refused(refused, "No terminal to confirm it; add --yes, or --dry-run")
    assert redriven(broker) == []


def test_ctrl_c_ends_a_redrive_between_two_batches_and_it_goes_on_later(place: Place, broker: Connection) -> None:
    for number in range(40):
        bury(broker, str(number))
    dispatch_all(broker)

    with place.running("dlq", "redrive", "billing", "--yes", "--each", "--rate", "1/s") as redrive:
        redrive.line_with("REDRIVEN")
        code, errors = redrive.interrupt()

    copies = redriven(broker)
    assert code == 130
    assert errors == f"mqdb: stopped after {len(copies)} of 40 messages\n"
    assert 0 < len(copies) < 40
    assert [new for _, _, new in results(broker)] == copies
    place.done("dlq", "redrive", "billing", "--yes")
    assert len(redriven(broker)) == 40
    assert len({log_pos for log_pos, _, _ in results(broker)}) == 40


@pytest.mark.parametrize("command", usually("export billing", of=["export billing", "redrive billing --yes --json"]))
def test_progress_on_a_terminal_takes_nothing_from_standard_output(
    place: Place, broker: Connection, command: str
) -> None:
    log_pos = bury(broker)
    ours, theirs = os.openpty()
    try:
        arguments = [sys.executable, "-m", "mqdb", "dlq", *command.split()]
        environ = place.environ({"TERM": "xterm"})
        with warm_process.start(arguments, stdout=subprocess.PIPE, stderr=theirs, env=environ, cwd="/") as process:
            output, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 0
        shown = os.read(ours, 100_000)
    finally:
        os.close(ours)
        os.close(theirs)

    assert [each["log_pos"] for each in json_lines(output.decode())] == [log_pos]
    assert b"100%" in shown


def test_a_rate_is_kept(place: Place, broker: Connection) -> None:
    for number in range(11):
        bury(broker, str(number))
    began = broker.scalar(text("SELECT mqdb.now()"))

    place.done("dlq", "redrive", "billing", "--yes", "--rate", "10")

    # From before it began: the first may be late, the last comes when it is due all the same.
    ended = broker.scalar(text("SELECT max(redriven_at) FROM mqdb.redrive_result"))
    assert (ended - began).total_seconds() >= 0.99  # of 1.0, by another clock


class Shop(Inbox):
    """Gives up messages that it has no price for."""

    def __init__(self) -> None:
        super().__init__()
        self.prices: dict[str, int] = {}

    def sell(
        self, messages: list[ReceivedMessage], context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus | None:
        context.delay_level_when_next_consume = -1
        _ = [self.prices[message.body.decode()] for message in messages]
        return self(messages)


def test_a_redriven_message_comes_to_the_group_that_failed_it_and_to_no_other(
    place: Place, broker: Connection, member: Member
) -> None:
    place.done("topic", "create", "orders", "--queues", "1")
    shop, stock = Shop(), Inbox()
    member(shop.sell, group="billing")
    member(stock, group="shipping")
    # Commands in this process would have the log of the consumers on their standard error.
    message_id = broker.scalar(text("SELECT mqdb.send('orders', 'apples'::text, keys => 'order-17')"))
    stock.wait_for(1)
    wait_until(lambda: broker.scalar(text("SELECT count(*) FROM mqdb.dlq")))

    (letter,) = json_lines(place.run("dlq", "list", "billing", "--json").text)
    shop.prices["apples"] = 3
    assert place.run("dlq", "redrive", "billing", "--yes").code == 0

    shop.wait_for(1, 30)
    assert (letter["msg_id"], letter["exception"], letter["error"]) == (message_id, "KeyError", "'apples'")
    assert (letter["topic"], letter["origin_queue_id"], letter["origin_queue_offset"]) == ("orders", 0, 0)
    (message,) = shop.messages
    assert (message.message_id, message.topic, message.keys) == (message_id, "orders", ("order-17",))
    assert message.reconsume_times == 0
    assert len(stock.messages) == 1
