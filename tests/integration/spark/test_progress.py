"""The progress of a Spark query is listed next to consumers, disturbs none of them, and never ends the query."""

import logging
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.broker.clients import membership
from mqdb.broker.consumers.offset_reset import reset_offsets
from mqdb.broker.consumers.offsets import take_queues
from mqdb.broker.topics import topics as admin
from mqdb.pipeline.read.offsets import Queue
from mqdb.pipeline.read.progress import GroupProgress
from mqdb.store.clients.clients import ClientKind, Registration
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.postgres import Database


@pytest.fixture
def progress(database: Database) -> Iterator[GroupProgress]:
    """A reporter of progress for the group `stats`."""
    progress = GroupProgress(database.dsn, "stats")
    yield progress
    progress.close()


def lag(broker: Connection, group: str = "stats") -> dict[int, tuple[int, int]]:
    """Next offset and lag of each queue according to the view."""
    rows = broker.execute(
        text("SELECT queue_id, next_offset, lag FROM mqdb.consumer_lag WHERE group_name = :group"), {"group": group}
    )
    return {row.queue_id: (row.next_offset, row.lag) for row in rows}


def test_a_query_is_seen_where_consumers_are_seen(broker: Connection, progress: GroupProgress) -> None:
    orders = topic(broker, queues=2)
    append(broker, orders, "a", "b", "c")
    append(broker, orders, "d", queue_id=1)
    dispatch_all(broker)

    progress.report({Queue("orders", 0): 2, Queue("orders", 1): 0})

    assert lag(broker) == {0: (2, 1), 1: (0, 1)}


def test_a_query_that_starts_again_from_an_older_checkpoint_is_shown_where_it_is(
    broker: Connection, progress: GroupProgress
) -> None:
    topic(broker)
    progress.report({Queue("orders", 0): 9})

    progress.report({Queue("orders", 0): 4})

    assert lag(broker)[0][0] == 4


def test_what_people_set_by_hand_is_overwritten_by_where_the_query_is(
    broker: Connection, progress: GroupProgress
) -> None:
    append(broker, topic(broker), "a", "b", "c")
    dispatch_all(broker)
    progress.report({Queue("orders", 0): 2})
    reset_offsets(broker, "stats", "orders", 0)

    progress.report({Queue("orders", 0): 3})

    assert lag(broker) == {0: (3, 0)}


def test_what_has_not_changed_is_not_written_again(broker: Connection, progress: GroupProgress) -> None:
    topic(broker)
    progress.report({Queue("orders", 0): 5})
    before = broker.scalar(text("SELECT epoch FROM mqdb.consumer_offset"))

    progress.report({Queue("orders", 0): 5})

    assert broker.scalar(text("SELECT epoch FROM mqdb.consumer_offset")) == before


def test_a_topic_that_is_gone_takes_nothing_else_along(broker: Connection, progress: GroupProgress) -> None:
    topic(broker)
    topic(broker, "gone")
    admin.delete_topic(broker, "gone")

    progress.report({Queue("gone", 0): 3, Queue("orders", 0): 5, Queue("orders", 7): 1})

    assert lag(broker) == {0: (5, 0)}


def test_members_keep_their_queues_and_the_log_says_so(
    broker: Connection, engine: Engine, progress: GroupProgress, caplog: pytest.LogCaptureFixture
) -> None:
    orders = topic(broker)
    with engine.connect() as session, caplog.at_level(logging.WARNING):
        membership.announce(session, "a member")
        membership.register(broker, Registration("a member", ClientKind.CONSUMER, "stats", "test"))
        take_queues(broker, "stats", "a member", orders.queue_keys)

        progress.report({Queue("orders", 0): 7})

    assert lag(broker)[0][0] == 0
    assert [getattr(record, "reason", "") for record in caplog.records] == [
        "members of the group consume its queues: a member"
    ]


def test_a_database_that_cannot_be_reached_is_a_warning_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    progress = GroupProgress("postgresql://nobody@127.0.0.1:1/none", "stats")

    with caplog.at_level(logging.WARNING):
        progress.report({Queue("orders", 0): 5})
        progress.report({Queue("orders", 0): 6})

    [record] = caplog.records
    assert record.message.startswith("could not write the progress of group ")
