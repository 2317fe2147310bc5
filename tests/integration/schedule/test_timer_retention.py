"""Retention and timers: no segment with an uncollected message is dropped; a collected message needs no segment."""

from dataclasses import replace
from datetime import UTC, timedelta

from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import Connection, text

from mqdb.broker.schedule.timers import first_uncollected_segment
from mqdb.service.key_indexer import KeyIndexer
from mqdb.service.retention import RetentionRules, SegmentSizing
from mqdb.service.segment_keeper import KeeperCounts, SegmentKeeper, SegmentKeeperConfig
from mqdb.service.service import Context
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.delay import delivered, move_clock
from tests.fixtures.log import small_segments
from tests.fixtures.postgres import Database
from tests.fixtures.timers import column, deliver_all, timer

CONFIG = SegmentKeeperConfig(
    sizing=SegmentSizing(fewest=1, most=10**9, smallest=1),
    retention=RetentionRules(delete_when=tuple(range(24)), time_zone=UTC),
)
NOTHING = KeeperCounts()
DAY = timedelta(days=1)


def test_a_segment_goes_when_its_timers_are_collected_and_these_are_delivered_all_the_same(
    broker: Connection, scheduler: BackgroundScheduler, database: Database
) -> None:
    small_segments(database.connect(), 10)
    orders = topic(broker)
    timer(broker, 30 * DAY, "waits")
    append(broker, orders, *"123456789abc")
    dispatch_all(broker)
    while KeyIndexer(Context(lambda: broker)).run_once(broker).messages:
        pass
    keeper = SegmentKeeper(Context(lambda: broker), scheduler, CONFIG)
    keeper.run_once(broker)
    move_clock(broker, 4 * DAY)
    assert (first_uncollected_segment(broker), keeper.run_once(broker)) == (1, NOTHING)

    deliver_all(broker)

    assert keeper.run_once(broker) == replace(NOTHING, drained=1, dropped=1)
    assert column(broker, "SELECT body FROM mqdb.commit_log WHERE body = 'waits'") == []
    move_clock(broker, 31 * DAY)
    deliver_all(broker)
    assert delivered(broker)[-1] == "waits"


def test_where_nothing_is_to_be_collected_all_that_is_dispatched_may_go(broker: Connection) -> None:
    newest = text("SELECT segment FROM mqdb.checkpoint WHERE service = 'dispatch' ORDER BY seq DESC LIMIT 1")
    assert first_uncollected_segment(broker) == broker.scalar(newest)
