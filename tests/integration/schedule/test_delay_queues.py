"""Waiting messages in the delay levels, and skipping a message that the log has lost."""

from datetime import timedelta

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.schedule.delay import deliver_due
from mqdb.broker.schedule.delay_queues import find_lost, skip_lost
from mqdb.common.delay_level import DEFAULT_DELAY_LEVELS, parse_delay_levels
from mqdb.common.topic import SCHEDULE_TOPIC
from mqdb.errors import NothingLost, ParameterInvalid
from mqdb.store.operations import list_operations
from mqdb.store.schedule.delay_queues import LevelStanding, list_delays
from tests.fixtures.broker import topic
from tests.fixtures.delay import delay, delivered, move_clock, rewrite_entries, steps, stop_clock

SECOND = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def orders(broker: Connection) -> None:
    """The target topic of the delayed messages."""
    topic(broker, "orders")


def standing(connection: Connection, level: int) -> LevelStanding:
    return list_delays(connection)[level - 1]


def lose(connection: Connection, log_pos: int) -> None:
    connection.execute(text("DELETE FROM mqdb.commit_log WHERE log_pos = :log_pos"), {"log_pos": log_pos})


def test_all_levels_are_listed_with_their_delays(broker: Connection) -> None:
    found = list_delays(broker)

    assert [each.level for each in found] == [*range(1, 19)]
    assert tuple(each.delay for each in found) == parse_delay_levels(DEFAULT_DELAY_LEVELS).delays
    assert {each[2:-1] for each in found} == {(0, None, None, None)}


def test_a_level_says_how_many_wait_and_how_late_the_first_is(broker: Connection) -> None:
    stop_clock(broker)
    delay(broker, 2, "a", "b")
    before = standing(broker, 2)
    move_clock(broker, 8 * SECOND)

    after = standing(broker, 2)

    assert (before.waiting, after.waiting, before.due_at) == (2, 2, after.due_at)
    assert (before.late, after.late) == (-5 * SECOND, 3 * SECOND)


def test_what_is_delivered_waits_no_more(broker: Connection) -> None:
    delay(broker, 1, "a", "b")
    move_clock(broker, 2 * SECOND)
    deliver_due(broker)

    assert standing(broker, 1)[2:-1] == (0, None, None, None)


def test_a_level_goes_on_behind_the_message_that_it_has_lost(broker: Connection) -> None:
    """A level continues after the message that it has lost; only the lost message is skipped."""
    _, lost, *_ = delay(broker, 1, "a", "lost", "b", "c")
    lose(broker, lost)
    move_clock(broker, 2 * SECOND)
    deliver_due(broker)
    missing = find_lost(broker, 1)

    skip_lost(broker, 1, missing.queue_offset, "bad disk")
    deliver_due(broker)

    assert (missing.queue_offset, missing.log_pos) == (1, lost)
    assert delivered(broker) == ["a", "b", "c"]
    assert steps(broker, 1) == [(1, 1, 1), (2, 2, 0), (3, 4, 2)]
    [noted] = list_operations(broker, topic=SCHEDULE_TOPIC)
    assert (noted.verb, noted.topics, noted.object) == ("delay.skip", [SCHEDULE_TOPIC], "level 1")
    assert (noted.before, noted.after) == ({"next_offset": 1, "lost_log_pos": lost}, {"next_offset": 2})
    assert noted.reason == "bad disk"


def test_a_lost_entry_is_stepped_over_as_well(broker: Connection) -> None:
    delay(broker, 1, "lost", "a")
    rewrite_entries(broker, keep="queue_offset <> 0")
    move_clock(broker, 2 * SECOND)

    skip_lost(broker, 1, find_lost(broker, 1).queue_offset)
    deliver_due(broker)

    assert delivered(broker) == ["a"]


def test_two_that_are_lost_are_stepped_over_one_by_one(broker: Connection) -> None:
    for lost in delay(broker, 1, "lost", "lost", "a")[:2]:
        lose(broker, lost)
    move_clock(broker, 2 * SECOND)

    for offset in range(2):
        assert deliver_due(broker).messages == 0
        skip_lost(broker, 1, offset)

    assert deliver_due(broker).messages == 1


def test_nothing_that_the_log_holds_is_stepped_over(broker: Connection) -> None:
    _, lost = delay(broker, 1, "a", "lost")
    lose(broker, lost)
    move_clock(broker, 2 * SECOND)

    for offset in (0, 1, 2):
        with pytest.raises(NothingLost, match="delay level 1 has not lost"):
            skip_lost(broker, 1, offset)
    deliver_due(broker)
    with pytest.raises(NothingLost):
        skip_lost(broker, 1, 0)
    with pytest.raises(NothingLost):
        find_lost(broker, 2)
    with pytest.raises(ParameterInvalid, match="the delay levels are 1 to 18"):
        find_lost(broker, 19)

    assert delivered(broker) == ["a"]
    assert steps(broker, 1) == [(1, 1, 1)]
    assert list_operations(broker, topic=SCHEDULE_TOPIC) == []


def test_a_message_that_is_stepped_over_twice_is_so_once(broker: Connection) -> None:
    lost, _ = delay(broker, 1, "lost", "a")
    lose(broker, lost)
    move_clock(broker, 2 * SECOND)

    skip_lost(broker, 1, 0)
    with pytest.raises(NothingLost):
        skip_lost(broker, 1, 0)

    assert deliver_due(broker).messages == 1
