"""SQL92 subscriptions in running consumers of all kinds, and their effects."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.broker_settings import change_settings
from mqdb.broker.clients.client_requests import RequestKind, ask, wait_for_answer
from mqdb.common.group import MessageModel
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import FilterDisabled, ParameterInvalid, SubscriptionConflict
from mqdb.store.broker_settings import BrokerSettings
from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb_client import ConsumeConcurrentlyStatus, Message, MessageSelector
from tests.fixtures.broker import append, topic
from tests.fixtures.consumers import LATER, SUCCESS, Inbox, Member, wait_for_filter
from tests.fixtures.lite_pull import Lite, polled
from tests.fixtures.processes import wait_until
from tests.fixtures.retries import scheduled, set_delay
from tests.fixtures.variants import usually

by_sql = MessageSelector.by_sql


def message(body: str, tag: str | None = None, **properties: str) -> Message:
    return Message("orders", body, tag, properties=properties)


def stored(connection: Connection) -> list[tuple[Any, ...]]:
    rows = connection.execute(text("SELECT topic, expression_type, expression FROM mqdb.subscription"))
    return [tuple(row) for row in rows]


# -- which messages -----------------------------------------------------------------------------


def test_the_text_is_stored_as_it_was_given(broker: Connection, member: Member) -> None:
    topic(broker)
    member(Inbox(), expression=by_sql(" a>1 -- dear\n and b = 'it''s'"))

    assert stored(broker) == [("orders", "SQL92", " a>1 -- dear\n and b = 'it''s'")]


def test_the_status_of_a_consumer_shows_its_filters(broker: Connection, member: Member) -> None:
    topic(broker)
    member(Inbox(), expression=by_sql("a > 1"))

    client_id = broker.scalar(text("SELECT client_id FROM mqdb.client WHERE kind = 'CONSUMER'"))
    status = wait_for_answer(broker, ask(broker, client_id, RequestKind.STATUS, {"group": "readers"}))

    assert status["subscriptions"] == [{"topic": "orders", "expression_type": "SQL92", "expression": "a > 1"}]


def test_members_agree_when_the_texts_are_equal(broker: Connection, member: Member) -> None:
    topic(broker)
    member(Inbox(), expression=by_sql("a > 1"))
    member(Inbox(), expression=by_sql("a > 1"))

    with pytest.raises(SubscriptionConflict, match=r"by SQL92 'a > 1' .* by SQL92 'a>1' "):
        member(Inbox(), expression=by_sql("a>1"))
    with pytest.raises(SubscriptionConflict, match=r"by SQL92 'a > 1' .* by TAG 'a > 1' "):
        member(Inbox(), expression="a > 1")


def test_system_properties_are_properties(broker: Connection, member: Member) -> None:
    route = topic(broker)
    inbox = Inbox()
    keyed = Message("orders", "keyed", "paid", keys="k1 k2")
    append(broker, route, message("untagged"), message("tagged", "paid"), keyed)

    member(inbox, expression=by_sql("TAGS = 'paid' AND KEYS CONTAINS 'k2' AND UNIQ_KEY IS NOT NULL"))
    inbox.wait_for(1)

    assert inbox.bodies == ["keyed"]


def test_what_does_not_match_counts_as_consumed(broker: Connection, member: Member) -> None:
    route = topic(broker)
    append(broker, route, *(message(f"{number}", a=f"{number}") for number in range(1_000)))
    (key,) = route.queue_keys

    member(Inbox(), expression=by_sql("a > 5000"), persist_consumer_offset_interval=timedelta(milliseconds=20))

    wait_until(lambda: committed_offsets(broker, "readers", [key]) == {key: 1_000})


def test_a_broadcasting_consumer_filters(broker: Connection, member: Member, tmp_path: Path) -> None:
    route = topic(broker)
    append(broker, route, *(message(f"{number}", a=f"{number}") for number in range(5)))
    inbox = Inbox()

    broadcasting = {"message_model": MessageModel.BROADCASTING, "local_offset_directory": tmp_path}
    member(inbox, expression=by_sql("a > 1"), consume_thread_nums=1, **broadcasting)
    inbox.wait_for(3)

    assert inbox.bodies == ["2", "3", "4"]


def test_the_filter_may_change_from_tags_to_sql92_while_it_runs(broker: Connection, member: Member) -> None:
    route = topic(broker)
    inbox = Inbox()
    consumer = member(inbox, expression="A")
    append(broker, route, message("by tag", "A"))
    inbox.wait_for(1)

    consumer.subscribe("orders", by_sql("a > 1"))
    wait_for_filter(broker, route, inbox, message("first", "B", a="2"))
    append(broker, route, message("tag only", "A"), message("by sql", "B", a="2"))
    wait_until(lambda: "by sql" in inbox.bodies)

    assert [body for body in inbox.bodies if body != "first"] == ["by tag", "by sql"]
    assert stored(broker) == [("orders", "SQL92", "a > 1")]


def test_a_filter_too_many_leaves_all_as_it_was(broker: Connection, member: Member) -> None:
    """A filter too many changes nothing.

    The group's retries are evaluated with all filters together, and a statement's planning time is limited.
    """
    route = topic(broker)
    inbox = Inbox()
    consumer = member(inbox, expression=by_sql("a > 1"))
    # 481 parts each.
    many = [f"BETWEEN {number} AND {number + 1}" for number in range(0, 240, 2)]
    for name in ("payments", "refunds"):
        consumer.subscribe(name, by_sql(" OR ".join(f"a {each}" for each in many)))

    with pytest.raises(ParameterInvalid, match="1,000 is the limit"):
        consumer.subscribe("returns", by_sql(" OR ".join(f"b {each}" for each in many)))
    append(broker, route, message("2", a="2"))
    inbox.wait_for(1)

    assert {name for name, *_ in stored(broker)} == {"orders", "payments", "refunds"}


# -- lite pull ----------------------------------------------------------------------------------


def subscribed(lite: Lite, expression: MessageSelector) -> Any:
    return lite("orders", expression)


def assigned(lite: Lite, expression: MessageSelector) -> Any:
    return lite(queue_ids=[0], expression=expression)


@pytest.mark.parametrize("start", usually(subscribed, of=[subscribed, assigned]))
def test_a_lite_pull_consumer_filters(broker: Connection, lite: Lite, start: Callable[..., Any]) -> None:
    route = topic(broker)
    append(broker, route, *(message(f"{number}", a=f"{number}") for number in range(5)))

    assert polled(start(lite, by_sql("a BETWEEN 2 AND 3")), 2) == ["2", "3"]


def test_assigning_by_sql92_while_it_is_off_leaves_all_as_it_was(broker: Connection, lite: Lite) -> None:
    route = topic(broker)
    consumer = lite(queue_ids=[0])
    change_settings(broker, BrokerSettings(enable_property_filter=False))

    with pytest.raises(FilterDisabled):
        consumer.assign(consumer.assignment, by_sql("a > 1"))
    append(broker, route, message("one"))

    assert polled(consumer, 1) == ["one"]


# -- switched off while it runs -----------------------------------------------------------------


def test_who_has_subscribed_goes_on_when_it_is_switched_off(broker: Connection, member: Member) -> None:
    route = topic(broker)
    inbox = Inbox()
    consumer = member(inbox, expression=by_sql("a > 1"))
    change_settings(broker, BrokerSettings(enable_property_filter=False))
    append(broker, route, message("1", a="1"), message("2", a="2"))
    inbox.wait_for(1)

    with pytest.raises(FilterDisabled):
        consumer.subscribe("orders", by_sql("a > 2"))
    append(broker, route, message("again", a="2"))
    inbox.wait_for(2)

    assert inbox.bodies == ["2", "again"]


# -- retries ------------------------------------------------------------------------------------


class FailingOnce(Inbox):
    """A listener that fails each message the first time."""

    def __call__(self, messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        super().__call__(messages)
        return SUCCESS if messages[0].reconsume_times else LATER


@pytest.mark.parametrize("is_judged", [False, True])
def test_filter_support_retry_says_whether_a_retry_is_judged(
    served: Connection, member: Member, is_judged: bool
) -> None:
    change_settings(served, BrokerSettings(filter_support_retry=is_judged))
    route, payments, refunds = topic(served), topic(served, "payments"), topic(served, "refunds")
    inbox = FailingOnce()
    consumer = member(inbox, expression=by_sql("a > 1"), persist_consumer_offset_interval=timedelta(milliseconds=20))
    consumer.subscribe("payments", by_sql("a < 5"))
    consumer.subscribe("refunds", "A")
    set_delay(served, "1 h")
    append(served, route, message("little", a="2"), message("much", a="20"))
    append(served, payments, Message("payments", "paid", properties={"a": "3"}))
    append(served, refunds, Message("refunds", "refunded", "A"))
    inbox.wait_for(4)
    wait_until(lambda: len(scheduled(served)) == 4)

    consumer.subscribe("orders", by_sql("a > 10"))
    set_delay(served, "1 s")  # a pull that has begun with the filter of before ends sooner
    (key,) = _retry_queues(served)
    wait_until(lambda: committed_offsets(served, "readers", [key]) == {key: 4})

    again = {each.body.decode() for each in inbox.messages if each.reconsume_times}
    assert again == {"much", "paid", "refunded"} | ({"little"} if not is_judged else set())


def _retry_queues(connection: Connection) -> list[int]:
    rows = "SELECT queue_key FROM mqdb.queue JOIN mqdb.topic USING (topic_id) WHERE topic = '%RETRY%readers'"
    return list(connection.scalars(text(rows)))
