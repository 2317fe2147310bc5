"""Schedules: the delivery time of a message, as its sender and its properties state it."""

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqdb.common.delivery_schedule import MAX_MILLISECONDS, DelayLevel, DeliverAfter, DeliverAt, schedule_of
from mqdb.common.message import Message, check_message
from mqdb.errors import NotSupported, ResponseCode, ScheduleInvalid
from mqdb_client.producer.sends.batch import check_batch, check_unscheduled

NOON = datetime(2026, 7, 14, 12, 0, tzinfo=UTC)
NOON_MS = 1_784_030_400_000


def message(**system_properties: str) -> Message:
    return Message("orders", "x", system_properties=system_properties)


# -- what a sender writes ---------------------------------------------------------------------


def test_a_message_has_no_schedule_unless_it_is_given_one() -> None:
    assert schedule_of(Message("orders", "x").system_properties) is None
    assert Message("orders", "x").system_properties == {}


def test_a_delay_level_is_the_property_delay() -> None:
    delayed = Message("orders", "x", delay_level=3)

    assert delayed.system_properties == {"DELAY": "3"}
    assert schedule_of(delayed.system_properties) == DelayLevel(3)


@pytest.mark.parametrize(
    ("delay", "milliseconds"),
    [
        (timedelta(seconds=90), 90_000),
        (timedelta(microseconds=1_000), 1),
        (timedelta(microseconds=1_001), 2),
        (timedelta(0), 0),
        (timedelta(seconds=-5), -5_000),
    ],
    ids=str,
)
def test_a_delay_is_in_milliseconds_rounded_up(delay: timedelta, milliseconds: int) -> None:
    delayed = Message("orders", "x", delay=delay)

    assert delayed.system_properties == {"TIMER_DELAY_MS": str(milliseconds)}
    assert schedule_of(delayed.system_properties) == DeliverAfter(milliseconds)


@pytest.mark.parametrize(
    "deliver_at",
    [NOON, NOON.astimezone(timezone(timedelta(hours=-7))), NOON - timedelta(microseconds=999), NOON_MS],
    ids=str,
)
def test_a_time_of_delivery_is_in_milliseconds_since_1970_rounded_up(deliver_at: datetime | int) -> None:
    timed = Message("orders", "x", deliver_at=deliver_at)

    assert timed.system_properties == {"TIMER_DELIVER_MS": str(NOON_MS)}
    assert schedule_of(timed.system_properties) == DeliverAt(NOON_MS)


@given(st.datetimes(max_value=datetime(9999, 12, 31), timezones=st.just(UTC)))  # noqa: DTZ001
def test_no_time_of_delivery_becomes_an_earlier_one(time: datetime) -> None:
    schedule = schedule_of(Message("orders", "x", deliver_at=time).system_properties)

    assert isinstance(schedule, DeliverAt)
    since_1970 = time - datetime(1970, 1, 1, tzinfo=UTC)
    assert timedelta(0) <= timedelta(milliseconds=schedule.milliseconds) - since_1970 < timedelta(milliseconds=1)


def test_a_schedule_stays_with_other_system_properties() -> None:
    both = Message("orders", "x", system_properties={"TTL": "5"}, delay_level=2).with_system_properties(
        {"MSG_TYPE": "a"}
    )

    assert both.system_properties == {"TTL": "5", "DELAY": "2", "MSG_TYPE": "a"}


BAD_SCHEDULES: dict[str, tuple[dict[str, Any], str]] = {
    "naive datetime": ({"deliver_at": datetime(2026, 7, 14)}, "no time zone"),  # noqa: DTZ001
    "text as time": ({"deliver_at": "noon"}, "'noon' is str; give an aware datetime or whole milliseconds since 1970"),
    "float as time": ({"deliver_at": 1.5}, "1.5 is float; give an aware datetime or whole milliseconds"),
    "date as time": ({"deliver_at": date(2026, 7, 14)}, "is date; give an aware datetime"),
    "truth as time": ({"deliver_at": True}, "True is bool; give an aware datetime"),
    "time too far": ({"deliver_at": MAX_MILLISECONDS + 1}, "is too far"),
    "seconds as delay": ({"delay": 90}, "90 is int, not a timedelta"),
    "delay too long": ({"delay": timedelta.max}, "is too far"),
    "text as level": ({"delay_level": "3"}, "'3' is not a whole number"),
    "truth as level": ({"delay_level": True}, "True is not a whole number"),
    "level of no int": ({"delay_level": 2**31}, "is too far"),
    "level and delay": ({"delay_level": 1, "delay": timedelta(1)}, "delay_level already determines"),
    "delay and time": ({"delay": timedelta(1), "deliver_at": 5}, "delay already determines"),
}


@pytest.mark.parametrize("case", BAD_SCHEDULES)
def test_a_schedule_that_is_none_is_refused_with_code_13(case: str) -> None:
    arguments, words = BAD_SCHEDULES[case]

    with pytest.raises(ScheduleInvalid, match=words) as refused:
        Message("orders", "x", **arguments)

    assert refused.value.code is ResponseCode.MESSAGE_ILLEGAL


# -- what the properties mean -----------------------------------------------------------------


@pytest.mark.parametrize("level", ["0", "-1", "-2147483647"])
def test_a_level_that_is_not_positive_is_no_schedule(level: str) -> None:
    assert schedule_of(message(DELAY=level).system_properties) is None


@pytest.mark.parametrize(
    ("properties", "schedule"),
    [
        ({"DELAY": "2", "TIMER_DELAY_SEC": "5"}, DelayLevel(2)),
        ({"DELAY": "0", "TIMER_DELAY_SEC": "5"}, DeliverAfter(5_000)),
        ({"TIMER_DELAY_MS": "7", "TIMER_DELAY_SEC": "5", "TIMER_DELIVER_MS": "9"}, DeliverAfter(5_000)),
        ({"TIMER_DELIVER_MS": "9", "TIMER_DELAY_MS": "7"}, DeliverAfter(7)),
        ({"TIMER_DELIVER_MS": "9"}, DeliverAt(9)),
        ({"TIMER_DELIVER_MS": "+9"}, DeliverAt(9)),
        ({"TIMER_DELAY_MS": "-7"}, DeliverAfter(-7)),
    ],
    ids=str,
)
def test_a_level_wins_over_a_time_and_seconds_over_milliseconds_over_a_moment(
    properties: dict[str, str], schedule: object
) -> None:
    assert schedule_of(message(**properties).system_properties) == schedule


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
@pytest.mark.parametrize("text", ["", "abc", "1.5", " 5", "0x10", "\N{ARABIC-INDIC DIGIT FIVE}", "9" * 19, "1" * 5_000])
def test_what_is_no_number_is_refused_before_anything_is_sent(name: str, text: str) -> None:
    with pytest.raises(ScheduleInvalid, match=name):
        check_message(message(**{name: text}))


# -- batches ----------------------------------------------------------------------------------

SCHEDULES: list[dict[str, Any]] = [{"delay_level": 1}, {"delay": timedelta(seconds=1)}, {"deliver_at": NOON}]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_batch_with_a_message_for_later_is_refused(schedule: dict[str, Any]) -> None:
    with pytest.raises(NotSupported, match="a batch with a delay"):
        check_batch([Message("orders", "x"), Message("orders", "y", **schedule)])


def test_a_batch_with_a_level_that_means_at_once_is_sent() -> None:
    check_unscheduled(Message("orders", "x", delay_level=-1))
