"""A role that may send to a topic recalls the topic's waiting messages without holding up other roles."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Connection

from mqdb.broker.schedule.timers import RecallStatus, recall
from mqdb.common.recall_handle import RecallHandle, decode_handle, encode_handle
from mqdb.service.key_indexer import KeyIndexer
from mqdb.service.service import Context
from mqdb.store.engine import create_engine, transaction
from mqdb_client import Admin, Message, Producer, errors
from tests.fixtures.broker import dispatch_all
from tests.fixtures.delay import delivered, move_clock
from tests.fixtures.postgres import Database
from tests.fixtures.principals import Principal
from tests.fixtures.processes import wait_until
from tests.fixtures.threads import Doing
from tests.fixtures.timers import column, deliver_all, timer
from tests.fixtures.variants import usually

HOUR = timedelta(hours=1)
RECALLED, ALREADY_DELIVERED, UNKNOWN = RecallStatus
SHOP = 'the "shop"'


@pytest.fixture
def shop(principal: Principal) -> str:
    return principal(SHOP, send=["orders"])


@pytest.fixture
def session(shop: str) -> Iterator[Connection]:
    """A session of the role."""
    engine = create_engine(shop)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def handle(message_id: str, topic: str = "orders") -> str:
    return encode_handle(RecallHandle(topic, "broker-a", 0, message_id))


def everything_due(connection: Connection) -> list[str]:
    dispatch_all(connection)
    move_clock(connection, 1000 * HOUR)
    deliver_all(connection)
    return delivered(connection)


def test_a_sender_recalls_with_the_handle_of_its_send(broker: Connection, shop: str, owner: Admin) -> None:
    with Producer("shop", shop) as producer:
        sent = producer.send(Message("orders", "x", delay=HOUR))
        stays = producer.send(Message("orders", "stays", delay=HOUR))
        assert sent.recall_handle is not None
        assert producer.recall(sent.recall_handle) is RECALLED
        assert producer.recall(sent.recall_handle) is UNKNOWN
        assert everything_due(broker) == ["stays"]
        assert stays.recall_handle is not None
        assert producer.recall(stays.recall_handle) is ALREADY_DELIVERED

    [noted] = [each for each in owner.operations.list() if each.verb == "timer.recall"]
    assert (noted.principal, noted.topics, noted.object) == (SHOP, ["orders"], sent.message_id)


@pytest.mark.parametrize("indexed", usually(True, of=[True, False]), ids=["indexed", "not indexed"])
@pytest.mark.parametrize("stage", usually("sent", "collected", of=["sent", "dispatched", "collected", "behind"]))
def test_a_message_that_waits_is_recalled_once(
    broker: Connection, session: Connection, stage: str, indexed: bool
) -> None:
    if stage == "behind":
        deliver_all(broker)
        move_clock(broker, -3 * HOUR)
    recalled, _ = timer(broker, HOUR, "recalled", "stays", dispatched=stage != "sent")
    if indexed:
        while KeyIndexer(Context(lambda: broker)).run_once(broker).messages:
            pass
    if stage in ("collected", "behind"):
        deliver_all(broker)

    assert recall(session, handle(recalled)) is RECALLED
    assert recall(session, handle(recalled)) is UNKNOWN
    assert everything_due(broker) == ["stays"]
    assert column(broker, "SELECT count(*) FROM mqdb.scheduled") == [0]


@pytest.mark.parametrize("delay", [HOUR, -HOUR], ids=["from the table", "at once"])
def test_a_message_that_was_delivered_is_not_recalled(
    broker: Connection, session: Connection, delay: timedelta
) -> None:
    [unique_id] = timer(broker, delay, "a")
    assert everything_due(broker) == ["a"]

    assert recall(session, handle(unique_id)) is ALREADY_DELIVERED


def test_a_recall_that_comes_while_the_message_is_delivered_says_what_has_become_of_it(
    broker: Connection, session: Connection, database: Database
) -> None:
    """A recall during the delivery reports the message's fate.

    The delivering batch has read no recall, and commits later.
    """
    [unique_id] = timer(broker, HOUR, "a")
    deliver_all(broker)
    move_clock(broker, 2 * HOUR)
    waits = """SELECT FROM pg_locks WHERE relation = 'mqdb.topic'::regclass AND pid <> pg_backend_pid()
               AND EXISTS (SELECT FROM mqdb.timer_recall)"""
    with transaction(broker):
        deliver_all(broker)
        recalling = Doing(lambda: recall(session, handle(unique_id)))
        wait_until(lambda: database.rows(waits) != [])
    assert recalling.result() is ALREADY_DELIVERED

    assert delivered(broker) == ["a"]


@pytest.mark.parametrize("topic", ["secret", "no-such-topic"])
def test_a_handle_says_nothing_of_another_topic(broker: Connection, session: Connection, topic: str) -> None:
    if topic == "secret":
        [unique_id] = timer(broker, HOUR, "a")
    else:
        unique_id = "0A0B0C0D1E2F00000000000000000001"

    with pytest.raises(errors.AccessDenied, match=f"SEND on TOPIC '{topic}'"):
        recall(session, handle(unique_id, topic))


def test_a_recall_in_a_transaction_is_refused_and_recalls_nothing(broker: Connection, session: Connection) -> None:
    [unique_id] = timer(broker, HOUR, "a")

    with pytest.raises(errors.TransactionUnsuitable), transaction(session):
        recall(session, handle(unique_id))

    assert everything_due(broker) == ["a"]


def test_who_does_not_send_any_more_recalls_nothing(owner: Admin, shop: str) -> None:
    with Producer("shop", shop) as producer:
        sent = producer.send(Message("orders", "x", delay=HOUR))
        owner.acl.revoke(SHOP, send=["orders"])
        owner.acl.grant(SHOP, send=["other"])
        assert sent.recall_handle is not None
        assert decode_handle(sent.recall_handle).topic == "orders"

        with pytest.raises(errors.AccessDenied):
            producer.recall(sent.recall_handle)
