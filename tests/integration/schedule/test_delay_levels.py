"""The table of delay levels, as the broker fills it from its setting."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, DateTime, Interval, literal_column, select, text

from mqdb.broker.broker_settings import change_settings
from mqdb.common.delay_level import DEFAULT_DELAY_LEVELS, parse_delay_levels
from mqdb.common.topic import SCHEDULE_TOPIC
from mqdb.errors import SettingInvalid
from mqdb.server import Server
from mqdb.settings import load_settings
from mqdb.store.broker_settings import BrokerSettings
from mqdb.store.schedule import delay_levels
from mqdb.store.topics.topics import find_topic
from tests.fixtures.log import scalar
from tests.fixtures.postgres import Database

DEFAULT = parse_delay_levels(DEFAULT_DELAY_LEVELS)


def queues(broker: Connection) -> tuple[int, int]:
    """The number of readable queues of the schedule topic, and the number of all its queues."""
    route = find_topic(broker, SCHEDULE_TOPIC)
    assert route is not None
    return route.config.read_queue_nums, len(route.queue_keys)


def test_a_new_broker_has_rocketmqs_levels(broker: Connection) -> None:
    assert delay_levels.find(broker) == DEFAULT
    assert queues(broker) == (18, 18)
    assert not change_settings(broker, BrokerSettings(), DEFAULT)


def test_levels_can_be_changed(broker: Connection) -> None:
    levels = parse_delay_levels("2s 1m 3h")

    assert change_settings(broker, BrokerSettings(), levels)

    assert delay_levels.find(broker) == levels
    assert queues(broker) == (18, 18)  # messages of the old levels may wait there


def test_more_levels_have_more_queues(broker: Connection) -> None:
    longer = parse_delay_levels(DEFAULT_DELAY_LEVELS + " 1d 30d")

    change_settings(broker, BrokerSettings(), longer)
    change_settings(broker, BrokerSettings(), DEFAULT)
    change_settings(broker, BrokerSettings(), longer)

    assert delay_levels.find(broker).delays[-2:] == (timedelta(days=1), timedelta(days=30))
    assert queues(broker) == (20, 20)


def test_a_day_has_24_hours_also_when_summer_time_begins(broker: Connection) -> None:
    broker.execute(text("SET timezone = 'Europe/Berlin'"))
    now = literal_column("timestamptz '2024-03-30 12:00 UTC'", DateTime)

    code = broker.scalar(select(delay_levels.delivery_time(now, literal_column("interval '1 day'", Interval))))

    assert code == datetime(2024, 3, 31, 12, tzinfo=UTC).timestamp() * 1000


def test_the_setting_is_applied_at_the_start(database: Database) -> None:
    with Server(load_settings(dsn=database.dsn, message_delay_level="2s  1m")):
        rows = database.connect().execute("SELECT level, delay::text FROM mqdb.delay_level ORDER BY level").fetchall()

    assert rows == [(1, "00:00:02"), (2, "00:01:00")]


@pytest.mark.parametrize("levels", ["", "1s 5x", "1s, 5s", "-1s", "s"])
def test_a_bad_text_fails_the_start(levels: str, database: Database) -> None:
    with pytest.raises(SettingInvalid, match="message_delay_level"):
        Server(load_settings(dsn=database.dsn, message_delay_level=levels)).start()

    assert scalar(database.connect(), "SELECT count(*) FROM mqdb.delay_level") == 18
