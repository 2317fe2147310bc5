"""A redrive sends dead letters back: the copies that it makes, its refusals, and that no message is copied twice."""

import zlib
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.broker.consumers.send_back import SendBackRequest, send_back
from mqdb.broker.dead_letters import (
    Chosen,
    DeadLetterFilter,
    Redrive,
    choose,
    list_dead_letters,
    plan_redrive,
    redrive_messages,
)
from mqdb.broker.topics import topics as admin
from mqdb.common.compression import Compression, compressed_flag
from mqdb.common.message import MAX_BODY_BYTES, MessageQueue
from mqdb.common.retry import Retry
from mqdb.common.topic import Perm, TopicConfig, retry_topic
from mqdb.errors import MessageIllegal, ParameterInvalid, TopicNotAllowed
from mqdb.selector.tags import tag_code
from mqdb.store.dead_letters import RedriveStatus, past_redrives
from mqdb.store.engine import driver, transaction
from mqdb.store.operations import list_operations
from mqdb.store.topics.topics import list_topics
from tests.fixtures.broker import dispatch_all, topic
from tests.fixtures.dead_letters import FAILURE, ORIGIN, bury, create_group, letter_id, redriven, results, stored
from tests.fixtures.log import small_segments
from tests.fixtures.postgres import OWNER, Database
from tests.fixtures.processes import wait_until
from tests.fixtures.threads import Doing
from tests.fixtures.variants import case

ALL = Redrive("all")


def redrive_one(connection: Connection, log_pos: int, how: Redrive = ALL) -> dict[str, Any]:
    """The copy that a redrive of one message creates."""
    (result,) = redrive_messages(connection, [log_pos], how)
    assert (result.status, result.error) == (RedriveStatus.REDRIVEN, None)
    assert result.new_log_pos is not None
    return stored(connection, result.new_log_pos)


# -- the copy -------------------------------------------------------------------------------------


def test_a_redriven_message_goes_to_its_group_as_it_was_sent(broker: Connection) -> None:
    log_pos = bury(broker, "an order", tag="paid", keys=("a", "b"), properties={"colour": "blue", "DELAY": "3"})
    before = stored(broker, log_pos)

    copy = redrive_one(broker, log_pos)

    assert (copy["topic"], copy["reconsume_times"]) == (retry_topic("billing"), 0)
    kept = ("msg_id", "tags", "keys", "body", "born_time", "born_host", "flag", "sys_flag")
    assert {name: copy[name] for name in kept} == {name: before[name] for name in kept}
    assert copy["tags_code"] == tag_code("paid")
    assert copy["properties"] == {
        "colour": "blue",
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": str(ORIGIN[2]),
        "MQDB_ORIGIN_QUEUE_ID": str(ORIGIN[0]),
        "MQDB_ORIGIN_QUEUE_OFFSET": str(ORIGIN[1]),
    }


def test_a_redriven_message_that_fails_again_has_its_whole_ladder_and_its_origin(broker: Connection) -> None:
    copy = redrive_one(broker, bury(broker))
    request = SendBackRequest(copy["log_pos"], MessageQueue(copy["topic"], "broker-a", 0), 0, FAILURE)

    (sent_back,) = send_back(broker, "billing", [request])

    assert (sent_back.is_dead, sent_back.delay_level, sent_back.reconsume_times) == (False, 3, 1)
    (dead,) = send_back(broker, "billing", [request._replace(retry=Retry(-1))])
    dispatch_all(broker)
    youngest = list_dead_letters(broker, DeadLetterFilter("billing"))[0]
    assert (dead.is_dead, youngest.topic, youngest.redriven_at) == (True, "orders", None)
    assert (youngest.origin_queue_id, youngest.origin_queue_offset, youngest.origin_log_pos) == ORIGIN


def test_a_compressed_body_stays_compressed(broker: Connection) -> None:
    packed, sys_flag = zlib.compress(b"an order"), compressed_flag(Compression.ZLIB)

    copy = redrive_one(broker, bury(broker, stored=packed, sys_flag=sys_flag))

    assert (copy["body"], copy["sys_flag"]) == (packed, sys_flag)


def test_an_edited_body_is_plain_whatever_the_old_one_was(broker: Connection) -> None:
    transaction_bits = 0x8
    sys_flag = compressed_flag(Compression.ZSTD) | transaction_bits
    log_pos = bury(broker, stored=b"packed", sys_flag=sys_flag)

    copy = redrive_one(broker, log_pos, Redrive("all", body=b"repaired"))

    assert (copy["body"], copy["sys_flag"]) == (b"repaired", transaction_bits)
    assert copy["msg_id"] == stored(broker, log_pos)["msg_id"]
    (past,) = past_redrives(broker, log_pos)
    assert past.body_edited


