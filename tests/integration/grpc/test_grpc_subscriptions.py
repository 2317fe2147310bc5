"""Groups of RocketMQ 5's SDKs that change their subscriptions while they run."""

import pytest
from sqlalchemy import Connection

from mqdb.grpc import members
from mqdb.grpc.wire import rocketmq_pb2 as pb
from tests.fixtures.broker import dispatch_all, topic
from tests.fixtures.grpc_client import GrpcClient, GrpcFronts, TelemetryStream, message, subscription, texts
from tests.fixtures.processes import wait_until

STORED = "SELECT topic, expression FROM mqdb.subscription ORDER BY topic"
BEGUN = """
    SELECT topic FROM mqdb.consumer_offset JOIN mqdb.queue USING (queue_key) JOIN mqdb.topic USING (topic_id)
    WHERE begun
"""
MEMBERS = "SELECT client_id FROM mqdb.client WHERE kind = 'CONSUMER' ORDER BY client_id"


def joined(fronts: GrpcFronts, client_id: str, **filters: str) -> tuple[GrpcClient, TelemetryStream]:
    """A member of group `workers`, and its stream."""
    client = fronts.connect(client_id)
    stream = client.telemetry()
    assert stream.ask(subscription("workers", **filters)).status.code == pb.Code.OK
    return client, stream


def test_new_members_read_a_topic_more_beside_the_old_ones(broker: Connection, grpc_fronts: GrpcFronts) -> None:
    """New members read an additional topic next to old ones.

    This happens in a rolling deployment, if one of the old processes restarts.
    """
    for name in ("orders", "payments"):
        topic(broker, name)
    old, _ = joined(grpc_fronts, "old", orders="a")
    new, _ = joined(grpc_fronts, "new", orders="a", payments="*")
    again, _ = joined(grpc_fronts, "old again", orders="a")
    new.send_messages(*(message("orders", str(number), tag="a") for number in range(3)))
    new.send("payments", "p")
    dispatch_all(broker)

    got = [texts(each.receive("workers", "orders", tags="a", most=1)) for each in (old, new, again)]

    assert sorted(got) == [["0"], ["1"], ["2"]]
    assert texts(new.receive("workers", "payments")) == ["p"]
    assert broker.exec_driver_sql(STORED).all() == [("orders", "a"), ("payments", "*")]


def test_a_member_reads_a_topic_more_that_it_had_not_told(broker: Connection, grpc_fronts: GrpcFronts) -> None:
    """A member reads an additional topic that it had not announced.

    Java's `subscribe` only shows in its receives; the receives of its earlier topics keep waiting.
    """
    for name in ("orders", "payments"):
        topic(broker, name)
    one, _ = joined(grpc_fronts, "one", orders="*")
    joined(grpc_fronts, "other", orders="*")
    waiting = one.begin_receive("workers", "orders", poll=20)
    added = one.begin_receive("workers", "payments", poll=20)
    wait_until(lambda: broker.exec_driver_sql(STORED).all() == [("orders", "*"), ("payments", "*")])
    wait_until(lambda: set(broker.exec_driver_sql(BEGUN).scalars()) >= {"orders", "payments"})

    one.send("payments", "p")
    one.send("orders", "o")
    dispatch_all(broker)

    got = [[frame.message.body for frame in frames if frame.HasField("message")] for frames in (waiting, added)]
    assert got == [[b"o"], [b"p"]]


def test_a_receive_by_the_filter_of_before_passes_over_nothing(broker: Connection, grpc_fronts: GrpcFronts) -> None:
    topic(broker, "orders")
    client, stream = joined(grpc_fronts, "one", orders="a")
    before = client.begin_receive("workers", "orders", tags="a", poll=20)
    wait_until(lambda: grpc_fronts.front.traffic.waiting == 1)

    stream.ask(subscription("workers", orders="b"))
    client.send_messages(message("orders", "1", tag="b"))
    dispatch_all(broker)

    assert [frame.status.code for frame in before if frame.HasField("status")] == [pb.Code.MESSAGE_NOT_FOUND]
    assert texts(client.receive("workers", "orders", tags="b")) == ["1"]


def test_members_that_all_change_their_filter_agree(
    broker: Connection, grpc_fronts: GrpcFronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members that all change their filter agree in the end.

    Members that change first read nothing until the last one has changed, and no message is skipped.
    """
    monkeypatch.setattr(members, "_BEAT_SECONDS", 0.1)
    topic(broker, "orders")
    both = [joined(grpc_fronts, client_id, orders="a") for client_id in ("one", "other")]
    (one, first), (other, second) = both
    first.ask(subscription("workers", orders="b"))
    refused = one.refused_receive("workers", "orders", tags="b")
    alone = broker.exec_driver_sql(MEMBERS).all()

    second.ask(subscription("workers", orders="b"))
    one.send_messages(message("orders", "1", tag="b"), message("orders", "2", tag="b"))
    dispatch_all(broker)
    wait_until(lambda: len(broker.exec_driver_sql(MEMBERS).all()) == 2)
    got = [texts(each.receive("workers", "orders", tags="b", most=1)) for each in (one, other)]

    assert (refused.code, alone) == (pb.Code.BAD_REQUEST, [("other",)])
    assert sorted(got) == [["1"], ["2"]]


def test_a_refused_member_may_go_on_by_the_filter_of_its_group(broker: Connection, grpc_fronts: GrpcFronts) -> None:
    """A refused member may continue with its group's filter.

    Java's settings announce a changed filter while its receives still use the old one.
    """
    topic(broker, "orders")
    one, stream = joined(grpc_fronts, "one", orders="a")
    joined(grpc_fronts, "other", orders="a")
    stream.ask(subscription("workers", orders="b"))
    one.send_messages(message("orders", "1", tag="a"))
    dispatch_all(broker)

    assert texts(one.receive("workers", "orders", tags="a")) == ["1"]
    assert broker.exec_driver_sql(STORED).all() == [("orders", "a")]
