"""Append: which records are stored, in which order, and which batches are refused as a whole."""

import json
from datetime import UTC, datetime

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.log import send
from mqdb.broker.topics import topics as admin
from mqdb.common.message import Message
from mqdb.common.unique_id import UniqueIdGenerator
from mqdb.errors import TopicNotFound
from mqdb.selector.tags import tag_code
from tests.fixtures.broker import append, append_records, dispatch_all, topic


def test_a_record_keeps_every_field_of_its_message(broker: Connection) -> None:
    route = topic(broker)
    unique_id = UniqueIdGenerator().next()
    born = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
    message = Message("orders", b"\x00\xff", "paid", ["A-1", "B-2"], {"origin": "EWR", "quote": "'\"\\"}, flag=-7)

    [position] = append_records(broker, [send.record(message, route.queue_keys[0], unique_id, born, "10.0.0.1")])

    row = broker.execute(text("SELECT * FROM mqdb.commit_log")).mappings().one()
    assert row["log_pos"] == position
    assert (row["msg_id"], row["born_time"], row["born_host"]) == (unique_id, born, "10.0.0.1")
    assert (row["tags"], row["keys"], row["tags_code"]) == ("paid", "A-1 B-2", tag_code("paid"))
    assert (row["body"], row["flag"], row["sys_flag"], row["reconsume_times"]) == (b"\x00\xff", -7, 0, 0)
    assert row["properties"] == {"origin": "EWR", "quote": "'\"\\"}


def test_a_message_without_tag_and_keys_has_none(broker: Connection) -> None:
    append(broker, topic(broker), "one", "two")

    rows = broker.execute(text("SELECT tags, keys, tags_code FROM mqdb.commit_log")).all()

    assert rows == [(None, None, 0), (None, None, 0)]


def test_positions_of_a_batch_come_in_the_order_of_its_messages(broker: Connection) -> None:
    route = topic(broker, queues=3)
    numbers = list(range(500))
    records = [
        send.record(
            Message("orders", str(n)), route.queue_keys[n % 3], UniqueIdGenerator().next(), datetime.now(UTC), "h"
        )
        for n in numbers
    ]

    positions = append_records(broker, records)

    assert positions == sorted(positions)
    stored = broker.execute(
        text("SELECT log_pos, convert_from(body, 'UTF8')::int FROM mqdb.commit_log ORDER BY 1")
    ).all()
    assert stored == list(zip(positions, numbers, strict=True))


@pytest.mark.parametrize("how_many", [1, 3])
def test_an_append_to_a_queue_that_is_gone_stores_nothing(broker: Connection, how_many: int) -> None:
    route = topic(broker)
    other = topic(broker, "others")
    admin.delete_topic(broker, "orders")
    good = send.record(Message("others", "x"), other.queue_keys[0], UniqueIdGenerator().next(), datetime.now(UTC), "h")
    bad = good._replace(queue_key=route.queue_keys[0])

    with pytest.raises(TopicNotFound) as refused:
        append_records(broker, [good] * (how_many - 1) + [bad], "orders")

    assert refused.value.topic == "orders"
    assert broker.scalar(text("SELECT count(*) FROM mqdb.commit_log")) == 0


def test_an_append_beyond_the_last_partition_makes_one(broker: Connection) -> None:
    route = topic(broker)
    broker.execute(text("SELECT setval('mqdb.log_pos', (SELECT max(end_pos) + 10 FROM mqdb.segment))"))

    [position] = append(broker, route, "far")

    assert broker.scalar(text("SELECT log_pos FROM mqdb.commit_log")) == position
    assert dispatch_all(broker) == 1


def test_properties_of_any_text_come_back_as_they_were(broker: Connection) -> None:
    properties = {"emoji": "\U0001f6eb", "percent": "100 %s %(x)s", "newline": "a\nb", "json": json.dumps({"a": [1]})}

    append(broker, topic(broker), Message("orders", "x", properties=properties))

    stored = broker.scalar(text("SELECT properties FROM mqdb.commit_log"))
    assert {name: stored[name] for name in properties} == properties
