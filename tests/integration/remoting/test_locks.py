"""Locks of RocketMQ's orderly clients."""

import pytest
from sqlalchemy import Connection, text

from mqdb.remoting import handlers
from mqdb.remoting.wire.codes import RequestCode
from tests.fixtures.orderly import OrderlyMember, Script
from tests.fixtures.processes import wait_until
from tests.fixtures.remoting_client import UNDISTURBED, Fronts
from tests.fixtures.remoting_groups import (
    NONE,
    A,
    B,
    filled,
    joined,
    owner,
    stored,
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer timeouts, because on a busy machine an answer may take longer than clients wait for it."""
    monkeypatch.setattr(handlers, "_LOCKED_WITHIN_SECONDS", 20.0)


def test_queues_are_locked_for_one_client_and_unlocked_for_the_next(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker, queues=2)
    fronts.start(UNDISTURBED)  # which gives back nothing that is not pulled
    client, other = joined(fronts), joined(fronts, B)

    assert client.locks(RequestCode.LOCK_BATCH_MQ, "readers", A, "orders", 0, 1) == [0, 1]
    assert client.query_offset("readers", "orders", 0) == 0
    assert client.locks(RequestCode.LOCK_BATCH_MQ, "readers", A, "orders", 0, 1) == [0, 1]
    assert other.locks(RequestCode.LOCK_BATCH_MQ, "readers", B, "orders", 0, 1) == []
    client.commit("readers", "orders", 7, 1)
    client.locks(RequestCode.UNLOCK_BATCH_MQ, "readers", A, "orders", 1)
    assert other.locks(RequestCode.LOCK_BATCH_MQ, "readers", B, "orders", 0, 1) == [1]

    assert other.query_offset("readers", "orders", 1) == 7
    assert broker.execute(text("SELECT count(*) FROM mqdb.queue_lock")).scalar() == 2
    assert owner(broker, route, 1) == B


def test_a_client_that_leaves_unlocks_its_queues(broker: Connection, fronts: Fronts) -> None:
    filled(broker)
    client, other = joined(fronts), joined(fronts, B)
    client.locks(RequestCode.LOCK_BATCH_MQ, "readers", A, "orders", 0)

    client.leave(A, "readers")

    assert other.locks(RequestCode.LOCK_BATCH_MQ, "readers", B, "orders", 0) == [0]


def test_a_client_that_chooses_its_start_locks_before_it_begins(broker: Connection, fronts: Fronts) -> None:
    filled(broker)
    client = joined(fronts, where="CONSUME_FROM_TIMESTAMP")

    assert client.locks(RequestCode.LOCK_BATCH_MQ, "readers", A, "orders", 0) == [0]
    assert client.take("readers", "orders") == (NONE, None)
    assert client.pull("readers", "orders", 6).bodies == ["0-6", "0-7", "0-8", "0-9"]
    assert client.locks(RequestCode.LOCK_BATCH_MQ, "readers", A, "orders", 0) == [0]
    assert broker.execute(text("SELECT count(*) FROM mqdb.queue_lock")).scalar() == 1


def test_locks_are_shared_with_members_in_python(
    broker: Connection, fronts: Fronts, orderly_member: OrderlyMember
) -> None:
    route = filled(broker, queues=2)
    fronts.start(UNDISTURBED)
    client, script = joined(fronts), Script()
    assert client.locks(RequestCode.LOCK_BATCH_MQ, "readers", A, "orders", 0, 1) == [0, 1]
    for queue_id in range(2):
        client.begin_pull("readers", "orders", 10, queue_id, hold_ms=20_000)
    consumer = orderly_member(script)

    client.commit("readers", "orders", 9, 1)
    client.locks(RequestCode.UNLOCK_BATCH_MQ, "readers", A, "orders", 1)
    wait_until(lambda: script.calls == [[9]])

    assert client.locks(RequestCode.LOCK_BATCH_MQ, "readers", A, "orders", 0, 1) == [0]
    consumer.shutdown()
    assert client.locks(RequestCode.LOCK_BATCH_MQ, "readers", A, "orders", 0, 1) == [0, 1]
    assert client.query_offset("readers", "orders", 1) == stored(broker, route, 1) == 10
