"""Retention and redrives: a redrive is remembered as long as the log holds any of its records."""

from collections.abc import Callable
from datetime import UTC, timedelta
from typing import NamedTuple

import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import Connection, text

from mqdb.broker.consumers.offset_reset import Boundary, reset_offsets
from mqdb.broker.dead_letters import Redrive, redrive_messages
from mqdb.service.key_indexer import KeyIndexer
from mqdb.service.retention import RetentionRules, SegmentSizing
from mqdb.service.segment_keeper import SegmentKeeper, SegmentKeeperConfig
from mqdb.service.service import Context
from mqdb.store.operations import list_operations
from mqdb.store.topics.topics import TopicRoute
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.dead_letters import bury, create_group, results
from tests.fixtures.delay import move_clock
from tests.fixtures.log import small_segments
from tests.fixtures.postgres import Database

SIZE = 10
CONFIG = SegmentKeeperConfig(
    sizing=SegmentSizing(fewest=1, most=10**9, smallest=SIZE),
    retention=RetentionRules(file_reserved_time=timedelta(days=3), delete_when=tuple(range(24)), time_zone=UTC),
)

#: A position that no log has.
NOWHERE = 2**62


class Kept(NamedTuple):
    """The segments and redrives that the segment keeper has removed."""

    segments: int
    redrives: int


Keep = Callable[..., Kept]


@pytest.fixture
def orders(broker: Connection, database: Database) -> TopicRoute:
    """A topic in a log with small segments."""
    small_segments(database.connect(), SIZE)
    return topic(broker, "orders")


@pytest.fixture
def keep(broker: Connection, orders: TopicRoute, scheduler: BackgroundScheduler) -> Keep:
    """Append messages, and run the segment keeper four days later."""
    days = 0

    def keep(messages: int = SIZE) -> Kept:
        nonlocal days
        append(broker, orders, *map(str, range(messages)))
        dispatch_all(broker)
        while KeyIndexer(Context(lambda: broker)).run_once(broker).messages:
            pass
        keeper = SegmentKeeper(Context(lambda: broker), scheduler, CONFIG)
        before = keeper.run_once(broker)
        days += 4
        move_clock(broker, timedelta(days=days))
        after = keeper.run_once(broker)
        return Kept(before.dropped + after.dropped, before.redrives_pruned + after.redrives_pruned)

    return keep


def first_position(connection: Connection) -> int:
    """The first position that the log holds."""
    position: int = connection.execute(text("SELECT min(start_pos) FROM mqdb.segment")).scalar_one()
    return position


def test_a_redrive_is_known_until_its_copies_are_gone(broker: Connection, keep: Keep) -> None:
    letter = bury(broker)
    (done,) = redrive_messages(broker, [letter], Redrive("all"))
    assert done.new_log_pos is not None

    while first_position(broker) <= done.new_log_pos:
        assert results(broker) == [(letter, "REDRIVEN", done.new_log_pos)]
        keep()
    pruned = sum(keep().redrives for _ in range(4))

    assert (pruned, results(broker)) == (1, [])


def test_a_redrive_that_has_failed_is_forgotten_with_its_time(broker: Connection, keep: Keep) -> None:
    redrive_messages(broker, [NOWHERE], Redrive("all"))

    first = keep().redrives
    later = sum(keep().redrives for _ in range(6))

    assert (first, later) == (0, 1)


def test_what_was_done_is_known_for_longer_than_the_log(broker: Connection, keep: Keep) -> None:
    create_group(broker)
    reset_offsets(broker, "billing", "orders", Boundary.EARLIEST)
    noted = list_operations(broker, group="billing")

    assert sum(keep().segments for _ in range(6)) > 0

    assert list_operations(broker, group="billing") == noted
