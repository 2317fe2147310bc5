"""`mqdb send` with a delay level, a delay, or a delivery time."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.command_line import Place
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database

STORED = """
SELECT t.topic, q.queue_id, cl.tags_code, extract(epoch FROM cl.store_time) * 1000
FROM mqdb.commit_log cl JOIN mqdb.queue q USING (queue_key) JOIN mqdb.topic t USING (topic_id) ORDER BY cl.body
"""


@pytest.fixture
def place(database: Database, tmp_path: Path) -> Place:
    """A broker without a broker process, with a topic."""
    create_topic(database.connect(), "orders", 4)
    return Place(tmp_path, database.dsn)


def stored(database: Database) -> list[tuple[Any, ...]]:
    return database.connect().execute(STORED).fetchall()


def test_messages_are_sent_with_a_delay_level(place: Place, database: Database) -> None:
    printed = place.done("send", "orders", "a", "b", "--delay-level", "3")

    assert [row[:2] for row in stored(database)] == [("SCHEDULE_TOPIC_XXXX", 2)] * 2
    assert len(printed.split()) == 2


def test_messages_are_sent_with_a_delay(place: Place, database: Database) -> None:
    place.done("send", "orders", "a", "--delay", "90s")

    [(topic, _, due, now)] = stored(database)
    assert topic == "rmq_sys_wheel_timer"
    assert 90_000 <= due - now < 90_001


def test_messages_are_sent_with_a_time_of_delivery(place: Place, database: Database) -> None:
    place.done("send", "orders", "a", "--deliver-at", "2100-01-01T00:00:00+00:00")

    [(topic, _, due, _)] = stored(database)
    assert (topic, due) == ("rmq_sys_wheel_timer", datetime(2100, 1, 1, tzinfo=UTC).timestamp() * 1000)


def test_the_lines_of_a_file_all_wait(place: Place, database: Database, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"{number}\n" for number in range(200)))

    printed = place.done("send", "orders", "-f", str(lines), "--delay-level", "18")

    assert "sent 200 messages" in printed
    assert {row[:2] for row in stored(database)} == {("SCHEDULE_TOPIC_XXXX", 17)}
    assert len(stored(database)) == 200


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--delay", "soon"], "500ms, 90s, 15m, 2h or 7d"),
        (["--delay", "9999999999d"], "is too long"),
        (["--deliver-at", "tomorrow"], "2026-07-14T09:30"),
        (["--delay", "90s", "--delay-level", "3"], "delay_level already determines"),
    ],
    ids=["delay", "long delay", "time", "two of them"],
)
def test_a_time_that_is_none_is_refused_with_an_example(
    place: Place, database: Database, options: list[str], words: str
) -> None:
    outcome = place.call("send", "orders", "a", *options)

    assert outcome.code == 1
    assert words in " ".join(outcome.errors.split())
    assert stored(database) == []
