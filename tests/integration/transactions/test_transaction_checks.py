"""Checks: which half messages are checked and when, which producer is asked, and which are given up."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Connection, Engine, text

import mqdb
from mqdb.broker.transactions.transaction_checks import first_unresolved_segment
from mqdb.broker.transactions.transactions import Resolution, resolve
from mqdb.common.dsn import BrokerDsn
from mqdb.common.topic import TRANS_CHECK_MAX_TIME_TOPIC
from mqdb.common.transaction import CHECK_IMMUNITY_TIME, CHECK_TIMES
from mqdb.common.unique_id import format_unique_id
from mqdb.store.clients.clients import ClientKind, Registration
from mqdb.store.engine import transaction
from mqdb.store.transactions.half_checks import open_checks
from mqdb.store.transactions.half_messages import first_prepared, prune
from mqdb_client.instance import ClientInstance
from tests.fixtures.broker import dispatch_all, topic
from tests.fixtures.delay import delivered, move_clock, records, stop_clock
from tests.fixtures.log import small_segments
from tests.fixtures.postgres import Database
from tests.fixtures.transactions import (
    COMMIT,
    ROLLBACK,
    SECOND,
    UNKNOWN,
    Checker,
    HalfSent,
    halves,
    let_the_log_begin_at,
    send_half,
)

pytestmark = pytest.mark.usefixtures("both_kinds_of_clients")

HOUR = timedelta(hours=1)


def client(database: Database, group: str = "senders", *, checks_transactions: bool = True) -> ClientInstance:
    """A client with a producer of a group, which answers nothing by itself."""
    instance = ClientInstance(BrokerDsn("broker-a", database.dsn))
    instance.open()
    registration = Registration(instance.client_id, ClientKind.PRODUCER, group, mqdb.__version__)
    instance.register(registration._replace(checks_transactions=checks_transactions))
    return instance


@pytest.fixture
def sender(database: Database) -> Iterator[ClientInstance]:
    """A producer of group `senders`."""
    instance = client(database)
    yield instance
    instance.close()


@pytest.fixture
def second_sender(database: Database) -> Iterator[ClientInstance]:
    """Another producer of group `senders`."""
    instance = client(database)
    yield instance
    instance.close()


def asked(connection: Connection, instance: ClientInstance, group: str = "senders") -> list[str]:
    """The bodies of the half messages that a client is asked about."""
    checks = open_checks(connection, "broker-a", instance.client_id, group, 100)
    return [check.message.body.decode() for check in checks]


# -- when -------------------------------------------------------------------------------------


def test_a_half_message_is_asked_about_when_it_is_6_s_old(broker: Connection, sender: ClientInstance) -> None:
    stop_clock(broker)
    checker = Checker(broker)
    send_half(broker, topic(broker))

    assert checker.after(5 * SECOND).asked == 0
    assert checker.after(2 * SECOND).asked == 1
    assert asked(broker, sender) == ["half"]


def test_it_is_asked_about_again_30_s_later(broker: Connection, sender: ClientInstance) -> None:
    stop_clock(broker)
    checker = Checker(broker)
    send_half(broker, topic(broker))
    checker.after(7 * SECOND)

    assert checker.after(29 * SECOND).asked == 0
    assert checker.after(2 * SECOND).asked == 1
    assert [half["check_times"] for half in halves(broker)] == [2]


def test_what_was_asked_or_postponed_while_the_clock_was_ahead_is_asked_when_it_is_put_right(
    database: Database, broker: Connection
) -> None:
    stop_clock(broker)
    checker = Checker(broker)
    route = topic(broker)
    send_half(broker, route, "immune", properties={CHECK_IMMUNITY_TIME: "7200"})
    send_half(broker, route, "half")
    assert checker.after(HOUR).postponed == 1

    sender = client(database)
    assert checker.after(-HOUR + 7 * SECOND).asked == 1
    assert asked(broker, sender) == ["half"]
    checker.after(HOUR)
    assert checker.after(-HOUR + 31 * SECOND).asked == 1
    assert checker.after(29 * SECOND).asked == 0
    assert asked(broker, sender) == ["half"]
    sender.close()


@pytest.mark.usefixtures("sender")
def test_what_has_ended_is_not_asked_about(broker: Connection) -> None:
    route = topic(broker)
    send_half(broker, route).end(broker, COMMIT)
    send_half(broker, route).end(broker, ROLLBACK)

    assert Checker(broker).after(7 * SECOND).due == 0


@pytest.mark.usefixtures("sender")
def test_what_ends_after_a_check_is_not_asked_about_again(broker: Connection) -> None:
    checker = Checker(broker)
    half = send_half(broker, topic(broker))
    checker.after(7 * SECOND)

    half.end(broker, COMMIT)

    assert checker.after(60 * SECOND).due == 0


def test_an_immunity_holds_the_first_check_back_and_costs_none(broker: Connection, sender: ClientInstance) -> None:
    """An immunity postpones the first check, and uses up none.

    RocketMQ counts each round of the immune time, and gives up half messages without a single check.
    """
    checker = Checker(broker)
    send_half(broker, topic(broker), properties={CHECK_IMMUNITY_TIME: "600"})

    rounds = [checker.after(30 * SECOND).due for _ in range(19)]

    assert rounds == [0] * 19
    assert checker.after(31 * SECOND).asked == 1
    assert [half["check_times"] for half in halves(broker)] == [1]
    assert asked(broker, sender) == ["half"]


@pytest.mark.usefixtures("sender")
def test_a_young_half_message_holds_up_none_that_has_ended(broker: Connection) -> None:
    checker = Checker(broker)
    route = topic(broker)
    first = send_half(broker, route)
    first.end(broker, COMMIT)
    send_half(broker, route)

    checker.round()

    assert [half["log_pos"] for half in halves(broker)] == [first.log_pos]
    assert checker.after(7 * SECOND).asked == 1


# -- who --------------------------------------------------------------------------------------


def test_live_producers_of_the_group_are_asked_in_turn(
    broker: Connection, sender: ClientInstance, second_sender: ClientInstance
) -> None:
    route = topic(broker)
    for n in range(4):
        send_half(broker, route, str(n))

    Checker(broker).after(7 * SECOND)

    found = [asked(broker, instance) for instance in (sender, second_sender)]
    assert sorted(found) == [["0", "2"], ["1", "3"]]


def test_the_next_check_goes_to_another_one(
    broker: Connection, sender: ClientInstance, second_sender: ClientInstance
) -> None:
    checker = Checker(broker)
    send_half(broker, topic(broker))
    seen = []

    for _ in range(4):
        checker.after(31 * SECOND)
        seen.append([half["check_client"] for half in halves(broker)])

    assert seen[0] != seen[1]
    assert seen[:2] == seen[2:]


def test_producers_of_other_groups_and_those_without_a_listener_are_not_asked(
    broker: Connection, database: Database
) -> None:
    other, plain = client(database, "others"), client(database, checks_transactions=False)
    try:
        send_half(broker, topic(broker))

        assert Checker(broker).after(7 * SECOND).postponed == 1
    finally:
        other.close()
        plain.close()


def test_while_nobody_is_there_nothing_counts(broker: Connection, database: Database) -> None:
    """Rounds without any producer do not count. RocketMQ counts these rounds, and gives the message up."""
    checker = Checker(broker)
    send_half(broker, topic(broker))

    postponed = [checker.after(31 * SECOND).postponed for _ in range(20)]
    late = client(database)
    try:
        assert postponed == [1] * 20
        assert checker.after(31 * SECOND).asked == 1
        assert [half["check_times"] for half in halves(broker)] == [1]
    finally:
        late.close()


def test_what_a_dead_producer_was_asked_another_one_is_asked_at_once(broker: Connection, database: Database) -> None:
    dead, heir = client(database), client(database)
    try:
        checker = Checker(broker)
        route = topic(broker)
        for n in range(2):
            send_half(broker, route, str(n))
        checker.after(7 * SECOND)
        dead.close()

        checker.round()

        assert sorted(asked(broker, heir)) == ["0", "1"]
    finally:
        heir.close()


def test_who_does_not_know_makes_room_for_the_next_check(broker: Connection, sender: ClientInstance) -> None:
    checker = Checker(broker)
    half = send_half(broker, topic(broker))
    checker.after(7 * SECOND)

    half.end(broker, UNKNOWN, asked_client=sender.client_id)

    assert asked(broker, sender) == []
    assert checker.after(31 * SECOND).asked == 1


def test_who_is_asked_gets_the_message_as_its_consumers_will(broker: Connection, sender: ClientInstance) -> None:
    half = send_half(broker, topic(broker), tag="paid", keys="order-17", properties={"a": "b"})
    Checker(broker).after(7 * SECOND)

    (check,) = open_checks(broker, "broker-a", sender.client_id, "senders", 10)

    message = check.message
    assert (message.topic, message.tag, message.keys, message.log_pos) == (
        "orders",
        "paid",
        ("order-17",),
        half.log_pos,
    )
    assert (message.properties["a"], message.properties[CHECK_TIMES]) == ("b", "1")
    assert abs(message.store_time - message.born_time) < timedelta(seconds=5)


def test_two_checkers_ask_once(broker: Connection, engine: Engine, sender: ClientInstance) -> None:
    send_half(broker, topic(broker))
    with engine.connect() as other:
        assert [Checker(each).after(7 * SECOND).asked for each in (broker, other)] == [1, 0]


# -- giving up --------------------------------------------------------------------------------


@pytest.mark.usefixtures("sender")
def test_after_15_checks_a_half_message_goes_where_people_look(broker: Connection) -> None:
    checker = Checker(broker)
    half = send_half(broker, topic(broker))

    rounds = [checker.after(31 * SECOND) for _ in range(16)]

    assert [each.asked for each in rounds] == [1] * 15 + [0]
    assert rounds[-1].discarded == [half.log_pos]
    (copy,) = records(broker, TRANS_CHECK_MAX_TIME_TOPIC)
    assert copy["properties"][CHECK_TIMES] == "15"
    assert checker.after(31 * SECOND).due == 0


@pytest.mark.usefixtures("sender")
def test_an_end_comes_too_late_for_what_was_given_up(broker: Connection) -> None:
    half = send_half(broker, topic(broker))
    Checker(broker, reserved=6 * SECOND).after(7 * SECOND)

    assert half.end(broker, COMMIT) == (False, "DISCARDED", None)
    assert delivered(broker) == []


@pytest.mark.usefixtures("sender")
def test_what_is_older_than_messages_are_kept_is_given_up_unasked(broker: Connection) -> None:
    half = send_half(broker, topic(broker))

    assert Checker(broker).after(timedelta(hours=73)).discarded == [half.log_pos]


@pytest.mark.usefixtures("sender")
@pytest.mark.parametrize(("immunity", "reserved"), [("9" * 9, 72), ("86400", 2)], ids=["very long", "short reserve"])
def test_an_immunity_does_not_hold_the_log_longer_than_messages_are_kept(
    broker: Connection, immunity: str, reserved: int
) -> None:
    stop_clock(broker)
    checker = Checker(broker, reserved=timedelta(hours=reserved))
    half = send_half(broker, topic(broker), properties={CHECK_IMMUNITY_TIME: immunity})

    assert checker.after(timedelta(hours=reserved, seconds=-1)).due == 0
    assert checker.after(2 * SECOND).discarded == [half.log_pos]


@pytest.mark.usefixtures("sender")
def test_what_the_log_has_lost_ends_without_a_copy_and_is_in_nobodys_way(broker: Connection) -> None:
    checker = Checker(broker)
    route = topic(broker)
    lost, kept = send_half(broker, route, "lost"), send_half(broker, route, "kept")
    checker.after(7 * SECOND)
    let_the_log_begin_at(broker, kept.log_pos)

    found = checker.after(31 * SECOND)

    assert (found.lost, found.discarded, found.asked) == ([lost.log_pos], [], 1)
    assert [half["state"] for half in halves(broker)] == ["DISCARDED", "PREPARED"]
    assert checker.after(31 * SECOND).due == 1
    assert delivered(broker, TRANS_CHECK_MAX_TIME_TOPIC) == []


@pytest.mark.usefixtures("sender")
def test_a_record_that_is_gone_within_a_segment_is_given_up_after_15_checks(broker: Connection) -> None:
    checker = Checker(broker)
    half = send_half(broker, topic(broker))
    broker.execute(text("DELETE FROM mqdb.commit_log WHERE log_pos = :log_pos"), {"log_pos": half.log_pos})
    broker.execute(
        text("""INSERT INTO mqdb.half_message (log_pos, msg_id, producer_group, topic, stored_at, check_times, check_at)
                VALUES (:log_pos, gen_random_uuid(), 'senders', 'orders', mqdb.now(), 15, mqdb.now())"""),
        {"log_pos": half.log_pos},
    )

    assert checker.round().lost == [half.log_pos]
    assert checker.round().due == 0


@pytest.mark.usefixtures("sender")
def test_a_committed_message_says_how_often_it_was_asked_about(broker: Connection) -> None:
    checker = Checker(broker)
    half = send_half(broker, topic(broker))
    for _ in range(2):
        checker.after(31 * SECOND)

    half.end(broker, COMMIT)

    (copy,) = records(broker)
    assert copy["properties"][CHECK_TIMES] == "2"


# -- resumed ----------------------------------------------------------------------------------


def resume(connection: Connection, half: HalfSent) -> None:
    """Resume a half message that was given up, as an operator does."""
    resolve(connection, format_unique_id(half.unique_id), Resolution.RESUME)


@pytest.mark.usefixtures("sender")
def test_what_is_resumed_is_asked_about_as_long_as_a_new_one(broker: Connection) -> None:
    checker = Checker(broker, reserved=HOUR)
    half = send_half(broker, topic(broker))
    assert checker.after(HOUR).discarded == [half.log_pos]

    for _ in range(2):
        resume(broker, half)

        assert checker.round().asked == 1
        assert [row["check_times"] for row in halves(broker)] == [1]
        assert checker.after(HOUR - 10 * SECOND).asked == 1
        assert checker.after(31 * SECOND).discarded == [half.log_pos]


@pytest.mark.usefixtures("sender")
def test_what_is_resumed_has_all_its_checks_again(broker: Connection) -> None:
    checker = Checker(broker, check_max=3, reserved=HOUR)
    half = send_half(broker, topic(broker))
    checker.after(HOUR)
    resume(broker, half)

    rounds = [checker.after(31 * SECOND) for _ in range(4)]

    assert [each.asked for each in rounds] == [1, 1, 1, 0]
    assert rounds[-1].discarded == [half.log_pos]


def test_what_is_resumed_with_nobody_to_ask_holds_the_log_no_longer_than_a_new_one(broker: Connection) -> None:
    checker = Checker(broker, reserved=HOUR)
    half = send_half(broker, topic(broker))
    checker.after(HOUR)
    resume(broker, half)

    assert checker.after(HOUR - 10 * SECOND).postponed == 1
    assert checker.after(31 * SECOND).discarded == [half.log_pos]


@pytest.mark.usefixtures("sender")
def test_a_resume_holds_up_no_checker_and_holds_for_the_next_one(broker: Connection, engine: Engine) -> None:
    before = Checker(broker, reserved=HOUR)
    half = send_half(broker, topic(broker))
    before.after(2 * HOUR)

    with engine.connect() as person, engine.connect() as other:
        after = Checker(other, reserved=HOUR)
        move_clock(person, 2 * HOUR)
        other.execute(text("SET lock_timeout = '5s'"))
        with transaction(person):
            resume(person, half)
            meanwhile = after.after(2 * HOUR)

        assert (meanwhile.due, after.round().asked, before.round().due) == (0, 1, 0)


@pytest.mark.parametrize("how", ["commit", "rollback", "give up"])
def test_a_half_message_that_has_ended_says_when_it_was_stored(broker: Connection, how: str) -> None:
    checker = Checker(broker, reserved=HOUR)
    half = send_half(broker, topic(broker))
    checker.after(HOUR)
    (given_up,) = halves(broker)
    resume(broker, half)
    checker.after(31 * SECOND)

    if how == "give up":
        checker.after(HOUR)
    else:
        half.end(broker, {"commit": COMMIT, "rollback": ROLLBACK}[how])

    (ended,) = halves(broker)
    assert ended["stored_at"] == given_up["stored_at"]
    assert ended["ended_at"] > given_up["ended_at"]


# -- how long the log is kept for it ----------------------------------------------------------


def test_the_segment_of_an_open_half_message_is_needed(database: Database, engine: Engine) -> None:
    small_segments(database.connect(), 10)
    with engine.connect() as broker:
        checker = Checker(broker)
        route = topic(broker)
        dispatch_all(broker)
        first = send_half(broker, route)
        for _ in range(3):
            for _ in range(10):
                send_half(broker, route, dispatched=False).end(broker, COMMIT)
            dispatch_all(broker)

        before = first_unresolved_segment(broker)
        checker.after(7 * SECOND)
        while_open = first_unresolved_segment(broker)
        first.end(broker, ROLLBACK)
        after = first_unresolved_segment(broker)

        assert (before, while_open) == (1, 1)
        assert after > 5


def test_a_half_message_that_the_log_has_lost_does_not_hide_those_that_it_has(broker: Connection) -> None:
    route = topic(broker)
    send_half(broker, route)
    kept = send_half(broker, route)
    Checker(broker).after(7 * SECOND)
    before = first_prepared(broker)

    let_the_log_begin_at(broker, kept.log_pos)

    assert before is not None
    assert first_prepared(broker) == before


def test_the_rows_go_with_the_log(broker: Connection) -> None:
    route = topic(broker)
    ended = send_half(broker, route)
    ended.end(broker, ROLLBACK)
    send_half(broker, route)
    Checker(broker).after(7 * SECOND)
    assert prune(broker, 100) == 0

    broker.execute(text("UPDATE mqdb.segment SET start_pos = start_pos + 1000, end_pos = end_pos + 1000"))

    assert prune(broker, 100) == 1
    assert [half["state"] for half in halves(broker)] == ["PREPARED"]
