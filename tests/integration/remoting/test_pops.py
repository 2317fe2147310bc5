"""Pops of RocketMQ's clients: assignments, messages, acknowledgements, retries, and clients that disconnect."""

import asyncio
import json
import threading
import time
from typing import Any

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.consumers.groups import show_group, update_group
from mqdb.broker.topics.topics import update_topic
from mqdb.common.group import ConsumeMode
from mqdb.common.message import Message
from mqdb.common.property import Property
from mqdb.common.topic import Perm
from mqdb.fronts import receiving
from mqdb.remoting.consuming import pops
from mqdb.remoting.wire.codes import RequestCode
from mqdb.remoting.wire.frame import Frame, Serializer
from mqdb.store.topics.topics import find_topic
from tests.fixtures.broker import append, dispatch_all, drop_topic, topic
from tests.fixtures.processes import wait_until
from tests.fixtures.remoting_client import PATIENCE_SECONDS, Fronts, RemotingClient, consumer, next_asked
from tests.fixtures.remoting_pops import (
    GROUP,
    ack,
    begin_pop,
    bodies_of,
    change,
    pop,
    pop_frame,
    popped,
    popping_group,
    receipt_fields,
    worker,
)

FOUND, NO_PERMISSION, NO_TOPIC, NOT_SUBSCRIBED, CONFLICT, NO_GROUP, INVALID, NOTHING, STALE = (
    *(0, 16, 17, 24, 25, 26, 29),
    *(210, 604),
)


def in_flight(broker: Connection) -> int:
    statement = "SELECT coalesce(sum(bit_count(in_flight::bit(64))), 0)::int FROM mqdb.pop_batch"
    return int(broker.execute(text(statement)).scalar_one())


def stocked(broker: Connection, *texts: str, queues: int = 1, orderly: bool = False, retries: int = 16) -> None:
    """Topic `orders` with these messages, and a group that pops."""
    route = topic(broker, queues=queues)
    popping_group(broker, orderly=orderly, retries=retries)
    for number, each in enumerate(texts):
        append(broker, route, each, queue_id=number % queues)
    dispatch_all(broker)


# -- messages, and their acknowledgements ---------------------------------------------------------


def test_a_pop_finds_messages_of_all_queues_and_an_ack_ends_them(broker: Connection, fronts: Fronts) -> None:
    stocked(broker, "a", "b", "c", queues=2)
    client = worker(fronts)

    answer = pop_frame(client)
    messages = popped(answer)

    assert (answer.code, sorted(bodies_of(messages))) == (FOUND, ["a", "b", "c"])
    assert {message.topic for message in messages} == {"orders"}
    assert [ack(client, message) for message in messages] == [0, 0, 0]
    assert in_flight(broker) == 0


def test_an_answer_has_what_the_client_makes_check_points_of(broker: Connection, fronts: Fronts) -> None:
    stocked(broker, "a", "b", "c", queues=2)

    answer = pop_frame(worker(fronts), invisible_ms=30_000)

    fields = answer.fields
    assert abs(int(fields["popTime"]) / 1_000 - time.time()) < 30
    assert (fields["invisibleTime"], fields["reviveQid"], fields["restNum"]) == ("30000", "0", "0")
    assert set(fields["startOffsetInfo"].split(";")) == {"0 0 0", "0 1 0"}
    assert set(fields["msgOffsetInfo"].split(";")) == {"0 0 0,1", "0 1 0"}
    for message in popped(answer):
        offset, popped_ms, invisible_ms, revive, kind, broker_name, queue_id, same, _ = message.check_point.split(" ")
        assert (int(popped_ms), invisible_ms, revive, kind) == (int(fields["popTime"]), "30000", "0", "0")
        assert (broker_name, int(queue_id), offset) == ("broker-a", message.queue_id, same)


def test_a_message_goes_to_one_of_several_members(broker: Connection, fronts: Fronts) -> None:
    stocked(broker, *"abcdef")
    clients = [worker(fronts, f"1.2.3.4@{number}") for number in range(3)]

    shares = [bodies_of(pop(client, limit=2)) for client in clients]

    assert shares == [["a", "b"], ["c", "d"], ["e", "f"]]


