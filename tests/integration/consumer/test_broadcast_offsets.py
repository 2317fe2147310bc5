"""Broadcasting offsets: each consumer resumes every queue where it stopped, without the broker keeping any offset."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.topics import topics as admin
from mqdb.common.group import FROM_FIRST_OFFSET, FROM_LAST_OFFSET, ConsumeFromWhere, MessageModel, StartingPoint
from mqdb.common.message import MessageQueue
from mqdb.errors import IllegalState
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb.store.topics.topics import TopicRoute
from mqdb_client.consumer.offsets.local_file_offset_store import LocalFileOffsetStore
from mqdb_client.consumer.offsets.local_offsets import FILE_NAME, LocalOffsets
from mqdb_client.consumer.queues.process_queue import FlowLimits
from mqdb_client.consumer.queues.queue_ownership import QueueOwnership
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.consumers import Inbox, Member

FIRST, LAST, TIMESTAMP = FROM_FIRST_OFFSET, FROM_LAST_OFFSET, ConsumeFromWhere.TIMESTAMP

Consumer = Callable[..., LocalFileOffsetStore]


@pytest.fixture
def route(broker: Connection) -> TopicRoute:
    """A topic with two queues of three messages each."""
    route = topic(broker, queues=2)
    for queue_id in range(2):
        append(broker, route, "x", "y", "z", queue_id=queue_id)
    dispatch_all(broker)
    return route


@pytest.fixture
def consumer(tmp_path: Path) -> Iterator[Consumer]:
    """The store of a consumer that starts after an earlier one of the same name has ended, as in a killed process."""
    files: dict[str, LocalOffsets] = {}

    def start(name: str = "a") -> LocalFileOffsetStore:
        if name in files:
            files[name].close()
        files[name] = LocalOffsets(tmp_path / name)
        files[name].open()
        return LocalFileOffsetStore(files[name])

    yield start
    for file in files.values():
        file.close()


def wanted(route: TopicRoute, broker_name: str = "broker-a") -> dict[int, MessageQueue]:
    name = route.config.name
    return {key: MessageQueue(name, broker_name, queue_id) for queue_id, key in enumerate(route.queue_keys)}


def taken(
    store: LocalFileOffsetStore, broker: Connection, route: TopicRoute, where: StartingPoint = LAST
) -> list[OwnedQueue]:
    return store.take(broker, wanted(route), where, force=False)


def next_offsets(owned: list[OwnedQueue]) -> list[int]:
    return [queue.next_offset for queue in sorted(owned)]


def send_one_more(broker: Connection, route: TopicRoute) -> None:
    """Send one more message to each queue."""
    for queue_id in range(len(route.queue_keys)):
        append(broker, route, "new", queue_id=queue_id)
    dispatch_all(broker)


# -- where a consumer starts ------------------------------------------------------------------


@pytest.mark.parametrize(("where", "start"), [(FIRST, 0), (LAST, 3)])
def test_a_new_consumer_starts_where_it_says(
    broker: Connection, route: TopicRoute, consumer: Consumer, where: StartingPoint, start: int
) -> None:
    assert next_offsets(taken(consumer(), broker, route, where)) == [start, start]


def test_a_new_consumer_starts_at_a_time(broker: Connection, route: TopicRoute, consumer: Consumer) -> None:
    now, hour = datetime.now(UTC), timedelta(hours=1)
    broker.execute(text("SET mqdb.clock_offset = '1 h'"))
    append(broker, route, "new", queue_id=1)
    dispatch_all(broker)

    assert next_offsets(taken(consumer("a"), broker, route, StartingPoint(TIMESTAMP, now + hour / 2))) == [3, 3]
    assert next_offsets(taken(consumer("b"), broker, route, StartingPoint(TIMESTAMP, now - hour))) == [0, 0]


def test_a_consumer_that_was_killed_before_its_first_commit_starts_where_it_did(
    broker: Connection, route: TopicRoute, consumer: Consumer
) -> None:
    taken(consumer(), broker, route, LAST)
    send_one_more(broker, route)

    assert next_offsets(taken(consumer(), broker, route, LAST)) == [3, 3]


def test_a_queue_added_later_is_read_from_its_beginning(
    broker: Connection, route: TopicRoute, consumer: Consumer
) -> None:
    taken(consumer(), broker, route, LAST)
    wider = admin.update_topic(broker, "orders", read_queue_nums=3, write_queue_nums=3)
    send_one_more(broker, wider)

    assert next_offsets(taken(consumer(), broker, wider, LAST)) == [3, 3, 0]


def test_a_topic_that_was_deleted_and_made_again_is_a_new_one(
    broker: Connection, route: TopicRoute, consumer: Consumer
) -> None:
    taken(consumer(), broker, route, LAST)
    admin.delete_topic(broker, "orders")
    again = topic(broker, queues=2)
    send_one_more(broker, again)

    assert next_offsets(taken(consumer(), broker, again, LAST)) == [1, 1]


def test_a_queue_that_is_gone_is_not_taken(broker: Connection, route: TopicRoute, consumer: Consumer) -> None:
    admin.delete_topic(broker, "orders")

    assert taken(consumer(), broker, route) == []


# -- where it goes on -------------------------------------------------------------------------


def test_a_consumer_goes_on_where_it_has_committed(broker: Connection, route: TopicRoute, consumer: Consumer) -> None:
    store = consumer()
    first, second = sorted(taken(store, broker, route, FIRST))
    assert store.commit(broker, [first._replace(next_offset=2)]) == []

    assert next_offsets(taken(consumer(), broker, route, FIRST)) == [2, second.next_offset]


def test_a_commit_moves_forward_only(broker: Connection, route: TopicRoute, consumer: Consumer) -> None:
    store = consumer()
    first, _ = sorted(taken(store, broker, route, FIRST))
    store.commit(broker, [first._replace(next_offset=2)])

    assert store.commit(broker, [first._replace(next_offset=1)]) == []

    assert next_offsets(taken(consumer(), broker, route, FIRST)) == [2, 0]


def test_a_correction_moves_back_as_well(broker: Connection, route: TopicRoute, consumer: Consumer) -> None:
    store = consumer()
    first, _ = sorted(taken(store, broker, route, FIRST))
    store.commit(broker, [first._replace(next_offset=10**9)])

    assert store.correct(broker, first._replace(next_offset=3))

    assert next_offsets(taken(consumer(), broker, route, FIRST)) == [3, 0]


def test_every_consumer_reads_every_queue(broker: Connection, route: TopicRoute, consumer: Consumer) -> None:
    a, b = consumer("a"), consumer("b")
    mine = taken(a, broker, route, FIRST)
    theirs = taken(b, broker, route, FIRST)
    assert next_offsets(theirs) == [0, 0]

    assert a.commit(broker, [queue._replace(next_offset=3) for queue in mine]) == []
    assert b.commit(broker, [queue._replace(next_offset=1) for queue in theirs]) == []

    assert next_offsets(taken(consumer("a"), broker, route)) == [3, 3]
    assert next_offsets(taken(consumer("b"), broker, route)) == [1, 1]


def test_brokers_that_share_a_file_do_not_share_offsets(
    broker: Connection, route: TopicRoute, consumer: Consumer, tmp_path: Path
) -> None:
    file = LocalOffsets(tmp_path / "shared")
    file.open()
    here, there = LocalFileOffsetStore(file), LocalFileOffsetStore(file)
    [first, _] = sorted(here.take(broker, wanted(route), FIRST, force=False))
    here.commit(broker, [first._replace(next_offset=2)])

    elsewhere = there.take(broker, wanted(route, "broker-b"), LAST, force=False)
    file.close()

    assert next_offsets(elsewhere) == [3, 3]


def test_the_broker_keeps_no_offset(broker: Connection, route: TopicRoute, consumer: Consumer) -> None:
    store = consumer()
    store.commit(broker, taken(store, broker, route))

    assert broker.execute(text("SELECT count(*) FROM mqdb.consumer_offset")).scalar() == 0


# -- as the owner of queues sees it -----------------------------------------------------------


def test_nothing_is_ever_lost_to_another_member(broker: Connection, route: TopicRoute, consumer: Consumer) -> None:
    store = consumer()
    ownership = QueueOwnership("readers", store, FlowLimits(messages=100, body_bytes=10**6, span=100))
    ownership.take(broker, wanted(route), FIRST)
    taken(consumer("b"), broker, route, FIRST)

    assert ownership.take_again(broker) == []
    assert ownership.renew(broker) == []
    assert ownership.commit(broker) == []
    assert ownership.keys == set(route.queue_keys)


def test_a_queue_that_was_given_back_can_be_taken_again(
    broker: Connection, route: TopicRoute, consumer: Consumer
) -> None:
    ownership = QueueOwnership("readers", consumer(), FlowLimits(messages=100, body_bytes=10**6, span=100))
    for held in ownership.take(broker, wanted(route), LAST):
        held.drop()
    ownership.give_back(broker)
    assert ownership.keys == set()
    send_one_more(broker, route)

    again = ownership.take(broker, wanted(route), LAST)

    assert [held.next_offset for held in again] == [3, 3]


# -- whole consumers --------------------------------------------------------------------------


def broadcasting(directory: Path | str) -> dict[str, object]:
    return {"message_model": MessageModel.BROADCASTING, "local_offset_directory": directory}


def test_the_directory_of_the_offsets_may_be_a_text(
    broker: Connection, route: TopicRoute, member: Member, tmp_path: Path
) -> None:
    inbox = Inbox()
    consumer = member(inbox, **broadcasting(str(tmp_path)))
    inbox.wait_for(6)
    consumer.shutdown()

    assert (tmp_path / FILE_NAME).exists()


def test_each_of_two_consumers_gets_every_message(
    broker: Connection, route: TopicRoute, member: Member, tmp_path: Path
) -> None:
    inboxes = Inbox(), Inbox()
    for number, inbox in enumerate(inboxes):
        member(inbox, **broadcasting(tmp_path / str(number)))

    for inbox in inboxes:
        inbox.wait_for(6)
        assert sorted(inbox.bodies) == ["x", "x", "y", "y", "z", "z"]


def test_a_consumer_that_comes_again_gets_only_what_is_new(
    broker: Connection, route: TopicRoute, member: Member, tmp_path: Path
) -> None:
    before, after = Inbox(), Inbox()
    first = member(before, **broadcasting(tmp_path))
    before.wait_for(6)
    first.shutdown()
    send_one_more(broker, route)

    member(after, **broadcasting(tmp_path))
    after.wait_for(2)

    assert after.bodies == ["new", "new"]


def test_two_consumers_with_one_file_are_refused(
    broker: Connection, route: TopicRoute, member: Member, tmp_path: Path
) -> None:
    member(Inbox(), **broadcasting(tmp_path))

    with pytest.raises(IllegalState, match="give each consumer its own instance_name"):
        member(Inbox(), **broadcasting(tmp_path))
