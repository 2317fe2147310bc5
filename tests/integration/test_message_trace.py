"""The trace of a message: its copies in the order of storing, when each was dispatched, and how groups stand to it."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.consumers.send_back import SendBackRequest, send_back
from mqdb.broker.dead_letters import Redrive, redrive_messages
from mqdb.broker.log import send
from mqdb.broker.log.trace import trace
from mqdb.broker.schedule.timers import RecallStatus, recall_message
from mqdb.common.failure import Failure
from mqdb.common.message import Message, MessageQueue
from mqdb.common.unique_id import UniqueIdGenerator, format_unique_id, parse_unique_id
from mqdb.store.dead_letters import RedriveStatus
from mqdb.store.topics.topics import TopicRoute
from mqdb_client import Admin, MessageCopy, Producer, Rights, TrackType, WaitState, errors
from tests.fixtures.broker import append, dispatch_all, drop_topic, topic
from tests.fixtures.command_line import Place
from tests.fixtures.delay import delay, deliver_all, move_clock, stop_clock
from tests.fixtures.postgres import Database
from tests.fixtures.principals import Principal
from tests.fixtures.roles import MakeRole
from tests.fixtures.timers import deliver_all as deliver_timers
from tests.fixtures.timers import timer
from tests.fixtures.transactions import COMMIT, ROLLBACK, Checker, HalfSent, send_half

HOUR = timedelta(hours=1)
FAILURE = Failure("shop.NoPrice", "no price", "Traceback", "client-1", datetime(2026, 7, 14, tzinfo=UTC))


@pytest.fixture
def orders(broker: Connection) -> TopicRoute:
    stop_clock(broker)
    return topic(broker)


def send_one(connection: Connection, route: TopicRoute, tag: str | None = None) -> UUID:
    (log_pos,) = append(connection, route, "an order", tag=tag)
    return id_at(connection, log_pos)


def id_at(connection: Connection, log_pos: int) -> UUID:
    found: UUID = connection.execute(
        text("SELECT msg_id FROM mqdb.commit_log WHERE log_pos = :log_pos"), {"log_pos": log_pos}
    ).scalar_one()
    return found


def copies(connection: Connection, unique_id: UUID) -> tuple[MessageCopy, ...]:
    return trace(connection, unique_id).copies


def states(connection: Connection, unique_id: UUID) -> list[object]:
    """The topic of each copy, or what has become of it if it has waited for its time."""
    return [each.wait.state if each.wait else each.topic for each in copies(connection, unique_id)]


def read(
    connection: Connection,
    group: str,
    *,
    next_offset: int | None = None,
    filter: str | None = None,
    model: str | None = None,
    topic_name: str = "orders",
) -> None:
    """Let a group be there, with an offset, a filter or a member if these are given."""
    values = {"group": group, "next_offset": next_offset, "filter": filter, "model": model, "topic": topic_name}
    its_id = "(SELECT group_id FROM mqdb.subscription_group WHERE group_name = :group)"
    statements = ["INSERT INTO mqdb.subscription_group (group_name) VALUES (:group) ON CONFLICT DO NOTHING"]
    if next_offset is not None:
        statements.append(f"""INSERT INTO mqdb.consumer_offset (group_id, queue_key, next_offset)
            SELECT {its_id}, queue_key, :next_offset FROM mqdb.queue JOIN mqdb.topic USING (topic_id)
            WHERE topic = :topic""")
    if filter is not None:
        statements.append(f"""INSERT INTO mqdb.subscription (group_id, topic, expression, version)
            VALUES ({its_id}, :topic, :filter, 1)""")
    if model is not None:
        statements.append("""INSERT INTO mqdb.client (client_id, kind, group_name, message_model, language, version)
            VALUES (:group, 'CONSUMER', :group, :model, 'PYTHON', '1')""")
    for statement in statements:
        connection.execute(text(statement), values)


# -- copies and groups ----------------------------------------------------------------------------


def test_a_message_is_dispatched_at_the_time_of_its_batch(broker: Connection, orders: TopicRoute) -> None:
    unique_id = send_one(broker, orders)
    (sent,) = copies(broker, unique_id)
    move_clock(broker, timedelta(seconds=3))
    dispatch_all(broker)
    move_clock(broker, HOUR)
    append(broker, orders, "another")
    dispatch_all(broker)

    (dispatched,) = copies(broker, unique_id)

    assert (sent.topic, sent.queue_id, sent.queue_offset, sent.dispatched_at) == ("orders", 0, None, None)
    assert (dispatched.log_pos, dispatched.queue_offset, dispatched.stored_at) == (sent.log_pos, 0, sent.stored_at)
    assert sent.stored_at is not None
    assert dispatched.dispatched_at == sent.stored_at + timedelta(seconds=3)
    assert (sent.failure, sent.wait, sent.half, sent.redrives, sent.tracks) == (None, None, None, (), ())


def test_each_group_stands_to_a_message_in_its_own_way(broker: Connection, orders: TopicRoute) -> None:
    append(broker, orders, "before")
    unique_id = send_one(broker, orders, tag="paid")
    dispatch_all(broker)
    read(broker, "a-done", next_offset=2, filter="*", model="CLUSTERING")
    read(broker, "b-reads", next_offset=1, filter="paid || new", model="CLUSTERING")
    read(broker, "c-away", next_offset=1)
    read(broker, "d-other-tags", next_offset=2, filter="refunded", model="CLUSTERING")
    read(broker, "e-new", filter="*", model="CLUSTERING")
    read(broker, "f-all", filter="*", model="BROADCASTING")
    read(broker, "g-elsewhere", next_offset=9, topic_name="TBW102")

    (copy,) = copies(broker, unique_id)

    assert [(each.group, each.status, each.next_offset) for each in copy.tracks] == [
        ("a-done", TrackType.CONSUMED, 2),
        ("b-reads", TrackType.NOT_CONSUME_YET, 1),
        ("c-away", TrackType.NOT_ONLINE, 1),
        ("d-other-tags", TrackType.FILTERED, 2),
        ("e-new", TrackType.NOT_CONSUME_YET, None),
        ("f-all", TrackType.CONSUME_BROADCASTING, None),
    ]


def test_what_an_exactly_once_consumer_has_committed_counts(broker: Connection, orders: TopicRoute) -> None:
    unique_id = send_one(broker, orders)
    dispatch_all(broker)
    read(broker, "billing", next_offset=0)
    broker.execute(
        text("""INSERT INTO mqdb.offset_commit (group_id, queue_key, from_offset, next_offset, segment, epoch)
                SELECT group_id, queue_key, 0, 1, 0, 0 FROM mqdb.consumer_offset""")
    )

    assert [(each.status, each.next_offset) for each in copies(broker, unique_id)[0].tracks] == [("CONSUMED", 1)]


def test_a_message_that_was_stored_twice_has_two_copies(broker: Connection, orders: TopicRoute) -> None:
    unique_id = UniqueIdGenerator().next()
    record = send.record(Message("orders", "twice"), orders.queue_keys[0], unique_id, datetime.now(UTC), "127.0.0.1")
    positions = [*send.append(broker, [record]), *send.append(broker, [record])]
    dispatch_all(broker)

    found = copies(broker, unique_id)

    assert [(each.log_pos, each.topic, each.queue_offset) for each in found] == [
        (positions[0], "orders", 0),
        (positions[1], "orders", 1),
    ]


def test_a_message_of_a_deleted_topic_is_still_there(broker: Connection, orders: TopicRoute) -> None:
    unique_id = send_one(broker, orders)
    dispatch_all(broker)
    drop_topic(broker, "orders")

    (copy,) = copies(broker, unique_id)

    assert (copy.topic, copy.queue_id, copy.tracks) == (None, None, ())


# -- retries --------------------------------------------------------------------------------------


def fail(connection: Connection, copy: MessageCopy, delay_level: int = 0) -> None:
    assert copy.topic is not None
    assert copy.queue_id is not None
    assert copy.queue_offset is not None
    queue = MessageQueue(copy.topic, "broker-a", copy.queue_id)
    send_back(connection, "billing", [SendBackRequest(copy.log_pos, queue, copy.queue_offset, FAILURE, delay_level)])
    dispatch_all(connection)


def test_a_message_fails_comes_again_dies_and_is_redriven(broker: Connection, orders: TopicRoute) -> None:
    unique_id = send_one(broker, orders)
    dispatch_all(broker)
    read(broker, "billing", next_offset=1, model="CLUSTERING")

    fail(broker, copies(broker, unique_id)[0])
    sent, waiting = copies(broker, unique_id)
    assert (waiting.topic, waiting.reconsume_times) == ("SCHEDULE_TOPIC_XXXX", 1)
    assert waiting.wait is not None
    assert sent.stored_at is not None
    assert (waiting.wait.state, waiting.wait.topic, waiting.wait.delay_level) == ("WAITING", "%RETRY%billing", 3)
    assert waiting.wait.due_at == sent.stored_at + timedelta(seconds=10)
    assert waiting.failure is not None
    assert (waiting.failure.exception, waiting.failure.error, waiting.failure.host) == (
        "shop.NoPrice",
        "no price",
        "client-1",
    )

    move_clock(broker, timedelta(seconds=10))
    deliver_all(broker)
    dispatch_all(broker)
    read(broker, "billing", next_offset=0, topic_name="%RETRY%billing")
    _, delivered, retry = copies(broker, unique_id)
    assert delivered.wait is not None
    assert (delivered.wait.state, retry.topic, retry.reconsume_times) == (WaitState.DELIVERED, "%RETRY%billing", 1)
    assert [(each.group, each.status) for each in retry.tracks] == [("billing", TrackType.NOT_CONSUME_YET)]

    fail(broker, retry, delay_level=-1)
    dead = copies(broker, unique_id)[-1]
    assert (dead.topic, dead.reconsume_times, dead.redrives) == ("%DLQ%billing", 2, ())

    redrive_messages(broker, [dead.log_pos], Redrive("all"), actor="ada")
    *_, dead, again = copies(broker, unique_id)
    assert [(each.status, each.actor, each.new_log_pos) for each in dead.redrives] == [
        (RedriveStatus.REDRIVEN, "ada", again.log_pos)
    ]
    assert (again.topic, again.reconsume_times, again.failure, again.queue_offset) == ("%RETRY%billing", 0, None, None)


@pytest.mark.usefixtures("orders")
def test_a_message_whose_topic_went_while_it_waited_is_dropped(broker: Connection) -> None:
    unique_id = id_at(broker, delay(broker, 3, "late")[0])
    drop_topic(broker, "orders")
    before = states(broker, unique_id)
    move_clock(broker, timedelta(seconds=10))
    deliver_all(broker)

    assert (before, states(broker, unique_id)) == ([WaitState.WAITING], [WaitState.DROPPED])


# -- timers ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("orders")
def test_a_timer_waits_until_its_time(broker: Connection) -> None:
    unique_id = parse_unique_id(timer(broker, HOUR, "later", dispatched=False)[0])
    seen = [states(broker, unique_id)]
    dispatch_all(broker)
    seen.append(states(broker, unique_id))
    deliver_timers(broker)
    seen.append(states(broker, unique_id))
    broker.execute(text("DELETE FROM mqdb.commit_log"))  # as retention does
    (collected,) = copies(broker, unique_id)
    seen.append(states(broker, unique_id))
    move_clock(broker, HOUR)
    deliver_timers(broker)
    dispatch_all(broker)

    assert seen == [[WaitState.WAITING]] * 4
    assert collected.wait is not None
    assert collected.stored_at is not None
    assert (collected.wait.topic, collected.wait.delay_level) == ("orders", None)
    assert collected.wait.due_at == collected.stored_at + HOUR
    assert states(broker, unique_id) == [WaitState.DELIVERED, "orders"]


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("is_collected", [False, True], ids=["new", "collected"])
def test_a_recalled_timer_stays_recalled(broker: Connection, is_collected: bool) -> None:
    unique_id = parse_unique_id(timer(broker, HOUR, "later")[0])
    if is_collected:
        deliver_timers(broker)
    assert recall_message(broker, unique_id) is RecallStatus.RECALLED
    before = states(broker, unique_id)
    move_clock(broker, 2 * HOUR)
    deliver_timers(broker)

    assert (before, states(broker, unique_id)) == ([WaitState.RECALLED], [WaitState.RECALLED])


# -- transactions ---------------------------------------------------------------------------------


def half_copies(connection: Connection, half: HalfSent) -> tuple[MessageCopy, ...]:
    dispatch_all(connection)
    return copies(connection, half.unique_id)


def test_the_state_of_a_half_message_is_told(broker: Connection, orders: TopicRoute) -> None:
    committed, rolled_back, prepared = (send_half(broker, orders) for _ in range(3))
    (before,) = half_copies(broker, committed)
    committed.end(broker, COMMIT)
    rolled_back.end(broker, ROLLBACK)
    Checker(broker).round()

    half, copy = half_copies(broker, committed)

    assert before.half is not None
    assert half.half is not None
    assert (before.topic, before.half.state, before.half.ended_at) == ("RMQ_SYS_TRANS_HALF_TOPIC", "PREPARED", None)
    assert (half.half.state, half.half.topic, half.half.producer_group) == ("COMMITTED", "orders", "senders")
    assert (half.half.copy_pos, copy.topic, copy.queue_offset, copy.half) == (copy.log_pos, "orders", 0, None)
    for each, state in ((rolled_back, "ROLLED_BACK"), (prepared, "PREPARED")):
        assert [found.half and found.half.state for found in half_copies(broker, each)] == [state]


# -- roles ----------------------------------------------------------------------------------------


@pytest.fixture
def order_id(owner: Admin, database: Database) -> str:
    """Of a message with a delay in `orders`, which has come."""
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
        "sender": {"send": ["orders"]},
        "stranger": {"send": ["secret"]},
    }.items():
        with Admin(principal(name, **rights)) as admin:
            found[name] = [admin.messages.trace(each).copies for each in (order_id, later)]
            assert admin.messages.trace(format_unique_id(half.unique_id)).copies == ()

    (read_copy,), (its_timer,) = found["reader"]
    (owners,) = owner.messages.trace(order_id).copies
    assert (read_copy.stored_at, read_copy.dispatched_at) == (owners.stored_at, owners.dispatched_at)
    assert [(each.group, each.status) for each in read_copy.tracks] == [("billing", TrackType.FILTERED)]
    assert [each.group for each in owners.tracks] == ["billing", "others"]
    (sent_copy,), _ = found["sender"]
    assert (sent_copy.queue_offset, sent_copy.stored_at, sent_copy.tracks) == (owners.queue_offset, None, ())
    assert its_timer.wait is not None
    assert (its_timer.wait.state, its_timer.wait.topic, its_timer.stored_at) == (None, "orders", None)
    assert found["stranger"] == [(), ()]


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

    assert f", for orders, sent by group senders, asked 0 times, copy at position {told[1]['log_pos']}\n" in shown
    assert f" by ada, copy at position {told[3]['log_pos']}\n" in shown
    assert (told[0]["half"]["state"], told[2]["redrives"][0]["status"]) == ("COMMITTED", "REDRIVEN")


def test_an_id_that_nobody_knows_is_the_error_of_show(place: Place) -> None:
    shown, traced = (place.call("message", how, "0A0B0C0D1E2F00000000000000000001") for how in ("show", "trace"))

    assert (traced.code, traced.errors, traced.text) == (1, shown.errors, "")
    assert place.call("message", "trace", "no id").code == place.call("message", "show", "no id").code


def test_a_text_that_is_no_id_is_refused(owner: Admin) -> None:
    with pytest.raises(errors.ParameterInvalid):
        owner.messages.trace("no id")