def test_no_more_than_32_messages_come_at_once(broker: Connection, fronts: Fronts) -> None:
    stocked(broker, *map(str, range(40)))

    assert len(pop(worker(fronts), limit=100)) == 32


def test_without_messages_a_pop_is_told_so(broker: Connection, fronts: Fronts) -> None:
    stocked(broker)

    answer = pop_frame(worker(fronts))

    assert (answer.code, answer.body) == (NOTHING, b"")
    assert answer.fields.keys() == {"popTime", "invisibleTime", "reviveQid", "restNum"}


def test_a_pop_with_a_binary_header_is_answered(broker: Connection, fronts: Fronts) -> None:
    """A pop with a binary header is answered.

    The binary form holds 16 bits of a code, and Java writes exactly these.
    """
    stocked(broker, "a")
    worker(fronts)
    client = fronts.connect(serializer=Serializer.ROCKETMQ)

    [message] = pop(client, code=RequestCode.POP_MESSAGE & 0xFFFF)
    done = client.request(RequestCode.ACK_MESSAGE & 0xFFFF, receipt_fields(message))

    assert (message.body, done.code, in_flight(broker)) == ("a", 0, 0)


def test_a_message_with_all_the_properties_that_it_may_have_keeps_its_check_point(
    broker: Connection, fronts: Fronts
) -> None:
    route = topic(broker)
    popping_group(broker)
    append(broker, route, Message("orders", "a", properties={"short": "x", "long": "y" * 32_600}))
    dispatch_all(broker)
    client = worker(fronts)

    [message] = pop(client)

    assert (message.properties["short"], "long" in message.properties) == ("x", False)
    assert ack(client, message) == 0


# -- retries and dead letters ---------------------------------------------------------------------


def test_a_failed_message_comes_again_and_its_first_handle_is_stale_then(broker: Connection, fronts: Fronts) -> None:
    stocked(broker, "a")
    client = worker(fronts)
    [first] = pop(client)

    changed = change(client, first, 50)
    [again] = pop(client, hold_ms=20_000)

    assert (changed.code, changed.fields["invisibleTime"], changed.fields["reviveQid"]) == (0, "50", "0")
    assert int(changed.fields["popTime"]) >= int(first.check_point.split(" ")[1])
    assert (first.reconsume_times, again.reconsume_times, again.topic) == (0, 1, "orders")
    assert again.properties[Property.UNIQ_KEY] == first.properties[Property.UNIQ_KEY]
    assert ack(client, again) == 0
    assert change(client, first, 50).code == STALE


def test_a_message_whose_time_has_passed_comes_again_and_cannot_be_acknowledged(
    broker: Connection, fronts: Fronts
) -> None:
    stocked(broker, "a")
    client, other = worker(fronts), worker(fronts, "1.2.3.4@2")
    [first] = pop(client, limit=1, invisible_ms=300)

    [again] = pop(other, hold_ms=20_000)

    assert (ack(client, first), ack(other, again)) == (STALE, 0)


def test_after_its_last_delivery_a_message_is_a_dead_letter(broker: Connection, fronts: Fronts) -> None:
    stocked(broker, "a", retries=1)
    client = worker(fronts)
    for failures in range(2):
        [message] = pop(client, hold_ms=20_000)
        assert message.reconsume_times == failures
        change(client, message, 0)

    assert pop(client, hold_ms=200) == []
    dispatch_all(broker)
    worker(fronts, "1.2.3.4@2", "undertaker", **{"%DLQ%workers": "*"})
    popping_group(broker, "gravediggers")
    digger = worker(fronts, "1.2.3.4@3", "gravediggers", **{"%DLQ%workers": "*"})

    [dead] = pop(digger, "%DLQ%workers", "gravediggers")
    assert (dead.body, dead.properties[Property.RETRY_TOPIC]) == ("a", "orders")


def test_a_client_is_not_told_of_so_many_failures_that_it_would_drop_the_message(
    broker: Connection, fronts: Fronts
) -> None:
    stocked(broker, "a", retries=40)
    client = worker(fronts)
    [message] = pop(client)
    change(client, message, 0)
    broker.execute(text("UPDATE mqdb.pop_batch SET attempt = 30"))

    [again] = pop(client, hold_ms=20_000)

    assert again.reconsume_times == 15


