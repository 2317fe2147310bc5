"""Recall: a recalled message is never delivered, and a delivered message is never reported as recalled."""

import uuid
from datetime import timedelta

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from mqdb.broker.schedule.timers import RecallStatus, recall, recall_message
from mqdb.common.recall_handle import RecallHandle, encode_handle
from mqdb.common.unique_id import parse_unique_id
from mqdb.errors import ParameterInvalid, RecallHandleInvalid, ResponseCode, TopicNotFound
from mqdb.service.key_indexer import KeyIndexer
from mqdb.service.service import Context
from mqdb.store.engine import transaction
from mqdb.store.schedule import timer_steps
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.delay import delay, delivered, move_clock
from tests.fixtures.log import small_segments
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.threads import Doing
from tests.fixtures.timers import column, deliver_all, slots, timer
from tests.fixtures.variants import usually

HOUR = timedelta(hours=1)
RECALLED, ALREADY_DELIVERED, UNKNOWN = RecallStatus


def index_keys(connection: Connection) -> None:
    while KeyIndexer(Context(lambda: connection)).run_once(connection).messages:
        pass


def take_back(connection: Connection, unique_id: str, topic: str | None = None) -> RecallStatus:
    return recall_message(connection, parse_unique_id(unique_id), topic)


def everything_due(connection: Connection) -> list[str]:
    """The messages that are delivered by the end."""
    dispatch_all(connection)
    move_clock(connection, 1000 * HOUR)
    deliver_all(connection)
    return delivered(connection)


@pytest.mark.parametrize("indexed", usually(False, of=[True, False]), ids=["indexed", "not indexed"])
@pytest.mark.parametrize("stage", ["sent", "dispatched", "collected", "behind"])
def test_a_message_that_waits_is_recalled_once(broker: Connection, stage: str, indexed: bool) -> None:
    topic(broker)
    if stage == "behind":
        deliver_all(broker)
        move_clock(broker, -3 * HOUR)
    recalled, _ = timer(broker, HOUR, "recalled", "stays", dispatched=stage != "sent")
    if indexed:
        index_keys(broker)
    if stage in ("collected", "behind"):
        deliver_all(broker)

    assert take_back(broker, recalled) is RECALLED
    assert take_back(broker, recalled) is UNKNOWN
    # A row that is recalled stays until its time, but for one of slot 0.
    assert [timer_steps.newest(broker).waiting] == column(broker, "SELECT count(*) FROM mqdb.timer")
    assert everything_due(broker) == ["stays"]
    assert take_back(broker, recalled) is UNKNOWN
    assert column(broker, "SELECT count(*) FROM mqdb.scheduled") == [0]
    assert timer_steps.newest(broker).waiting == 0


@pytest.mark.parametrize("indexed", usually(True, of=[True, False]), ids=["indexed", "not indexed"])
@pytest.mark.parametrize("delay", [HOUR, -HOUR], ids=["from the table", "at once"])
def test_a_message_that_was_delivered_is_not_recalled(broker: Connection, delay: timedelta, indexed: bool) -> None:
    topic(broker)
    [unique_id] = timer(broker, delay, "a")
    if indexed:
        index_keys(broker)
    deliver_all(broker)
    assert everything_due(broker) == ["a"]

    assert take_back(broker, unique_id) is ALREADY_DELIVERED
    assert column(broker, "SELECT count(*) FROM mqdb.timer_recall") == [0]


def test_a_message_is_recalled_though_its_time_has_come_as_long_as_it_is_not_delivered(broker: Connection) -> None:
    topic(broker)
    [unique_id] = timer(broker, HOUR, "a")
    deliver_all(broker)
    move_clock(broker, 2 * HOUR)

    assert take_back(broker, unique_id) is RECALLED
    assert everything_due(broker) == []


def test_a_message_is_called_delivered_when_only_its_copy_is_left(broker: Connection) -> None:
    topic(broker)
    [unique_id] = timer(broker, HOUR, "a")
    deliver_all(broker)
    everything_due(broker)
    broker.execute(text("DELETE FROM mqdb.timer"))
    broker.execute(text("DELETE FROM mqdb.commit_log WHERE tags_code > 0"))

    assert take_back(broker, unique_id, "orders") is ALREADY_DELIVERED


