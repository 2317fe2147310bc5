"""Rows 32 to 38 of the checklist of RocketMQ's behaviours: transactions, with a real `mqdb serve`.

RocketMQ checks half messages after seconds; these tests use a fraction of that. Full intervals are tested with a clock
that the test moves.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest
from sqlalchemy import Connection

from mqdb.common.topic import HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from mqdb.common.transaction import CHECK_IMMUNITY_TIME, CHECK_TIMES
from mqdb.common.unique_id import parse_unique_id
from mqdb.errors import HalfMessageMismatch, HalfMessageNotFound, ResponseCode, TransactionRefused
from mqdb_client import Message
from tests.fixtures import warm_process
from tests.fixtures.broker import topic
from tests.fixtures.consumers import Inbox, Member
from tests.fixtures.delay import delivered, records, stop_clock
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.serve import Starter
from tests.fixtures.transactions import (
    COMMIT,
    ROLLBACK,
    SECOND,
    UNKNOWN,
    Asked,
    Checker,
    HalfSent,
    StartProducer,
    halves,
)

SENDER = Path(__file__).with_name("sender_process.py")

#: Of `mqdb serve`, so that a test does not take minutes; and so often that a slow one finds nothing given up.
SOON = {"transaction_timeout": "200ms", "transaction_check_interval": "200ms", "transaction_check_max": 1_000}

HALF = Message("orders", "half", "paid", "order-17", {"a": "b"})

#: Nobody is asked about it, however long its commit takes.
LAST = Message("orders", "last", properties={CHECK_IMMUNITY_TIME: "60"})


@pytest.fixture
def sender_process(database: Database) -> Iterator["subprocess.Popen[str]"]:
    """A process of group `senders` in the middle of a local transaction."""
    command = [sys.executable, str(SENDER), database.dsn, "half"]
    process = warm_process.start(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        output_of(process).close()


def output_of(process: "subprocess.Popen[str]") -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def states(connection: Connection) -> list[str]:
    return [half["state"] for half in halves(connection)]


def test_row_32_a_half_message_is_hidden_until_its_commit_and_comes_once(
    database: Database, broker: Connection, serve: Starter, member: Member, transactional_producer: StartProducer
) -> None:
    serve(dsn=database.dsn, **SOON)
    topic(broker)
    inbox, listener = Inbox(), Asked(UNKNOWN, UNKNOWN)
    member(inbox)
    producer = transactional_producer(listener)

    result = producer.send_in_transaction(HALF)
    listener.wait_for_checks(2)
    assert inbox.messages == []
    listener.checked = COMMIT
    inbox.wait_for(1)
    listener.executed = COMMIT
    producer.send_in_transaction(LAST)
    inbox.wait_for(2)

    assert inbox.bodies == ["half", "last"]
    (message, _) = inbox.messages
    assert message.message_id == result.transaction_id == message.properties["UNIQ_KEY"]
    assert (message.tag, message.keys, message.properties["a"]) == ("paid", ("order-17",), "b")
    assert {name: message.properties[name] for name in ("TRAN_MSG", "PGROUP", "REAL_TOPIC", "REAL_QID")} == {
        "TRAN_MSG": "true",
        "PGROUP": "senders",
        "REAL_TOPIC": "orders",
        "REAL_QID": "0",
    }
    # A question that the listener has not read in time is asked again, and counts.
    assert int(message.properties[CHECK_TIMES]) == halves(broker)[0]["check_times"] >= len(listener.checks)
    assert CHECK_TIMES not in inbox.messages[1].properties


def test_row_33_what_is_rolled_back_is_never_delivered(
    database: Database, broker: Connection, serve: Starter, member: Member, transactional_producer: StartProducer
) -> None:
    """Two check rounds are over once another half message has been checked twice."""
    topic(broker)
    inbox, listener = Inbox(), Asked(ROLLBACK, UNKNOWN)
    member(inbox)
    producer = transactional_producer(listener)

    rolled_back = producer.send_in_transaction(HALF)
    # Not before: it may be asked about until its rollback has come.
    serve(dsn=database.dsn, **SOON)
    listener.executed = UNKNOWN
    other = producer.send_in_transaction(HALF)
    listener.wait_for_checks(2)
    listener.checked = COMMIT
    inbox.wait_for(1)

    assert [message.message_id for message in inbox.messages] == [other.message_id]
    assert rolled_back.message_id not in {message.message_id for message in listener.checks}


def test_row_34_unknown_is_checked_15_times(broker: Connection, transactional_producer: StartProducer) -> None:
    topic(broker)
    listener = Asked(UNKNOWN, UNKNOWN)
    transactional_producer(listener).send_in_transaction(HALF)
    checker = Checker(broker)

    for number in range(1, 16):
        assert checker.after(31 * SECOND).asked == 1
        listener.wait_for_checks(number)
        wait_until(lambda: halves(broker)[0]["check_client"] is None)  # its answer has come
    assert checker.after(31 * SECOND).asked == 0

    assert states(broker) == ["DISCARDED"]
    assert [int(message.properties[CHECK_TIMES]) for message in listener.checks] == [*range(1, 16)]


def test_row_34_the_first_check_comes_after_6_s_and_the_others_every_30_s(
    broker: Connection, transactional_producer: StartProducer
) -> None:
    topic(broker)
    stop_clock(broker)
    transactional_producer(Asked(UNKNOWN, UNKNOWN)).send_in_transaction(HALF)
    checker = Checker(broker)
    asked_at = []

    for second in range(1, 100):
        if checker.after(1 * SECOND).asked:
            asked_at.append(second)

    assert asked_at == [6, 36, 66, 96]


def test_row_35_after_the_last_check_it_is_moved_away_and_never_delivered(
    database: Database, broker: Connection, serve: Starter, member: Member, transactional_producer: StartProducer
) -> None:
    serve(**SOON | {"dsn": database.dsn, "transaction_check_max": 3})
    topic(broker)
    inbox, listener = Inbox(), Asked(UNKNOWN, UNKNOWN)
    member(inbox)
    producer = transactional_producer(listener)

    sent = producer.send_in_transaction(HALF)
    wait_until(lambda: states(broker) == ["DISCARDED"])
    listener.executed = COMMIT
    last = producer.send_in_transaction(LAST)
    inbox.wait_for(1)

    (moved,) = records(broker, TRANS_CHECK_MAX_TIME_TOPIC)
    assert moved["msg_id"] == parse_unique_id(sent.message_id)
    assert moved["properties"][CHECK_TIMES] == "3"
    assert [message.message_id for message in inbox.messages] == [last.message_id]


def test_row_36_another_member_is_asked_when_the_sender_is_killed(
    database: Database,
    broker: Connection,
    serve: Starter,
    member: Member,
    transactional_producer: StartProducer,
    sender_process: "subprocess.Popen[str]",
) -> None:
    topic(broker)
    inbox, listener = Inbox(), Asked(checked=COMMIT)
    member(inbox)
    assert output_of(sender_process).readline() == "executing\n"
    serve(dsn=database.dsn, **SOON)
    assert output_of(sender_process).readline() == "asked\n"

    sender_process.send_signal(signal.SIGKILL)
    transactional_producer(listener)
    inbox.wait_for(1)

    assert inbox.bodies == ["half"]
    # Asked again where its answer was late, but each time anew.
    assert {message.body for message in listener.checks} == {b"half"}
    assert len({message.properties[CHECK_TIMES] for message in listener.checks}) == len(listener.checks)
    assert states(broker) == ["COMMITTED"]


@pytest.mark.parametrize("forged", ["group", "position", "id"])
def test_row_37_a_forged_end_is_refused(broker: Connection, transactional_producer: StartProducer, forged: str) -> None:
    topic(broker)
    producer = transactional_producer(Asked(UNKNOWN))
    mine, other = producer.send_in_transaction(HALF), producer.send_in_transaction(HALF)
    end = HalfSent("senders", mine.log_pos, parse_unique_id(mine.transaction_id))
    if forged == "group":
        end.group = "others"
    elif forged == "position":
        end.log_pos = other.log_pos
    else:
        end.unique_id = parse_unique_id(other.transaction_id)

    with pytest.raises((HalfMessageMismatch, HalfMessageNotFound)) as caught:
        end.end(broker, COMMIT)

    assert caught.value.code is ResponseCode.SYSTEM_ERROR
    assert delivered(broker) == []
    assert states(broker) == []


def test_row_38_a_broker_that_rejects_transaction_messages_takes_none(
    database: Database, broker: Connection, serve: Starter, transactional_producer: StartProducer
) -> None:
    serve(dsn=database.dsn, reject_transaction_message=True)
    topic(broker)
    listener = Asked(COMMIT)
    producer = transactional_producer(listener)

    with pytest.raises(TransactionRefused) as caught:
        producer.send_in_transaction(HALF)
    producer.send(Message("orders", "plain"))

    assert caught.value.code is ResponseCode.NO_PERMISSION
    assert listener.prepared == []
    assert (delivered(broker), delivered(broker, HALF_TOPIC)) == (["plain"], [])