def test_a_group_in_order_gives_the_next_messages_of_a_queue_after_an_ack(broker: Connection, fronts: Fronts) -> None:
    stocked(broker, "a", "b", orderly=True)
    client = worker(fronts)
    [first] = pop(client, limit=1, order="true")
    waiting = begin_pop(client, order="true", hold_ms=20_000)

    assert pop(client, limit=1) == []
    ack(client, first)

    assert bodies_of(popped(waiting.result(PATIENCE_SECONDS))) == ["b"]


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        pytest.param({"group": ""}, INVALID, id="no_group"),
        pytest.param({"group": "nobody"}, NO_GROUP, id="unknown_group"),
        pytest.param({"group": "pullers"}, INVALID, id="pulling_group"),
        pytest.param({"topic": ""}, INVALID, id="no_topic"),
        pytest.param({"topic": "others"}, NOT_SUBSCRIBED, id="no_subscription"),
        pytest.param({"expression": ("TAG", "a")}, NOT_SUBSCRIBED, id="another_filter"),
        pytest.param({"expression": ("SQL92", "a >")}, 23, id="bad_filter"),
        pytest.param({"maxMsgNums": None}, INVALID, id="no_limit"),
        pytest.param({"limit": 0}, INVALID, id="nothing_wanted"),
        pytest.param({"limit": "many"}, INVALID, id="no_number"),
        pytest.param({"invisibleTime": None}, INVALID, id="no_invisible_time"),
        pytest.param({"invisible_ms": 0}, INVALID, id="visible"),
        pytest.param({"invisible_ms": 12 * 3_600_000 + 1}, INVALID, id="too_long"),
        pytest.param({"invisible_ms": 2**63}, INVALID, id="beyond_all"),
        pytest.param({"queueId": 7}, INVALID, id="no_such_queue"),
        pytest.param({"queueId": -2}, INVALID, id="no_queue"),
        pytest.param({"initMode": 2}, INVALID, id="no_such_start"),
        pytest.param({"order": "true"}, INVALID, id="in_order"),
        pytest.param({"hold_ms": "long"}, INVALID, id="hold_is_no_number"),
    ],
)
def test_a_pop_that_is_wrong_is_told_why(broker: Connection, fronts: Fronts, fields: dict[str, Any], code: int) -> None:
    stocked(broker, "a")
    topic(broker, "others")
    worker(fronts, "1.2.3.4@2", "pullers")
    client = worker(fronts)

    answer = pop_frame(client, **fields)

    assert (answer.code, bool(answer.remark)) == (code, True)
    assert in_flight(broker) == 0
    assert bodies_of(pop(client)) == ["a"]


def test_a_client_that_makes_its_own_check_points_is_refused(broker: Connection, fronts: Fronts) -> None:
    """A client that makes its own check points is refused.

    Such a client could not acknowledge anything, so all messages would be redelivered, and dead in the end.
    """
    stocked(broker, "a")
    client = worker(fronts)

    client.version = 413  # 5.0.0
    refused = pop_frame(client)
    client.version = 433  # 5.1.0

    assert (refused.code, "5.1.0" in str(refused.remark)) == (15, True)
    assert bodies_of(pop(client)) == ["a"]


@pytest.mark.parametrize("hold_ms", [-1, 2**63 - 1])
def test_a_pop_may_name_any_time_to_wait(broker: Connection, fronts: Fronts, hold_ms: int) -> None:
    stocked(broker, "a")

    assert bodies_of(pop(worker(fronts), hold_ms=hold_ms)) == ["a"]


