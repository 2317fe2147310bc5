"""JSON bodies as columns of format("mqdb") equal those of from_json, in batches and streams."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from sqlalchemy import Connection

from mqdb.pipeline.read.body_schema import parse_schema
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.postgres import Database
from tests.fixtures.variants import usually

SCHEMA = (
    "i int, l bigint, d double, n decimal(12,3), b boolean, s string, at timestamp, day date, a array<int>, "
    "o struct<x:int,y:string,z:array<struct<q:date>>>, m map<string,double>, _corrupt_record string"
)


@pytest.fixture
def berlin(spark: SparkSession) -> Iterator[None]:
    """A session whose time zone differs from the machine's."""
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    yield
    spark.conf.unset("spark.sql.session.timeZone")


def values(chance: random.Random) -> dict[str, Callable[[], Any]]:
    """Values of each field, most of them valid."""

    def of(*choices: Any) -> Callable[[], Any]:
        return lambda: chance.choice(choices)

    def text() -> str:
        return "".join(chance.choice('ab ä漢😀"\\\n\t\u0000\u2028') for _ in range(chance.randrange(8)))

    def clock() -> str:
        day = f"{chance.randint(1880, 2100)}-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}"
        time = f"{chance.randint(0, 23):02}:{chance.randint(0, 59):02}:{chance.randint(0, 59):02}"
        fraction = chance.choice(["", ".5", ".123456", ".123456789"])
        zone = chance.choice(["", "Z", "+02:00", "-0530", " UTC", " Asia/Tokyo"])
        return f"{day}{chance.choice('T ')}{time}{fraction}{zone}"

    def several(one: Callable[[], Any]) -> list[Any]:
        return [one() for _ in range(chance.randrange(3))]

    whole = of(0, 1, -7, 2**31 - 1, None)
    real = of(0.5, -1.25, 3, 1e-5, 1.7976931348623157e308, 12345.678)
    return {
        "i": of(0, -(2**31), 2**31 - 1, 2**31, 1.0, "5", True, None, []),
        "l": of(0, 2**63 - 1, -(2**63), 2**63, 1.5, "x", None),
        "d": lambda: chance.choice(
            [real(), float(chance.randrange(10**6)) / 7, "NaN", "-Infinity", "1.5", False, None]
        ),
        "n": of(1, 0.0005, 0.0015, -2.5, 999999999.9994, 999999999.9996, "1.5", "x", 12345.6789, None),
        "b": of(True, False, None, "true", 1),
        "s": lambda: chance.choice([text(), text(), 5, True, {"a": [1, text().replace("😀", "")]}, [], None]),
        "at": lambda: chance.choice(
            [clock(), clock(), "2026-03-29 02:30:00", "2026-10-25 02:30:00", 1784014200, "x", 1.5]
        ),
        "day": of("2026-07-14", "1582-10-10", "2026-7-4", "2026-07", "2026-07-14T09:30:00Z", "2026-02-30", 5, None),
        "a": lambda: chance.choice([several(whole), 5, ["x"], None]),
        "o": lambda: {"x": whole(), "y": text(), "z": several(lambda: {"q": "2026-07-14", "extra": text()})},
        "m": lambda: {text(): real() for _ in range(chance.randrange(3))},
        "extra": of(1, {}, "x"),
    }


def bodies(seed: int, count: int) -> list[str]:
    """JSON objects with some of the fields, in any order, and texts that are not objects."""
    chance = random.Random(seed)
    makers = values(chance)
    found = ["", " ", "null", "[]", "5", "{", '{"i": 1,}', '{"i": 1, "i": 2}', '{"s": "\\ud800"}', '{"d": NaN}']
    for _ in range(count):
        names = chance.sample(sorted(makers), chance.randrange(1, len(makers)))
        found.append(json.dumps({name: makers[name]() for name in names}, ensure_ascii=chance.random() < 0.5))
    return found


def fill(broker: Connection, *texts: str) -> None:
    append(broker, topic(broker), *(text or " " for text in texts))
    dispatch_all(broker)


