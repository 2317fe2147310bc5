"""The end of half messages at the broker: the stored records, the refusals, and the effect of a second end."""

from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import IntegrityError

from mqdb.broker.topics import topics as admin
from mqdb.broker.transactions.transactions import Resolution, list_halves, resolve
from mqdb.common.topic import HALF_TOPIC
from mqdb.common.transaction import CHECK_IMMUNITY_TIME, HalfState, LocalTransactionState
from mqdb.common.unique_id import format_unique_id
from mqdb.errors import (
    HalfMessageClosed,
    HalfMessageMismatch,
    HalfMessageNotFound,
    ImmunityOver,
    ParameterInvalid,
    ResponseCode,
    TopicNotFound,
)
from tests.fixtures.broker import append, drop_topic, topic
from tests.fixtures.delay import delivered, move_clock, records, stop_clock
from tests.fixtures.log import small_segments
from tests.fixtures.postgres import Database
from tests.fixtures.transactions import COMMIT, ROLLBACK, SECOND, UNKNOWN, Checker, halves, send_half
from tests.fixtures.variants import case


def test_a_half_message_is_in_its_own_topic_until_it_is_committed(broker: Connection) -> None:
    send_half(broker, topic(broker))

    assert delivered(broker, HALF_TOPIC) == ["half"]
    assert delivered(broker) == []


def test_a_commit_brings_the_message_to_its_real_queue_with_all_that_it_was(broker: Connection) -> None:
    half = send_half(broker, topic(broker), tag="paid", keys="order-17", properties={"a": "b"}, flag=3)

    ended = half.end(broker, COMMIT)

    assert (ended.has_changed, ended.state) == (True, HalfState.COMMITTED)
    (copy,) = records(broker)
    assert (copy["log_pos"], copy["msg_id"]) == (ended.copy_pos, half.unique_id)
    assert (copy["body"], copy["tags"], copy["keys"], copy["flag"]) == (b"half", "paid", "order-17", 3)
    assert copy["properties"] == {
        "a": "b",
        "TRAN_MSG": "true",
        "PGROUP": "senders",
        "REAL_TOPIC": "orders",
        "REAL_QID": "0",
    }


def test_a_rollback_stores_nothing_but_the_state(broker: Connection) -> None:
    half = send_half(broker, topic(broker))

    ended = half.end(broker, ROLLBACK)

    assert (ended.has_changed, ended.state, ended.copy_pos) == (True, HalfState.ROLLED_BACK, None)
    assert delivered(broker) == []


def test_unknown_changes_nothing(broker: Connection) -> None:
    half = send_half(broker, topic(broker))

    assert half.end(broker, UNKNOWN) == (False, HalfState.PREPARED, None)
    assert halves(broker) == []


@pytest.mark.parametrize("first", [COMMIT, ROLLBACK], ids=str)
def test_a_second_end_changes_nothing_and_says_how_it_stands(broker: Connection, first: LocalTransactionState) -> None:
    half = send_half(broker, topic(broker))
    state = half.end(broker, first).state

    for again in (COMMIT, ROLLBACK):
        assert half.end(broker, again) == (False, state, None)
    assert len(delivered(broker)) == (1 if first is COMMIT else 0)


def test_a_commit_before_dispatch_and_checker_is_as_good(broker: Connection) -> None:
    half = send_half(broker, topic(broker), dispatched=False)

    half.end(broker, COMMIT)

    assert Checker(broker).after(60 * SECOND).due == 0
    assert delivered(broker) == ["half"]


def test_who_names_another_group_is_refused(broker: Connection) -> None:
    half = send_half(broker, topic(broker))
    half.group = "others"

    with pytest.raises(HalfMessageMismatch, match="another producer group than 'others'") as caught:
        half.end(broker, COMMIT)

    assert caught.value.code is ResponseCode.SYSTEM_ERROR
    assert delivered(broker) == []


def test_who_names_another_id_is_refused(broker: Connection) -> None:
    half = send_half(broker, topic(broker))
    half.unique_id = uuid4()

    with pytest.raises(HalfMessageMismatch, match="another transaction id"):
        half.end(broker, COMMIT)


