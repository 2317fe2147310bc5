"""Topics: creating, changing, deleting and showing them, and the topic that a first message creates."""

import threading
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text

from mqdb.broker.log.query import queue_offset_of
from mqdb.broker.topics import topics as admin
from mqdb.broker.topics.route import create_topic_automatically
from mqdb.common.topic import Perm, TopicConfig
from mqdb.errors import NameInvalid, TopicExists, TopicNotFound
from mqdb.store.topics.topics import find_topic
from tests.fixtures.broker import append, dispatch_all, topic


def test_the_same_topic_once_more_changes_nothing(broker: Connection) -> None:
    config = TopicConfig("orders", 4, 4)

    assert admin.create_topic(broker, config) == admin.create_topic(broker, config)


def test_another_topic_of_the_name_is_refused(broker: Connection) -> None:
    topic(broker, queues=4)

    with pytest.raises(TopicExists):
        admin.create_topic(broker, TopicConfig("orders", 8, 8))

    assert find_topic(broker, "orders").config.read_queue_nums == 4  # type: ignore[union-attr]


def test_reading_and_writing_may_have_different_queues(broker: Connection) -> None:
    route = admin.create_topic(broker, TopicConfig("orders", read_queue_nums=4, write_queue_nums=2))

    assert len(route.queue_keys) == 4
    assert route.write_queue_keys == route.queue_keys[:2]
    assert route.read_queue_keys == route.queue_keys


def test_growing_a_topic_keeps_its_queues(broker: Connection) -> None:
    before = topic(broker, queues=2)

    after = admin.update_topic(broker, "orders", read_queue_nums=3, write_queue_nums=3, perm=Perm.READ)

    assert after.queue_keys[:2] == before.queue_keys
    assert (len(after.queue_keys), after.write_queue_keys) == (3, ())


@pytest.mark.parametrize("name", ["TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_anything"])
def test_system_topics_belong_to_the_broker(broker: Connection, name: str) -> None:
    with pytest.raises(NameInvalid):
        admin.create_topic(broker, TopicConfig(name))
    with pytest.raises(NameInvalid):
        admin.delete_topic(broker, name)


def test_a_topic_of_a_name_that_was_deleted_is_empty(broker: Connection) -> None:
    old = topic(broker)
    append(broker, old, "old")
    dispatch_all(broker)

    assert admin.delete_topic(broker, "orders")
    assert not admin.delete_topic(broker, "orders")
    young = topic(broker)

    assert young.queue_keys != old.queue_keys
    assert [queue.max_offset for queue in admin.topic_stats(broker, "orders")] == [0]


def test_stats_tell_where_each_queue_begins_and_ends(broker: Connection) -> None:
    route = topic(broker, queues=2)
    append(broker, route, "a", "b", "c", queue_id=1)
    dispatch_all(broker)

    first, second = admin.topic_stats(broker, "orders")

    assert (first.min_offset, first.max_offset, first.last_store_time) == (0, 0, None)
    assert (second.min_offset, second.max_offset) == (0, 3)
    assert second.last_store_time == broker.scalar(text("SELECT max(store_time) FROM mqdb.commit_log"))
    with pytest.raises(TopicNotFound):
        admin.topic_stats(broker, "nowhere")


def test_details_find_their_topic_once(broker: Connection) -> None:
    topic(broker)
    statements: list[str] = []

    def note(*arguments: Any) -> None:
        statements.append(arguments[2])

    event.listen(broker, "before_cursor_execute", note)
    try:
        details = admin.topic_details(broker, "orders")
    finally:
        event.remove(broker, "before_cursor_execute", note)

    assert (details.config.name, len(details.queues), details.progress) == ("orders", 1, [])
    assert len(statements) == 3, statements


def test_a_first_message_makes_a_topic_after_the_template(broker: Connection) -> None:
    """Checklist row 13: a first message creates a topic from the template, with 4 queues and perm 6."""
    route = create_topic_automatically(broker, "fresh")

    assert (len(route.queue_keys), route.config.perm) == (4, Perm.READ | Perm.WRITE)
    assert len(create_topic_automatically(broker, "wide", 100).queue_keys) == 8


def test_a_template_without_inherit_makes_none(broker: Connection) -> None:
    broker.execute(text("UPDATE mqdb.topic SET perm = 6 WHERE topic = 'TBW102'"))

    with pytest.raises(TopicNotFound):
        create_topic_automatically(broker, "fresh")

    assert find_topic(broker, "fresh") is None


def test_many_first_messages_at_once_make_one_topic(broker: Connection, engine: Engine) -> None:
    start = threading.Barrier(8)
    routes = []

    def first_message() -> None:
        with engine.connect() as connection:
            start.wait()
            routes.append(create_topic_automatically(connection, "fresh"))

    threads = [threading.Thread(target=first_message) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(routes)) == 1
    assert len(routes) == 8


def test_the_offset_of_a_record_is_known_once_it_is_dispatched(broker: Connection) -> None:
    route = topic(broker)
    append(broker, route, "before")
    [position] = append(broker, route, "this")

    assert queue_offset_of(broker, route.queue_keys[0], position) is None
    dispatch_all(broker)
    assert queue_offset_of(broker, route.queue_keys[0], position) == 1
