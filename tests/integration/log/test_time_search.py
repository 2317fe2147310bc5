"""The search by time in real queues, over several segments."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.consumers.offsets import search_offset
from mqdb.broker.log.query import log_span, positions_since
from mqdb.errors import ParameterInvalid
from mqdb.store.log import time_search
from mqdb.store.log.time_search import offsets_of_time
from tests.fixtures import broker as verbs
from tests.fixtures import log as by_hand
from tests.fixtures.postgres import Database

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def at(position: int) -> datetime:
    """The store time of the record at a position."""
    return BEGIN + timedelta(seconds=position)


def stamp(connection: by_hand.Connection) -> None:
    """Set the store times one second apart, in the order of positions."""
    connection.execute("UPDATE mqdb.commit_log SET store_time = %s + make_interval(secs => log_pos)", [BEGIN])


def test_a_time_is_found_in_any_segment(log: by_hand.Connection, broker: Connection) -> None:
    by_hand.small_segments(log, 50, ahead=10)
    keys = by_hand.create_topic(log, "orders", 2)
    for _ in range(6):
        for key, count in zip(keys, (40, 7), strict=True):
            by_hand.append(log, key, count)
    by_hand.dispatch_all(log)
    stamp(log)
    positions = {key: by_hand.positions(log, key) for key in keys}

    for wanted in (-1, 0, 1, 39, 40, 41, 48, 99, 281, 282, 283):
        expected = {key: sum(position < wanted for position in positions[key]) for key in keys}
        assert offsets_of_time(broker, keys, at(wanted)) == expected


@pytest.mark.parametrize("near", [1, 10, time_search.NEAR])
def test_a_transaction_that_takes_long_does_not_lead_astray(
    log: by_hand.Connection, broker: Connection, database: Database, near: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long transaction does not mislead the search: its messages come late in the queue, but were stored early.

    `near` suffices as long as it covers them.
    """
    monkeypatch.setattr(time_search, "NEAR", near)
    (key,) = by_hand.create_topic(log, "orders", 1)
    slow = database.connect()
    slow.execute("BEGIN")
    by_hand.append(slow, key, min(near, 300))
    before = by_hand.append(log, key, 3)
    by_hand.dispatch_all(log)
    slow.execute("COMMIT")
    by_hand.dispatch_all(log)
    by_hand.append(log, key, 5)
    by_hand.dispatch_all(log)
    stamp(log)

    found = [search_offset(broker, key, at(position)) for position in before]

    assert found == [0, 1, 2]


def test_before_the_min_offset_nothing_is_found(broker: Connection, database: Database) -> None:
    route = verbs.topic(broker)
    (key,) = route.queue_keys
    positions = verbs.append(broker, route, *"abcdef")
    verbs.dispatch_all(broker)
    stamp(database.connect())
    broker.execute(text("UPDATE mqdb.queue SET base_offset = 4 WHERE queue_key = :key"), {"key": key})

    assert [search_offset(broker, key, at(position)) for position in positions] == [4, 4, 4, 4, 4, 5]


def test_a_queue_without_messages_is_at_its_end(broker: Connection) -> None:
    route = verbs.topic(broker)

    assert search_offset(broker, route.queue_keys[0], BEGIN) == 0


def test_a_time_without_a_zone_is_refused(broker: Connection) -> None:
    with pytest.raises(ParameterInvalid, match="time zone"):
        search_offset(broker, 1, datetime(2026, 1, 1))  # noqa: DTZ001


def test_positions_since_a_time_count_what_the_log_took(log: by_hand.Connection, broker: Connection) -> None:
    by_hand.small_segments(log, 50, ahead=10)
    [key] = by_hand.create_topic(log, "orders", 1)
    assert log_span(broker).oldest is None
    by_hand.append(log, key, 120)
    by_hand.dispatch_all(log)
    stamp(log)
    last = max(by_hand.positions(log, key))

    assert positions_since(broker, [at(last - 9), at(last + 1), at(-1)]) == [
        10,
        0,
        last - log_span(broker).lowest_pos + 1,
    ]
    assert log_span(broker).past_pos == last + 1
    assert log_span(broker).oldest == at(min(by_hand.positions(log, key)))