def load(spark: SparkSession, database: Database, **options: str) -> DataFrame:
    return spark.read.format("mqdb").options(url=database.dsn, subscribe="orders", **options).load()


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(("seed", "count"), usually((1, 12), of=[(1, 12), *((seed, 400) for seed in range(1, 6))]))
def test_columns_are_those_of_from_json(
    spark: SparkSession, database: Database, broker: Connection, seed: int, count: int
) -> None:
    fill(broker, *bodies(seed, count=count))

    frame = load(spark, database, schema=SCHEMA, onBadRow="null", columns="queue_offset,body")
    # As texts: one NaN does not equal another.
    names = frame.columns[2:]
    ours = ", ".join(f"CAST({name} AS STRING)" for name in names)
    theirs = ", ".join(f"CAST(j.{name} AS STRING)" for name in names)
    decoded = frame.selectExpr("*", f"from_json(CAST(body AS STRING), '{SCHEMA}') AS j")
    rows = decoded.selectExpr("body", f"array({ours}) AS ours", f"array({theirs}) AS theirs").collect()

    assert len(rows) == count + 10
    differences = [
        (bytes(row.body).decode(), name, mine, its)
        for row in rows
        for name, mine, its in zip(names, row.ours, row.theirs, strict=True)
        if mine != its
    ]
    assert differences == []


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "text",
    [
        SCHEMA,
        "`a b` bigint, b: tinyint, c smallint COMMENT 'it', g Decimal(12, 2), h dec(5), k BINARY, l timestamp_ltz",
        "struct<`a``b`:array<map<string,struct<x:int,y:numeric>>>,e:real>",
    ],
)
def test_ddl_means_what_spark_reads_in_it(text: str) -> None:
    ours, theirs = parse_schema(text), StructType.fromDDL(text)
    assert isinstance(theirs, StructType)

    assert [(field.name, field.dataType) for field in ours] == [(field.name, field.dataType) for field in theirs]


@pytest.mark.long
def test_a_stream_reads_columns_of_bodies_and_leaves_bad_rows_out(
    spark: SparkSession, database: Database, broker: Connection, tmp_path: Path
) -> None:
    fill(broker, '{"id": 1, "at": "2026-07-14T09:30:00Z"}', "{", '{"id": 3}')
    options = {"url": database.dsn, "subscribe": "orders", "startingOffsets": "earliest", "rowFormat": "kafka"}
    stream = (
        spark.readStream.format("mqdb").options(**options, schema="id bigint, at timestamp", onBadRow="skip").load()
    )

    writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()

    rows = spark.read.parquet(str(tmp_path / "out")).selectExpr("offset", "id", "unix_seconds(at) AS at")
    assert sorted(map(tuple, rows.collect())) == [(0, 1, 1784021400), (2, 3, None)]


@pytest.mark.long
def test_bad_rows_can_be_counted_in_the_progress_of_a_query(
    spark: SparkSession, database: Database, broker: Connection, tmp_path: Path
) -> None:
    fill(broker, '{"id": 1}', "{", '{"id": "x"}')
    options = {"url": database.dsn, "subscribe": "orders", "startingOffsets": "earliest", "onBadRow": "null"}
    stream = spark.readStream.format("mqdb").options(**options, schema="id int, _corrupt_record string").load()
    observed = stream.observe("rows", F.count("_corrupt_record").alias("bad"))

    writer = observed.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()

    assert [progress.observedMetrics["rows"].bad for progress in query.recentProgress] == [2]


@pytest.mark.long
def test_a_bad_row_ends_a_read_with_one_sentence_that_names_it(
    spark: SparkSession, database: Database, broker: Connection
) -> None:
    fill(broker, '{"id": 1}', '{"id": "x"}')

    with pytest.raises(PySparkException, match="topic 'orders', queue 0, offset 1: field 'id' of the body is of JSON"):
        load(spark, database, schema="id bigint").collect()


@pytest.mark.long
def test_tables_and_views_take_a_schema(spark: SparkSession, database: Database, broker: Connection) -> None:
    fill(broker, '{"id": 1}')
    given = f"url '{database.dsn}', subscribe 'orders', columns 'queue_id', schema 'id bigint'"

    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW bodies USING mqdb OPTIONS ({given})")

    assert spark.sql("SELECT * FROM bodies").collect() == [(0, 1)]
