"""Admin.messages, `mqdb message`, and Admin.retention."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, event

from mqdb.broker.log import messages, query
from mqdb.store.topics import topics
from mqdb_client import Admin, Message, MessageQueue, MessageSelector, Producer, SegmentState, errors
from tests.fixtures.broker import dispatch_all
from tests.fixtures.command_line import Place
from tests.fixtures.leaders import pretend_to_lead
from tests.fixtures.postgres import Database


@pytest.fixture
def admin(database: Database) -> Iterator[Admin]:
    with Admin(database.dsn) as admin:
        admin.topics.create("orders", queues=1)
        yield admin


@pytest.fixture
def message_ids(admin: Admin, database: Database) -> list[str]:
    """The ids of three messages, of which the last two have the key k2."""
    with Producer("shop", database.dsn) as producer:
        keys = {"one": "k1", "two": "k2", "three": ("k2", "k3")}
        return [producer.send(Message("orders", body, keys=key)).message_id for body, key in keys.items()]


def test_a_message_is_shown_by_its_id(admin: Admin, message_ids: list[str]) -> None:
    (message,) = admin.messages.show(message_ids[1])

    assert (message.message_id, message.body, message.queue_offset) == (message_ids[1], b"two", 1)
    assert admin.messages.show("0A0B0C0D1E2F00000000000000000001") == []
    with pytest.raises(errors.ParameterInvalid):
        admin.messages.show("no id")


def test_a_message_that_is_not_in_its_queue_yet_is_waited_for(
    admin: Admin, broker: Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(database.dsn, autocommit=True) as leader:
        pretend_to_lead(leader)  # so nobody else dispatches
        with Producer("shop", database.dsn) as producer:
            message_id = producer.send(Message("orders", "one")).message_id
        looked = threading.Event()
        find = query.queue_offset_of

        def tell(*arguments: Any) -> int | None:
            offset = find(*arguments)
            looked.set()
            return offset

        monkeypatch.setattr(query, "queue_offset_of", tell)
        with ThreadPoolExecutor(1) as thread:
            shown = thread.submit(admin.messages.show, message_id)
            assert looked.wait(30)
            dispatch_all(broker)
            assert [each.body for each in shown.result()] == [b"one"]
        with Producer("shop", database.dsn) as producer:
            message_id = producer.send(Message("orders", "two")).message_id
        monkeypatch.setattr(messages, "_DISPATCH_SECONDS", 0.0)
        with pytest.raises(errors.DispatchTimeout, match="got no offset in a queue"):
            admin.messages.show(message_id)


def test_a_message_whose_topic_is_deleted_before_it_is_read_is_not_there(
    admin: Admin, message_ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = topics.existing_topic

    def find_and_delete(connection: Connection, name: str) -> Any:
        monkeypatch.undo()
        route = find(connection, name)
        admin.topics.delete(name)
        return route

    monkeypatch.setattr(topics, "existing_topic", find_and_delete)
    with pytest.raises(errors.TopicNotFound):
        admin.messages.show(message_ids[0])


def test_messages_are_found_by_key_offset_and_time(admin: Admin, message_ids: list[str]) -> None:
    def found(**wanted: object) -> list[str]:
        return [message.message_id for message in admin.messages.find("orders", **wanted)]  # type: ignore[arg-type]

    assert found() == message_ids
    assert found(key="k2") == message_ids[1:]
    assert found(key="k2", limit=1) == message_ids[1:2]
    assert found(key="k2", offset=2) == message_ids[2:]
    assert found(offset=2) == message_ids[2:]
    assert found(queue_id=0, offset=1, limit=1) == message_ids[1:2]
    assert found(time=timedelta(hours=1)) == message_ids
    assert found(time=datetime.now(UTC) + timedelta(hours=1)) == []


def test_the_first_ones_of_several_queues_come_in_order_though_all_are_in_one(admin: Admin, database: Database) -> None:
    """The first messages of several queues come in order even if all of them are in one queue.

    Each read takes fewer messages of a queue than wanted.
    """
    admin.topics.create("uneven", queues=4)
    with Producer("shop", database.dsn) as producer:
        for n in range(45):
            producer.send(Message("uneven", str(n)), sharding_key="the same" if n < 40 else str(n))

    found = [int(message.body) for message in admin.messages.find("uneven", limit=42)]

    assert found == list(range(42))


def test_a_time_costs_as_many_statements_in_many_queues_as_in_one(admin: Admin, database: Database) -> None:
    admin.topics.create("wide", queues=100)
    with Producer("shop", database.dsn) as producer:
        for n in range(20):
            producer.send(Message("orders", str(n)))
            producer.send(Message("wide", str(n)))

    def statements(topic: str) -> int:
        executed: list[str] = []

        def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            executed.append(statement)

        event.listen(Engine, "before_cursor_execute", note)
        try:
            assert len(admin.messages.find(topic, time=timedelta(hours=1))) == 20
            assert len(admin.messages.latest(topic, until=timedelta(0)).messages) == 20
        finally:
            event.remove(Engine, "before_cursor_execute", note)
        return len(executed)

    assert statements("wide") <= statements("orders") + 5


def test_a_search_that_makes_no_sense_is_refused(admin: Admin) -> None:
    refused: list[tuple[dict[str, Any], type[errors.MqdbError]]] = [
        ({"topic": "nowhere"}, errors.TopicNotFound),
        ({"queue_id": 1}, errors.QueueNotFound),
        ({"offset": 1, "time": timedelta(hours=1)}, errors.ParameterInvalid),
        ({"time": datetime(2026, 7, 14)}, errors.ParameterInvalid),  # noqa: DTZ001
    ]
    for wanted, error in refused:
        with pytest.raises(error):
            admin.messages.find(**{"topic": "orders"} | wanted)


def test_a_topic_is_read_as_messages_come(admin: Admin, message_ids: list[str], database: Database) -> None:
    with admin.messages.reading("orders", 1, MessageSelector.by_tag("*")) as reader:
        assert [message.message_id for message in reader] == message_ids[1:]
        with Producer("shop", database.dsn) as producer:
            message_id = producer.send(Message("orders", "four")).message_id
        reader.dispatch()
        assert [message.message_id for message in reader] == [message_id]


def test_the_latest_messages_come_newest_first_and_each_once(admin: Admin, database: Database) -> None:
    admin.topics.create("many", queues=3)
    with Producer("shop", database.dsn) as producer:
        sent = [producer.send(Message("many", str(n), properties={"n": str(n)})).message_id for n in range(40)]
    found, before, sizes = list[str](), None, []
    while True:
        page = admin.messages.latest("many", before=before, limit=9)
        found += [message.message_id for message in page.messages]
        sizes.append(len(page.messages))
        before = page.before
        if before is None:
            break

    assert found == sent[::-1]
    assert sizes == [9, 9, 9, 9, 4]
    assert admin.messages.latest("many", limit=9).looked_at == 9
    last = admin.messages.latest("many", queue_id=1, limit=1)
    (newest,) = last.messages
    assert (newest.queue.queue_id, last.before) == (1, (0, newest.queue_offset, 0))
    assert admin.messages.latest("many", queue_id=1, before=[0, 1, 0]).messages[0].queue_offset == 0
    assert admin.messages.latest("many", before=[0, 0, 0]).messages == []
    assert admin.messages.latest("many", until=timedelta(hours=1)).messages == []
    assert len(admin.messages.latest("many", until=datetime.now(UTC) + timedelta(hours=1)).messages) == 40


def test_a_search_backwards_looks_at_no_more_than_it_may(admin: Admin, database: Database) -> None:
    with Producer("shop", database.dsn) as producer:
        for n in range(30):
            producer.send(Message("orders", str(n), tag="even" if n % 2 == 0 else "odd", properties={"n": str(n)}))
    oldest = MessageSelector.by_sql("n = '0'")

    page = admin.messages.latest("orders", selector=oldest, scan_limit=8)
    assert (page.messages, page.looked_at, page.before) == ([], 16, (14,))
    rest = admin.messages.latest("orders", selector=oldest, before=page.before, scan_limit=100)
    assert ([each.body for each in rest.messages], rest.looked_at, rest.before) == ([b"0"], 14, None)
    odd = admin.messages.latest("orders", selector=MessageSelector.by_tag("odd"), limit=2)
    assert [each.body for each in odd.messages] == [b"29", b"27"]
    then = admin.messages.latest("orders", selector=MessageSelector.by_tag("odd"), limit=2, before=odd.before)
    assert [each.body for each in then.messages] == [b"25", b"23"]


def test_large_bodies_are_read_backwards_too(admin: Admin, database: Database) -> None:
    # A pull of one queue returns 4 MiB at most.
    with Producer("shop", database.dsn) as producer:
        for n in range(6):
            producer.send(Message("orders", f"{n}" * 1_500_000))

    assert [each.body[:1] for each in admin.messages.latest("orders").messages] == [b"5", b"4", b"3", b"2", b"1", b"0"]


def test_the_latest_of_what_is_not_there_are_refused(admin: Admin) -> None:
    refused: list[tuple[dict[str, Any], type[errors.MqdbError]]] = [
        ({"topic": "nowhere"}, errors.TopicNotFound),
        ({"queue_id": 1}, errors.QueueNotFound),
        ({"before": [1, 2]}, errors.ParameterInvalid),
        ({"before": [1], "until": timedelta(hours=1)}, errors.ParameterInvalid),
        ({"limit": 0}, errors.ParameterInvalid),
    ]
    for wanted, error in refused:
        with pytest.raises(error):
            admin.messages.latest(**{"topic": "orders"} | wanted)


def test_the_command_line_shows_and_finds(database: Database, tmp_path: Path, message_ids: list[str]) -> None:
    place = Place(tmp_path, database.dsn)

    shown = place.done("message", "show", message_ids[0])
    (found,) = map(json.loads, place.done("message", "find", "orders", "--key", "k1", "--json").splitlines())
    unknown = place.call("message", "show", "0A0B0C0D1E2F00000000000000000001")
    both = place.call("message", "find", "orders", "--offset", "1", "--time", "1h")

    assert f"{message_ids[0]}: topic orders, broker broker-a, queue 0, offset 0" in shown
    assert shown.endswith("one\n")
    assert (found["message_id"], found["body"], found["keys"]) == (message_ids[0], "one", ["k1"])
    assert json.loads(place.done("message", "show", message_ids[0], "--json")) == found
    table = place.done("message", "find", "orders", "--queue", "0", "--offset", "1")
    assert [message_id in table for message_id in message_ids] == [False, True, True]
    assert place.done("message", "find", "orders", "--key", "nobody") == "There is no such message.\n"
    assert (unknown.code, "there is no message" in unknown.errors) == (1, True)
    assert (both.code, "not both" in both.errors) == (1, True)


@pytest.mark.usefixtures("message_ids")
def test_the_segments_of_the_log_are_told(admin: Admin) -> None:
    first = admin.retention.segments()[0]

    assert (first.start_pos, first.state, first.closed_at) == (1, SegmentState.OPEN, None)
    assert first.start_pos <= admin.retention.log().last_pos < first.end_pos
    assert [each.number for each in admin.retention.sizes()] == [each.number for each in admin.retention.segments()]
    filled, ahead = admin.retention.sizes()[:2]
    assert filled.commit_log > ahead.commit_log > 0
    assert min(filled.queue_run, filled.message_index) > 0
    assert 0 < (admin.retention.oldest_seconds() or 0) < 600


def test_what_no_number_can_be_is_named(admin: Admin, message_ids: list[str]) -> None:
    wanted: dict[str, Any] = {"limit": -1, "offset": 2**70, "queue_id": "0", "time": timedelta.max}
    for name, value in wanted.items():
        with pytest.raises(errors.ParameterInvalid, match=name):
            admin.messages.find("orders", **{name: value})


def test_an_error_of_the_callers_own_code_comes_out_as_it_is(admin: Admin, message_ids: list[str]) -> None:
    with pytest.raises(psycopg.errors.UniqueViolation), admin.messages.reading("orders"):
        raise psycopg.errors.UniqueViolation("of another database")


def test_a_key_in_a_queue_that_is_no_longer_read_is_not_found(database: Database, admin: Admin) -> None:
    admin.topics.create("shrunk", queues=2)
    with Producer("shop", database.dsn) as producer:
        for queue_id in range(2):
            queue = MessageQueue("shrunk", admin.name, queue_id)
            producer.send(Message("shrunk", str(queue_id), keys="k"), queue=queue)
    admin.topics.update("shrunk", queues=1)

    assert [message.queue.queue_id for message in admin.messages.find("shrunk", key="k")] == [0]
