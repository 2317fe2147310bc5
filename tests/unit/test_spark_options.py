"""Options of format("mqdb"): their meaning, and one error sentence for each kind of mistake."""

import json
import pickle
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from mqdb.common.proof import Proof
from mqdb.errors import MqdbError, NameInvalid, SelectorSyntaxError, TagExpressionInvalid
from mqdb.pipeline.errors import (
    ColumnInvalid,
    DatabaseReplaced,
    DataLoss,
    LogReplaced,
    OffsetOutOfRange,
    OptionInvalid,
    OptionUnknown,
    ReplicaBehind,
    SinkBatchesMissing,
    StreamUnreadable,
)
from mqdb.pipeline.read.offsets import ClusterOffset, Queue, StreamOffset
from mqdb.pipeline.read.positions import EARLIEST, LATEST
from mqdb.pipeline.read.schema import KAFKA_COLUMNS, MESSAGE_COLUMNS, RowFormat, check_columns, sources_of
from mqdb.pipeline.read.source_options import NAMES, SourceOptions, check_source, parse_source, source_columns
from mqdb.pipeline.source import MqdbDataSource

URL = "postgresql://user:geheim@host:5432/database"


def batch(**options: str) -> SourceOptions:
    """Options of spark.read, including the required ones."""
    return parse_source({"url": URL, "subscribe": "orders"} | options, is_stream=False)


def stream(**options: str) -> SourceOptions:
    """Options of spark.readStream, including the required ones."""
    return parse_source({"url": URL, "subscribe": "orders"} | options, is_stream=True)


def test_a_batch_reads_all_and_a_stream_what_comes() -> None:
    assert (batch().starting, batch().ending) == (EARLIEST, LATEST)
    assert stream().starting == LATEST


def test_case_of_names_does_not_matter() -> None:
    assert batch(STARTINGOFFSETS="earliest", splitby="Queue").splitting.by == "queue"


def test_a_topic_may_be_called_topic_and_several_stand_between_commas() -> None:
    options = parse_source({"url": URL, "topic": "orders, flights,orders"}, is_stream=False)

    assert options.subscription.topics == ("orders", "flights")


def test_queues_are_assigned_by_number() -> None:
    options = parse_source({"url": URL, "assign": '{"orders": [2, 0]}'}, is_stream=False)

    assert options.subscription.assigned == {"orders": (2, 0)}


def test_offsets_are_given_queue_by_queue_and_may_name_the_ends() -> None:
    position = batch(startingOffsets='{"orders": {"0": 5, "1": -2, "2": -1}}').starting

    assert position.by_queue == {Queue("orders", 0): 5, Queue("orders", 1): -2, Queue("orders", 2): -1}


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("1767225600500", datetime(2026, 1, 1, microsecond=500_000, tzinfo=UTC)),
        ("2026-01-01T00:00Z", datetime(2026, 1, 1, tzinfo=UTC)),
        ("2026-01-01T02:00+02:00", datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))),
    ],
)
def test_a_time_is_in_milliseconds_or_iso(text: str, moment: datetime) -> None:
    assert batch(startingTimestamp=text).starting.everywhere == moment
    by_queue = batch(startingOffsetsByTimestamp=f'{{"orders": {{"0": "{text}"}}}}').starting.by_queue
    assert by_queue == {Queue("orders", 0): moment}


def test_a_replica_is_read_and_the_primary_plans() -> None:
    options = batch(readUrl="postgresql://replica/database")

    assert (options.url, options.reading.url, options.reading.is_replica) == (
        URL,
        "postgresql://replica/database",
        True,
    )


def test_the_star_is_no_filter() -> None:
    assert batch(subExpression="*").choice.is_everything


def test_sizes_may_have_a_unit() -> None:
    assert batch(batchSizeBytes="64k").reading.batch_size_bytes == 65_536


def test_columns_keep_the_order_in_which_they_are_asked_for() -> None:
    assert batch(columns="body, queue_id").columns == ("body", "queue_id")
    without_headers = tuple(name for name in KAFKA_COLUMNS if name != "headers")
    assert source_columns({"ROWFORMAT": "kafka"}) == (RowFormat.KAFKA, without_headers)
    for name in ("includeHeaders", "includeReservedHeaders"):
        assert source_columns({"rowFormat": "kafka", name: "True"}) == (RowFormat.KAFKA, tuple(KAFKA_COLUMNS))