def test_to_a_topic_a_message_goes_as_if_it_were_new(broker: Connection) -> None:
    topic(broker, "orders-again")
    log_pos = bury(broker, "an order", tag="paid", properties={"colour": "blue"})

    copy = redrive_one(broker, log_pos, Redrive("all", "orders-again"))

    assert (copy["topic"], copy["reconsume_times"], copy["tags"]) == ("orders-again", 0, "paid")
    assert copy["properties"] == {"colour": "blue"}
    assert redriven(broker) == []


def test_to_its_own_topic_a_message_goes_to_its_queue_and_elsewhere_to_all(broker: Connection) -> None:
    topic(broker, "orders", 8)
    topic(broker, "orders-again", 8)
    letters = [bury(broker, str(number)) for number in range(40)]

    queues = {
        name: {
            stored(broker, result.new_log_pos or 0)["queue_id"]
            for result in redrive_messages(broker, letters, Redrive("all", name, again=True))
        }
        for name in ("orders", "orders-again")
    }

    assert queues["orders"] == {ORIGIN[0]}
    assert len(queues["orders-again"]) > 1


def test_to_its_own_topic_with_fewer_queues_than_then_a_message_goes_to_any(broker: Connection) -> None:
    topic(broker, "orders", ORIGIN[0])

    assert redrive_one(broker, bury(broker), Redrive("all", "orders"))["topic"] == "orders"


def test_the_copies_of_a_redrive_are_in_the_order_in_which_the_messages_died(broker: Connection) -> None:
    letters = [bury(broker, str(number)) for number in range(20)]

    found = redrive_messages(broker, letters[::-1], ALL)

    assert [result.log_pos for result in found] == letters
    assert [result.new_log_pos for result in found] == redriven(broker)


@pytest.mark.parametrize("retry_queue_nums", [1, 3])
def test_a_retry_topic_that_is_gone_is_made_again(broker: Connection, retry_queue_nums: int) -> None:
    create_group(broker, "billing", retry_queue_nums)
    letters = [bury(broker, str(number)) for number in range(100)]

    redrive_messages(broker, letters, ALL)

    config = next(r.config for r in list_topics(broker) if r.config.name == retry_topic("billing"))
    assert config == TopicConfig(retry_topic("billing"), retry_queue_nums, retry_queue_nums)
    assert len({stored(broker, log_pos)["queue_id"] for log_pos in redriven(broker)}) == retry_queue_nums


# -- results --------------------------------------------------------------------------------------


def test_a_result_is_kept_for_each_message_and_the_view_shows_it(broker: Connection) -> None:
    log_pos = bury(broker)

    (result,) = redrive_messages(broker, [log_pos], Redrive("billing --tag 'paid'"))

    dispatch_all(broker)
    (letter,) = list_dead_letters(broker, DeadLetterFilter())
    (past,) = past_redrives(broker, log_pos)
    assert (result.msg_id, result.group, result.topic) == (letter.msg_id, "billing", "orders")
    assert (past.operation_id, past.status, past.new_log_pos) == (
        result.operation_id,
        RedriveStatus.REDRIVEN,
        result.new_log_pos,
    )
    assert (past.condition, past.target_topic, past.body_edited) == ("billing --tag 'paid'", None, False)
    assert past.redriven_at == letter.redriven_at
    assert letter.redriven_at is not None
    assert (datetime.now(UTC) - letter.redriven_at).total_seconds() < 60


def test_a_message_is_redriven_once_unless_one_asks_again(broker: Connection) -> None:
    log_pos = bury(broker)
    redrive_messages(broker, [log_pos], ALL)

    (skipped,) = redrive_messages(broker, [log_pos], ALL)
    (again,) = redrive_messages(broker, [log_pos, log_pos], ALL._replace(again=True))

    assert skipped.status is RedriveStatus.SKIPPED
    assert "was already redriven" in (skipped.error or "")
    assert again.status is RedriveStatus.REDRIVEN
    assert [row[1] for row in results(broker)] == ["REDRIVEN", "REDRIVEN"]
    assert len(redriven(broker)) == 2


def test_what_was_redriven_is_not_chosen_unless_one_asks_again(broker: Connection) -> None:
    letters = tuple(bury(broker, str(number)) for number in range(4))
    dispatch_all(broker)
    redrive_messages(broker, letters[:1], ALL)

    assert choose(broker, DeadLetterFilter("billing")) == Chosen(letters[1:], 1)
    assert choose(broker, DeadLetterFilter("billing"), limit=2) == Chosen(letters[1:3], 1)
    assert choose(broker, DeadLetterFilter("billing"), again=True) == Chosen(letters, 0)


