"""Messages with a delivery time are collected, and delivered once they are due, each exactly once and never early."""

from datetime import timedelta

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.schedule.timers import deliver_due
from mqdb.store.schedule import timer_steps
from tests.fixtures.broker import dispatch_all, drop_topic, topic
from tests.fixtures.delay import delivered, move_clock, records, rewrite_entries
from tests.fixtures.postgres import Database
from tests.fixtures.timers import column, deliver_all, slots, steps, timer

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)


def test_a_message_waits_for_its_time(broker: Connection) -> None:
    topic(broker)
    timer(broker, HOUR, "a")

    first = deliver_due(broker)
    assert (first.messages, first.collected, delivered(broker)) == (0, 1, [])
    assert timedelta(minutes=59) < first.next_due_in <= HOUR

    move_clock(broker, 59 * MINUTE)
    assert deliver_due(broker).messages == 0
    move_clock(broker, HOUR)
    assert (deliver_due(broker).messages, delivered(broker)) == (1, ["a"])


def test_the_copy_is_the_message_with_a_place_of_its_own(broker: Connection) -> None:
    topic(broker, queues=4)
    [unique_id] = timer(broker, MINUTE, "a", queue_id=2, tag="paid")
    deliver_all(broker)
    move_clock(broker, HOUR)

    deliver_all(broker)

    [sent], [copy] = records(broker, "rmq_sys_wheel_timer"), records(broker)
    for name in ("msg_id", "born_time", "born_host", "tags", "keys", "properties", "body", "flag", "reconsume_times"):
        assert copy[name] == sent[name]
    assert (copy["queue_id"], copy["msg_id"].hex.upper()) == (2, unique_id)
    assert copy["tags_code"] == broker.scalar(text("SELECT mqdb.tag_code('paid')"))
    assert copy["store_time"] - sent["store_time"] > timedelta(minutes=59)


def test_what_is_due_when_it_is_collected_goes_at_once_and_not_to_the_table(broker: Connection) -> None:
    topic(broker)
    timer(broker, -HOUR, "past")
    timer(broker, timedelta(0), "now")

    found = deliver_due(broker)

    assert (found.messages, found.collected, delivered(broker)) == (2, 0, ["past", "now"])
    assert found.late >= HOUR
    assert column(broker, "SELECT count(*) FROM mqdb.timer") == [0]


def test_after_a_standstill_the_table_is_delivered_in_bounded_batches_oldest_first(broker: Connection) -> None:
    topic(broker)
    for minutes in (50, 10, 40, 20, 30, 20, 20, 20):
        timer(broker, minutes * MINUTE, str(minutes), dispatched=False)
    dispatch_all(broker)
    deliver_all(broker)
    move_clock(broker, 5 * HOUR)

    found = deliver_all(broker, max_messages=3)

    assert [each.messages for each in found] == [3, 3, 2]
    assert [each.next_due_in == timedelta(0) for each in found] == [True, True, False]
    assert delivered(broker) == ["10", "20", "20", "20", "20", "30", "40", "50"]


def test_messages_due_in_one_millisecond_may_fill_many_batches(broker: Connection) -> None:
    topic(broker)
    timer(broker, HOUR, *map(str, range(10)))
    rewrite_entries(broker, tags_code="(SELECT max(tags_code) FROM mqdb.consume_queue)")
    deliver_all(broker)
    move_clock(broker, 2 * HOUR)

    assert [each.messages for each in deliver_all(broker, max_messages=4)] == [4, 4, 2]
    assert delivered(broker) == list(map(str, range(10)))


def test_a_slot_is_as_long_as_its_messages_have_to_wait(broker: Connection) -> None:
    topic(broker)
    for delay in (MINUTE, 23 * HOUR, 2 * DAY, 29 * DAY, 31 * DAY, 899 * DAY, 901 * DAY, 2_900_000 * DAY):
        timer(broker, delay, "a")

    deliver_all(broker)

    assert slots(broker) == ["1 h"] * 2 + ["24 h"] * 2 + ["720 h"] * 2 + ["21600 h"] * 2
    inside = "SELECT deliver_ms >= first_ms AND deliver_ms < past_ms FROM mqdb.timer JOIN mqdb.timer_slot USING (slot)"
    assert column(broker, inside) == [True] * 8


def test_what_waits_in_slots_of_all_lengths_comes_in_the_order_of_time(broker: Connection) -> None:
    topic(broker)
    timer(broker, 40 * DAY, "40 d")
    timer(broker, 2 * DAY, "2 d")
    deliver_all(broker)
    move_clock(broker, 2 * DAY - HOUR)
    timer(broker, 30 * MINUTE, "30 m")
    deliver_all(broker)
    assert delivered(broker) == []

    move_clock(broker, 40 * DAY - HOUR)
    timer(broker, 2 * HOUR, "2 h")
    deliver_all(broker)
    move_clock(broker, 41 * DAY)
    deliver_all(broker)

    assert delivered(broker) == ["30 m", "2 d", "40 d", "2 h"]


def test_while_nothing_is_due_nothing_is_written_for_an_hour(broker: Connection) -> None:
    topic(broker)
    timer(broker, 3 * HOUR, "a")
    deliver_all(broker)
    before = steps(broker)

    move_clock(broker, 59 * MINUTE)
    assert (deliver_due(broker).messages, steps(broker)) == (0, before)

    move_clock(broker, 61 * MINUTE)
    deliver_due(broker)
    deliver_due(broker)
    assert len(steps(broker)) == len(before) + 1


