"""Admin.topics."""

from collections.abc import Iterator

import pytest

from mqdb_client import Admin, MessageType, Perm, TopicConfig, errors
from tests.fixtures.postgres import Database


@pytest.fixture
def admin(database: Database) -> Iterator[Admin]:
    with Admin(database.dsn) as admin:
        yield admin


def test_a_topic_is_created_shown_changed_and_deleted(admin: Admin) -> None:
    created = admin.topics.create("orders", queues=4, read_queues=6, order=True, message_type=MessageType.FIFO)

    assert created == TopicConfig("orders", 6, 4, Perm.READ | Perm.WRITE, True, MessageType.FIFO)
    assert created in admin.topics.list()
    assert [queue.queue_id for queue in admin.topics.show("orders").queues] == [0, 1, 2, 3, 4, 5]
    assert admin.topics.update("orders", queues=8, perm=Perm.READ).perm == Perm.READ
    assert admin.topics.unread("orders") == []
    assert not any(admin.topics.delete("orders"))
    with pytest.raises(errors.TopicNotFound):
        admin.topics.show("orders")


def test_the_same_topic_once_more_changes_nothing_and_another_one_is_refused(admin: Admin) -> None:
    admin.topics.create("orders")

    assert admin.topics.create("orders") == TopicConfig("orders")
    assert [each.verb for each in admin.operations.list()] == ["topic.create"]
    with pytest.raises(errors.TopicExists):
        admin.topics.create("orders", queues=9)


@pytest.mark.parametrize("call", ["uses", "delete"])
def test_who_deletes_what_is_not_there_is_not_told_to_create_it(admin: Admin, call: str) -> None:
    with pytest.raises(errors.NothingToDelete, match=r"does not exist$"):
        getattr(admin.topics, call)("orders")


def test_a_permission_out_of_bounds_is_refused(admin: Admin) -> None:
    with pytest.raises(errors.ParameterInvalid):
        admin.topics.create("orders", perm=9)
