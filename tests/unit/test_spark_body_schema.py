"""The `schema` option of reads: its legal values, and one error sentence for each kind of mistake."""

import pytest
from pyspark.sql.types import DecimalType, LongType, StructField, StructType

from mqdb.pipeline.errors import ColumnInvalid, OptionInvalid
from mqdb.pipeline.read.body_schema import OnBadBody, parse_schema
from mqdb.pipeline.read.source_options import SourceOptions, parse_source
from mqdb.pipeline.source import MqdbDataSource

URL = "postgresql://user@host:5432/database"
ALL = (
    "`a b` bigint, b: tinyint, c smallint COMMENT 'it''s', d INTEGER, e real, f double, g Decimal(12, 2), h dec(5), "
    "i boolean, j string, k binary, l date, m timestamp, n array<map<string, struct<x: int, `y``z` numeric>>>"
)


def options(**more: str) -> dict[str, str]:
    return {"url": URL, "subscribe": "orders"} | more


def batch(**more: str) -> SourceOptions:
    return parse_source(options(**more), is_stream=False)


def test_a_schema_is_ddl_or_json() -> None:
    columns = parse_schema(ALL.replace("'it''s'", "'it'"))

    assert columns.fields[0] == StructField("a b", LongType())
    assert [type_.simpleString() for type_ in (field.dataType for field in columns.fields)] == [
        "bigint",
        "tinyint",
        "smallint",
        "int",
        "float",
        "double",
        "decimal(12,2)",
        "decimal(5,0)",
        "boolean",
        "string",
        "binary",
        "date",
        "timestamp",
        "array<map<string,struct<x:int,y`z:decimal(10,0)>>>",
    ]
    assert parse_schema(columns.json()) == columns
    assert parse_schema("struct<id:decimal(38,38)>") == StructType([StructField("id", DecimalType(38, 38))])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("id", "cannot be read at its end"),
        ("id int,", "cannot be read at its end"),
        ("id int price double", "cannot be read near 'price'"),
        ("id int)", "cannot be read near '\\)'"),
        ("id int; price double", "cannot be read near '; price double'"),
        ("array<int>", "cannot be read near '<'"),
        ("id array<int", "cannot be read at its end"),
        ("id varchar(3)", "type 'varchar' is not supported; a column has one of the types boolean, "),
        ("id timestamp_ntz", "type 'timestamp_ntz' is not supported"),
        ("id decimal(39)", "more than 38 digits"),
        ("id decimal(3,4)", "a scale above its precision"),
        ("a struct<id int NOT NULL>", "column 'id' is NOT NULL, and bodies may lack it"),
        ("id map<int,int>", "column 'id': the keys of a JSON object are strings"),
        ("id int, ID string", "has column 'ID' twice"),
        ("{", "is not the JSON of a StructType"),
        ('{"a": 1}', "is not the JSON of a StructType"),
        ('{"type": "struct", "fields": []}', "has no column"),
        ("id int, _corrupt_record string", "_corrupt_record needs onBadRow=null"),
        ("id int, Body string", "'Body' is also a column of the message; omit that column with the option columns"),
    ],
)
def test_a_schema_that_is_wrong_is_said_when_options_are_read(text: str, reason: str) -> None:
    with pytest.raises(OptionInvalid, match=f"option schema = .*{reason}"):
        batch(schema=text)


def test_bad_rows_of_a_read_need_a_schema_and_go_to_no_topic() -> None:
    with pytest.raises(OptionInvalid, match="a read needs the option schema for it"):
        batch(onBadRow="skip")
    with pytest.raises(OptionInvalid, match="write fail or skip or null"):
        batch(schema="id int", onBadRow="topic:bad")


def test_columns_of_bodies_follow_those_of_the_message() -> None:
    source = MqdbDataSource(options(schema="id int, topic string", columns="queue_id,queue_offset", onbadrow="null"))

    assert source.schema().simpleString() == "struct<queue_id:int,queue_offset:bigint,id:int,topic:string>"
    read = batch(schema="id int, topic string", columns="queue_id", onBadRow="null")
    assert read.columns == ("queue_id", "id", "topic")
    assert read.reading.sources(read.columns) == ("topic", "queue_id", "queue_offset", "sys_flag", "body")
    assert read.reading.decoding is not None
    assert read.reading.decoding.on_bad_body is OnBadBody.NULL


def test_a_schema_of_the_users_own_chooses_among_columns_of_bodies_too() -> None:
    source = MqdbDataSource(options(schema="id int, price double"))

    chosen = source.reader(parse_schema("price double, queue_id int")).cluster.any_options  # type: ignore[attr-defined]
    assert chosen.columns == ("price", "queue_id")
    assert chosen.reading.decoding.names == {"price"}
    with pytest.raises(ColumnInvalid, match="column 'price': is double in the option schema, not string"):
        source.reader(parse_schema("price string"))
    with pytest.raises(ColumnInvalid, match="column 'cost'"):
        source.reader(parse_schema("cost double"))