def test_a_message_that_the_log_has_forgotten_is_recalled_from_the_table(broker: Connection) -> None:
    topic(broker)
    [unique_id] = timer(broker, HOUR, "a")
    index_keys(broker)
    deliver_all(broker)
    broker.execute(text("DELETE FROM mqdb.commit_log"))

    assert take_back(broker, unique_id) is RECALLED
    assert everything_due(broker) == []


def test_what_is_there_and_no_timer_is_delivered_already(broker: Connection) -> None:
    """A message that exists but is not a timer is reported as delivered.

    This includes a timer that was already due when it was sent: it never waited.
    """
    append(broker, topic(broker), "plain")
    [unique_id] = column(broker, "SELECT mqdb.unique_id_text(msg_id) FROM mqdb.commit_log")

    assert take_back(broker, unique_id, "orders") is take_back(broker, unique_id) is ALREADY_DELIVERED


def test_what_waits_for_a_level_or_is_not_there_is_unknown(broker: Connection) -> None:
    topic(broker)
    delay(broker, 18, "a")
    [unique_id] = column(broker, "SELECT mqdb.unique_id_text(msg_id) FROM mqdb.commit_log")

    assert take_back(broker, unique_id, "orders") is take_back(broker, unique_id) is UNKNOWN
    assert take_back(broker, uuid.uuid4().hex) is UNKNOWN


def test_the_topic_counts(broker: Connection) -> None:
    topic(broker)
    topic(broker, "others")
    [unique_id] = timer(broker, HOUR, "a")

    assert take_back(broker, unique_id, "others") is UNKNOWN
    with pytest.raises(TopicNotFound):
        take_back(broker, unique_id, "gone")
    assert take_back(broker, unique_id, "orders") is RECALLED


def test_a_handle_names_the_message(broker: Connection) -> None:
    topic(broker)
    [unique_id] = timer(broker, HOUR, "a")
    handle = encode_handle(RecallHandle("orders", "broker-a", 0, unique_id))

    assert recall(broker, handle) is RECALLED
    assert recall(broker, handle) is UNKNOWN


def test_a_handle_of_another_broker_is_refused(broker: Connection) -> None:
    handle = encode_handle(RecallHandle("orders", "broker-b", 0, uuid.uuid4().hex.upper()))

    with pytest.raises(RecallHandleInvalid, match="is of broker 'broker-b', not of 'broker-a'") as caught:
        recall(broker, handle)

    assert caught.value.code == ResponseCode.ILLEGAL_OPERATION


def test_a_recall_that_is_rolled_back_recalls_nothing(broker: Connection, database: Database) -> None:
    topic(broker)
    [unique_id] = timer(broker, HOUR, "a")
    mine = database.connect(autocommit=False)
    assert mine.execute("SELECT mqdb.recall('orders', %s)", [unique_id]).fetchone() == ("RECALLED",)
    mine.rollback()

    assert everything_due(broker) == ["a"]


def test_no_timer_is_delivered_while_the_transaction_of_a_recall_goes_on(
    broker: Connection, database: Database
) -> None:
    topic(broker)
    [unique_id] = timer(broker, HOUR, "a")
    mine = database.connect(autocommit=False)
    mine.execute("SELECT mqdb.recall('orders', %s)", [unique_id])

    assert everything_due(broker) == []

    mine.commit()
    assert everything_due(broker) == []
    assert take_back(broker, unique_id) is UNKNOWN