def test_each_call_that_tries_something_is_an_operation(broker: Connection) -> None:
    letters = [bury(broker, str(number)) for number in range(3)]

    redrive_messages(broker, letters[:1], Redrive("--exception ValueError"), actor="ada")
    done = redrive_messages(broker, [*letters, 999_999], ALL)
    redrive_messages(broker, letters, ALL)

    second, first = list_operations(broker, group="billing")
    assert (first.verb, first.actor, first.principal, first.records) == ("dlq.redrive", "ada", OWNER, 1)
    assert (first.topics, first.groups) == (["orders"], ["billing"])
    how = {"target_topic": None, "body_edited": False, "condition": "--exception ValueError"}
    assert (first.before, first.after) == (None, how)
    assert [result.status for result in done] == ["SKIPPED", "REDRIVEN", "REDRIVEN", "FAILED"]
    assert {result.operation_id for result in done} == {second.operation_id}
    assert (second.records, second.actor) == (2, None)


def test_no_body_is_noted(database: Database, broker: Connection) -> None:
    log_pos = bury(broker)

    database.connect().execute(f"SELECT * FROM mqdb.dlq_redrive(ARRAY[{log_pos}], body => 'a secret')".encode())

    [noted] = list_operations(broker)
    assert "a secret" not in str(noted)
    assert noted.after == {"target_topic": None, "body_edited": True, "condition": "a message, with a new body"}


@pytest.mark.parametrize(
    ("spoil", "how", "error"),
    [
        ("DELETE FROM mqdb.subscription_group WHERE group_name = 'other'", ALL, 'group "other" does not exist'),
        ("UPDATE mqdb.topic SET perm = 4 WHERE topic = '%RETRY%other'", ALL, "permission is 4, without the 2 of W"),
        ("DELETE FROM mqdb.topic WHERE topic = '%DLQ%other'", ALL, "no dead letter queue holds the message"),
    ],
)
def test_a_message_that_cannot_be_redriven_says_why_and_the_others_are(
    broker: Connection, spoil: str, how: Redrive, error: str
) -> None:
    letters = [bury(broker, "a"), bury(broker, "b", "other"), bury(broker, "c")]
    topic(broker, retry_topic("other"))
    driver(broker).execute(spoil.encode())

    planned = plan_redrive(broker, letters, how)
    found = redrive_messages(broker, letters, how)

    assert [result.status for result in planned] == ["READY", "FAILED", "READY"]
    assert [result.status for result in found] == ["REDRIVEN", "FAILED", "REDRIVEN"]
    assert error in (found[1].error or "")
    assert planned[1].error == found[1].error
    assert [row[1] for row in results(broker)] == ["REDRIVEN", "FAILED", "REDRIVEN"]
    assert len(redriven(broker)) == 2


def test_a_message_that_has_failed_to_be_redriven_can_be_tried_again(broker: Connection) -> None:
    log_pos = bury(broker)
    redrive_messages(broker, [log_pos], Redrive("all", "orders"))
    topic(broker, "orders")

    assert redrive_one(broker, log_pos, Redrive("all", "orders"))["topic"] == "orders"
    assert [past.status for past in past_redrives(broker, log_pos)] == ["FAILED", "REDRIVEN"]


@pytest.mark.parametrize(
    ("perm", "error"),
    [(None, 'topic "orders" does not exist; create it'), (Perm.READ, 'topic "orders" takes no messages')],
)
def test_a_target_that_takes_no_messages_fails_each_message(broker: Connection, perm: Perm | None, error: str) -> None:
    if perm is not None:
        admin.create_topic(broker, TopicConfig("orders", perm=perm))

    found = redrive_messages(broker, [bury(broker), bury(broker)], Redrive("all", "orders"))

    assert [result.status for result in found] == ["FAILED", "FAILED"]
    assert error in (found[0].error or "")


def test_a_group_that_is_gone_does_not_matter_to_a_topic(broker: Connection) -> None:
    topic(broker, "orders")
    log_pos = bury(broker)
    driver(broker).execute("DELETE FROM mqdb.subscription_group")

    assert redrive_one(broker, log_pos, Redrive("all", "orders"))["topic"] == "orders"


@pytest.mark.parametrize("log_pos", [0, 1, 999_999_999, -1], ids=["none yet", "alive", "never", "negative"])
def test_what_is_no_dead_letter_is_not_redriven(broker: Connection, log_pos: int) -> None:
    driver(broker).execute("SELECT mqdb.send('TBW102', 'alive'::text)")

    (result,) = redrive_messages(broker, [log_pos], ALL)

    assert (result.status, result.msg_id, result.group) == (RedriveStatus.FAILED, None, None)
    assert result.error == "no dead letter queue holds the message; it may have been dropped"


# -- refused as a whole ---------------------------------------------------------------------------


