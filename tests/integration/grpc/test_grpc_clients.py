"""Clients of the front for RocketMQ 5's SDKs: settings, connects and disconnects, rights, and fronts that restart."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, suppress
from datetime import timedelta
from typing import Any

import grpc
import pytest
from sqlalchemy import Connection

from mqdb.broker.consumers import pop
from mqdb.broker.consumers.pop import Popped
from mqdb.common.http_address import HttpAddress
from mqdb.fronts import database, receiving
from mqdb.fronts.access_keys import OpenToAll
from mqdb.grpc import front, in_flight, members, request_memory
from mqdb.grpc.certificate import self_signed
from mqdb.grpc.wire import rocketmq_pb2 as pb
from mqdb.grpc.wire.times import timestamp
from mqdb_client import Admin
from mqdb_client.consumer.queues.broker_pops import BrokerPops
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.grpc_client import PATIENCE_SECONDS, GrpcClient, GrpcFronts, message, resource, subscription, texts
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.proxy import Proxy
from tests.fixtures.transactions import Checker

Code = pb.Code
IN_FLIGHT = "SELECT client_id, visible_at FROM mqdb.pop_batch"
DUE = "UPDATE mqdb.pop_batch SET visible_at = mqdb.now() - interval '1 s'"
CHECKERS = "SELECT client_id FROM mqdb.client WHERE checks_transactions"
MEMBERS = "SELECT client_id, group_name, language FROM mqdb.client WHERE kind = 'CONSUMER' ORDER BY client_id"


def begun(fronts: GrpcFronts, group: str = "workers", **filters: str) -> pb.TelemetryCommand:
    """Have a group begin in topics; returns the answer to its settings."""
    stream = fronts.connect("first").telemetry()
    answer = stream.ask(subscription(group, **(filters or {"orders": "*"})))
    stream.close()
    return answer


# -- settings -------------------------------------------------------------------------------------


def test_a_producer_hears_how_to_send(broker: Connection, grpc_fronts: GrpcFronts) -> None:
    topic(broker, "orders")
    said = pb.Settings(client_type=pb.ClientType.PRODUCER, publishing=pb.Publishing(topics=[resource("orders")]))

    answer = grpc_fronts.connect().telemetry().ask(said)

    assert answer.status.code == Code.OK
    settings = answer.settings
    assert list(settings.publishing.topics) == [resource("orders")]
    assert settings.publishing.max_body_size == 4 * 2**20
    assert settings.backoff_policy.max_attempts == 3
    assert settings.backoff_policy.exponential_backoff.initial.ToTimedelta() == timedelta(milliseconds=10)


@pytest.mark.parametrize("is_orderly", [False, True])
def test_a_consumer_hears_how_its_group_reads(broker: Connection, grpc_fronts: GrpcFronts, is_orderly: bool) -> None:
    topic(broker, "orders", 3)
    begun(grpc_fronts)
    broker.exec_driver_sql(
        "UPDATE mqdb.subscription_group SET consume_message_orderly = %s, retry_max_times = 4", (is_orderly,)
    )
    client = grpc_fronts.connect(front=grpc_fronts.start())  # another, which believes nothing yet

    answer = client.telemetry().ask(subscription("workers", orders="*"))
    assignment = client.call(
        "QueryAssignment", pb.QueryAssignmentRequest(topic=resource("orders"), group=resource("workers"))
    )

    assert answer.status.code == Code.OK
    settings = answer.settings
    assert (settings.subscription.fifo, settings.subscription.receive_batch_size) == (is_orderly, 32)
    assert settings.subscription.long_polling_timeout.seconds == 20
    assert settings.backoff_policy.max_attempts == 5
    assert [each.seconds for each in settings.backoff_policy.customized_backoff.next][:4] == [1, 5, 10, 30]
    assert [each.message_queue.id for each in assignment.assignments] == ([0, 1, 2] if is_orderly else [-1])


def test_node_hears_the_only_policy_that_it_understands(broker: Connection, grpc_fronts: GrpcFronts) -> None:
    topic(broker, "orders")
    said = subscription("workers", orders="*")
    said.user_agent.language = pb.Language.NODE_JS

    answer = grpc_fronts.connect().telemetry().ask(said)

    assert answer.settings.backoff_policy.exponential_backoff.initial.seconds == 1


def test_settings_that_say_nothing_are_refused(broker: Connection, grpc_fronts: GrpcFronts) -> None:
    answer = grpc_fronts.connect().telemetry().ask(pb.Settings())

    assert answer.status.code == Code.UNRECOGNIZED_CLIENT_TYPE


# -- lives ----------------------------------------------------------------------------------------


def test_a_consumer_is_a_member_until_it_says_that_it_leaves(broker: Connection, grpc_fronts: GrpcFronts) -> None:
    topic(broker, "orders")
    client = grpc_fronts.connect("one")
    client.telemetry().ask(subscription("workers", orders="a"))
    there = broker.exec_driver_sql(MEMBERS).all()

    answer = client.call("NotifyClientTermination", pb.NotifyClientTerminationRequest(group=resource("workers")))

    assert there == [("one", "workers", "TEST")]
    assert answer.status.code == Code.OK
    assert broker.exec_driver_sql(MEMBERS).all() == []


def test_a_client_that_has_vanished_leaves_its_groups(
    broker: Connection, grpc_fronts: GrpcFronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "_BEAT_SECONDS", 0.1)
    monkeypatch.setattr(members, "_GONE_SECONDS", 0.3)
    topic(broker, "orders")
    stream = grpc_fronts.connect("one").telemetry()
    stream.ask(subscription("workers", orders="*"))
    wait_until(lambda: broker.exec_driver_sql(MEMBERS).all() != [])

    stream.close()

    wait_until(lambda: broker.exec_driver_sql(MEMBERS).all() == [])


def test_who_subscribes_to_something_else_than_its_group_reads_nothing(
    broker: Connection, grpc_fronts: GrpcFronts
) -> None:
    """A member whose subscription differs from its group's reads nothing.

    Otherwise the other members would never get the messages that its filter skips.
    """
    topic(broker, "orders")
    grpc_fronts.connect("one").telemetry().ask(subscription("workers", orders="a"))
    other = grpc_fronts.connect("other")
    other.telemetry().ask(subscription("workers", orders="b"))

    status = other.refused_receive("workers", "orders", tags="b")

    assert status.code == Code.BAD_REQUEST
    assert "workers" in status.message


def test_a_filter_that_its_group_does_not_have_reads_nothing(broker: Connection, grpc_fronts: GrpcFronts) -> None:
    """A filter that the group does not have reads nothing.

    The client's settings have not arrived yet, or the client has changed its subscription since.
    """
    topic(broker, "orders")
    one = grpc_fronts.connect("one")
    one.telemetry().ask(subscription("workers", orders="*"))
    other = grpc_fronts.connect("other")
    one.send_messages(message("orders", "1", tag="a"), message("orders", "2", tag="b"))
    dispatch_all(broker)

    assert other.refused_receive("workers", "orders", tags="a").code == Code.BAD_REQUEST
    assert sorted(texts(grpc_fronts.connect("third").receive("workers", "orders"))) == ["1", "2"]


def test_a_client_that_takes_its_change_back_is_not_refused_any_more(
    broker: Connection, grpc_fronts: GrpcFronts
) -> None:
    topic(broker, "orders")
    grpc_fronts.connect("other").telemetry().ask(subscription("workers", orders="a"))
    client = grpc_fronts.connect("one")
    stream = client.telemetry()
    for tags in ("a", "b", "a"):
        stream.ask(subscription("workers", orders=tags))
    client.send_messages(message("orders", "1", tag="a"))
    dispatch_all(broker)

    assert texts(client.receive("workers", "orders", tags="a")) == ["1"]


def test_a_client_that_was_refused_and_has_left_comes_not_back(
    broker: Connection, grpc_fronts: GrpcFronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "_BEAT_SECONDS", 0.05)
    topic(broker, "orders")
    clients = {tags: grpc_fronts.connect(tags) for tags in "ab"}
    for tags, client in clients.items():
        client.telemetry().ask(subscription("workers", orders=tags))
    for client in reversed(clients.values()):
        client.call("NotifyClientTermination", pb.NotifyClientTerminationRequest(group=resource("workers")))

    later = grpc_fronts.connect("later").telemetry().ask(subscription("later", orders="*"))
    # Sooner than a client is given up that says nothing.
    wait_until(lambda: [row[0] for row in broker.exec_driver_sql(MEMBERS)] == ["later"], seconds=15)

    assert later.status.code == Code.OK


def test_a_receive_that_is_given_up_keeps_nobody_busy(
    broker: Connection, grpc_fronts: GrpcFronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled receive causes no further work.

    The cancelled receive is queued behind a waiting one: an expired entry would end each wait of the queue at once.
    """
    pops: list[int] = []
    pop_some = BrokerPops.pop

    def counted(self: BrokerPops, limit: int, invisible: timedelta, client_id: str | None = None) -> Popped:
        pops.append(limit)
        return pop_some(self, limit, invisible, client_id)

    monkeypatch.setattr(BrokerPops, "pop", counted)
    topic(broker, "orders")
    begun(grpc_fronts)
    client = grpc_fronts.connect()
    waiting = client.begin_receive("workers", "orders", poll=20, most=1)
    wait_until(lambda: 1 in pops)
    gone = client.begin_receive("workers", "orders", poll=20, most=2)
    wait_until(lambda: len(pops) > 1)
    gone.cancel()
    before = len(pops)
    client.receive("others", "orders", poll=5)  # as long as that takes
    client.send("orders", "x")
    dispatch_all(broker)

    assert [frame.message.body for frame in waiting if frame.HasField("message")] == [b"x"]
    assert len(pops) - before < 20


