"""The broker and the queue for each row of a written DataFrame, if there are several brokers."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from mqdb.errors import QueueNotFound, TopicNotFound, TopicNotWritable
from mqdb.pipeline.errors import ColumnInvalid
from mqdb.pipeline.write.bad_rows import BadRowProperty
from mqdb.pipeline.write.cluster_queues import BrokerQueue, cluster_queues
from mqdb.pipeline.write.cluster_rows import ClusterRowMaker, StageShare
from mqdb.pipeline.write.sink_columns import find_columns
from mqdb.pipeline.write.sink_options import parse_sink
from mqdb.store.log.sink import STAGE_COLUMNS
from mqdb_client.producer.queues.queue_selector import by_hash

BROKERS = ("broker-a", "broker-b")
#: Three queues on the first broker, five on the second; the keys of queues repeat, as they may.
QUEUES = tuple(BrokerQueue(0, key) for key in (7, 8, 9)) + tuple(BrokerQueue(1, key) for key in (7, 8, 9, 10, 11))

Place = tuple[int, int]


def routed(rows: Sequence[dict[str, Any]], shares: Sequence[StageShare] = ()) -> list[tuple[str, Place]]:
    """The body of each row of a task, with its broker and the key of its queue."""
    types = {"queue_id": pa.int32(), "partition": pa.int32(), "properties": pa.map_(pa.string(), pa.string())}
    schema = pa.schema([(name, types.get(name, pa.string())) for name in rows[0]])
    batch = pa.RecordBatch.from_pylist(list(rows), schema=schema)
    found = find_columns(from_arrow_schema(batch.schema), "orders", is_list=True)
    options = parse_sink({"url": "postgresql://host/mqdb", "topic": "orders"}, is_stream=True)
    maker = ClusterRowMaker(found, options, lambda _: QUEUES, uuid4(), BROKERS)
    places = []
    for place, part in enumerate(maker.by_broker(maker.rows(batch))):
        if shares:
            shares[place].take(part)
        named = [dict(zip(STAGE_COLUMNS, row, strict=True)) for row, _ in part]
        places += [(row["body"].decode(), (place, row["queue_key"])) for row in named]
    return places


def place_of(**row: Any) -> Place:
    return routed([{"body": "x"} | row])[0][1]


def test_a_key_goes_where_a_producer_of_the_same_list_sends_it() -> None:
    keys = [f"key {number}" for number in range(200)]
    for column in ("sharding_key", "key"):
        places = dict(routed([{"body": key, column: key} for key in keys]))
        assert places == {key: tuple(QUEUES[by_hash(key, len(QUEUES))]) for key in keys}


def test_rows_without_a_key_are_spread_over_all_queues() -> None:
    places = Counter(place for _, place in routed([{"body": str(number)} for number in range(8_000)]))

    assert len(places) == len(QUEUES)
    assert all(850 <= times <= 1_150 for times in places.values())
    on_a = [times for (place, _), times in places.items() if place == 0]
    assert max(on_a) - min(on_a) <= 1


def test_a_row_has_the_same_broker_in_whatever_task_it_comes() -> None:
    chance = random.Random(5)
    rows = [
        {"body": str(chance.random()), "tags": chance.choice(["a", None]), "sharding_key": chance.choice(["k", None])}
        for _ in range(500)
    ]
    before = [StageShare(), StageShare()]
    first = {body: place for body, (place, _) in routed(rows, before)}

    again = [StageShare(), StageShare()]
    chance.shuffle(rows)
    found: dict[str, int] = {}
    for task in (rows[:37], rows[37:420], rows[420:]):
        found |= {body: place for body, (place, _) in routed(task, again)}

    assert found == first
    assert [(share.messages, share.checksum) for share in again] == [(s.messages, s.checksum) for s in before]
    other = [StageShare(), StageShare()]
    routed([*rows[:-1], {"body": "another", "tags": None, "sharding_key": None}], other)
    assert [share.checksum for share in other] != [share.checksum for share in again]


def test_the_number_of_its_task_does_not_move_a_bad_row() -> None:
    properties = [{BadRowProperty.TASK.value: str(task), "region": "north"} for task in range(20)]

    places = {place_of(properties=list(each.items()))[0] for each in properties}

    assert len(places) == 1


def test_a_broker_and_a_queue_id_say_the_queue() -> None:
    assert place_of(broker="broker-b", queue_id=4) == (1, 11)
    assert {place_of(broker="broker-b", sharding_key=str(number))[0] for number in range(20)} == {1}
    assert {place_of(broker="broker-a")[0] for _ in range(20)} == {0}
    with pytest.raises(QueueNotFound, match="has queues 0 to 2, not 3"):
        place_of(broker="broker-a", queue_id=3)
    with pytest.raises(ColumnInvalid, match="'broker': is 'broker-c', but the url names broker-a, broker-b"):
        place_of(broker="broker-c", queue_id=0)
    rows: list[dict[str, Any]] = [{"body": "x", "broker": "broker-a", "queue_id": 0}]
    rows += [{"body": "y", "broker": None, "queue_id": 0}]
    with pytest.raises(ColumnInvalid, match="'broker': is null in a row with a queue_id"):
        routed(rows)


def test_a_partition_says_the_queue_as_reads_number_it() -> None:
    assert place_of(partition=2) == (0, 9)
    assert place_of(partition=100_004) == (1, 11)
    with pytest.raises(QueueNotFound):
        place_of(partition=3)
    for beyond in (200_000, -1):
        with pytest.raises(ColumnInvalid, match="is not below 200,000: the url names 2 brokers"):
            place_of(partition=beyond)


def test_a_queue_id_needs_a_broker_if_there_are_several() -> None:
    columns = StructType([StructField("body", StringType()), StructField("queue_id", IntegerType())])

    with pytest.raises(ColumnInvalid, match="'queue_id': names no queue, because each broker"):
        find_columns(columns, "orders", is_list=True)
    assert find_columns(columns.add("broker", StringType()), "orders").broker is None


def test_a_topic_is_written_on_the_brokers_that_take_it() -> None:
    def missing(topic: str) -> tuple[int, ...]:
        raise TopicNotFound(topic)

    def closed(topic: str) -> tuple[int, ...]:
        raise TopicNotWritable(topic, 4)

    assert cluster_queues([missing, lambda _: (5, 6), closed], "orders") == (BrokerQueue(1, 5), BrokerQueue(1, 6))
    with pytest.raises(TopicNotWritable):
        cluster_queues([missing, closed], "orders")
    with pytest.raises(TopicNotFound):
        cluster_queues([missing, missing], "orders")