def test_a_clock_set_back_makes_messages_wait_longer_and_brings_none_twice_or_early(broker: Connection) -> None:
    topic(broker)
    timer(broker, 2 * HOUR, "first")
    timer(broker, 5 * HOUR, "last")
    deliver_all(broker)
    move_clock(broker, 3 * HOUR)
    deliver_all(broker)
    assert delivered(broker) == ["first"]

    move_clock(broker, -HOUR)
    timer(broker, HOUR, "after")
    deliver_all(broker)
    assert (delivered(broker), slots(broker)) == (["first"], ["behind", "1 h", "1 h"])
    assert timer_steps.newest(broker).waiting == 2
    move_clock(broker, timedelta(minutes=-1))
    deliver_all(broker)
    assert delivered(broker) == ["first"]
    move_clock(broker, MINUTE)
    deliver_all(broker)
    assert delivered(broker) == ["first", "after"]
    move_clock(broker, 6 * HOUR)
    deliver_all(broker)

    assert delivered(broker) == ["first", "after", "last"]
    assert "behind" not in slots(broker)
    assert timer_steps.newest(broker).waiting == 0


def test_a_message_for_a_topic_that_is_gone_is_passed_by_and_counted(broker: Connection) -> None:
    topic(broker)
    timer(broker, -MINUTE, "a", "b", topic="gone")
    timer(broker, MINUTE, "c", topic="gone")
    timer(broker, MINUTE, "d")

    first = deliver_due(broker)
    move_clock(broker, HOUR)
    second = deliver_due(broker)

    assert [dict(each.skipped) for each in (first, second)] == [{"gone": 2}, {"gone": 1}]
    assert delivered(broker) == ["d"]
    assert timer_steps.newest(broker).waiting == 0


def test_a_message_behind_the_clock_for_a_topic_that_is_gone_is_counted(broker: Connection) -> None:
    deliver_all(broker)
    move_clock(broker, -HOUR)
    deliver_due(broker)
    timer(broker, MINUTE, "a", topic="gone")
    deliver_due(broker)
    move_clock(broker, MINUTE - HOUR)

    assert dict(deliver_due(broker).skipped) == {"gone": 1}


def test_a_topic_that_was_made_again_gets_its_message(broker: Connection) -> None:
    topic(broker, queues=4)
    timer(broker, MINUTE, "a", queue_id=3)
    deliver_all(broker)
    drop_topic(broker, "orders")
    topic(broker, queues=2)
    move_clock(broker, HOUR)

    deliver_all(broker)

    assert [(record["body"], record["queue_id"]) for record in records(broker)] == [(b"a", 1)]


def test_what_the_log_has_lost_holds_up_nothing_else_and_is_counted(broker: Connection) -> None:
    topic(broker)
    timer(broker, -MINUTE, "lost", "a")
    timer(broker, MINUTE, "lost", "b")
    broker.execute(text("DELETE FROM mqdb.commit_log WHERE body = 'lost'"))

    found = deliver_due(broker)

    assert (found.missing, found.messages, found.collected) == (2, 1, 1)
    assert dict(found.skipped) == {}
    assert deliver_due(broker).missing == 0


def test_while_another_session_delivers_nothing_is_done(broker: Connection, database: Database) -> None:
    topic(broker)
    timer(broker, -MINUTE, "a")
    other = database.connect(autocommit=False)
    other.execute("LOCK TABLE mqdb.lock_timer IN SHARE UPDATE EXCLUSIVE MODE")

    found = deliver_due(broker)
    assert (found.messages, found.late, delivered(broker)) == (0, timedelta(0), [])

    other.rollback()
    assert deliver_due(broker).messages == 1


def test_a_step_that_somebody_else_has_taken_is_not_taken_again(
    broker: Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mqdb.store.schedule import timer_looks

    topic(broker)
    timer(broker, -MINUTE, "a")
    at = timer_looks.look(broker, 10, 0)
    deliver_due(broker)
    monkeypatch.setattr(timer_looks, "look", lambda *_: at)

    assert deliver_due(broker).messages == 0
    assert delivered(broker) == ["a"]


def test_steps_are_pruned(broker: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqdb.broker.schedule.timers.STEPS_KEPT", 3)
    topic(broker)
    for _ in range(12):
        timer(broker, -MINUTE, "a")
        deliver_due(broker)

    assert column(broker, "SELECT min(seq) FROM mqdb.timer_step") == [9]


def test_the_view_shows_what_waits(broker: Connection) -> None:
    from tests.fixtures.delay import delay

    topic(broker, queues=2)
    delay(broker, 3, "level", queue_id=1)
    timer(broker, HOUR, "collected", tag="t")
    deliver_all(broker)
    timer(broker, 2 * HOUR, "not collected")
    timer(broker, -HOUR, "due")

    rows = broker.execute(
        text("""SELECT topic, queue_id, delay_level, tags, keys, due_at > mqdb.now() FROM mqdb.scheduled
                ORDER BY due_at""")
    ).fetchall()

    assert [tuple(row) for row in rows] == [
        ("orders", 0, None, None, None, False),
        ("orders", 1, 3, None, None, True),
        ("orders", 0, None, "t", "t", True),
        ("orders", 0, None, None, None, True),
    ]
    move_clock(broker, 5 * HOUR)
    deliver_all(broker)
    assert column(broker, "SELECT delay_level FROM mqdb.scheduled") == [3]
