"""Admin.timers, Admin.delays, Admin.crons, Admin.transactions and Admin.selectors."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from mqdb_client import (
    Admin,
    HalfState,
    LocalTransactionState,
    Message,
    PreparedMessage,
    Producer,
    RecallStatus,
    ReceivedMessage,
    Resolution,
    TransactionListener,
    TransactionProducer,
    errors,
    explain_selector,
)
from tests.fixtures.postgres import Database


@pytest.fixture
def admin(database: Database) -> Iterator[Admin]:
    with Admin(database.dsn) as admin:
        admin.topics.create("orders", queues=1)
        yield admin


class Silent(TransactionListener):
    """Never reports how a local transaction has ended."""

    def execute_local_transaction(self, _message: PreparedMessage, _argument: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, _message: ReceivedMessage) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN


def test_a_message_that_waits_is_listed_and_recalled_once(admin: Admin, database: Database) -> None:
    with Producer("shop", database.dsn) as producer:
        message_id = producer.send(Message("orders", "later", tag="new", delay=timedelta(hours=1))).message_id
    (timer,) = admin.timers.list("orders")

    assert (timer.topic, timer.tags, timer.due_at > datetime.now(UTC)) == ("orders", "new", True)
    assert admin.timers.recall(message_id, actor="ada") is RecallStatus.RECALLED
    assert admin.timers.recall(message_id) is not RecallStatus.RECALLED
    with pytest.raises(errors.RecallHandleInvalid):
        admin.timers.recall("no handle")


def test_the_delay_levels_are_listed_and_none_is_skipped_that_has_lost_nothing(admin: Admin) -> None:
    levels = admin.delays.list()

    assert (levels[0].level, levels[0].delay, levels[0].waiting) == (1, timedelta(seconds=1), 0)
    with pytest.raises(errors.NothingLost):
        admin.delays.find_lost(1)
    with pytest.raises(errors.NothingLost):
        admin.delays.skip(1, 0)


def test_a_cron_is_added_paused_resumed_and_removed(admin: Admin) -> None:
    times = admin.crons.next_times("@yearly", "Europe/Berlin", 3)
    assert [(time.month, time.day, time.hour) for time in times] == [(12, 31, 23)] * 3
    assert [time.year - times[0].year for time in times] == [0, 1, 2]
    next_at = admin.crons.add("tick", "@yearly", Message("orders", "tick"), timezone="Europe/Berlin", actor="ada")

    assert next_at == times[0]
    assert next_at.utcoffset() is not None
    admin.crons.pause("tick")
    assert [(cron.name, cron.is_paused) for cron in admin.crons.list()] == [("tick", True)]
    assert admin.crons.resume("tick") == next_at
    admin.crons.remove("tick")
    with pytest.raises(errors.CronNotFound):
        admin.crons.pause("tick")
    with pytest.raises(errors.CronInvalid):
        admin.crons.add("tick", "now and then", Message("orders", "tick"))


def test_a_half_message_is_listed_and_committed_once(admin: Admin, database: Database) -> None:
    with TransactionProducer("shop", database.dsn, listener=Silent()) as producer:
        producer.send_in_transaction(Message("orders", "one"))
    (half,) = admin.transactions.list()

    assert (half.state, half.producer_group) == (HalfState.PREPARED, "shop")
    resolved = admin.transactions.resolve(half.transaction_id, Resolution.COMMIT, actor="ada")
    assert resolved.state == HalfState.COMMITTED
    assert admin.transactions.list() == []
    with pytest.raises(errors.HalfMessageClosed):
        admin.transactions.resolve(half.transaction_id, Resolution.COMMIT)


def test_a_selector_is_explained_without_a_broker_and_tried_on_one(admin: Admin, database: Database) -> None:
    explained = explain_selector("price > 10 AND TAGS = 'paid'")

    assert explained.properties == ("TAGS", "price")
    assert explained.tree[0][0] == 0
    with Producer("shop", database.dsn) as producer:
        for price in ("9", "11"):
            producer.send(Message("orders", "one", tag="paid", properties={"price": price}))
    trial = admin.selectors.try_on("orders", explained.expression)
    assert (trial.examined, trial.matched) == (2, 1)
    with pytest.raises(errors.SelectorSyntaxError):
        admin.selectors.try_on("orders", "price >")