def test_who_names_the_position_of_another_half_message_is_refused(broker: Connection) -> None:
    route = topic(broker)
    half, other = send_half(broker, route), send_half(broker, route)
    half.log_pos = other.log_pos

    with pytest.raises(HalfMessageMismatch):
        half.end(broker, COMMIT)


@pytest.mark.parametrize("where", ["of an ordinary message", "of nothing"])
def test_a_position_without_a_half_message_is_refused(broker: Connection, where: str) -> None:
    route = topic(broker)
    half = send_half(broker, route)
    half.log_pos = append(broker, route, "plain")[0] if where == "of an ordinary message" else half.log_pos + 1_000

    with pytest.raises(HalfMessageNotFound) as caught:
        half.end(broker, COMMIT)

    assert caught.value.code is ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("state", [COMMIT, ROLLBACK], ids=str)
def test_an_end_after_the_immunity_is_refused_unless_it_answers_a_check(
    broker: Connection, state: LocalTransactionState
) -> None:
    half = send_half(broker, topic(broker), properties={CHECK_IMMUNITY_TIME: "10"})
    move_clock(broker, 11 * SECOND)

    with pytest.raises(ImmunityOver, match=r"but its immunity was 10 s") as caught:
        half.end(broker, state)

    assert caught.value.code is ResponseCode.ILLEGAL_OPERATION
    assert half.end(broker, state, asked_client="somebody").has_changed


@pytest.mark.parametrize(("immunity", "age"), [("10", 9), ("soon", 1_000)], ids=str)
def test_an_end_within_the_immunity_and_without_a_number_is_taken(broker: Connection, immunity: str, age: int) -> None:
    stop_clock(broker)
    half = send_half(broker, topic(broker), properties={CHECK_IMMUNITY_TIME: immunity})
    move_clock(broker, age * SECOND)

    assert half.end(broker, COMMIT).has_changed


def test_a_commit_to_a_topic_that_is_gone_leaves_the_half_message_as_it_is(broker: Connection) -> None:
    half = send_half(broker, topic(broker))
    drop_topic(broker, "orders")

    with pytest.raises(TopicNotFound):
        half.end(broker, COMMIT)

    topic(broker)
    assert half.end(broker, COMMIT).has_changed
    assert delivered(broker) == ["half"]


def test_a_commit_to_a_topic_that_has_become_smaller_goes_where_it_is_read(broker: Connection) -> None:
    half = send_half(broker, topic(broker, queues=4), queue_id=3)
    admin.update_topic(broker, "orders", read_queue_nums=2, write_queue_nums=2)

    half.end(broker, COMMIT)

    assert [record["queue_id"] for record in records(broker)] == [1]


def test_the_table_refuses_states_that_there_are_not(broker: Connection) -> None:
    send_half(broker, topic(broker)).end(broker, COMMIT)

    for change in (
        "state = 'LOST'",
        "state = 'PREPARED'",
        "copy_pos = NULL",
        "ended_at = NULL",
        "check_at = mqdb.now()",
    ):
        with case(change), pytest.raises(IntegrityError):
            broker.execute(text(f"UPDATE mqdb.half_message SET {change}"))


def test_a_commit_that_runs_ahead_of_the_segments_makes_its_own(database: Database, engine: Engine) -> None:
    small_segments(database.connect(), 3, ahead=1)
    with engine.connect() as broker:
        route = topic(broker)
        sent = [send_half(broker, route, str(n), dispatched=False) for n in range(12)]

        for half in sent:
            half.end(broker, COMMIT)

        assert delivered(broker) == [str(n) for n in range(12)]


def test_a_person_hears_that_the_topic_is_gone(broker: Connection) -> None:
    half = send_half(broker, topic(broker))
    drop_topic(broker, "orders")

    with pytest.raises(TopicNotFound, match="'orders'"):
        resolve(broker, format_unique_id(half.unique_id), Resolution.COMMIT)


# -- by hand ----------------------------------------------------------------------------------


