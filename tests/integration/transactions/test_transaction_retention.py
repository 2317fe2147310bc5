"""Retention and half messages: a half message without an end is kept, and the rows of dropped ones go with them."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, timedelta

import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import Connection, text

from mqdb.common.topic import TRANS_CHECK_MAX_TIME_TOPIC
from mqdb.service.key_indexer import KeyIndexer
from mqdb.service.retention import RetentionRules, SegmentSizing
from mqdb.service.segment_keeper import KeeperCounts, SegmentKeeper, SegmentKeeperConfig
from mqdb.service.service import Context
from mqdb.store.transactions.half_messages import prune
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.delay import delivered, move_clock
from tests.fixtures.log import small_segments
from tests.fixtures.postgres import Database
from tests.fixtures.transactions import ROLLBACK, Checker, HalfSent, halves, send_half

CONFIG = SegmentKeeperConfig(
    sizing=SegmentSizing(fewest=1, most=10**9, smallest=1),
    retention=RetentionRules(delete_when=tuple(range(24)), time_zone=UTC),
)
NOTHING = KeeperCounts()


@pytest.fixture
def half(broker: Connection, database: Database) -> HalfSent:
    """A half message in the first segment, which is full; the checker has not seen it yet."""
    small_segments(database.connect(), 10)
    orders = topic(broker)
    half = send_half(broker, orders)
    append(broker, orders, *"123456789abc")
    dispatch_all(broker)
    while KeyIndexer(Context(lambda: broker)).run_once(broker).messages:
        pass
    return half


@pytest.fixture
def keep(broker: Connection, scheduler: BackgroundScheduler, half: HalfSent) -> Callable[[], KeeperCounts]:
    """Run a round of the segment keeper, four days after the half message."""

    def keep() -> KeeperCounts:
        return SegmentKeeper(Context(lambda: broker), scheduler, CONFIG).run_once(broker)

    keep()
    states = broker.scalars(text("SELECT state FROM mqdb.segment WHERE segment <= 2 ORDER BY segment"))
    assert list(states) == ["sealed", "open"]
    move_clock(broker, timedelta(days=4))
    return keep


@pytest.mark.parametrize("is_seen", [False, True], ids=["not looked at", "asked about"])
def test_no_segment_goes_while_a_half_message_in_it_has_no_end(
    broker: Connection, half: HalfSent, keep: Callable[[], KeeperCounts], is_seen: bool
) -> None:
    checker = Checker(broker, reserved=timedelta(days=9))
    if is_seen:
        checker.after(timedelta(days=4))
    assert keep() == NOTHING

    half.end(broker, ROLLBACK)
    checker.after(timedelta(days=4))

    assert keep() == replace(NOTHING, drained=1, dropped=1)


def test_one_that_is_too_old_is_moved_and_holds_nothing_up(
    broker: Connection, keep: Callable[[], KeeperCounts]
) -> None:
    Checker(broker).after(timedelta(days=4))

    assert keep() == replace(NOTHING, drained=1, dropped=1)
    assert delivered(broker, TRANS_CHECK_MAX_TIME_TOPIC) == ["half"]


def test_the_rows_go_with_the_segment(broker: Connection, half: HalfSent, keep: Callable[[], KeeperCounts]) -> None:
    half.end(broker, ROLLBACK)
    Checker(broker).after(timedelta(days=4))
    assert (prune(broker, 100), len(halves(broker))) == (0, 1)

    keep()

    assert (prune(broker, 100), halves(broker)) == (1, [])
