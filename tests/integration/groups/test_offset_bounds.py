"""Extreme numbers that a member stores for its group do not stop operations on the group."""

from collections.abc import Iterator
from typing import Any, TypeAlias

import psycopg
import pytest
from sqlalchemy import Connection

from mqdb.broker.consumers.group_offsets import commit_without_owner
from mqdb.store.consumers import consumer_offsets
from mqdb.store.consumers.group_offsets import ReadQueue
from mqdb.store.topics import topics
from mqdb_client import Admin, Boundary
from tests.fixtures.broker import append, dispatch_all
from tests.fixtures.principals import Principal

Session: TypeAlias = "psycopg.Connection[Any]"

LEAST, MOST = -(2**63), 2**63 - 1


@pytest.fixture
def mallory(owner: Admin, broker: Connection, principal: Principal) -> Iterator[Session]:
    """A member of group `billing` that has read one of two messages in each queue of `orders`."""
    dsn = principal("mallory", read=["orders"], group=["billing"])
    owner.groups.update("billing")
    route = topics.find_topic(broker, "orders")
    assert route is not None
    for queue_id in range(len(route.queue_keys)):
        append(broker, route, "a", "b", queue_id=queue_id)
    dispatch_all(broker)
    owner.offsets.reset("billing", "orders", 1)
    with psycopg.connect(dsn, autocommit=True) as session:
        yield session


def test_a_number_of_an_offset(owner: Admin, broker: Connection, mallory: Session) -> None:
    route = topics.find_topic(broker, "orders")
    assert route is not None

    for column, value in (
        ("epoch", LEAST),
        ("epoch", -1),
        ("epoch", MOST - 1),
        ("epoch", MOST),
        ("next_offset", MOST),
        ("segment", 2**31 - 1),
        ("segment", -(2**31)),
    ):
        broker.exec_driver_sql("DELETE FROM mqdb.consumer_offset")
        owner.offsets.reset("billing", "orders", 1)
        mallory.execute(f"UPDATE mqdb.consumer_offset SET {column} = %s".encode(), [value])

        for _ in range(2):
            taken = consumer_offsets.take(broker, "billing", "client-1", route.queue_keys, force=True)
            assert len(taken) == len(route.queue_keys), (column, value)
            broker.exec_driver_sql("SELECT * FROM mqdb.consumer_lag").all()
        owner.offsets.clone("billing", "accounting", ["orders"])
        owner.offsets.reset("billing", "orders", Boundary.LATEST)

        assert {each.next_offset for each in owner.offsets.show("billing", "orders")} == {2}, (column, value)


def test_a_reader_that_owns_no_queue_commits_behind_the_last_epoch(
    owner: Admin, broker: Connection, mallory: Session
) -> None:
    mallory.execute("UPDATE mqdb.consumer_offset SET epoch = %s", [MOST])
    rows = broker.exec_driver_sql("SELECT queue_key, reset_at FROM mqdb.consumer_offset").all()

    commit_without_owner(broker, "billing", [ReadQueue(key, 2, 0, reset_at) for key, reset_at in rows])

    assert {each.next_offset for each in owner.offsets.show("billing", "orders")} == {2}