def test_a_body_is_read_with_what_says_how_it_is_compressed() -> None:
    assert sources_of(RowFormat.MQDB, ("body", "topic")) == ("topic", "sys_flag", "body")
    assert sources_of(RowFormat.KAFKA, ("headers", "key")) == ("keys", "properties", "kafka_key")
    assert sources_of(RowFormat.KAFKA, ("timestampType",)) == ("queue_offset",)
    assert sources_of(RowFormat.MQDB, tuple(MESSAGE_COLUMNS)) == tuple(MESSAGE_COLUMNS)


def test_a_schema_of_the_users_own_may_leave_columns_out_and_change_none() -> None:
    check_columns(RowFormat.MQDB, {"queue_id": "int", "body": "binary"})

    with pytest.raises(ColumnInvalid, match=r"'bodies'.*has the columns topic, "):
        check_columns(RowFormat.MQDB, {"bodies": "binary"})
    with pytest.raises(ColumnInvalid, match=r"'body'.*is binary, not string"):
        check_columns(RowFormat.MQDB, {"body": "string"})
    with pytest.raises(OptionInvalid, match="the schema has no columns; name one of topic, "):
        check_columns(RowFormat.MQDB, {})


WRONG = {
    "unknown": ({"startingOffset": "earliest"}, OptionUnknown, "did you mean 'startingOffsets'"),
    "no-url": ({"url": " "}, OptionInvalid, "url = ' ': is empty"),
    "no-uri": ({"url": "host=localhost"}, OptionInvalid, "postgresql://user"),
    "two-brokers": ({"url": f"a={URL};b={URL}"}, OptionInvalid, "names 2 brokers, but exactly one is needed"),
    "two-subscriptions": ({"assign": '{"orders": [0]}'}, OptionInvalid, "subscribe is given, too"),
    "topic": ({"subscribe": "or ders"}, NameInvalid, "holds ' '"),
    "start-at-the-end": ({"startingOffsets": "latest"}, OptionInvalid, "reads nothing"),
    "end-at-the-start": ({"endingOffsets": "earliest"}, OptionInvalid, "reads nothing"),
    "offsets-no-json": ({"startingOffsets": "{orders"}, OptionInvalid, "is not JSON"),
    "offsets-flat": ({"startingOffsets": '{"orders": 5}'}, OptionInvalid, "for each queue"),
    "offsets-text": ({"startingOffsets": '{"orders": {"0": "5"}}'}, OptionInvalid, "for each queue"),
    "offset-negative": ({"startingOffsets": '{"orders": {"0": -3}}'}, OptionInvalid, "for each queue"),
    "time": ({"startingTimestamp": "yesterday"}, OptionInvalid, "milliseconds since 1970"),
    "time-without-zone": ({"startingTimestamp": "2026-01-01T00:00"}, OptionInvalid, "with a zone"),
    "strategy": ({"startingOffsetsByTimestampStrategy": "first"}, OptionInvalid, "error or latest"),
    "tags": ({"subExpression": "||"}, TagExpressionInvalid, "contains no tag"),
    "selector": ({"selector": "a >"}, SelectorSyntaxError, "a >"),
    "columns": ({"columns": "body,bodies"}, OptionInvalid, "there is no column 'bodies'"),
    "row-format": ({"rowFormat": "avro"}, OptionInvalid, "mqdb or kafka"),
    "split": ({"splitBy": "time"}, OptionInvalid, "auto or segment or queue"),
    "number": ({"minPartitions": "0"}, OptionInvalid, "above 0"),
    "bytes": ({"batchSizeBytes": "4 apples"}, OptionInvalid, "64k or 4m"),
    "seconds": ({"replicaWaitSeconds": "-1"}, OptionInvalid, "write seconds"),
    "engine": ({"engine": "odbc"}, OptionInvalid, "adbc or psycopg"),
    "boolean": ({"failOnDataLoss": "yes"}, OptionInvalid, "true or false"),
    "limit-of-a-batch": ({"maxOffsetsPerTrigger": "many"}, OptionInvalid, "above 0"),
    "delay": ({"maxTriggerDelay": "soon"}, OptionInvalid, "15m, 30s or 500ms"),
    "group-of-a-batch": ({"group": "stats"}, OptionInvalid, "spark.read has no such option"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(case: str) -> None:
    options, error, sentence = WRONG[case]

    with pytest.raises(error) as caught:
        batch(**options)

    assert sentence in str(caught.value)


def test_what_only_a_batch_has_is_refused_in_a_stream() -> None:
    with pytest.raises(OptionInvalid, match=r"spark\.readStream has no such option"):
        stream(endingOffsets="latest")
    with pytest.raises(NameInvalid, match="group name"):
        stream(group="a group")


def test_a_batch_ignores_the_limits_of_a_stream() -> None:
    limits = {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "3"}

    assert batch(**limits, maxTriggerDelay="1s").max_offsets_per_trigger is None
    both = stream(**limits)
    assert (both.max_offsets_per_trigger, both.min_offsets_per_trigger) == (5, 3)


def test_a_delay_is_written_as_spark_reads_times() -> None:
    texts = ("500", "500ms", "30s", "2min", "15m")

    assert [stream(maxTriggerDelay=text).max_trigger_delay_seconds for text in texts] == [0.5, 0.5, 30, 120, 900]
    assert stream().max_trigger_delay_seconds == 900


def test_a_time_wins_over_times_by_queue_and_both_over_offsets() -> None:
    offsets, time = {"startingOffsets": "latest"}, {"startingTimestamp": "5"}
    by_queue = {"startingOffsetsByTimestamp": '{"orders": {"0": 5}}'}

    assert batch(**offsets, **time, **by_queue).starting.option == "startingTimestamp"
    assert batch(**offsets, **by_queue).starting.option == "startingOffsetsByTimestamp"


# -- options of Kafka, and what load() says -------------------------------------------------------


def test_options_of_kafka_that_mean_nothing_are_named_in_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Kafka options without a meaning in mqdb are named in one warning. Spark passes names in lower case."""
    ignored = {"kafka.max.poll.records": "5", "fetchoffset.numretries": "3", "groupidprefix": "etl"}

    check_source({"url": URL, "subscribe": "orders", **ignored})

    [record] = caplog.records
    assert record.getMessage().endswith(": fetchOffset.numRetries, groupIdPrefix, kafka.max.poll.records")


def test_the_servers_of_kafka_are_no_url() -> None:
    with pytest.raises(OptionInvalid, match=r"kafka\.bootstrap\.servers = 'host:9092': leads to Kafka; give .*'url'"):
        check_source({"kafka.bootstrap.servers": "host:9092", "subscribe": "orders"})
    check_source({"kafka.bootstrap.servers": "host:9092", "subscribe": "orders", "url": URL})


def test_load_refuses_what_neither_a_batch_nor_a_stream_can_have() -> None:
    check_source({"url": URL, "subscribe": "orders", "endingOffsets": "latest"})
    check_source({"url": URL, "subscribe": "orders", "startingOffsets": "latest", "group": "stats"})
    with pytest.raises(OptionInvalid, match="minPartitions"):
        check_source({"url": URL, "subscribe": "orders", "minPartitions": "none"})


def test_a_stream_says_what_is_wrong_in_the_methods_that_spark_calls_first() -> None:
    source = MqdbDataSource({"url": URL, "subscribe": "orders", "endingOffsets": "latest"})
    stream = source.streamReader(source.schema())

    for call in (
        stream.initialOffset,
        lambda: stream.latestOffset({}, ReadAllAvailable()),
        lambda: stream.partitions({}, {}),
    ):
        with pytest.raises(OptionInvalid, match=r"spark\.readStream has no such option"):
            call()
    stream.stop()


def test_something_has_to_be_subscribed() -> None:
    with pytest.raises(OptionInvalid, match="give subscribe, subscribePattern or assign"):
        parse_source({"url": URL}, is_stream=False)
    with pytest.raises(OptionInvalid, match="not a regular expression"):
        parse_source({"url": URL, "subscribePattern": "(orders"}, is_stream=False)
    for text in ('{"orders": 0}', '{"orders": []}', '{"orders": [true]}', "[]", "{}"):
        with pytest.raises(OptionInvalid, match="assign"):
            parse_source({"url": URL, "assign": text}, is_stream=False)


def test_no_error_tells_the_password() -> None:
    for wrong in (f"a={URL};b={URL}", "postgresql://user:geheim@host:port/db"):
        with pytest.raises(OptionInvalid) as caught:
            batch(url=wrong)
        assert "geheim" not in str(caught.value) + repr(caught.value.args)


def test_options_do_not_show_where_they_hold_a_password() -> None:
    assert "geheim" not in repr(batch(readUrl=URL))


def test_every_name_that_is_known_is_taken() -> None:
    for name in NAMES:
        try:
            parse_source({name: "1"}, is_stream=False)
        except OptionUnknown:
            pytest.fail(f"{name} is unknown")
        except MqdbError:
            pass


def test_options_pickle() -> None:
    options = batch(startingOffsets='{"orders": {"0": 5}}', selector="a > 5")

    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    "error",
    [
        OptionUnknown("urls", ["url"]),
        OptionInvalid("url", "x", "is none"),
        ColumnInvalid("bodies", "is none"),
        OffsetOutOfRange("startingOffsets", "orders", 0, 5, 6, 7),
        DataLoss("topic 'orders'", "gone"),
        LogReplaced("topic 'orders'", "is another one"),
        SinkBatchesMissing("stream:mine", 5, None),
        ReplicaBehind("topic 'orders'", 5, 3, 0.5),
        StreamUnreadable("{}", "it needs a broker"),
        DatabaseReplaced("broker 'broker-a'", "this one was set up later"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_a_worker_says_the_same_on_the_driver(error: MqdbError) -> None:
    arrived = pickle.loads(pickle.dumps(error))

    assert (type(arrived), str(arrived), vars(arrived)) == (type(error), str(error), vars(error))


def test_offsets_of_a_stream_are_always_written_in_the_same_order() -> None:
    offsets = {Queue("b", 10): 3, Queue("b", 9): 2, Queue("a", 0): 1}

    then = datetime(2026, 11, 24, tzinfo=UTC)
    proofs = {queue: Proof(offset - 1, 40 + offset, UUID(int=offset), then) for queue, offset in offsets.items()}
    of_one = StreamOffset("broker-a", offsets, {"b": 4, "a": 7}, proofs)
    offset = ClusterOffset({"broker-b": StreamOffset("broker-b", {}, {}), "broker-a": of_one})

    written = offset.to_dict()

    assert json.dumps(written) == (
        '{"brokers": {"broker-a": {"topic_ids": {"a": 7, "b": 4}, "topics": {"a": {"0": 1}, "b": {"9": 2, "10": 3}}, '
        '"proofs": {"a": {"0": [41, "00000000-0000-0000-0000-000000000001", "2026-11-24T00:00:00+00:00"]}, '
        '"b": {"9": [42, "00000000-0000-0000-0000-000000000002", "2026-11-24T00:00:00+00:00"], '
        '"10": [43, "00000000-0000-0000-0000-000000000003", "2026-11-24T00:00:00+00:00"]}}}, '
        '"broker-b": {"topic_ids": {}, "topics": {}, "proofs": {}}}}'
    )
    assert ClusterOffset.from_dict(written) == offset
    dated = ClusterOffset({"broker-a": replace(offset.brokers["broker-a"], created_at=then)})
    assert ClusterOffset.from_dict(dated.to_dict()) == dated


ID = "00000000-0000-0000-0000-000000000001"
TIME = "2026-11-24T00:00:00+00:00"


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"brokers": []},
        {"brokers": {"a": 5}},
        {"brokers": {"a": {"topic_ids": {}, "topics": 5, "proofs": {}}}},
        {"brokers": {"a": {"topic_ids": {"t": 1}, "topics": {"t": {"x": 1}}, "proofs": {}}}},
        {"brokers": {"a": {"topic_ids": {}, "topics": {"t": {"0": 1}}, "proofs": {}}}},
        {"brokers": {"a": {"topic_ids": {"t": 1}, "topics": {"t": {"0": 1}}}}},
        {"brokers": {"a": {"topic_ids": {"t": 1}, "topics": {"t": {"0": 1}}, "proofs": {"t": {"1": [1, ID, TIME]}}}}},
        {"brokers": {"a": {"topic_ids": {"t": 1}, "topics": {"t": {"0": 1}}, "proofs": {"t": {"0": [1, "x", TIME]}}}}},
        {"brokers": {"a": {"topic_ids": {"t": 1}, "topics": {"t": {"0": 1}}, "proofs": {"t": {"0": 1}}}}},
        {"brokers": {"a": {"created_at": 5, "topic_ids": {}, "topics": {}, "proofs": {}}}},
        {"brokers": {"a": {"created_at": "x", "topic_ids": {}, "topics": {}, "proofs": {}}}},
    ],
    ids=repr,
)
def test_offsets_that_this_source_has_not_written_are_refused(value: object) -> None:
    with pytest.raises(StreamUnreadable, match="checkpoint cannot be read"):
        ClusterOffset.from_dict(value)