@pytest.mark.parametrize("code", [RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME])
@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        pytest.param({"extraInfo": ""}, INVALID, id="no_check_point"),
        pytest.param({"extraInfo": "0 1 60000 0 0 broker-a 0 0"}, INVALID, id="one_of_rocketmq"),
        pytest.param({"extraInfo": "0 1 60000 0 0 broker-a 0 0 " + "x" * 80}, INVALID, id="no_handle"),
        pytest.param({"extraInfo": "0 1 60000 0 0 broker-a 0 0 " + "0" * 80}, STALE, id="made_up"),
        pytest.param({"consumerGroup": ""}, INVALID, id="no_group"),
        pytest.param({"consumerGroup": "others"}, STALE, id="another_group"),
    ],
)
def test_a_receipt_that_is_wrong_is_told_why(
    broker: Connection, fronts: Fronts, code: int, fields: dict[str, str], refusal: int
) -> None:
    stocked(broker, "a")
    popping_group(broker, "others")
    client = worker(fronts)
    [message] = pop(client)

    answer = client.request(code, receipt_fields(message) | {"invisibleTime": 0} | fields)

    assert (answer.code, bool(answer.remark)) == (refusal, True)
    assert in_flight(broker) == 1


@pytest.mark.parametrize("invisible", [-1, 12 * 3_600_000 + 1, "soon", 2**63])
def test_a_message_cannot_be_changed_to_any_time(broker: Connection, fronts: Fronts, invisible: object) -> None:
    stocked(broker, "a")
    client = worker(fronts)
    [message] = pop(client)

    fields = receipt_fields(message) | {"invisibleTime": invisible}

    assert client.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields).code == INVALID
    assert ack(client, message) == 0


def test_a_topic_that_is_not_there_or_not_readable_is_refused(broker: Connection, fronts: Fronts) -> None:
    stocked(broker)
    client = worker(fronts, orders="*", missing="*")

    missing = pop_frame(client, "missing")
    update_topic(broker, "orders", perm=Perm.WRITE)
    wait_until(lambda: pop_frame(client).code == NO_PERMISSION)

    assert missing.code == NO_TOPIC


def test_a_topic_that_comes_later_is_read_from_its_beginning(broker: Connection, fronts: Fronts) -> None:
    popping_group(broker)
    topic(broker, "orders")
    client = fronts.connect()
    client.heartbeat("1.2.3.4@1", consumer(GROUP, where="CONSUME_FROM_LAST_OFFSET", orders="*", later="*"))
    assert pop_frame(client, "later", initMode=1).code == NO_TOPIC

    append(broker, topic(broker, "later"), "first")
    dispatch_all(broker)

    wait_until(lambda: pop_frame(client, "later", initMode=1).code == FOUND)


def test_a_group_that_is_switched_off_gets_nothing(broker: Connection, fronts: Fronts) -> None:
    stocked(broker, "a")
    client = worker(fronts)
    update_group(broker, GROUP, consume_enable=False)

    assert pop_frame(client).code == NO_PERMISSION
    assert in_flight(broker) == 0


def test_a_member_with_another_filter_than_its_group_hears_it_with_each_pop(broker: Connection, fronts: Fronts) -> None:
    stocked(broker, "a")
    worker(fronts, orders="a")
    other = worker(fronts, "1.2.3.4@2", orders="b")

    assert pop_frame(other, expression=("TAG", "b")).code == CONFLICT


# -- filters, namespaces --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expression", "wanted"),
    [("yes || Aa", ("TAG", "yes || Aa"), ["2"]), ("sql:n > 1", ("SQL92", "n > 1"), ["2", "3"])],
    ids=["tag", "sql92"],
)
def test_a_pop_passes_by_what_its_filter_does_not_let_through(
    broker: Connection, fronts: Fronts, given: str, expression: tuple[str, str], wanted: list[str]
) -> None:
    route = topic(broker)
    popping_group(broker)
    append(
        broker,
        route,
        Message("orders", "1", "no", properties={"n": "1"}),
        Message("orders", "2", "yes", properties={"n": "2"}),
        Message("orders", "3", "BB", properties={"n": "3"}),  # its code is that of Aa
    )
    dispatch_all(broker)
    client = worker(fronts, orders=given)

    assert bodies_of(pop(client, expression=expression)) == wanted


def test_a_client_with_a_namespace_pops_its_own_topic(broker: Connection, fronts: Fronts) -> None:
    """A client with a namespace pops its own topic. The client adds the namespace to the names itself."""
    append(broker, topic(broker, "shop%orders"), "a")
    append(broker, topic(broker, "orders"), "b")
    dispatch_all(broker)
    popping_group(broker, "shop%workers")
    client = worker(fronts, "1.2.3.4@1", "shop%workers", **{"shop%orders": "*"})

    [message] = pop(client, "shop%orders", "shop%workers")

    assert (message.body, message.topic) == ("a", "shop%orders")
    assert ack(client, message, "shop%workers") == 0


