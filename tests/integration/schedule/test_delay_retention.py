"""Retention and delayed messages: no message that waits for its delivery is dropped."""

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, timedelta

import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import Connection, text

from mqdb.broker.schedule.delay import deliver_due, first_undelivered_segment
from mqdb.service.key_indexer import KeyIndexer
from mqdb.service.retention import RetentionRules, SegmentSizing
from mqdb.service.segment_keeper import KeeperCounts, SegmentKeeper, SegmentKeeperConfig
from mqdb.service.service import Context
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.delay import delay, delivered, move_clock
from tests.fixtures.log import small_segments
from tests.fixtures.postgres import Database

CONFIG = SegmentKeeperConfig(
    sizing=SegmentSizing(fewest=1, most=10**9, smallest=1),
    retention=RetentionRules(delete_when=tuple(range(24)), time_zone=UTC),
)
NOTHING = KeeperCounts()

Keep = Callable[[SegmentKeeperConfig], KeeperCounts]


@pytest.fixture
def keep(broker: Connection, scheduler: BackgroundScheduler, database: Database) -> Keep:
    """A function that runs a round of the segment keeper.

    The first segment is sealed, and has a message that waits for 2 h.
    """
    small_segments(database.connect(), 10)
    orders = topic(broker, "orders")
    delay(broker, 18, "waits")
    append(broker, orders, *"123456789abc")
    dispatch_all(broker)
    while KeyIndexer(Context(lambda: broker)).run_once(broker).messages:
        pass

    def keep(config: SegmentKeeperConfig) -> KeeperCounts:
        return SegmentKeeper(Context(lambda: broker), scheduler, config).run_once(broker)

    keep(CONFIG)
    states = broker.scalars(text("SELECT state FROM mqdb.segment WHERE segment <= 2 ORDER BY segment"))
    assert list(states) == ["sealed", "open"]
    return keep


def test_no_segment_goes_while_a_message_in_it_waits_for_its_delivery(broker: Connection, keep: Keep) -> None:
    move_clock(broker, timedelta(days=4))
    assert keep(CONFIG) == NOTHING

    deliver_due(broker)

    assert keep(CONFIG) == replace(NOTHING, drained=1, dropped=1)
    assert delivered(broker)[-1] == "waits"


def test_a_full_disk_takes_no_message_that_waits_for_its_delivery(
    broker: Connection, keep: Keep, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "mqdb.service")

    assert keep(replace(CONFIG, disk_used_percent=lambda: 99.0)) == NOTHING

    assert [record.getMessage() for record in caplog.records] == [
        "99 % of the disk is used; the oldest messages wait for their time"
    ]


def test_where_nothing_waits_all_that_is_dispatched_may_go(broker: Connection, keep: Keep) -> None:
    assert first_undelivered_segment(broker) == 1
    move_clock(broker, timedelta(days=4))

    deliver_due(broker)

    newest = text("SELECT segment FROM mqdb.checkpoint WHERE service = 'dispatch' ORDER BY seq DESC LIMIT 1")
    assert first_undelivered_segment(broker) == broker.scalar(newest)