def test_a_client_that_was_refused_is_taken_when_the_others_have_left(
    broker: Connection, grpc_fronts: GrpcFronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "_BEAT_SECONDS", 0.1)
    topic(broker, "orders")
    one, other = grpc_fronts.connect("one"), grpc_fronts.connect("other")
    streams = [each.telemetry() for each in (one, other)]
    streams[0].ask(subscription("workers", orders="a"))
    streams[1].ask(subscription("workers", orders="b"))
    one.call("NotifyClientTermination", pb.NotifyClientTerminationRequest(group=resource("workers")))

    wait_until(lambda: [row[0] for row in broker.exec_driver_sql(MEMBERS)] == ["other"])


def test_a_receive_waits_for_the_database_as_for_messages(
    broker: Connection, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receive waits for the database as it waits for messages.

    SDKs retry a refused receive at once, with thousands of calls a second.
    """
    monkeypatch.setattr(database, "AGAIN_SECONDS", 0.1)
    topic(broker, "orders")
    with closing(GrpcFronts(Database(proxy.dsn))) as fronts:
        begun(fronts)
        client = fronts.connect()
        waiting = client.begin_receive("workers", "orders", poll=20, most=1)
        proxy.cut()
        new = client.begin_receive("workers", "orders", poll=20, most=1)
        refused = client.send("orders", "x")
        proxy.restore()
        wait_until(lambda: client.send("orders", "1", "2").status.code == Code.OK)
        dispatch_all(broker)
        got = [frame.message.body for frames in (waiting, new) for frame in frames if frame.HasField("message")]

    assert refused.status.code in (Code.INTERNAL_ERROR, Code.PROXY_TIMEOUT)
    assert sorted(got) == [b"1", b"2"]


def test_messages_of_a_living_client_stay_in_flight_and_others_come_again(
    broker: Connection, grpc_fronts: GrpcFronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_flight, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(members, "_BEAT_SECONDS", 0.1)
    monkeypatch.setattr(members, "_GONE_SECONDS", 0.0)
    topic(broker, "orders")
    begun(grpc_fronts)
    alive, killed = grpc_fronts.connect("alive"), grpc_fronts.connect("killed")
    streams = [each.telemetry() for each in (alive, killed)]
    for stream in streams:
        stream.ask(subscription("workers", orders="*"))
    alive.send("orders", "1", "2")
    dispatch_all(broker)
    [first] = alive.receive("workers", "orders", most=1, auto_renew=True)
    [second] = killed.receive("workers", "orders", most=1, auto_renew=True)
    before = {row[0]: row[1] for row in broker.exec_driver_sql(IN_FLIGHT)}

    streams[1].close()
    wait_until(lambda: [row[0] for row in broker.exec_driver_sql(MEMBERS)] == ["alive"])
    monkeypatch.setattr(in_flight, "_LEFT_SECONDS", 60.0)

    def prolonged() -> set[str]:
        rows = broker.exec_driver_sql(IN_FLIGHT).all()
        return {client_id for client_id, visible_at in rows if visible_at > before[client_id]}

    wait_until(lambda: prolonged() == {"alive"})
    assert "killed" not in prolonged()
    # The client has the handle from before, and the one of now is another.
    assert alive.ack("workers", "orders", first) == [Code.OK]
    assert broker.exec_driver_sql("SELECT DISTINCT client_id FROM mqdb.pop_batch").all() == [("killed",)]
    broker.exec_driver_sql(DUE)
    [again] = alive.receive("workers", "orders")
    assert (again.body, again.system_properties.delivery_attempt) == (second.body, 2)


def test_what_fails_while_it_is_prolonged_comes_again_when_it_should(
    broker: Connection, grpc_fronts: GrpcFronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_begun, may_go_on = threading.Event(), threading.Event()
    change = pop.change_invisible

    def slow(connection: Connection, *, invisible: timedelta, **more: Any) -> object:
        if invisible == in_flight.RENEWED:
            is_begun.set()
            assert may_go_on.wait(PATIENCE_SECONDS)
        return change(connection, invisible=invisible, **more)

    monkeypatch.setattr(in_flight, "_LOOK_SECONDS", 0.05)
    topic(broker, "orders")
    begun(grpc_fronts)
    client = grpc_fronts.connect()
    client.telemetry().ask(subscription("workers", orders="*"))
    client.send("orders", "1")
    dispatch_all(broker)
    [got] = client.receive("workers", "orders", auto_renew=True)
    monkeypatch.setattr(pop, "change_invisible", slow)
    monkeypatch.setattr(in_flight, "_LEFT_SECONDS", 60.0)
    assert is_begun.wait(PATIENCE_SECONDS)

    with ThreadPoolExecutor(1) as failing:
        failed = failing.submit(client.change, "workers", got.system_properties.receipt_handle, 1)
        done_too_soon, _ = wait([failed], 0.3)
        may_go_on.set()
        answer = failed.result()

    assert (len(done_too_soon), answer.status.code) == (0, Code.OK)
    left = broker.exec_driver_sql("SELECT max(visible_at) - mqdb.now() FROM mqdb.pop_batch").scalar_one()
    assert left <= timedelta(seconds=1)


def test_a_group_that_fails_keeps_no_other_from_being_prolonged(
    broker: Connection, grpc_fronts: GrpcFronts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(in_flight, "_LOOK_SECONDS", 0.05)
    topic(broker, "orders")
    client = grpc_fronts.connect()
    stream = client.telemetry()
    for group in ("first", "second"):
        stream.ask(subscription(group, orders="*"))
    client.send("orders", "1")
    dispatch_all(broker)
    for group in ("first", "second"):
        assert len(client.receive(group, "orders", auto_renew=True)) == 1
    broker.exec_driver_sql("DELETE FROM mqdb.subscription_group WHERE group_name = 'first'")
    until = """
        SELECT visible_at FROM mqdb.pop_batch JOIN mqdb.subscription_group USING (group_id) WHERE group_name = 'second'
    """
    before = broker.exec_driver_sql(until).scalar_one()

    monkeypatch.setattr(in_flight, "_LEFT_SECONDS", 60.0)

    wait_until(lambda: broker.exec_driver_sql(until).scalar_one() > before)
    wait_until(lambda: caplog.text.count("could not prolong messages of group") == 1)


def test_what_is_popped_in_the_moment_in_which_its_client_goes_comes_to_another(
    broker: Connection, grpc_fronts: GrpcFronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiter = receiving._Waiter

    class Gone(waiter):  # type: ignore[misc, valid-type]
        """A waiter whose call is cancelled in the same turn of the event loop in which it gets its messages."""

        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)
            task = asyncio.current_task()
            assert task is not None
            self.future.add_done_callback(lambda _: task.cancel())
            self.future.add_done_callback(lambda _: is_gone.set())

    is_gone = threading.Event()
    topic(broker, "orders")
    begun(grpc_fronts)
    client = grpc_fronts.connect()
    client.send("orders", "1")
    dispatch_all(broker)
    monkeypatch.setattr(receiving, "_Waiter", Gone)
    gone = client.begin_receive("workers", "orders", invisible=3_600)
    assert is_gone.wait(PATIENCE_SECONDS)
    monkeypatch.setattr(receiving, "_Waiter", waiter)

    [got] = client.receive("workers", "orders", poll=20)
    gone.cancel()

    assert (got.body, got.system_properties.delivery_attempt) == (b"1", 1)


def test_a_receive_that_is_repeated_brings_the_messages_of_the_lost_answer(
    broker: Connection, grpc_fronts: GrpcFronts
) -> None:
    """A repeated receive returns the messages of the lost answer.

    With an orderly group, a lost answer neither blocks the queue until the invisible time has passed, nor counts as a
    delivery.
    """
    topic(broker, "orders")
    begun(grpc_fronts)
    broker.exec_driver_sql("UPDATE mqdb.subscription_group SET consume_message_orderly = true")
    client = grpc_fronts.connect()
    client.send("orders", "1", "2", "3", message_group="g")
    dispatch_all(broker)
    lost = client.receive("workers", "orders", most=2, auto_renew=True, attempt_id="first")
    stranger = grpc_fronts.connect("stranger")

    again = client.receive("workers", "orders", most=2, auto_renew=True, attempt_id="first")
    acknowledged = client.ack("workers", "orders", *again)
    behind = stranger.receive("workers", "orders", auto_renew=True, attempt_id="first")

    assert texts(lost) == texts(again) == ["1", "2"]
    assert [each.system_properties.delivery_attempt for each in again] == [1, 1]
    assert acknowledged == [Code.OK] * 2
    assert texts(behind) == ["3"]


@pytest.mark.parametrize("is_back_before", [False, True])
def test_what_a_client_gets_before_its_connection_is_lost_is_not_prolonged(
    broker: Connection, grpc_fronts: GrpcFronts, monkeypatch: pytest.MonkeyPatch, is_back_before: bool
) -> None:
    """Messages that a client received before it lost its connection are not prolonged.

    The answer may be lost with the connection while the client lives: no client would get the message for hours.
    """
    monkeypatch.setattr(in_flight, "_LOOK_SECONDS", 0.05)
    topic(broker, "orders")
    begun(grpc_fronts)
    client = grpc_fronts.connect()
    stream = client.telemetry()
    stream.ask(subscription("workers", orders="*"))
    client.send("orders", "1")
    dispatch_all(broker)
    client.receive("workers", "orders", auto_renew=True)
    if not is_back_before:  # the front has noticed that the connection is lost
        stream.close()
        wait_until(lambda: grpc_fronts.front.traffic.streams == 0)
    other_stream = client.telemetry()
    other_stream.ask(subscription("workers", orders="*"))
    client.send("orders", "2")
    dispatch_all(broker)
    client.receive("workers", "orders", auto_renew=True)
    if is_back_before:
        stream.close()
    wait_until(lambda: grpc_fronts.front.traffic.streams == 1)
    times = "SELECT visible_at FROM mqdb.pop_batch ORDER BY visible_at"
    first, second = broker.exec_driver_sql(times).scalars()

    monkeypatch.setattr(in_flight, "_LEFT_SECONDS", 60.0)
    wait_until(lambda: broker.exec_driver_sql(times).scalars().all()[1] > second)

    assert broker.exec_driver_sql(times).scalars().all()[0] == first
    other_stream.close()


def test_a_front_that_is_started_anew_serves_who_comes_at_once(broker: Connection, grpc_fronts: GrpcFronts) -> None:
    """A restarted front serves returning clients at once.

    RocketMQ's own proxy refuses receives and heartbeats until the settings come again, after five minutes.
    """
    topic(broker, "orders")
    begun(grpc_fronts)
    client = grpc_fronts.connect()
    client.send("orders", "1", "2")
    dispatch_all(broker)
    [got] = client.receive("workers", "orders", most=1)

    grpc_fronts.front.stop()
    client = grpc_fronts.connect(front=grpc_fronts.start())

    assert client.call("Heartbeat", pb.HeartbeatRequest(group=resource("workers"))).status.code == Code.OK
    assert texts(client.receive("workers", "orders")) == ["2"]
    assert client.ack("workers", "orders", got) == [Code.OK]


# -- delays and transactions ----------------------------------------------------------------------


def test_a_message_that_waits_is_recalled_by_its_handle(broker: Connection, grpc_fronts: GrpcFronts) -> None:
    topic(broker, "orders")
    client = grpc_fronts.connect()
    [[due]] = broker.exec_driver_sql("SELECT mqdb.now() + interval '1 hour'").all()
    answer = client.send("orders", "later", delivery_timestamp=timestamp(due), message_type=pb.MessageType.DELAY)
    dispatch_all(broker)
    [entry] = answer.entries

    request = pb.RecallMessageRequest(topic=resource("orders"), recall_handle=entry.recall_handle)
    recalled = client.call("RecallMessage", request)
    nonsense = client.call("RecallMessage", pb.RecallMessageRequest(topic=resource("orders"), recall_handle="x"))

    assert (recalled.status.code, recalled.message_id) == (Code.OK, entry.message_id)
    assert nonsense.status.code == Code.INTERNAL_SERVER_ERROR


@pytest.mark.parametrize("resolution", ["COMMIT", "ROLLBACK"])
def test_a_half_message_ends_as_its_sender_says(broker: Connection, grpc_fronts: GrpcFronts, resolution: str) -> None:
    topic(broker, "orders")
    begun(grpc_fronts)
    client = grpc_fronts.connect()
    [entry] = client.send("orders", "half", message_type=pb.MessageType.TRANSACTION).entries
    request = pb.EndTransactionRequest(
        topic=resource("orders"),
        message_id=entry.message_id,
        transaction_id=entry.transaction_id,
        resolution=resolution,
    )

    ended = client.call("EndTransaction", request)
    others = [
        client.call(
            "EndTransaction", pb.EndTransactionRequest(topic=resource("orders"), message_id=one, transaction_id=two)
        )
        for one, two in [(entry.message_id, "x"), ("", entry.transaction_id), (entry.message_id, "12345678")]
    ]
    client.send("orders", "plain")
    dispatch_all(broker)

    assert ended.status.code == Code.OK
    assert [each.status.code for each in others] == [
        Code.INVALID_TRANSACTION_ID, Code.INVALID_TRANSACTION_ID, Code.INTERNAL_SERVER_ERROR
    ]  # fmt: skip
    got = client.receive("workers", "orders")
    assert sorted(texts(got)) == (["half", "plain"] if resolution == "COMMIT" else ["plain"])
    kinds = {each.body: each.system_properties.message_type for each in got}
    assert kinds[b"plain"] == pb.MessageType.NORMAL
    assert kinds.get(b"half", pb.MessageType.TRANSACTION) == pb.MessageType.TRANSACTION


# -- questions ------------------------------------------------------------------------------------


def test_a_client_tells_its_stacks(database: Database, broker: Connection, grpc_fronts: GrpcFronts) -> None:
    topic(broker, "orders")
    stream = grpc_fronts.connect("one").telemetry()
    stream.ask(subscription("workers", orders="*"))
    with Admin(database.dsn) as admin, ThreadPoolExecutor(1) as asking:
        asked = asking.submit(admin.consumers.status, "one")
        command = next(stream.said).print_thread_stack_trace_command
        # A nonce that is none of ours, and then the right one.
        stream.say(thread_stack_trace=pb.ThreadStackTrace(nonce="4711", thread_stack_trace="nonsense"))
        stream.say(thread_stack_trace=pb.ThreadStackTrace(nonce=command.nonce, thread_stack_trace="main: at work"))
        [told] = asked.result()

    assert (told.group, told.details["state"], told.details["stack"]) == ("workers", "running", "main: at work")


@pytest.mark.parametrize(("code", "result"), [(Code.OK, "CR_SUCCESS"), (Code.FAILED_TO_CONSUME_MESSAGE, "CR_LATER")])
def test_a_client_consumes_the_message_that_it_is_given(
    database: Database, broker: Connection, grpc_fronts: GrpcFronts, code: pb.Code, result: str
) -> None:
    route = topic(broker, "orders")
    stream = grpc_fronts.connect("one").telemetry()
    stream.ask(subscription("workers", orders="*"))
    append(broker, route, "this one")
    dispatch_all(broker)
    [[message_id]] = broker.exec_driver_sql("SELECT msg_id FROM mqdb.message").all()
    with Admin(database.dsn) as admin, ThreadPoolExecutor(1) as asking:
        asked = asking.submit(admin.consumers.consume, "one", "workers", str(message_id))
        command = next(stream.said).verify_message_command
        stream.say(
            status=pb.Status(code=code, message="done"),
            verify_message_result=pb.VerifyMessageResult(nonce=command.nonce),
        )
        told = asked.result()

    assert command.message.body == b"this one"
    assert (told.result.result, told.result.remark) == (result, "done")


# -- rights and namespaces ------------------------------------------------------------------------


def test_topics_of_a_namespace_are_others(broker: Connection, grpc_fronts: GrpcFronts) -> None:
    """Topics of a namespace are separate topics.

    RocketMQ's own proxy ignores the namespace: a message sent in one namespace is read in all.
    """
    topic(broker, "orders")
    topic(broker, "ns%orders")
    stream = grpc_fronts.connect("inside", namespace="ns").telemetry()
    stream.ask(subscription("workers", orders="*"))
    begun(grpc_fronts)
    inside, outside = grpc_fronts.connect("inside", namespace="ns"), grpc_fronts.connect("outside")

    inside.send("orders", "in")
    outside.send("orders", "out")
    dispatch_all(broker)

    assert texts(inside.receive("workers", "orders")) == ["in"]
    assert texts(outside.receive("workers", "orders")) == ["out"]


def test_who_does_not_sign_or_has_no_right_is_refused(
    database: Database, broker: Connection, grpc_fronts: GrpcFronts
) -> None:
    for name in ("orders", "secret"):
        topic(broker, name)
    with Admin(database.dsn) as admin:
        admin.acl.grant("shop", send=["orders"], read=["orders"], group=["workers"], external=True)
        admin.acl.set_secret("shop", "a long secret")
    shop = grpc_fronts.connect("shop", key=("shop", "a long secret"))
    stranger, liar = grpc_fronts.connect("stranger"), grpc_fronts.connect("liar", key=("shop", "wrong"))

    assert shop.send("orders", "x").status.code == Code.OK
    assert shop.send("secret", "x").status.code == Code.FORBIDDEN
    assert shop.refused_receive("workers", "secret").code == Code.FORBIDDEN
    assert shop.refused_receive("others", "orders").code == Code.FORBIDDEN
    for each in (stranger, liar):
        assert each.send("orders", "x").status.code == Code.UNAUTHORIZED
        assert each.refused_receive("workers", "orders").code == Code.UNAUTHORIZED
        assert each.call("QueryRoute", pb.QueryRouteRequest(topic=resource("orders"))).status.code == Code.UNAUTHORIZED


def test_clients_of_one_key_leave_room_for_others(
    database: Database, broker: Connection, grpc_fronts: GrpcFronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "_MOST_OF_A_KEY", 2)
    topic(broker, "orders")
    with Admin(database.dsn) as admin:
        for key in ("shop", "bank"):
            admin.acl.grant(key, read=["orders"], group=[f"{key}-workers"], external=True)
            admin.acl.set_secret(key, "a long secret")

    def heartbeat(client_id: str, key: str) -> int:
        client = grpc_fronts.connect(client_id, key=(key, "a long secret"))
        status: pb.Status = client.call("Heartbeat", pb.HeartbeatRequest(group=resource(f"{key}-workers"))).status
        return status.code

    codes = [heartbeat(client_id, "shop") for client_id in ("one", "two", "three", "two")]

    assert codes == [Code.OK, Code.OK, Code.TOO_MANY_REQUESTS, Code.OK]
    assert heartbeat("four", "bank") == Code.OK


def test_a_front_takes_so_many_connections(
    broker: Connection, grpc_fronts: GrpcFronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "most_connections", lambda _: 2)
    topic(broker, "orders")
    first, second, third = (grpc_fronts.connect(name) for name in ("first", "second", "third"))
    for client in (first, second):
        assert client.send("orders", "x").status.code == Code.OK

    with pytest.raises(grpc.RpcError) as refused:
        third.send("orders", "x")
    for client in (third, second):  # the third one would take the room
        client.close()
    fourth = grpc_fronts.connect("fourth")

    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    wait_until(lambda: is_served(fourth))


def is_served(client: GrpcClient) -> bool:
    with suppress(grpc.RpcError):
        return client.send("orders", "x").status.code == Code.OK
    return False


def test_requests_hold_so_much_together(
    broker: Connection, grpc_fronts: GrpcFronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_memory, "_MOST_BYTES", 2_000)
    topic(broker, "orders")
    client = grpc_fronts.connect()

    assert client.send("orders", "x" * 2_000).status.code == Code.TOO_MANY_REQUESTS
    assert [client.send("orders", "x" * 1_000).status.code for _ in range(3)] == [Code.OK] * 3


def test_a_front_is_open_by_itself_if_all_its_addresses_are_of_this_machine(
    broker: Connection, grpc_fronts: GrpcFronts
) -> None:
    everywhere = HttpAddress("0.0.0.0", 0)
    with pytest.raises(OpenToAll):
        grpc_fronts.start(tls_address=everywhere, certificate=self_signed("localhost"))


@pytest.mark.parametrize("access_key", ["", "shop"])
def test_the_sender_of_a_half_message_is_asked_and_another_if_it_is_gone(
    database: Database,
    broker: Connection,
    grpc_fronts: GrpcFronts,
    monkeypatch: pytest.MonkeyPatch,
    access_key: str,
) -> None:
    """The sender of a half message is asked about it, or, if it is gone, another producer.

    Clients of one key are only asked about half messages of that key.
    """
    monkeypatch.setattr(members, "_BEAT_SECONDS", 0.1)
    topic(broker, "orders")
    if access_key:
        with Admin(database.dsn) as admin:
            admin.acl.grant("shop", send=["orders"], external=True)
            admin.acl.set_secret("shop", "a long secret")
    key = ("shop", "a long secret") if access_key else None
    said = pb.Settings(client_type=pb.ClientType.PRODUCER, publishing=pb.Publishing(topics=[resource("orders")]))
    checker = Checker(broker)

    sender = grpc_fronts.connect("sender", key=key)
    stream = sender.telemetry()
    stream.ask(said)
    [entry] = sender.send("orders", "half", message_type=pb.MessageType.TRANSACTION).entries
    dispatch_all(broker)
    checker.after(timedelta(seconds=7))
    first = next(stream.said).recover_orphaned_transaction_command
    stream.close()
    sender.call("NotifyClientTermination", pb.NotifyClientTerminationRequest())
    checker.after(timedelta(seconds=60))  # there is nobody to ask
    other = grpc_fronts.connect("other", key=key)
    other_stream = other.telemetry()
    other_stream.ask(said)
    wait_until(lambda: [row[0].partition(" ")[0] for row in broker.exec_driver_sql(CHECKERS)] == ["other"])
    checker.after(timedelta(seconds=60))
    second = next(other_stream.said).recover_orphaned_transaction_command

    assert first.transaction_id == second.transaction_id == entry.transaction_id
    assert first.message.system_properties.message_id == entry.message_id
    request = pb.EndTransactionRequest(
        topic=resource("orders"),
        message_id=entry.message_id,
        transaction_id=second.transaction_id,
        resolution=pb.TransactionResolution.COMMIT,
        source=pb.TransactionSource.SOURCE_SERVER_CHECK,
    )
    assert other.call("EndTransaction", request).status.code == Code.OK


def test_a_front_that_everybody_reaches_is_not_open_by_itself(broker: Connection, grpc_fronts: GrpcFronts) -> None:
    with pytest.raises(OpenToAll):
        grpc_fronts.start(is_open=False)


# -- TLS, and processes ---------------------------------------------------------------------------


def test_a_front_speaks_tls_with_a_certificate_that_it_has_made(broker: Connection, grpc_fronts: GrpcFronts) -> None:
    topic(broker, "orders")
    made = self_signed("127.0.0.1")
    front = grpc_fronts.start(tls_address=HttpAddress("127.0.0.1", 0), certificate=made)
    assert front.tls_address is not None
    assert str(front.tls_address) in front.lines[1]
    client = grpc_fronts.connect(address=front.tls_address, trusts=made.certificate)

    assert client.send("orders", "x").status.code == Code.OK


def test_two_fronts_share_a_port(broker: Connection, grpc_fronts: GrpcFronts) -> None:
    """Two fronts share a port: a message that one front has delivered can be acknowledged at the other."""
    topic(broker, "orders")
    first = grpc_fronts.start(shares_port=True)
    begun(grpc_fronts)
    grpc_fronts.start(port=first.address.port, shares_port=True)
    clients = [grpc_fronts.connect(f"client {number}") for number in range(8)]
    for client in clients:
        assert client.send("orders", "x").status.code == Code.OK
    dispatch_all(broker)

    got = [message for client in clients for message in client.receive("workers", "orders", most=1)]

    assert len(got) == 8
    assert grpc_fronts.connect().ack("workers", "orders", *got) == [Code.OK] * 8


def test_what_is_no_text_of_postgresql_is_refused(broker: Connection, grpc_fronts: GrpcFronts) -> None:
    topic(broker, "orders")
    client = grpc_fronts.connect()

    codes = [
        client.send_messages(message("orders", "x", tag="\0")).status.code,
        client.send_messages(message("orders", "x", keys=["\0"])).status.code,
        client.send_messages(message("orders", "x", born_host="\0")).status.code,
        client.send_messages(message("orders", "x", message_group="\0")).status.code,
        client.send_messages(message("orders", "x", message_id="\0")).status.code,
        client.refused_receive("a\0", "orders").code,
    ]

    assert Code.OK not in codes
    assert Code.INTERNAL_SERVER_ERROR not in codes