def test_a_recall_waits_for_the_batch_that_delivers_the_message(
    broker: Connection, engine: Engine, database: Database
) -> None:
    topic(broker)
    [unique_id] = timer(broker, HOUR, "a")
    deliver_all(broker)
    move_clock(broker, 2 * HOUR)
    delivering = database.connect(autocommit=False)
    delivering.execute("LOCK TABLE mqdb.lock_timer IN SHARE UPDATE EXCLUSIVE MODE")
    with engine.connect() as other:
        recalling = Doing(lambda: take_back(other, unique_id))
        waiting = "SELECT FROM pg_locks WHERE relation = 'mqdb.lock_timer'::regclass AND NOT granted"
        wait_until(lambda: bool(column(broker, f"SELECT 1 WHERE EXISTS ({waiting})")))
        step = timer_steps.newest(broker)._asdict() | {"pos": 2**63 - 1}
        delivering.execute(
            """INSERT INTO mqdb.timer_step
                   (seq, next_offset, delivered_ms, delivered_pos, next_due_ms, waiting, collected, messages)
               VALUES (%(seq)s + 1, %(next_offset)s, %(next_due_ms)s + 3600000, %(pos)s, %(next_due_ms)s, 0, 0, 1)""",
            step,
        )
        delivering.commit()

        assert recalling.result() is ALREADY_DELIVERED


def test_however_much_waits_to_be_collected_a_recall_reads_one_segment(database: Database, engine: Engine) -> None:
    small_segments(database.connect(), 100, ahead=15)
    with engine.connect() as broker:
        topic(broker)
        unique_ids = [name for _ in range(20) for name in timer(broker, HOUR, *map(str, range(50)))]
        assert column(broker, "SELECT count(DISTINCT segment) FROM mqdb.consume_queue")[0] >= 10

        with transaction(broker):
            assert take_back(broker, unique_ids[-1]) is RECALLED
            [read] = column(
                broker,
                """SELECT sum(idx_tup_fetch) FROM pg_stat_xact_user_tables
                   WHERE schemaname = 'mqdb' AND relname LIKE 'queue_run_%'""",
            )

        assert read <= 250
        assert take_back(broker, unique_ids[-1]) is UNKNOWN
        assert take_back(broker, unique_ids[0]) is RECALLED


def test_an_older_snapshot_is_refused(broker: Connection, database: Database) -> None:
    topic(broker)
    [unique_id] = timer(broker, HOUR, "a")
    mine = database.connect(autocommit=False)
    mine.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")

    with pytest.raises(Exception, match=r"mqdb\.recall needs READ COMMITTED"):
        mine.execute("SELECT mqdb.recall('orders', %s)", [unique_id])


def test_an_id_that_is_none_is_refused(broker: Connection) -> None:
    with pytest.raises(ParameterInvalid):
        take_back(broker, "no id")


@pytest.mark.parametrize("given", ["no id", "0" * 31, None], ids=["a text", "too short", "NULL"])
def test_sql_refuses_an_id_that_is_none(broker: Connection, given: str | None) -> None:
    with pytest.raises(DBAPIError, match="32 hexadecimal digits") as caught:
        broker.execute(text("SELECT mqdb.recall(NULL, :given)"), {"given": given})

    assert getattr(caught.value.orig, "sqlstate", None) == "MQ108"


def test_recalls_are_forgotten_with_the_messages(broker: Connection) -> None:
    topic(broker)
    [unique_id] = timer(broker, HOUR, "a")
    deliver_all(broker)
    take_back(broker, unique_id)
    everything_due(broker)
    assert timer_steps.prune_recalls(broker) == 0

    broker.execute(text("UPDATE mqdb.segment SET start_pos = start_pos + 1000000, end_pos = end_pos + 1000000"))
    broker.execute(text("DELETE FROM mqdb.timer"))

    assert timer_steps.prune_recalls(broker) == 1


def test_a_recall_is_remembered_as_long_as_a_slot_holds_the_message(broker: Connection) -> None:
    """A recall is remembered as long as a slot holds the message.

    A slot of a day ends long after its last message; by then the log may have dropped this one.
    """
    topic(broker)
    [unique_id] = timer(broker, 30 * HOUR, "a")
    deliver_all(broker)
    assert slots(broker) == ["24 h"]
    take_back(broker, unique_id)
    move_clock(broker, 31 * HOUR)
    deliver_all(broker)
    broker.execute(text("UPDATE mqdb.segment SET start_pos = start_pos + 1000000, end_pos = end_pos + 1000000"))

    assert timer_steps.prune_recalls(broker) == 0
    assert take_back(broker, unique_id) is UNKNOWN
    broker.execute(text("DELETE FROM mqdb.timer"))
    assert timer_steps.prune_recalls(broker) == 1
