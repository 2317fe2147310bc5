"""Times on the command line."""

from datetime import UTC, datetime, timedelta
from time import tzset

import pytest

from mqdb.cli.times import parse_time, shown_time
from mqdb.errors import ParameterInvalid


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("90s", timedelta(seconds=90)),
        ("30m", timedelta(minutes=30)),
        ("2h", timedelta(hours=2)),
        ("7d", timedelta(days=7)),
        ("0s", timedelta(0)),
    ],
)
def test_a_number_and_its_unit_is_how_long_ago(text: str, ago: timedelta) -> None:
    assert parse_time("since", text) == ago


@pytest.mark.parametrize("text", ["2026-07-14T09:30:00Z", "2026-07-14T11:30+02:00", "20260714T093000Z"])
def test_iso_8601_with_a_zone_is_a_moment(text: str) -> None:
    assert parse_time("since", text) == datetime(2026, 7, 14, 9, 30, tzinfo=UTC)


@pytest.mark.parametrize("text", ["2026-07-14", "2026-07-14 09:30"])
def test_without_a_zone_it_is_that_of_this_machine(text: str) -> None:
    parsed = parse_time("since", text)

    assert parsed == datetime.fromisoformat(text).astimezone()
    assert isinstance(parsed, datetime)
    assert parsed.tzinfo is not None


@pytest.mark.parametrize("text", ["", "yesterday", "2", "-2h", "2w", "2026-13-01", "9" * 20 + "d", "٢h"])
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ParameterInvalid, match="2026-07-14T09:30") as refused:
        parse_time("since", text)

    assert (refused.value.name, refused.value.value) == ("since", text)


def test_a_moment_is_shown_to_the_second_with_its_zone() -> None:
    shown = shown_time(datetime(2026, 7, 14, 9, 30, 5, 999_999, UTC))

    assert shown is not None
    assert datetime.fromisoformat(shown) == datetime(2026, 7, 14, 9, 30, 5, tzinfo=UTC)
    assert shown_time(None) is None


def test_the_end_of_the_calendar_can_be_shown_in_each_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    tzset()
    try:
        assert shown_time(datetime.max.replace(tzinfo=UTC)) == "9999-12-31 23:59:59+00:00"
    finally:
        monkeypatch.undo()
        tzset()