def test_the_view_shows_young_and_old_half_messages(broker: Connection) -> None:
    route = topic(broker)
    ended, asked = send_half(broker, route), send_half(broker, route)
    ended.end(broker, COMMIT)
    Checker(broker).after(7 * SECOND)
    young = send_half(broker, route)

    assert {half.log_pos: half.state for half in list_halves(broker)} == {
        ended.log_pos: "COMMITTED",
        asked.log_pos: "PREPARED",
        young.log_pos: "PREPARED",
    }
    assert [half.log_pos for half in list_halves(broker, [HalfState.COMMITTED])] == [ended.log_pos]
    both = list_halves(broker, [HalfState.PREPARED, HalfState.COMMITTED, HalfState.PREPARED], "senders", limit=2)
    assert [half.log_pos for half in both] == [ended.log_pos, asked.log_pos]
    assert list_halves(broker, group="others") == []


@pytest.mark.parametrize(("resolution", "bodies"), [("commit", ["half"]), ("rollback", [])])
@pytest.mark.parametrize("is_discarded", [False, True], ids=["open", "discarded"])
def test_a_person_ends_a_half_message(
    broker: Connection, resolution: str, bodies: list[str], is_discarded: bool
) -> None:
    half = send_half(broker, topic(broker))
    if is_discarded:
        Checker(broker, reserved=10 * SECOND).after(11 * SECOND)

    resolved = resolve(broker, format_unique_id(half.unique_id), Resolution(resolution))

    assert resolved.state == {"commit": "COMMITTED", "rollback": "ROLLED_BACK"}[resolution]
    assert delivered(broker) == bodies


def test_what_was_given_up_is_asked_about_again_from_the_beginning(broker: Connection) -> None:
    half = send_half(broker, topic(broker))
    checker = Checker(broker, reserved=10 * SECOND)
    checker.after(11 * SECOND)

    resolved = resolve(broker, format_unique_id(half.unique_id), Resolution.RESUME)

    assert (resolved.state, resolved.check_times) == ("PREPARED", 0)
    assert half.end(broker, COMMIT).has_changed


@pytest.mark.parametrize("resolution", Resolution, ids=str)
def test_what_has_ended_stays_as_it_is(broker: Connection, resolution: Resolution) -> None:
    half = send_half(broker, topic(broker))
    half.end(broker, ROLLBACK)

    with pytest.raises(HalfMessageClosed, match="is ROLLED_BACK"):
        resolve(broker, format_unique_id(half.unique_id), resolution)


def test_what_was_not_given_up_cannot_be_resumed(broker: Connection) -> None:
    half = send_half(broker, topic(broker))

    with pytest.raises(HalfMessageClosed):
        resolve(broker, format_unique_id(half.unique_id), Resolution.RESUME)


@pytest.mark.parametrize("resolution", Resolution, ids=str)
def test_a_row_that_has_outlived_its_record_cannot_be_brought_back(broker: Connection, resolution: Resolution) -> None:
    half = send_half(broker, topic(broker))
    Checker(broker, reserved=10 * SECOND).after(11 * SECOND)
    broker.execute(text("DELETE FROM mqdb.commit_log WHERE log_pos = :log_pos"), {"log_pos": half.log_pos})

    with pytest.raises(HalfMessageNotFound, match="there is no half message at id"):
        resolve(broker, format_unique_id(half.unique_id), resolution)

    assert [row["state"] for row in halves(broker)] == ["DISCARDED"]


@pytest.mark.parametrize("is_dispatched", [False, True], ids=["stored", "dispatched"])
def test_what_is_not_indexed_yet_is_found_by_its_id(broker: Connection, is_dispatched: bool) -> None:
    half = send_half(broker, topic(broker), dispatched=is_dispatched)

    resolved = resolve(broker, format_unique_id(half.unique_id).lower(), Resolution.ROLLBACK)

    assert (resolved.transaction_id, resolved.log_pos) == (format_unique_id(half.unique_id), half.log_pos)


def test_an_id_that_nobody_knows_is_an_error(broker: Connection) -> None:
    with pytest.raises(HalfMessageNotFound, match="there is no half message at id"):
        resolve(broker, "0" * 32, Resolution.COMMIT)
    with pytest.raises(ParameterInvalid, match="32 hexadecimal digits"):
        resolve(broker, "order-17", Resolution.COMMIT)
