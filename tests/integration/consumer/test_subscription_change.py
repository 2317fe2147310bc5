"""A changed subscription takes effect on all of several brokers, or on none."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.clients.membership import register, take_back
from mqdb.errors import SubscriptionConflict
from mqdb.selector.subscription import SubscriptionData
from mqdb.store.clients.clients import ClientKind, Registration
from mqdb.store.engine import create_engine
from tests.fixtures.broker import topic
from tests.fixtures.consumers import Inbox, Member
from tests.fixtures.producers import TwoBrokers


@pytest.fixture
def broker_b(two_brokers: TwoBrokers) -> Iterator[Connection]:
    """A connection to the second broker; `broker` is connected to the first."""
    engine = create_engine(two_brokers.b.dsn)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def stored(broker: Connection) -> tuple[dict[str, str], int]:
    """The subscriptions of group `readers` and their version."""
    expressions = broker.execute(text("SELECT topic, expression FROM mqdb.subscription"))
    version = broker.scalar(text("SELECT subscription_version FROM mqdb.subscription_group"))
    return {row.topic: row.expression for row in expressions}, version or 0


def test_what_one_broker_refuses_changes_on_none_and_can_be_made_with_a_higher_version(
    two_brokers: TwoBrokers, broker: Connection, broker_b: Connection, member: Member
) -> None:
    """A change that one broker refuses takes effect on no broker, and can be made later with a higher version.

    By then the first broker has accepted a version to which the group cannot return by announcing it.
    """
    for connection in (broker, broker_b):
        topic(connection)
        topic(connection, "payments")
    brokers = {"broker-a": two_brokers.a.dsn, "broker-b": two_brokers.b.dsn}
    changing = member(Inbox(), brokers=brokers)
    member(Inbox(), brokers=brokers)
    member(Inbox(), brokers={"broker-b": brokers["broker-b"]}, expression="A", subscription_version=5)

    with pytest.raises(SubscriptionConflict):
        changing.subscribe("payments", version=1)

    assert stored(broker) == ({"orders": "*"}, 0)
    assert stored(broker_b) == ({"orders": "A"}, 5)
    member(Inbox(), brokers={"broker-a": brokers["broker-a"]})  # is welcome

    changing.subscribe("payments", version=6)

    assert stored(broker) == stored(broker_b) == ({"orders": "*", "payments": "*"}, 6)


def test_a_start_that_one_broker_refuses_changes_nothing_on_the_others(
    two_brokers: TwoBrokers, broker: Connection, broker_b: Connection, member: Member
) -> None:
    """A start that one broker refuses changes nothing on the others.

    The first broker has accepted the new member's version by then.
    """
    for connection in (broker, broker_b):
        topic(connection)
    brokers = {"broker-a": two_brokers.a.dsn, "broker-b": two_brokers.b.dsn}
    member(Inbox(), brokers={"broker-a": brokers["broker-a"]})
    member(Inbox(), brokers={"broker-b": brokers["broker-b"]}, expression="A", subscription_version=5)

    with pytest.raises(SubscriptionConflict):
        member(Inbox(), brokers=brokers, expression="B", subscription_version=1)

    assert stored(broker) == ({"orders": "*"}, 0)
    member(Inbox(), brokers={"broker-a": brokers["broker-a"]})  # is welcome


def test_what_somebody_has_announced_since_is_not_taken_back(broker: Connection) -> None:
    def announced(expression: str, version: int) -> Registration:
        subscriptions = [SubscriptionData("orders", "TAG", expression)]
        return Registration(
            "a", ClientKind.CONSUMER, "readers", "test", subscriptions=subscriptions, subscription_version=version
        )

    register(broker, announced("*", 1))
    replaced = register(broker, announced("A", 2))
    assert replaced is not None
    register(broker, announced("B", 3))

    take_back(broker, announced("A", 2), replaced)

    assert stored(broker) == ({"orders": "B"}, 3)
