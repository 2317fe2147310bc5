"""Options and columns of a write to format("mqdb"): the legal ones, and the error sentences for others."""

import pickle

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from mqdb.errors import MqdbError, NameInvalid, TopicNotAllowed
from mqdb.pipeline.errors import ColumnInvalid, ModeNotSupported, OptionInvalid, OptionUnknown
from mqdb.pipeline.source import MqdbDataSource
from mqdb.pipeline.write.sink_columns import ColumnPart, Columns, Kind, find_columns
from mqdb.pipeline.write.sink_options import OnBadRow, ReservedProperties, parse_sink
from mqdb.pipeline.write.writers import batch_writer, stream_writer

URL = "postgresql://writer:secret@localhost:5432/mqdb"


def schema(**types: DataType) -> StructType:
    return StructType([StructField(name, type_) for name, type_ in types.items()])


# -- options ------------------------------------------------------------------------------------


def test_options_are_found_whatever_their_case() -> None:
    options = parse_sink({"URL": URL, "Topic": "orders", "WRITEID": "nightly"}, is_stream=False)
    assert (options.url, options.topic, options.given_id) == (URL, "orders", "nightly")


def test_the_options_say_what_becomes_of_reserved_properties() -> None:
    assert parse_sink({"url": URL}, is_stream=True).reserved_properties is None
    refusing = parse_sink({"url": URL, "reservedProperties": "REFUSE"}, is_stream=True)
    assert refusing.reserved_properties is ReservedProperties.REFUSE
    dropping = parse_sink({"url": URL, "reservedProperties": "drop"}, is_stream=True)
    assert dropping.reserved_properties is ReservedProperties.DROP


def test_a_query_stops_at_a_gap_unless_it_is_told_to_go_on() -> None:
    assert parse_sink({"url": URL}, is_stream=True).fail_on_data_loss
    assert not parse_sink({"url": URL, "failOnDataLoss": "FALSE"}, is_stream=True).fail_on_data_loss


def test_the_options_say_what_becomes_of_bad_rows() -> None:
    given = {"FAIL": (OnBadRow.FAIL, None), "skip": (OnBadRow.SKIP, None), "topic:Bad": (OnBadRow.TOPIC, "Bad")}
    for text, wanted in given.items():
        options = parse_sink({"url": URL, "onBadRow": text}, is_stream=True)
        assert (options.on_bad_row, options.bad_row_topic) == wanted


def test_the_options_say_how_a_batch_is_committed() -> None:
    whole = parse_sink({"url": URL}, is_stream=True)
    assert (whole.max_rows_per_commit, whole.commit_sessions) == (None, 1)
    parts = parse_sink({"url": URL, "maxRowsPerCommit": "200000", "commitSessions": "4"}, is_stream=True)
    assert (parts.max_rows_per_commit, parts.commit_sessions) == (200_000, 4)


def test_options_of_spark_itself_are_let_pass() -> None:
    parse_sink({"url": URL, "checkpointLocation": "/tmp/x", "queryName": "q"}, is_stream=True)


def test_an_unknown_option_is_named_with_the_one_that_was_meant() -> None:
    with pytest.raises(OptionUnknown, match=r"'topik'; did you mean 'topic'\?"):
        parse_sink({"url": URL, "topik": "orders"}, is_stream=False)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "option url: is missing"),
        ({"url": "mysql://host"}, "option url"),
        ({"url": f"broker-a={URL};broker-b={URL}"}, "names 2 brokers, but exactly one is needed"),
        ({"url": URL, "topic": " "}, "option topic = ' ': is empty"),
        ({"url": URL, "maxRowsPerCommit": "0"}, "maxRowsPerCommit = '0': write a number from 1 to 999999999"),
        ({"url": URL, "maxRowsPerCommit": "1e6"}, "maxRowsPerCommit = '1e6': write a number"),
        ({"url": URL, "maxRowsPerCommit": "9", "commitSessions": "65"}, "commitSessions = '65': is above 64"),
        ({"url": URL, "commitSessions": "2"}, "commitSessions = '2': needs maxRowsPerCommit"),
        ({"url": URL, "reservedProperties": "keep"}, "write refuse or drop"),
        ({"url": URL, "onBadRow": "topic:"}, "write fail, skip or topic:NAME"),
        ({"url": URL, "onBadRow": "skip:orders"}, "write fail, skip or topic:NAME"),
        ({"url": URL, "writeId": "two words"}, "printable ASCII characters"),
        ({"url": URL, "writeId": "x" * 201}, "1 to 200"),
        ({"url": URL, "sinkId": "mine"}, "option sinkId = 'mine': is for writeStream; use writeId"),
    ],
)
def test_a_wrong_option_has_its_sentence(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionInvalid) as refused:
        parse_sink(options, is_stream=False)
    assert sentence in str(refused.value)


def test_a_stream_has_no_write_id() -> None:
    with pytest.raises(OptionInvalid, match="is for write; use sinkId"):
        parse_sink({"url": URL, "writeId": "mine"}, is_stream=True)


def test_no_error_and_no_options_show_the_password() -> None:
    with pytest.raises(OptionInvalid) as refused:
        parse_sink({"url": f"broker-a={URL};broker-b={URL}"}, is_stream=False)
    options = parse_sink({"url": URL}, is_stream=False)
    assert "secret" not in f"{refused.value} {refused.value.args} {options} {options.target}"