# -- waiting --------------------------------------------------------------------------------------


def test_a_pop_that_waits_is_answered_by_an_arrival_and_the_others_wait_on(broker: Connection, fronts: Fronts) -> None:
    route = topic(broker)
    popping_group(broker)
    client = worker(fronts)
    waiting = [begin_pop(client, hold_ms=20_000) for _ in range(2)]
    traffic = fronts._fronts[0].traffic
    wait_until(lambda: traffic.waiting == 2)

    append(broker, route, "a")
    dispatch_all(broker)

    wait_until(lambda: sum(each.done() for each in waiting) == 1)
    [answered] = [each for each in waiting if each.done()]
    assert bodies_of(popped(answered.result())) == ["a"]
    assert traffic.waiting == 1


def test_a_pop_waits_as_long_as_it_says(broker: Connection, fronts: Fronts) -> None:
    stocked(broker)
    client = worker(fronts)
    began = time.monotonic()

    assert pop_frame(client, hold_ms=700).code == NOTHING
    assert 0.7 <= time.monotonic() - began < 5


def test_a_connection_has_so_many_pops_that_wait(
    broker: Connection, fronts: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqdb.remoting.consuming.waiting_tasks.MOST_HELD", 2)
    stocked(broker)
    client = worker(fronts)
    for _ in range(2):
        begin_pop(client, hold_ms=20_000)

    assert pop_frame(client, hold_ms=20_000).code == 2


def test_a_front_has_so_many_waiting_lists(broker: Connection, fronts: Fronts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "_MOST_LISTS", 1)
    stocked(broker)
    popping_group(broker, "others")
    assert pop_frame(worker(fronts)).code == NOTHING

    assert pop_frame(worker(fronts, "1.2.3.4@2", "others"), group="others").code == 2


def test_a_pop_of_a_client_that_has_gone_takes_no_message(broker: Connection, fronts: Fronts) -> None:
    route = topic(broker)
    popping_group(broker)
    gone, client = worker(fronts), worker(fronts, "1.2.3.4@2")
    begin_pop(gone, hold_ms=20_000)
    wait_until(lambda: fronts._fronts[0].traffic.waiting == 1)
    gone.close()
    wait_until(lambda: fronts._fronts[0].traffic.waiting == 0, 10)  # before its time is over

    append(broker, route, "a")
    dispatch_all(broker)

    [message] = pop(client, hold_ms=20_000)
    assert (message.body, message.reconsume_times) == ("a", 0)


def test_what_is_popped_in_the_moment_in_which_a_connection_closes_comes_again_at_once(
    broker: Connection, fronts: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiter = receiving._Waiter
    is_gone = threading.Event()

    class Gone(waiter):  # type: ignore[misc, valid-type]
        """A waiter whose connection is lost in the same turn of the event loop in which it gets its messages."""

        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)
            task = asyncio.current_task()
            assert task is not None
            self.future.add_done_callback(lambda _: task.cancel())
            self.future.add_done_callback(lambda _: is_gone.set())

    stocked(broker, "a")
    gone, client = worker(fronts), worker(fronts, "1.2.3.4@2")
    monkeypatch.setattr(receiving, "_Waiter", Gone)
    begin_pop(gone, invisible_ms=3_600_000)
    assert is_gone.wait(PATIENCE_SECONDS)
    monkeypatch.setattr(receiving, "_Waiter", waiter)

    [message] = pop(client, hold_ms=20_000)

    assert (message.body, message.reconsume_times) == ("a", 0)


def test_what_a_client_has_that_vanishes_comes_again_after_its_time(broker: Connection, fronts: Fronts) -> None:
    stocked(broker, "a")
    gone, client = worker(fronts), worker(fronts, "1.2.3.4@2")
    assert len(pop(gone, limit=1, invisible_ms=700)) == 1
    gone.close()

    assert pop(client) == []
    [message] = pop(client, hold_ms=20_000)
    assert (message.body, message.reconsume_times) == ("a", 1)


def test_what_no_frame_holds_is_given_back(broker: Connection, fronts: Fronts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pops, "_MOST_BYTES", 10)
    stocked(broker, "a" * 8, "b" * 8)
    client = worker(fronts)

    first = pop(client)
    second = pop(client, hold_ms=20_000)

    assert (bodies_of(first), bodies_of(second)) == (["a" * 8], ["b" * 8])
    assert second[0].reconsume_times == 0


def test_a_front_that_is_started_anew_serves_who_comes_at_once(broker: Connection, fronts: Fronts) -> None:
    stocked(broker, "a", "b")
    [message] = pop(worker(fronts), limit=1)

    fronts._fronts[0].stop()
    client = fronts.connect(fronts.start())

    assert bodies_of(pop(client)) == ["b"]
    assert ack(client, message) == 0


# -- assignments and modes ------------------------------------------------------------------------


def assigned(
    client: RemotingClient, topic: str = "orders", group: str = GROUP, client_id: str = "1.2.3.4@1", **more: str
) -> list[tuple[int, str]] | None:
    """Queue ids with their modes, as returned by request 400."""
    said = {
        "topic": topic,
        "consumerGroup": group,
        "clientId": client_id,
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    }
    answer = client.request(RequestCode.QUERY_ASSIGNMENT, body=said | more)
    assert answer.code == 0, answer.remark
    assignments = json.loads(answer.body)["messageQueueAssignments"]
    if assignments is None:
        return None
    assert {(one["messageQueue"]["topic"], one["messageQueue"]["brokerName"]) for one in assignments} <= {
        (topic, "broker-a")
    }
    return [(one["messageQueue"]["queueId"], one["mode"]) for one in assignments]


def test_members_of_a_group_that_pops_are_assigned_any_queue(broker: Connection, fronts: Fronts) -> None:
    stocked(broker, queues=2)
    client = worker(fronts)

    assert assigned(client) == [(-1, "POP")]
    assert assigned(client, "%RETRY%workers") == [(0, "PULL")]
    assert assigned(client, "%RETRY%workers_orders") == []
    assert assigned(client, "missing") is None


def test_a_retry_topic_for_pops_has_a_route_and_is_not_made(broker: Connection, fronts: Fronts) -> None:
    """A retry topic for pops has a route, but is not created.

    A client keeps asking for the route until there is one.
    """
    topic(broker)
    client = worker(fronts)

    answer = client.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "%RETRY%workers_orders"})

    assert json.loads(answer.body)["queueDatas"][0]["readQueueNums"] == 1
    assert find_topic(broker, "%RETRY%workers_orders") is None


