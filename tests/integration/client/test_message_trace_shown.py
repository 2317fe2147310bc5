"""Traces as seen by roles that do not own the broker, and as printed by the command line."""

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection

from mqdb.broker.dead_letters import Redrive, redrive_messages
from mqdb.common.message import Message
from mqdb.common.unique_id import format_unique_id, parse_unique_id
from mqdb.store.topics.topics import TopicRoute
from mqdb_client import Admin, Producer, Rights, TrackType, WaitState, errors
from tests.fixtures.broker import dispatch_all, topic
from tests.fixtures.command_line import Place
from tests.fixtures.delay import deliver_all, move_clock, stop_clock
from tests.fixtures.postgres import Database
from tests.fixtures.principals import Principal
from tests.fixtures.roles import MakeRole
from tests.fixtures.timers import deliver_all as deliver_timers
from tests.fixtures.timers import timer
from tests.fixtures.traces import copies, fail, read, send_one
from tests.fixtures.transactions import COMMIT, send_half

HOUR = timedelta(hours=1)


@pytest.fixture
def orders(broker: Connection) -> TopicRoute:
    stop_clock(broker)
    return topic(broker)


# -- roles ----------------------------------------------------------------------------------------


@pytest.fixture
def order_id(owner: Admin, database: Database) -> str:
    """The id of a message in `orders`."""
    with Producer("shop", database.dsn) as producer:
        return producer.send(Message("orders", "an order", tag="paid")).message_id


def test_a_role_is_told_what_it_may_see(broker: Connection, order_id: str, owner: Admin, principal: Principal) -> None:
    dispatch_all(broker)
    for group in ("billing", "others"):
        read(broker, group, next_offset=9, filter="refunded")
    later = timer(broker, HOUR, "later")[0]
    half = send_half(broker, topic(broker, "payments"))
    found = {}
    for name, rights in {
        "reader": {"read": ["orders"], "group": ["billing"]},
        "sender": {"send": ["orders"], "group": ["billing"]},
        "stranger": {"send": ["secret"]},
    }.items():
        with Admin(principal(name, **rights)) as admin:
            found[name] = [admin.messages.trace(each).copies for each in (order_id, later)]
            assert admin.messages.trace(format_unique_id(half.unique_id)).copies == ()

    move_clock(broker, HOUR)
    deliver_timers(broker)
    with Admin(principal("late reader", read=["orders"])) as admin:
        waited, _ = admin.messages.trace(later).copies

    assert waited.wait is not None
    assert waited.wait.state is WaitState.DELIVERED
    (read_copy,), (its_timer,) = found["reader"]
    (owners,) = owner.messages.trace(order_id).copies
    assert (read_copy.stored_at, read_copy.dispatched_at) == (owners.stored_at, owners.dispatched_at)
    assert [(each.group, each.status) for each in read_copy.tracks] == [("billing", TrackType.FILTERED)]
    assert [each.group for each in owners.tracks] == ["billing", "others"]
    (sent_copy,), _ = found["sender"]
    assert (sent_copy.queue_offset, sent_copy.stored_at) == (owners.queue_offset, None)
    # It may not read the tag, so nobody can say that the filter does not take it.
    assert [(each.group, each.status) for each in sent_copy.tracks] == [("billing", TrackType.CONSUMED)]
    assert its_timer.wait is not None
    assert (its_timer.wait.state, its_timer.wait.topic, its_timer.stored_at) == (None, "orders", None)
    assert found["stranger"] == [(), ()]


def test_a_role_is_told_of_no_delivery_that_is_yet_to_come(
    broker: Connection, order_id: str, principal: Principal
) -> None:
    unique_id = parse_unique_id(order_id)
    dispatch_all(broker)
    read(broker, "billing")
    for hours in range(2):
        move_clock(broker, hours * HOUR)
        deliver_all(broker)
        dispatch_all(broker)
        fail(broker, copies(broker, unique_id)[-1])

    with Admin(principal("member", read=["orders"], group=["billing"])) as admin:
        seen = admin.messages.trace(order_id).copies

    waits = [each.wait.state for each in seen if each.wait]
    assert waits == [WaitState.DELIVERED, None]


def test_an_operator_sees_the_offsets_of_its_groups(
    broker: Connection, order_id: str, owner: Admin, role: MakeRole
) -> None:
    dispatch_all(broker)
    read(broker, "billing", next_offset=9)
    dsn = role("operator")
    owner.acl.grant("operator", read=["orders"], operate_group=["billing"])

    with Admin(dsn) as admin:
        (copy,) = admin.messages.trace(order_id).copies

    assert [(each.group, each.status, each.next_offset) for each in copy.tracks] == [("billing", TrackType.CONSUMED, 9)]


