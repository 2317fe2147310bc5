"""Recurring sends: added, fired at their times, caught up and paused; and the refused ones."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from mqdb.broker.acl import Rights, grant
from mqdb.broker.schedule.cron import CatchUp, Cron, add_cron, fire_due, pause_cron, remove_cron, resume_cron
from mqdb.broker.topics.topics import create_topic
from mqdb.common.message import Message
from mqdb.common.topic import Perm, TopicConfig
from mqdb.errors import (
    BodyEmpty,
    BodyTooLarge,
    CronExists,
    CronInvalid,
    CronNotFound,
    MqdbError,
    NameInvalid,
    ParameterInvalid,
    PropertyInvalid,
    PropertyReserved,
    SegmentSealed,
    StorageRefused,
    TopicNotAllowed,
    TopicNotFound,
    TopicNotWritable,
)
from mqdb.service.cron_times import next_time
from mqdb.store.schedule.cron import CronSummary, list_crons
from tests.fixtures.broker import drop_topic, topic
from tests.fixtures.crons import add, fire, sent, set_clock
from tests.fixtures.delay import records


@pytest.fixture
def clock(broker: Connection) -> Connection:
    """A session with the topic `orders`, in which the time is 09:05 on a day in July."""
    topic(broker, "orders", queues=4)
    set_clock(broker, "2026-07-14 09:05:00")
    return broker


def only(connection: Connection) -> CronSummary:
    (cron,) = list_crons(connection)
    return cron


def utc(hour: int, minute: int) -> datetime:
    return datetime(2026, 7, 14, hour, minute, tzinfo=UTC)


# -- firing -------------------------------------------------------------------------------------


def test_times_are_to_the_second(clock: Connection) -> None:
    add(clock, "*/15 9 9 * * *", "probe", catch_up=CatchUp.ALL)
    set_clock(clock, "2026-07-14 09:09:14")
    fire(clock)
    early = sent(clock)
    set_clock(clock, "2026-07-14 09:09:31")
    fire(clock)

    assert early == ["2026-07-14T09:09:00Z"]
    assert sent(clock) == [f"2026-07-14T09:09:{second}Z" for second in ("00", "15", "30")]
    assert only(clock).next_at == utc(9, 9) + timedelta(seconds=45)


def test_a_message_says_which_cron_and_which_time_it_is_of(clock: Connection) -> None:
    message = Message("orders", b"\xff\x00", "daily", ("one", "two"), {"origin": "shop"})
    add_cron(clock, Cron("tick", "30 11 * * *", message, "Europe/Berlin", "key-1"), next_time)
    set_clock(clock, "2026-07-14 09:30:00.5")

    fire(clock)

    (record,) = records(clock)
    properties = record["properties"]
    assert (record["body"], record["tags"], record["keys"]) == (b"\xff\x00", "daily", "one two")
    assert properties == {
        "origin": "shop",
        "MQDB_CRON_NAME": "tick",
        "MQDB_CRON_TIME": "2026-07-14T09:30:00Z",
    }


def test_messages_with_a_sharding_key_go_to_one_queue(clock: Connection) -> None:
    add_cron(clock, Cron("a", "* * * * *", Message("orders", "a"), sharding_key="k", catch_up=CatchUp.ALL), next_time)
    set_clock(clock, "2026-07-14 09:24:30")

    fire(clock)

    assert (len(sent(clock)), len({record["queue_id"] for record in records(clock)})) == (19, 1)


def test_nothing_is_sent_before_its_time(clock: Connection) -> None:
    add(clock)
    set_clock(clock, "2026-07-14 09:09:30")

    found = fire(clock)

    assert (found.firings, sent(clock)) == ((), [])
    assert found.next_due_in is not None
    assert timedelta(0) < found.next_due_in <= timedelta(seconds=30)


def test_a_time_is_fired_once_and_the_next_one_waits(clock: Connection) -> None:
    add(clock)
    set_clock(clock, "2026-07-14 09:10:00")

    rounds = [fire(clock) for _ in range(3)]

    assert [len(each.firings) for each in rounds] == [1, 0, 0]
    assert sent(clock) == ["2026-07-14T09:10:00Z"]
    cron = only(clock)
    assert (cron.next_at, cron.last_fired_at, cron.sent) == (utc(9, 20), utc(9, 10), 1)


def test_without_a_cron_nothing_is_due(broker: Connection) -> None:
    assert fire(broker).next_due_in is None


# -- catching up --------------------------------------------------------------------------------


def test_once_sends_the_latest_of_the_times_that_have_passed(clock: Connection) -> None:
    add(clock)
    set_clock(clock, "2026-07-14 11:34:00")

    (firing,) = fire(clock).firings

    assert (firing.sent, firing.left_out, firing.scheduled_at) == (1, True, utc(9, 10))
    assert sent(clock) == ["2026-07-14T11:30:00Z"]
    assert only(clock).next_at == utc(11, 40)


def test_all_sends_one_for_each_time_oldest_first_and_some_in_a_round(clock: Connection) -> None:
    add(clock, catch_up=CatchUp.ALL)
    set_clock(clock, "2026-07-14 09:54:00")

    rounds = [fire(clock, max_messages=2) for _ in range(4)]

    assert [[firing.sent for firing in each.firings] for each in rounds] == [[2], [2], [1], []]
    assert rounds[0].next_due_in == timedelta(0)
    assert sent(clock) == [f"2026-07-14T09:{minute}:00Z" for minute in (10, 20, 30, 40, 50)]


def test_none_leaves_out_what_is_more_than_a_minute_late(clock: Connection) -> None:
    add(clock, catch_up=CatchUp.NONE)
    set_clock(clock, "2026-07-14 10:01:01")
    late = fire(clock)
    set_clock(clock, "2026-07-14 10:10:30")
    in_time = fire(clock)

    assert [(firing.sent, firing.left_out) for firing in (*late.firings, *in_time.firings)] == [(0, True), (1, False)]
    assert sent(clock) == ["2026-07-14T10:10:00Z"]


def test_a_year_of_minutes_is_passed_by_in_a_moment(clock: Connection) -> None:
    add(clock, "* * * * *")
    set_clock(clock, "2027-07-14 09:05:30")
    looked: list[datetime] = []

    def counted(cron: str, zone: str, after: datetime) -> datetime:
        looked.append(after)
        return next_time(cron, zone, after)

    fire_due(clock, counted)

    assert sent(clock) == ["2027-07-14T09:05:00Z"]
    assert len(looked) < 100


def test_a_principal_has_the_rights_that_it_was_granted_when_its_cron_fires(clock: Connection) -> None:
    """A cron fires with the rights granted to its principal.

    The rights of a same-named role that owns the broker do not count, nor do rights in the namespace.
    """
    owner = str(clock.exec_driver_sql("SELECT session_user").scalar_one())
    rights = Rights(send=["orders"], operate=["orders"], external=True)
    names = (owner, "ada", "without rights", "of a shop")
    for name in names:
        cron = Cron(f"cron-{names.index(name)}", "30 11 * * *", Message("orders", "x"), "Europe/Berlin")
        add_cron(clock, cron, next_time, principal=name)
    grant(clock, "ada", rights)
    grant(clock, "of a shop", replace(rights, namespace="shop"))
    set_clock(clock, "2026-07-14 09:30:00")

    found = {firing.name: (firing.sent, firing.skipped) for firing in fire(clock).firings}

    assert found == {"cron-0": (0, 1), "cron-1": (1, 0), "cron-2": (0, 1), "cron-3": (0, 1)}


# -- topics that are gone -----------------------------------------------------------------------


def test_while_its_topic_is_gone_firings_are_skipped_and_counted(clock: Connection) -> None:
    add(clock)
    drop_topic(clock, "orders")
    for hour in (10, 11):
        set_clock(clock, f"2026-07-14 {hour}:05:00")
        fire(clock)
    topic(clock, "orders")
    set_clock(clock, "2026-07-14 12:05:00")

    (firing,) = fire(clock).firings

    assert (firing.sent, firing.skipped) == (1, 0)
    assert sent(clock) == ["2026-07-14T12:00:00Z"]
    assert (only(clock).sent, only(clock).skipped) == (1, 2)


def test_while_its_topic_takes_no_messages_firings_are_skipped_and_others_sent(clock: Connection) -> None:
    topic(clock, "other")
    add(clock)
    add(clock, name="other", topic="other")
    clock.execute(text("UPDATE mqdb.topic SET perm = 4 WHERE topic = 'orders'"))
    set_clock(clock, "2026-07-14 09:10:00")

    found = {firing.name: (firing.sent, firing.skipped) for firing in fire(clock).firings}

    assert found == {"tick": (0, 1), "other": (1, 0)}
    assert [cron.last_fired_at for cron in list_crons(clock)] == [utc(9, 10), None]


def test_a_cron_that_cannot_be_read_any_more_is_paused_and_others_go_on(clock: Connection) -> None:
    add(clock)
    add(clock, name="other")
    clock.execute(text("UPDATE mqdb.cron SET timezone = 'Mars/Olympus' WHERE name = 'tick'"))
    set_clock(clock, "2026-07-14 09:10:00")

    found = fire(clock)

    assert list(found.broken) == ["tick"]
    assert [firing.name for firing in found.firings] == ["other"]
    assert [(cron.name, cron.is_paused) for cron in list_crons(clock)] == [("other", False), ("tick", True)]


#: By the names of crons: what makes their messages such as are refused, and the error.
REFUSED: dict[str, tuple[str, type[MqdbError]]] = {
    "no-body": ("body = ''", BodyEmpty),
    "too-long": ("body = repeat('x', 4194305)::bytea", BodyTooLarge),
    "a-list": ("properties = '[1]'", ParameterInvalid),
    "an-object": ("properties = '{\"a\": {}}'", PropertyInvalid),
    "system-topic": ("topic = 'SCHEDULE_TOPIC_XXXX'", TopicNotAllowed),
}


def test_a_cron_whose_message_is_refused_is_paused_and_others_go_on(clock: Connection) -> None:
    for name in ("a", *REFUSED, "z"):
        add(clock, name=name)
    for name, (change, _) in REFUSED.items():
        clock.execute(text(f"UPDATE mqdb.cron SET {change} WHERE name = '{name}'"))
    set_clock(clock, "2026-07-14 09:10:00")

    found = fire(clock)

    assert {name: type(reason) for name, reason in found.broken.items()} == {
        name: error for name, (_, error) in REFUSED.items()
    }
    assert [(firing.name, firing.sent) for firing in found.firings] == [("a", 1), ("z", 1)]
    assert {cron.name: (cron.is_paused, cron.sent) for cron in list_crons(clock)} == {
        "a": (False, 1),
        **dict.fromkeys(REFUSED, (True, 0)),
        "z": (False, 1),
    }
    assert len(sent(clock)) == 2


def test_numbers_are_properties_of_a_cron(clock: Connection) -> None:
    add(clock)
    clock.execute(text("UPDATE mqdb.cron SET properties = jsonb_build_object('a', 1, 'b', true)"))
    set_clock(clock, "2026-07-14 09:10:00")

    fire(clock)

    (record,) = records(clock)
    assert (record["properties"]["a"], record["properties"]["b"]) == ("1", "true")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("ALTER TABLE mqdb.commit_log ADD CONSTRAINT no_more CHECK (log_pos < 0) NOT VALID", StorageRefused),
        (
            "CREATE TRIGGER sealed BEFORE INSERT ON mqdb.commit_log FOR EACH ROW EXECUTE FUNCTION mqdb.refuse_sealed()",
            SegmentSealed,
        ),
    ],
    ids=["no partition", "a sealed segment"],
)
def test_what_is_wrong_with_the_database_pauses_no_cron(clock: Connection, change: str, error: type[MqdbError]) -> None:
    add(clock)
    clock.execute(text(change))
    set_clock(clock, "2026-07-14 09:10:00")

    with pytest.raises(error):
        fire(clock)

    assert not only(clock).is_paused


# -- pause, resume, remove ----------------------------------------------------------------------


def test_what_is_paused_does_not_fire_and_is_not_caught_up(clock: Connection) -> None:
    add(clock, catch_up=CatchUp.ALL)
    pause_cron(clock, "tick")
    set_clock(clock, "2026-07-14 11:05:00")
    assert fire(clock).next_due_in is None

    assert resume_cron(clock, "tick", next_time) == utc(11, 10)

    assert fire(clock).firings == ()
    set_clock(clock, "2026-07-14 11:10:00")
    fire(clock)
    assert sent(clock) == ["2026-07-14T11:10:00Z"]


def test_to_resume_what_is_not_paused_loses_no_time(clock: Connection) -> None:
    add(clock, catch_up=CatchUp.ALL)
    set_clock(clock, "2026-07-14 09:25:00")

    resume_cron(clock, "tick", next_time)

    assert only(clock).next_at == utc(9, 10)


def test_what_is_removed_is_gone(clock: Connection) -> None:
    add(clock)

    remove_cron(clock, "tick")

    assert list_crons(clock) == []
    acts: list[Callable[[Connection, str], object]] = [
        remove_cron,
        pause_cron,
        partial(resume_cron, next_time=next_time),
    ]
    for act in acts:
        with pytest.raises(CronNotFound, match="cron 'tick' does not exist"):
            act(clock, "tick")


# -- what is refused ----------------------------------------------------------------------------


A_MESSAGE = Message("orders", "a")


def cron(name: str = "tick", text: str = "@daily", message: Message = A_MESSAGE, zone: str = "UTC") -> Cron:
    return Cron(name, text, message, zone)


NEVER_SENT: list[tuple[Cron, type[MqdbError]]] = [
    (cron(name="no name"), NameInvalid),
    (cron(name=""), NameInvalid),
    (cron(text="61 * * * *"), CronInvalid),
    (cron(zone="Mars/Olympus"), ParameterInvalid),
    (cron(message=Message("nothing", "a")), TopicNotFound),
    (cron(message=Message("closed", "a")), TopicNotWritable),
    (cron(message=Message("SCHEDULE_TOPIC_XXXX", "a")), TopicNotAllowed),
    (cron(message=Message("orders", "")), BodyEmpty),
    (cron(message=Message("orders", "a", properties={"MQDB_CRON_TIME": "now"})), PropertyReserved),
    (cron(message=Message("orders", "a", properties={"DELAY": "3"})), PropertyReserved),
    (cron(message=Message("orders", "a", delay_level=3)), ParameterInvalid),
    (cron(message=Message("orders", "a", flag=1)), ParameterInvalid),
]


def test_what_could_never_be_sent_is_not_added(clock: Connection) -> None:
    create_topic(clock, TopicConfig("closed", perm=Perm.READ))

    for given, error in NEVER_SENT:
        with pytest.raises(error):
            add_cron(clock, given, next_time)

        assert list_crons(clock) == [], given


def test_a_name_is_taken_once(clock: Connection) -> None:
    add(clock)

    with pytest.raises(CronExists, match="mqdb cron remove tick"):
        add(clock, "@daily")

    assert only(clock).cron == "*/10 * * * *"


def test_a_time_that_no_broker_can_count_from_is_refused_and_stops_no_cron(clock: Connection) -> None:
    clock.execute(text("SET timezone = 'UTC'"))
    add(clock)
    add(clock, name="other")

    for next_at in (
        *("-infinity", "infinity", "0044-03-15 00:00:00+00 BC"),
        *("0001-01-01 00:00:00+00", "10000-01-01 00:00:00+00"),
    ):
        with pytest.raises(IntegrityError, match=f"cron_next_at(.|\n)*{re.escape(next_at)}"):
            clock.execute(text("UPDATE mqdb.cron SET next_at = :next_at WHERE name = 'tick'"), {"next_at": next_at})

    set_clock(clock, "2026-07-14 09:10:00")
    assert [firing.sent for firing in fire(clock).firings] == [1, 1]


def test_a_time_long_ago_is_due_at_once_in_any_zone(clock: Connection) -> None:
    zones = ("Asia/Tokyo", "America/New_York")
    for zone in zones:
        add_cron(clock, Cron(zone.replace("/", "-"), "0 * * * *", A_MESSAGE, zone), next_time)
    clock.execute(text("UPDATE mqdb.cron SET next_at = 'epoch'"))

    found = fire(clock)

    assert ([firing.sent for firing in found.firings], found.broken) == ([1, 1], {})
    assert sent(clock) == ["2026-07-14T09:00:00Z"] * 2