def test_what_no_message_may_be_is_refused_also_in_a_dry_run(broker: Connection) -> None:
    log_pos = bury(broker)

    too_large = b"x" * (MAX_BODY_BYTES + 1)
    refused: list[tuple[Redrive, type[Exception], str]] = [
        (Redrive("all", body=b""), MessageIllegal, "the body is empty"),
        (Redrive("all", body=too_large), MessageIllegal, "4,194,305 bytes, the limit is 4,194,304"),
        (Redrive("all", "SCHEDULE_TOPIC_XXXX"), TopicNotAllowed, "belongs to the broker"),
        (Redrive("all", "rmq_sys_wheel_timer"), TopicNotAllowed, "belongs to the broker"),
    ]
    for how, error, sentence in refused:
        for work in (redrive_messages, plan_redrive):
            with case(how), pytest.raises(error, match=sentence):
                work(broker, [log_pos], how)

    assert results(broker) == []


def test_one_body_is_for_one_message(broker: Connection) -> None:
    letters = [bury(broker), bury(broker)]

    with pytest.raises(ParameterInvalid, match="one body is given for 2 messages"):
        redrive_messages(broker, letters, Redrive("all", body=b"repaired"))


def test_an_older_snapshot_is_refused(database: Database, broker: Connection) -> None:
    log_pos = bury(broker)
    session = database.connect(autocommit=False)
    session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ

    with pytest.raises(psycopg.Error, match="needs READ COMMITTED, not repeatable read") as refused:
        session.execute("SELECT mqdb.dlq_redrive(ARRAY[%s]::bigint[])", [log_pos])

    assert refused.value.sqlstate == "MQ109"


# -- dry run --------------------------------------------------------------------------------------


def test_a_dry_run_says_what_would_happen_and_changes_nothing(broker: Connection) -> None:
    letters = [bury(broker, str(number)) for number in range(3)]
    redrive_messages(broker, letters[:1], ALL)
    before = (results(broker), redriven(broker))

    planned = plan_redrive(broker, [*letters, 999_999], ALL)

    assert [result.status for result in planned] == ["SKIPPED", "READY", "READY", "FAILED"]
    assert {(result.new_log_pos, result.operation_id) for result in planned} == {(None, None)}
    assert (results(broker), redriven(broker)) == before


def test_a_dry_run_makes_no_retry_topic(broker: Connection) -> None:
    log_pos = bury(broker)

    (planned,) = plan_redrive(broker, [log_pos], ALL)

    assert planned.status is RedriveStatus.READY
    assert retry_topic("billing") not in [route.config.name for route in list_topics(broker)]


# -- transactions ---------------------------------------------------------------------------------


def test_copies_and_results_are_there_together_or_not_at_all(broker: Connection) -> None:
    log_pos = bury(broker)

    with driver(broker).transaction(force_rollback=True):
        redrive_messages(broker, [log_pos], ALL)
        assert redriven(broker)

    assert (results(broker), redriven(broker)) == ([], [])


def test_of_two_who_redrive_the_same_at_once_one_finds_it_done(broker: Connection, engine: Engine) -> None:
    letters = [bury(broker, str(number)) for number in range(10)]
    waits = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )

    with engine.connect() as second:
        with transaction(broker):
            redrive_messages(broker, letters, ALL)
            other = Doing(lambda: redrive_messages(second, letters, ALL))
            wait_until(lambda: broker.scalar(waits))
        found = other.result()

    assert {result.status for result in found} == {RedriveStatus.SKIPPED}
    assert len(redriven(broker)) == len(letters)


def test_a_redrive_that_finds_the_log_without_room_makes_some(database: Database, broker: Connection) -> None:
    small_segments(database.connect(), 10, ahead=1)
    letters = [bury(broker, str(number)) for number in range(15)]

    found = redrive_messages(broker, letters, ALL)

    assert len(found) == len(redriven(broker)) == len(letters)


# -- from SQL -------------------------------------------------------------------------------------


def test_whoever_knows_sql_redrives_what_a_query_finds(database: Database, broker: Connection) -> None:
    letters = [bury(broker, body) for body in ("a", "b", "c")]
    dispatch_all(broker)
    session = database.connect()
    statement = (
        "SELECT status, msg_id, log_pos FROM mqdb.dlq_redrive(ARRAY("
        "SELECT log_pos FROM mqdb.dlq WHERE group_name = 'billing' AND text IN ('a', 'c')))"
    )

    rows = session.execute(statement.encode()).fetchall()

    assert rows == [("REDRIVEN", letter_id(broker, log_pos), log_pos) for log_pos in (letters[0], letters[2])]
    (past,) = past_redrives(broker, letters[0])
    assert (past.condition, past.principal, past.actor) == (statement, OWNER, None)


def test_nothing_chosen_is_nothing_done(database: Database, broker: Connection) -> None:
    session = database.connect()

    for none in ("ARRAY[]::bigint[]", "NULL", "ARRAY[NULL]::bigint[]"):
        assert session.execute(f"SELECT * FROM mqdb.dlq_redrive({none})").fetchall() == []
    assert results(broker) == []