def test_members_of_a_group_that_pulls_share_its_queues(broker: Connection, fronts: Fronts) -> None:
    topic(broker, queues=3)
    first, second = worker(fronts), worker(fronts, "1.2.3.4@2")

    assert assigned(first) == [(0, "PULL"), (1, "PULL")]
    assert assigned(second, client_id="1.2.3.4@2") == [(2, "PULL")]
    assert assigned(first, strategyName="AVG_BY_CIRCLE") == [(0, "PULL"), (2, "PULL")]
    assert assigned(first, client_id="stranger") == []
    assert assigned(first, messageModel="BROADCASTING") == [(0, "PULL"), (1, "PULL"), (2, "PULL")]


@pytest.mark.parametrize("missing", ["topic", "consumerGroup", "clientId", "strategyName"])
@pytest.mark.parametrize("wrong", ["", 7])
def test_a_question_for_an_assignment_that_is_wrong_is_refused(
    broker: Connection, fronts: Fronts, missing: str, wrong: object
) -> None:
    topic(broker)
    names = {"topic": "orders", "consumerGroup": GROUP, "clientId": "1.2.3.4@1", "strategyName": "AVG"}

    answer = worker(fronts).request(RequestCode.QUERY_ASSIGNMENT, body=names | {missing: wrong})

    assert (answer.code, missing in str(answer.remark)) == (INVALID, True)


def set_mode(client: RemotingClient, mode: str, group: str = GROUP, topic: str = "orders") -> Frame:
    said = {"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": 0}
    return client.request(RequestCode.SET_MESSAGE_REQUEST_MODE, body=said)


