"""Reads from several brokers: the options of each broker, and the errors for wrong broker names."""

import pickle

import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from mqdb.errors import MqdbError
from mqdb.pipeline.errors import ColumnInvalid, OptionInvalid
from mqdb.pipeline.read.cluster_options import SourceCluster, check_cluster, cluster_columns, parse_cluster
from mqdb.pipeline.read.jdbc import read_jdbc
from mqdb.pipeline.read.offsets import Queue
from mqdb.pipeline.read.positions import EARLIEST
from mqdb.pipeline.read.schema import KAFKA_COLUMNS, MESSAGE_COLUMNS

A = "postgresql://user:geheim@a/mqdb"
B = "postgresql://user:geheim@b/mqdb"
BOTH = f"broker-a={A};broker-b={B}"


def batch(**options: str) -> SourceCluster:
    """Options of spark.read for two brokers, including the required ones."""
    return parse_cluster({"url": BOTH, "subscribe": "orders"} | options, is_stream=False)


def assigned(text: str) -> SourceCluster:
    return parse_cluster({"url": BOTH, "assign": text}, is_stream=True)


def test_each_broker_is_asked_at_its_own_url() -> None:
    cluster = batch(startingOffsets="earliest", readUrl="broker-b=postgresql://b2/mqdb;broker-a=postgresql://a2/mqdb")

    assert [(name, each.url, each.reading.url) for name, each in cluster.brokers.items()] == [
        ("broker-a", A, "postgresql://a2/mqdb"),
        ("broker-b", B, "postgresql://b2/mqdb"),
    ]
    assert {each.starting for each in cluster.brokers.values()} == {EARLIEST}
    assert pickle.loads(pickle.dumps(cluster)) == cluster
    assert "geheim" not in repr(cluster)


def test_a_lone_url_is_one_broker_without_a_name() -> None:
    cluster = parse_cluster({"url": A, "subscribe": "orders"}, is_stream=False)

    assert (list(cluster.brokers), cluster.names, cluster.columns) == ([""], (), tuple(MESSAGE_COLUMNS))


def test_rows_of_a_list_say_their_broker_also_of_a_list_of_one() -> None:
    for url in (BOTH, f"broker-a={A}"):
        columns = cluster_columns({"url": url, "subscribe": "orders"})
        assert list(columns) == ["topic", "broker", *list(MESSAGE_COLUMNS)[1:]]
        assert columns["broker"] == "string"
    assert "broker" not in cluster_columns({"url": A, "subscribe": "orders"})
    assert "broker" not in cluster_columns({"url": BOTH, "subscribe": "orders", "rowFormat": "kafka"})


def test_the_column_of_the_broker_is_not_read_from_a_broker() -> None:
    some, alone = batch(columns="body,broker"), batch(columns="broker")

    assert (some.columns, some.any_options.columns) == (("body", "broker"), ("body",))
    assert (alone.columns, alone.any_options.columns) == (("broker",), ("queue_offset",))
    chosen = batch().with_columns(StructType([StructField("broker", StringType())]))
    assert (chosen.columns, chosen.any_options.columns) == (("broker",), ("queue_offset",))
    with pytest.raises(ColumnInvalid, match="is string, not int"):
        batch().with_columns(StructType([StructField("broker", IntegerType())]))


def test_partitions_of_kafka_are_numbered_over_the_brokers() -> None:
    cluster = batch(rowFormat="kafka")

    assert cluster.columns == tuple(name for name in KAFKA_COLUMNS if name != "headers")
    assert [cluster.first_partition(name) for name in cluster.names] == [0, 100_000]


def test_offsets_hold_for_all_brokers_or_for_each_its_own() -> None:
    same = batch(startingOffsets='{"orders": {"0": 5}}')
    assert [each.starting.by_queue for each in same.brokers.values()] == [{Queue("orders", 0): 5}] * 2

    own = batch(startingOffsets='{"broker-b": {"orders": {"0": 7}}, "broker-a": {}}')
    assert own.brokers["broker-a"].starting.by_queue == {}
    assert own.brokers["broker-b"].starting.by_queue == {Queue("orders", 0): 7}
    times = batch(endingOffsetsByTimestamp='{"broker-a": {"orders": {"0": "2026-01-01T00:00Z"}}}')
    assert times.brokers["broker-b"].ending.by_queue == {}


def test_queues_are_assigned_on_all_brokers_or_on_those_that_are_named() -> None:
    same = assigned('{"orders": [0, 1]}')
    assert [each.subscription.assigned for each in same.brokers.values()] == [{"orders": (0, 1)}] * 2
    assert all(each.subscription.is_partial for each in same.brokers.values())

    own = assigned('{"broker-b": {"orders": [2]}}')
    assert {name: each.subscription.assigned for name, each in own.brokers.items()} == {"broker-b": {"orders": (2,)}}
    assert not own.any_options.subscription.is_partial
    assert own.first_partition("broker-b") == 100_000


WRONG = {
    "no-such-broker": (
        {"startingOffsets": '{"broker-c": {"orders": {"0": 5}}}'},
        "there is no broker 'broker-c' in the url, which names broker-a, broker-b",
    ),
    "offsets": ({"startingOffsets": '{"broker-a": {"orders": {"x": 5}}}'}, "write a value for each queue"),
    "no-json": ({"startingOffsets": "{"}, "is not JSON"),
    "replicas": ({"readUrl": f"broker-a={A};broker-c={B}"}, "names broker-a, broker-c; give a replica of each broker"),
    "lone-replica": ({"readUrl": A}, "names no broker; give a replica of each broker"),
    "named-twice": ({"url": f"broker-a={A};broker-a={B}"}, "broker 'broker-a' is named twice"),
    "no-name": ({"url": f"broker-a={A};{B}"}, r"write postgresql://"),
    "column": ({"columns": "body,brokers"}, "there is no column 'brokers'"),
}


@pytest.mark.parametrize(("options", "sentence"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_at_load(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(MqdbError, match=sentence) as caught:
        check_cluster({"url": BOTH, "subscribe": "orders"} | options)
    assert "geheim" not in f"{caught.value} {caught.value.args}"


def test_jdbc_reads_one_broker() -> None:
    with pytest.raises(OptionInvalid, match=r"read_jdbc reads one broker; use format\('mqdb'\)"):
        read_jdbc(None, BOTH, "orders")  # type: ignore[arg-type]