@pytest.mark.parametrize(("topic", "error"), [("no blanks", NameInvalid), ("SCHEDULE_TOPIC_XXXX", TopicNotAllowed)])
def test_a_topic_that_nobody_may_send_to_is_refused(topic: str, error: type[MqdbError]) -> None:
    with pytest.raises(error):
        parse_sink({"url": URL, "topic": topic}, is_stream=False)


def test_overwriting_is_refused_in_one_sentence() -> None:
    with pytest.raises(ModeNotSupported, match=r"'overwrite' is not supported: .*\.mode\('append'\)"):
        batch_writer({"url": URL}, schema(body=StringType()), overwrite=True)
    with pytest.raises(ModeNotSupported, match=r"'complete' is not supported"):
        stream_writer({"url": URL}, schema(body=StringType()), overwrite=True)


# -- columns ------------------------------------------------------------------------------------


def test_all_parts_are_found_with_their_kinds() -> None:
    found = find_columns(
        schema(
            topic=StringType(),
            body=BinaryType(),
            keys=StringType(),
            tags=StringType(),
            properties=MapType(StringType(), StringType()),
            sharding_key=StringType(),
            queue_id=IntegerType(),
            born_timestamp=TimestampType(),
            delay_level=IntegerType(),
            deliver_at=LongType(),
        ),
        None,
    )
    assert found == Columns(
        topic=ColumnPart(0, Kind.TEXT),
        body=ColumnPart(1, Kind.BYTES),
        keys=ColumnPart(2, Kind.TEXT),
        tags=ColumnPart(3, Kind.TEXT),
        properties=ColumnPart(4, Kind.MAP),
        sharding_key=ColumnPart(5, Kind.TEXT),
        queue_id=ColumnPart(6, Kind.NUMBER),
        born_timestamp=ColumnPart(7, Kind.MICROSECONDS),
        delay_level=ColumnPart(8, Kind.NUMBER),
        deliver_at=ColumnPart(9, Kind.MILLISECONDS),
    )
    assert pickle.loads(pickle.dumps(found)) == found


def test_key_and_value_are_names_of_kafka_s() -> None:
    found = find_columns(schema(key=BinaryType(), VALUE=StringType(), properties=StringType()), "orders")
    assert found == Columns(
        body=ColumnPart(1, Kind.TEXT),
        key=ColumnPart(0, Kind.BYTES),
        properties=ColumnPart(2, Kind.JSON),
        may_lack_value=True,
    )


def test_rows_of_both_formats_can_be_written() -> None:
    kafka, mqdb = (
        find_columns(MqdbDataSource({"url": URL, "subscribe": "orders", **options}).schema(), None)
        for options in ({"rowformat": "kafka", "includeheaders": "true"}, {"rowformat": "mqdb"})
    )

    assert (kafka.queue_id, kafka.headers) == (ColumnPart(3, Kind.NUMBER), ColumnPart(7, Kind.HEADERS))
    assert (mqdb.queue_id, mqdb.born_timestamp) == (ColumnPart(1, Kind.NUMBER), ColumnPart(9, Kind.MICROSECONDS))
    assert (kafka.was_read, mqdb.was_read, kafka.may_lack_value, mqdb.may_lack_value) == (False, True, True, False)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"topic": StringType()}, "column 'body': is missing, and so is value; the columns are topic"),
        ({"body": StringType()}, "column 'topic': is missing, and so is the option topic"),
        ({"body": DoubleType(), "topic": StringType()}, "column 'body': is double; body is binary or string: cast it"),
        ({"body": StringType(), "value": StringType()}, "column 'value': is the same as 'body'; remove one"),
        (
            {"body": StringType(), "price": DoubleType()},
            "column 'price': no message has this column; there are body, topic",
        ),
        ({"body": StringType(), "queue_id": LongType()}, "column 'queue_id': is bigint; queue_id is int: cast it"),
        ({"body": StringType(), "keys": ArrayType(StringType())}, "is array<string>; keys is string or binary"),
        ({"body": StringType(), "partition": IntegerType(), "queue_id": IntegerType()}, "is the same as 'partition'"),
        ({"body": StringType(), "headers": ArrayType(StringType())}, "headers is array<struct<key:string,value:binary"),
        ({"body": StringType(), "deliver_at": TimestampNTZType()}, "is timestamp_ntz; deliver_at is timestamp or"),
        ({"body": StringType(), "properties": MapType(StringType(), LongType())}, "is map<string,bigint>"),
    ],
)
def test_a_wrong_column_has_its_sentence(columns: dict[str, DataType], sentence: str) -> None:
    with pytest.raises(ColumnInvalid) as refused:
        find_columns(schema(**columns), None)
    assert sentence in str(refused.value)


def test_options_of_a_job_for_kafka_are_ignored_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    kafka = {"kafka.bootstrap.servers": "host1:9092", "kafka.acks": "all"}

    assert parse_sink({"url": URL, "topic": "orders", **kafka}, is_stream=False).topic == "orders"

    assert [record.getMessage() for record in caplog.records] == [
        "ignored options of Kafka, which have no meaning for mqdb: kafka.acks, kafka.bootstrap.servers"
    ]
    with pytest.raises(OptionInvalid, match=r"leads to Kafka; give \.option\('url'"):
        parse_sink({"topic": "orders", **kafka}, is_stream=True)