def test_a_role_sees_the_names_of_its_namespace(broker: Connection, owner: Admin, role: MakeRole) -> None:
    dsn = role("shop app")
    rights = Rights(["*"], ["*"], ["billing"], ["*"], ["*"], ["*"], ["*"], namespace="shop")
    owner.acl.apply({"shop app": rights})
    with Admin(dsn) as admin, Producer("sender", dsn) as producer:
        admin.topics.create("orders", queues=1)
        message_id = producer.send(Message("orders", "an order")).message_id
        dispatch_all(broker)
        read(broker, "shop%billing", next_offset=0, filter="*", topic_name="shop%orders")
        (of_role,), (of_owner,) = (each.messages.trace(message_id).copies for each in (admin, owner))

    assert (of_role.topic, [each.group for each in of_role.tracks]) == ("orders", ["billing"])
    assert (of_owner.topic, [each.group for each in of_owner.tracks]) == ("shop%orders", ["shop%billing"])


# -- the command line -----------------------------------------------------------------------------


@pytest.fixture
def place(broker: Connection, database: Database, tmp_path: Path) -> Place:
    return Place(tmp_path, database.dsn)


def test_the_command_line_prints_a_tree_or_json(broker: Connection, orders: TopicRoute, place: Place) -> None:
    unique_id = send_one(broker, orders)
    message_id = format_unique_id(unique_id)
    move_clock(broker, timedelta(milliseconds=12))
    dispatch_all(broker)
    read(broker, "billing", next_offset=1)
    fail(broker, copies(broker, unique_id)[0])

    sent, waiting = copies(broker, unique_id)
    shown = place.done("message", "trace", message_id).splitlines()
    told = json.loads(place.done("message", "trace", message_id, "--json"))

    assert shown[0] == message_id
    assert shown[1] == f"├── orders, queue 0, offset 0, position {sent.log_pos}"
    assert shown[2].startswith("│   ├── stored ")
    assert shown[2].endswith(", dispatched 12 ms later")
    assert shown[3] == "│   └── group billing: CONSUMED, its offset is 1"
    assert shown[4] == f"└── SCHEDULE_TOPIC_XXXX, queue 2, offset 0, position {waiting.log_pos}"
    assert shown[6] == "    ├── failures so far: 1"
    assert shown[7] == "    ├── last failure at client-1: shop.NoPrice: no price"
    assert shown[8].startswith("    └── WAITING at delay level 3, for %RETRY%billing, due ")
    assert max(map(len, shown)) <= 100
    assert (told["message_id"], told["broker_name"]) == (message_id, "broker-a")
    assert [copy["topic"] for copy in told["copies"]] == ["orders", "SCHEDULE_TOPIC_XXXX"]
    assert told["copies"][0]["tracks"] == [{"group": "billing", "status": "CONSUMED", "next_offset": 1}]
    assert datetime.fromisoformat(told["copies"][0]["stored_at"]) == sent.stored_at
    assert told["copies"][1]["wait"]["state"] == "WAITING"
    move_clock(broker, HOUR)
    deliver_all(broker)
    again = place.done("message", "trace", message_id)
    assert ("%RETRY%billing, queue 0" in again, again.count("last failure")) == (True, 1)


def test_half_states_and_redrives_are_printed_by_their_names(
    broker: Connection, orders: TopicRoute, place: Place
) -> None:
    half = send_half(broker, orders)
    half.end(broker, COMMIT)
    dispatch_all(broker)
    read(broker, "billing", next_offset=1)
    fail(broker, copies(broker, half.unique_id)[-1], delay_level=-1)
    dead = copies(broker, half.unique_id)[-1]
    redrive_messages(broker, [dead.log_pos], Redrive("all"), actor="ada")

    message_id = format_unique_id(half.unique_id)
    shown = place.done("message", "trace", message_id)
    told = json.loads(place.done("message", "trace", message_id, "--json"))["copies"]

    assert f", copy at position {told[1]['log_pos']}\n" in shown
    assert "for orders, sent by group senders, checked 0 times\n" in shown
    assert f" by ada, copy at position {told[3]['log_pos']}\n" in shown
    assert (told[0]["half"]["state"], told[2]["redrives"][0]["status"]) == ("COMMITTED", "REDRIVEN")


def test_an_id_that_nobody_knows_is_the_error_of_show(place: Place) -> None:
    shown, traced = (place.call("message", how, "0A0B0C0D1E2F00000000000000000001") for how in ("show", "trace"))

    assert (traced.code, traced.errors, traced.text) == (1, shown.errors, "")
    assert place.call("message", "trace", "no id").code == place.call("message", "show", "no id").code


def test_a_text_that_is_no_id_is_refused(owner: Admin) -> None:
    with pytest.raises(errors.ParameterInvalid):
        owner.messages.trace("no id")