def test_a_tool_sets_the_mode_of_a_group(broker: Connection, fronts: Fronts) -> None:
    topic(broker)
    update_group(broker, GROUP)
    client = fronts.connect()

    assert set_mode(client, "POP").code == 0
    assert show_group(broker, GROUP).settings.consume_mode is ConsumeMode.POP
    assert set_mode(client, "PULL").code == 0
    assert show_group(broker, GROUP).settings.consume_mode is ConsumeMode.PULL


def test_a_mode_that_is_wrong_is_refused(broker: Connection, fronts: Fronts) -> None:
    topic(broker)
    update_group(broker, GROUP)
    client = fronts.connect()

    assert set_mode(client, "PUSH").code == INVALID
    assert set_mode(client, "POP", topic="missing").code == NO_TOPIC
    assert set_mode(client, "POP", topic="%RETRY%workers").code == NO_PERMISSION
    assert set_mode(client, "POP", group="nobody").code == NO_GROUP


def test_members_are_told_that_the_mode_has_changed_and_pop_where_they_have_pulled(
    broker: Connection, fronts: Fronts
) -> None:
    route = topic(broker)
    client = worker(fronts)
    append(broker, route, "a", "b")
    dispatch_all(broker)
    client.query_offset(GROUP, "orders")
    assert client.pull(GROUP, "orders", 0, limit=1).bodies == ["a"]
    assert assigned(client) == [(0, "PULL")]
    client.asked.queue.clear()

    assert set_mode(client, "POP").code == 0
    next_asked(client, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    assert assigned(client) == [(-1, "POP")]
    client.commit(GROUP, "orders", 1)
    [message] = pop(client, hold_ms=20_000)

    assert message.body == "b"
    assert set_mode(client, "PULL").code == 0
    assert ack(client, message) == 0
    assert assigned(client) == [(0, "PULL")]
    append(broker, route, "c")
    dispatch_all(broker)
    assert client.query_offset(GROUP, "orders") == 2
    assert client.pull(GROUP, "orders", 2).bodies == ["c"]


@pytest.mark.parametrize("name", ["orders", "%RETRY%workers"])
def test_a_queue_of_a_group_that_pops_is_empty_to_those_who_pull(broker: Connection, fronts: Fronts, name: str) -> None:
    stocked(broker, "a")
    client = worker(fronts)

    def waits_to_the_end() -> bool:
        """Whether the pull waits until its end.

        A change in the group, such as this new member, would end the wait early.
        """
        began = time.monotonic()
        nothing = client.pull(GROUP, name, 0, hold_ms=900)
        assert (nothing.code, nothing.next_offset, nothing.bodies) == (19, 0, [])
        return time.monotonic() - began >= 0.9

    wait_until(waits_to_the_end)
    assert bodies_of(pop(client)) == ["a"]


def test_an_offset_of_a_retry_topic_moves_nobody_back_in_a_group_that_pops(broker: Connection, fronts: Fronts) -> None:
    """A commit to a retry topic does not move back a group that pops.

    A client repeats the commit every 5 s, even before its first heartbeat on a new connection.
    """
    stocked(broker)
    client = worker(fronts)
    pop(client)
    append(broker, topic(broker, "%RETRY%workers"), "failed before the group popped")
    dispatch_all(broker)
    [message] = pop(client, hold_ms=20_000)
    ack(client, message)
    fronts._fronts[0].stop()
    again = fronts.connect(fronts.start())

    commit = {"consumerGroup": GROUP, "topic": "%RETRY%workers", "queueId": 0, "commitOffset": 0}
    assert again.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit).code == 0
    again.query_offset(GROUP, "%RETRY%workers")  # writes what was committed

    assert pop(again) == []


def test_a_topic_that_is_deleted_is_not_there_for_those_who_wait(broker: Connection, fronts: Fronts) -> None:
    stocked(broker)
    client = worker(fronts)
    waiting = begin_pop(client, hold_ms=1_500)
    drop_topic(broker, "orders")

    assert waiting.result(PATIENCE_SECONDS).code == NOTHING
    wait_until(lambda: pop_frame(client).code == NO_TOPIC)
