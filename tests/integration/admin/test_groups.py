"""Admin.groups, Admin.consumers and Admin.offsets."""

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from typing import Any

import pytest

from mqdb_client import (
    Admin,
    Boundary,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    DirectResult,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    errors,
)
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until


@pytest.fixture
def admin(database: Database) -> Iterator[Admin]:
    with Admin(database.dsn) as admin:
        admin.topics.create("orders", queues=1)
        yield admin


@pytest.fixture
def message_ids(admin: Admin, database: Database) -> list[str]:
    """The ids of three messages sent to the topic."""
    with Producer("shop", database.dsn) as producer:
        return [producer.send(Message("orders", body)).message_id for body in ("one", "two", "three")]


def consume(_messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


@pytest.fixture
def consumer(admin: Admin, message_ids: list[str], database: Database) -> Iterator[PushConsumer]:
    consumer = PushConsumer(
        "billing",
        database.dsn,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        persist_consumer_offset_interval=timedelta(seconds=1),
    )
    consumer.subscribe("orders")
    consumer.register_listener(consume)
    consumer.start()
    wait_until(lambda: admin.offsets.committed("billing", "orders") == {0: 3})
    yield consumer
    consumer.shutdown()


def test_a_group_is_made_changed_shown_listed_and_deleted(admin: Admin) -> None:
    changed = admin.groups.update("billing", retry_max_times=3, consume_enable=False)

    assert (changed.retry_max_times, changed.consume_enable) == (3, False)
    assert admin.groups.show("billing").settings == changed
    assert [(group.group, group.members) for group in admin.groups.list()] == [("billing", 0)]
    assert admin.groups.delete("billing") == []
    with pytest.raises(errors.GroupNotFound):
        admin.groups.show("billing")


def test_a_running_consumer_is_listed_and_tells_how_it_is(admin: Admin, consumer: PushConsumer) -> None:
    (member,) = admin.consumers.list("billing")

    (status,) = admin.consumers.status(member.client_id)

    assert (status.client_id, status.group) == (member.client_id, "billing")
    assert sorted(queue["next_offset"] for queue in status.details["queues"]) == [0, 3]  # its retries, and orders
    with pytest.raises(errors.GroupInUse):
        admin.groups.delete("billing")


def test_a_running_consumer_consumes_a_message_again(
    admin: Admin, consumer: PushConsumer, message_ids: list[str]
) -> None:
    (member,) = admin.consumers.list()

    topic, queue_id, told = admin.consumers.consume(member.client_id, "billing", message_ids[1], actor="ada")

    assert (topic, queue_id, told.result) == ("orders", 0, DirectResult.CR_SUCCESS)
    assert admin.offsets.committed("billing", "orders") == {0: 3}


def test_nobody_is_there_to_be_asked(admin: Admin) -> None:
    with pytest.raises(errors.ClientOffline):
        admin.consumers.status("somebody")


@pytest.mark.usefixtures("message_ids")
def test_offsets_are_reset_cloned_and_remembered(admin: Admin) -> None:
    admin.groups.update("billing")

    assert [change.new_offset for change in admin.offsets.reset("billing", "orders", 2, dry_run=True)] == [2]
    assert admin.offsets.committed("billing", "orders") == {}
    admin.offsets.reset("billing", "orders", 2, reason="two are enough", actor="ada")
    (change,) = admin.offsets.reset("billing", "orders", Boundary.EARLIEST)
    assert (change.old_offset, change.new_offset, change.repeated) == (2, 0, 2)
    admin.offsets.reset("billing", "orders", timedelta(days=1))
    (cloned,) = admin.offsets.clone("billing", "billing-2")

    assert (cloned.topic, cloned.new_offset) == ("orders", 0)
    assert [standing.lag for standing in admin.offsets.show("billing-2", "orders")] == [3]
    noted = [each for each in admin.operations.list(group="billing") if each.actor == "ada"]
    assert [(each.verb, each.object, each.reason) for each in noted] == [("offset.reset", "2", "two are enough")]


def test_one_topic_to_clone_is_no_list_of_letters(admin: Admin) -> None:
    admin.groups.update("billing")

    with pytest.raises(errors.ParameterInvalid, match="topics = 'orders': must be a list, each item a text"):
        admin.offsets.clone("billing", "billing-2", "orders")


@pytest.mark.parametrize("to", [True, 1.0, "EARLIEST", None, date(2026, 7, 14)])
def test_a_reset_to_what_is_no_place_is_refused(admin: Admin, to: Any) -> None:
    admin.groups.update("billing")

    with pytest.raises(errors.ParameterInvalid, match=r"to = .*: must be a Boundary, a whole number"):
        admin.offsets.reset("billing", "orders", to)


def test_a_reset_to_a_time_without_a_zone_is_refused(admin: Admin) -> None:
    admin.groups.update("billing")

    with pytest.raises(errors.ParameterInvalid, match="time zone"):
        admin.offsets.reset("billing", "orders", datetime(2026, 7, 14))  # noqa: DTZ001


def test_a_group_says_what_it_has_yet_to_read_of_each_topic(admin: Admin, consumer: PushConsumer) -> None:
    admin.topics.create("other", queues=2)
    admin.groups.update("idle")
    admin.offsets.reset("billing", "other", Boundary.EARLIEST)

    topics = {each.topic: each for each in admin.groups.topics("billing")}

    assert (topics["orders"].lag, topics["orders"].unowned_queues) == (0, 0)
    assert (topics["other"].lag, topics["other"].unowned_queues) == (0, 2)
    assert {each.topic for each in admin.groups.show("billing", "other").progress} == {"other"}
    assert admin.groups.topics("idle") == []
    with pytest.raises(errors.GroupNotFound):
        admin.groups.topics("nobody")


def test_operations_are_paged_by_their_ids(admin: Admin) -> None:
    for n in range(3):
        admin.groups.update(f"g{n}")
    newest, *_ = admin.operations.list(limit=1)
    rest = admin.operations.list(before=newest.operation_id)

    assert newest.groups == ["g2"]
    assert [each.groups for each in rest[:2]] == [["g1"], ["g0"]]
