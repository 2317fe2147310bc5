"""Subscriptions are stored and enforced: a member that would make its group lose messages is refused."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.broker.clients.membership import announce, register, unregister
from mqdb.broker.consumers.groups import show_group, update_group
from mqdb.common.group import ConsumeMode, MessageModel
from mqdb.errors import ConsumeModeConflict, ConsumptionForbidden, MessageModelConflict, SubscriptionConflict
from mqdb.selector.subscription import SubscriptionData
from mqdb.store.clients.clients import ClientKind, Registration, live_principals
from mqdb_client import Message
from tests.fixtures.broker import append, topic
from tests.fixtures.consumers import Inbox, Member, wait_for_filter
from tests.fixtures.processes import wait_until
from tests.fixtures.variants import case


def kind_and_text(subscription: str) -> tuple[str, str]:
    """Parse a subscription: text after `SQL92 ` is an SQL92 expression, any other text a tag expression."""
    expression = subscription.removeprefix("SQL92 ")
    return ("TAG" if expression == subscription else "SQL92", expression)


class Present:
    """Consumers as registered in the broker."""

    def __init__(self, broker: Connection, engine: Engine) -> None:
        self._broker = broker
        self._engine = engine
        self.sessions: dict[str, Connection] = {}
        #: How those that join consume.
        self.mode: ConsumeMode | None = ConsumeMode.PULL

    def join(self, client_id: str, version: int = 0, /, **subscriptions: str) -> None:
        session = self._engine.connect()
        announce(session, client_id)
        self.sessions[client_id] = session
        self._register(client_id, version, subscriptions, is_renewal=False)

    def renew(self, client_id: str, version: int = 0, /, **subscriptions: str) -> None:
        self._register(client_id, version, subscriptions, is_renewal=True)

    def _register(self, client_id: str, version: int, subscriptions: dict[str, str], *, is_renewal: bool) -> None:
        registration = Registration(
            client_id,
            ClientKind.CONSUMER,
            "readers",
            "test",
            subscriptions=[SubscriptionData(topic, *kind_and_text(each)) for topic, each in subscriptions.items()],
            subscription_version=version,
            is_renewal=is_renewal,
            consume_mode=self.mode,
        )
        register(self._broker, registration)

    def leave(self, client_id: str) -> None:
        unregister(self._broker, client_id, "readers", ClientKind.CONSUMER)
        self.sessions[client_id].close()

    def stored(self) -> tuple[dict[str, str], int]:
        rows = self._broker.execute(text("SELECT topic, expression_type, expression FROM mqdb.subscription"))
        version = self._broker.scalar(text("SELECT subscription_version FROM mqdb.subscription_group"))
        return {row[0]: row[2] if row[1] == "TAG" else f"{row[1]} {row[2]}" for row in rows}, version or 0


@pytest.fixture
def present(broker: Connection, engine: Engine) -> Iterator[Present]:
    """Registers consumers whose connections are open."""
    present = Present(broker, engine)
    yield present
    for session in present.sessions.values():
        session.close()


def test_members_that_agree_are_welcome(present: Present) -> None:
    present.join("a", orders="A || B", payments="*")
    present.join("b", payments="*", orders="A || B")

    assert present.stored() == ({"orders": "A || B", "payments": "*"}, 0)


def test_a_member_with_other_subscriptions_is_refused_and_changes_nothing(present: Present) -> None:
    present.join("a", orders="*")

    others: list[dict[str, str]] = [
        {"orders": "A"},
        {"orders": "SQL92 *"},
        {"orders": "*", "payments": "*"},
        {"payments": "*"},
        {},
    ]
    for number, other in enumerate(others):
        with case(other), pytest.raises(SubscriptionConflict) as caught:
            present.join(f"b{number}", **other)

        given = {topic: kind_and_text(each) for topic, each in other.items()}
        assert (caught.value.stored, caught.value.given) == ({"orders": ("TAG", "*")}, given)
        assert "subscription_version=1" in str(caught.value)
        assert present.stored() == ({"orders": "*"}, 0)


def test_members_that_can_only_pop_may_read_different_topics(present: Present) -> None:
    present.mode = ConsumeMode.POP
    present.join("a", orders="*")
    present.join("b", orders="*", payments="A")
    present.join("c", invoices="*")

    with pytest.raises(SubscriptionConflict):
        present.join("d", payments="B")
    present.mode = None  # it can follow its group to pull
    with pytest.raises(SubscriptionConflict):
        present.join("e", orders="*")

    assert present.stored() == ({"orders": "*", "payments": "A", "invoices": "*"}, 0)


def test_a_group_without_live_members_may_change(present: Present) -> None:
    present.join("a", orders="*")
    present.leave("a")

    present.join("b", payments="A")

    assert present.stored() == ({"payments": "A"}, 0)


def test_a_member_whose_connection_is_closed_has_no_say(present: Present, broker: Connection) -> None:
    present.join("a", orders="*")
    present.sessions["a"].invalidate()
    present.sessions["a"].close()
    # PostgreSQL ends a session, and with it its locks, a moment after its client.
    wait_until(lambda: not live_principals(broker, "a"))

    present.join("b", orders="A")

    assert present.stored() == ({"orders": "A"}, 0)


def test_a_rolling_change_announces_a_higher_version(present: Present) -> None:
    present.join("a", 3, orders="*")

    present.join("b", 4, orders="A")
    assert present.stored() == ({"orders": "A"}, 4)

    with pytest.raises(SubscriptionConflict):
        present.join("c", 3, orders="*")
    present.join("d", 4, orders="A")
    assert present.stored() == ({"orders": "A"}, 4)


def test_a_group_may_go_from_tags_to_sql92(present: Present) -> None:
    present.join("a", orders="A")

    with pytest.raises(SubscriptionConflict, match=r"orders by TAG 'A' .* orders by SQL92 \"TAGS = 'A'\" "):
        present.join("b", orders="SQL92 TAGS = 'A'")
    present.join("c", 1, orders="SQL92 TAGS = 'A'")

    assert present.stored() == ({"orders": "SQL92 TAGS = 'A'"}, 1)


def test_an_old_member_may_come_back_after_a_lost_connection(present: Present) -> None:
    present.join("a", 1, orders="*")
    present.join("b", 2, orders="A")

    present.renew("a", 1, orders="*")

    assert present.stored() == ({"orders": "A"}, 2)


def test_a_member_that_pulls_cannot_come_back_once_its_group_pops(present: Present, broker: Connection) -> None:
    present.join("a", 1, orders="*")
    present.leave("a")
    update_group(broker, "readers", consume_mode=ConsumeMode.POP)

    with pytest.raises(ConsumeModeConflict):
        present.renew("a", 1, orders="*")


@pytest.mark.parametrize("mode", ConsumeMode)
def test_a_member_without_a_consume_mode_takes_that_of_its_group(broker: Connection, mode: ConsumeMode) -> None:
    update_group(broker, "readers", consume_mode=mode)

    register(broker, Registration("a", ClientKind.CONSUMER, "readers", "1", consume_mode=None))

    shown = show_group(broker, "readers")
    assert ([member.client_id for member in shown.members], shown.settings.consume_mode) == (["a"], mode)


def test_members_cannot_mix_message_models(present: Present, broker: Connection) -> None:
    present.join("a", orders="*")
    other = Registration(
        "b",
        ClientKind.CONSUMER,
        "readers",
        "test",
        MessageModel.BROADCASTING,
        subscriptions=[SubscriptionData("orders", "TAG", "*")],
    )

    with pytest.raises(MessageModelConflict, match="CLUSTERING"):
        register(broker, other)


def test_a_consumer_is_refused_at_its_start_and_leaves_nothing_behind(broker: Connection, member: Member) -> None:
    topic(broker)
    member(Inbox(), expression="A || B")
    member(Inbox(), expression="B||A")

    with pytest.raises(SubscriptionConflict, match=r"orders by TAG 'A \|\| B'"):
        member(Inbox(), expression="A")

    clients = broker.scalar(text("SELECT count(*) FROM mqdb.client WHERE kind = 'CONSUMER'"))
    assert clients == 2


# -- at run time --------------------------------------------------------------------------------


def test_a_lone_consumer_may_subscribe_and_unsubscribe_while_it_runs(broker: Connection, member: Member) -> None:
    orders, payments = topic(broker), topic(broker, "payments")
    inbox = Inbox()
    consumer = member(inbox)

    append(broker, payments, "early")
    consumer.subscribe("payments")
    wait_until(lambda: {queue.topic for queue in consumer.assignment} == {"orders", "payments"})
    append(broker, payments, "paid")
    append(broker, orders, "ordered")
    inbox.wait_for(3)
    consumer.unsubscribe("orders")
    wait_until(lambda: {queue.topic for queue in consumer.assignment} == {"payments"})

    assert sorted(inbox.bodies) == ["early", "ordered", "paid"]
    stored = broker.execute(text("SELECT topic FROM mqdb.subscription")).scalars().all()
    assert stored == ["payments"]


def test_beside_others_it_has_to_announce_a_version(broker: Connection, member: Member) -> None:
    topic(broker)
    topic(broker, "payments")
    first, second = member(Inbox()), member(Inbox())

    with pytest.raises(SubscriptionConflict):
        first.subscribe("payments")
    assert {queue.topic for queue in first.assignment} == {"orders"}

    first.subscribe("payments", version=1)
    wait_until(lambda: {queue.topic for queue in first.assignment} == {"orders", "payments"})
    second.subscribe("payments", version=1)
    wait_until(lambda: {queue.topic for queue in second.assignment} <= {"orders", "payments"})


def test_a_changed_filter_counts_from_the_next_pull_on(broker: Connection, member: Member) -> None:
    route = topic(broker)
    inbox = Inbox()
    consumer = member(inbox, expression="A")

    append(broker, route, "a 1", tag="A")
    inbox.wait_for(1)
    consumer.subscribe("orders", "B")
    wait_for_filter(broker, route, inbox, Message("orders", "first", "B"))
    append(broker, route, "a 2", tag="A")
    append(broker, route, "b", tag="B")
    wait_until(lambda: "b" in inbox.bodies)

    assert [body for body in inbox.bodies if body != "first"] == ["a 1", "b"]


# -- switched off -------------------------------------------------------------------------------


def test_a_group_that_is_switched_off_reads_nothing_until_it_is_on_again(broker: Connection, member: Member) -> None:
    route = topic(broker)
    inbox = Inbox()
    consumer = member(inbox)
    update_group(broker, "readers", consume_enable=False)
    wait_until(lambda: not consumer.assignment)
    append(broker, route, "late")

    with pytest.raises(ConsumptionForbidden, match="consume_enable is off"):
        member(Inbox())
    assert inbox.bodies == []

    update_group(broker, "readers", consume_enable=True)
    inbox.wait_for(1)


def test_a_group_may_be_kept_from_broadcasting(broker: Connection, member: Member, tmp_path: Path) -> None:
    topic(broker)
    update_group(broker, "readers", consume_broadcast_enable=False)

    with pytest.raises(ConsumptionForbidden, match="consume_broadcast_enable"):
        member(Inbox(), message_model=MessageModel.BROADCASTING, local_offset_directory=tmp_path)
