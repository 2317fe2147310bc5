"""A pipeline on Spark: the delays of flights by day, airport and airline, from a topic to a topic and to Parquet.

    flights.parquet ──▶ topic flights ──▶ streaming read with a selector ──▶ a day's average ──▶ topic flight_delays
     336,776 flights     (batch sink)      arr_delay IS NOT NULL AND ...      by airport, airline   └▶ Parquet

The pipeline needs only `pip install "mqdb[spark]"` and Java 17 or newer:

    python examples/flights_pipeline.py                  # with an embedded PostgreSQL
    python examples/flights_pipeline.py --flights 20000
    python examples/flights_pipeline.py --dsn postgresql://...

Kill the pipeline at any time and run it again: it continues from its checkpoints, and neither a flight nor an average
is stored twice. At the end PostgreSQL computes the same averages in SQL from the messages, and both have to be equal.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Final, NamedTuple

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Table

from mqdb_client import Admin, Settings, default_home
from mqdb_client.server import Server
from mqdb_client.spark import session

FLIGHTS: Final = "flights"
DELAYS: Final = "flight_delays"

#: This topic gets a message for each run. Spark emits a finished day one batch after the batch that ends the day, and
#: after a restart it runs a batch only if there are new messages. Without this message, the next run after a kill
#: between the two batches would not emit the day.
RUNS: Final = "flight_runs"

QUEUES: Final = 8

#: The flights of 2013 from New York in the order of their scheduled departure; the README beside the file has more.
DATA: Final = Path(__file__).parent / "data" / "flights.parquet"
ALL_FLIGHTS: Final = 336_776

#: PostgreSQL evaluates the selector: cancelled flights and short hops never reach Spark.
SELECTOR: Final = "arr_delay IS NOT NULL AND distance >= 500"
FLIGHT: Final = "scheduled_departure timestamp, origin string, carrier string, arr_delay int"

#: A day begins at midnight in New York, standard time. It is over when a flight has departed 12 hours after its end.
DAY, DAY_BEGINS, LATENESS = "1 day", "5 hours", "12 hours"
TIME: Final = "yyyy-MM-dd'T'HH:mm:ssX"

#: A micro-batch of this size takes about two seconds. A crash undoes at most one micro-batch.
BATCH: Final = 50_000

#: Queries for both sides of the check, with rows of the same shape. The first query repeats the pipeline in SQL.
COMPUTED: Final = """
WITH flown AS (
    SELECT text::jsonb AS flight, date_bin(%(day)s, (text::jsonb ->> 'scheduled_departure')::timestamptz,
                                           timestamptz '2013-01-01T00:00Z' + %(day_begins)s::interval) AS day
    FROM mqdb.message
    WHERE topic = %(topic)s AND properties ? 'arr_delay' AND (properties ->> 'distance')::integer >= 500
), watermark AS (
    SELECT max((flight ->> 'scheduled_departure')::timestamptz) - %(lateness)s::interval AS reached FROM flown
)
SELECT (day AT TIME ZONE 'UTC')::date, flight ->> 'origin', flight ->> 'carrier', count(*),
       round(avg((flight ->> 'arr_delay')::integer), 2)::double precision,
       day + %(day)s::interval <= (SELECT reached FROM watermark)
FROM flown GROUP BY day, 2, 3
"""
STORED: Final = """
SELECT (body ->> 'day')::date, body ->> 'origin', body ->> 'carrier', (body ->> 'flights')::bigint,
       (body ->> 'average_delay')::double precision
FROM (SELECT text::jsonb AS body FROM mqdb.message WHERE topic = %(topic)s) delays
"""


class Average(NamedTuple):
    """The average delay of an airline's flights from an airport on a day, in minutes."""

    day: date
    origin: str
    carrier: str
    flights: int
    average_delay: float


class Result(NamedTuple):
    """The averages that the pipeline has stored, and those that SQL computes from the same messages."""

    in_topic: list[Average]
    in_parquet: list[Average]
    computed: list[Average]
    #: The averages of days that are not over. Spark emits these averages when later flights arrive.
    still_open: list[Average]

    @property
    def differences(self) -> int:
        """The number of averages that are only in one of two compared results."""
        computed = Counter(self.computed)
        return sum(
            ((computed - stored) + (stored - computed)).total()
            for stored in (Counter(self.in_topic), Counter(self.in_parquet))
        )


# -- the pipeline -------------------------------------------------------------------------------


def send_flights(spark: SparkSession, dsn: str, number: int) -> None:
    """Write flights to their topic, all or nothing. Because of `writeId`, a second call changes nothing."""
    # One task, so that each queue holds its flights in the order of departure.
    flights = spark.read.parquet(str(DATA)).limit(number).coalesce(1)
    numbers = [f.col(name).cast("string").alias(name) for name in ("arr_delay", "distance")]
    messages = flights.select(
        f.to_json(f.struct("*"), {"timestampFormat": TIME}).alias("body"),
        f.col("carrier").alias("tags"),
        f.concat_ws(" ", f.concat("carrier", "flight"), "tailnum").alias("keys"),
        f.to_json(f.struct("origin", "dest", *numbers)).alias("properties"),
    )
    sink = messages.write.format("mqdb").mode("append").option("url", dsn)
    sink.option("topic", FLIGHTS).option("writeId", f"{FLIGHTS}-2013").save()


def average_delays(spark: SparkSession, dsn: str) -> DataFrame:
    """The average delays by day, airport and airline, for all days that are over."""
    stream = spark.readStream.format("mqdb").option("url", dsn).option("subscribe", f"{FLIGHTS},{RUNS}")
    stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", BATCH)
    messages = stream.option("selector", SELECTOR).option("columns", "body").load()
    flights = messages.select(f.from_json(f.col("body").cast("string"), FLIGHT).alias("flight")).select("flight.*")
    day = f.window("scheduled_departure", DAY, DAY, DAY_BEGINS)
    return (
        flights.withWatermark("scheduled_departure", LATENESS)
        .groupBy(day.alias("day"), "origin", "carrier")
        .agg(f.count("*").alias("flights"), f.round(f.avg("arr_delay"), 2).alias("average_delay"))
        .withColumn("day", f.to_date("day.start"))
    )


def start_queries(delays: DataFrame, dsn: str, home: Path, output: Path) -> list[StreamingQuery]:
    """Start a query to the topic and a query to Parquet. Each continues from its checkpoint, and ends after it has read
    all present messages.
    """
    messages = delays.select(
        f.to_json(f.struct("*")).alias("body"),
        f.col("carrier").alias("tags"),
        f.concat_ws("-", "origin", "carrier").alias("keys"),
    )
    to_topic = messages.writeStream.format("mqdb").option("url", dsn).option("topic", DELAYS)
    to_parquet = delays.writeStream.format("parquet").option("path", str(output))
    return [
        each.option("checkpointLocation", str(home / "checkpoints" / name))
        .queryName(name)
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
        for name, each in (("to_topic", to_topic), ("to_parquet", to_parquet))
    ]


def run(spark: SparkSession, dsn: str, home: Path, output: Path, number: int, say: Callable[[str], None]) -> Result:
    """Run the whole pipeline once. `dsn` names a single broker. Use a separate `home` for each database."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    with psycopg.connect(dsn, autocommit=True) as connection, timed() as seconds:
        make_topics(dsn)
        send_flights(spark, dsn, number)
        connection.execute("SELECT mqdb.send(%s, 'started')", (RUNS,))
        wait_for_offsets(connection)
        say(f"{count(connection, FLIGHTS):,} flights are in topic {FLIGHTS}: {seconds():.1f} s")
    with psycopg.connect(dsn, autocommit=True) as connection, timed() as seconds:
        queries = start_queries(average_delays(spark, dsn), dsn, home, output)
        for query in queries:
            query.awaitTermination()
        wait_for_offsets(connection)
        batches = sum(each["numInputRows"] > 0 for query in queries for each in query.recentProgress)
        say(f"{count(connection, DELAYS):,} averages are in topic {DELAYS}: {seconds():.1f} s, {batches} micro-batches")
        return check(spark, connection, output)


def make_topics(dsn: str) -> None:
    """Create the topics. Existing topics are not changed."""
    with Admin(dsn) as admin:
        for topic in (FLIGHTS, DELAYS, RUNS):
            admin.topics.create(topic, queues=QUEUES)


def wait_for_offsets(connection: psycopg.Connection) -> None:
    """Return when all messages stored so far have queue offsets and can be read, after a few milliseconds."""
    # `mqdb serve` dispatches anyway, but any session may also call dispatch.
    while (outcome := connection.execute("SELECT outcome FROM mqdb.dispatch(50000)").fetchone()) != ("IDLE",):
        if outcome == ("LOCKED",):
            time.sleep(0.02)


# -- the check ----------------------------------------------------------------------------------


def check(spark: SparkSession, connection: psycopg.Connection, output: Path) -> Result:
    """Read both results back, and compute the averages again in SQL."""
    stored = connection.execute(STORED, {"topic": DELAYS})
    in_topic = [Average(*row) for row in stored]
    in_parquet = [Average(*row) for row in spark.read.parquet(str(output)).select(*Average._fields).collect()]
    values = {"topic": FLIGHTS, "day": DAY, "day_begins": DAY_BEGINS, "lateness": LATENESS}
    computed = connection.execute(COMPUTED, values).fetchall()
    return Result(
        in_topic,
        in_parquet,
        [Average(*row) for *row, is_over in computed if is_over],
        [Average(*row) for *row, is_over in computed if not is_over],
    )


def count(connection: psycopg.Connection, topic: str) -> int:
    """The number of readable messages in a topic."""
    (number,) = connection.execute("SELECT count(*) FROM mqdb.message WHERE topic = %s", (topic,)).fetchone() or (0,)
    return int(number)


# -- what it prints -----------------------------------------------------------------------------


def show(result: Result, console: Console) -> None:
    """Print a line for each airport, and the result of the check."""
    table = Table("from", "flights", "average delay", "best airline", "worst airline", "worst day", box=None)
    for column in table.columns[1:3]:
        column.justify = "right"
    for origin in sorted({each.origin for each in result.in_topic}):
        mine = [each for each in result.in_topic if each.origin == origin]
        carriers = ranked(mine, lambda each: each.carrier)
        days = ranked(mine, lambda each: each.day)
        flights, delay = total(mine)
        table.add_row(origin, f"{flights:,}", f"{delay:+.1f} min", *map(named, (carriers[0], carriers[-1], days[-1])))
    console.print(table)
    flights, _ = total(result.computed)
    waiting, _ = total(result.still_open)
    verdict = "equal" if result.differences == 0 else f"DIFFER from in {result.differences:,} places"
    console.print(f"{len(result.in_topic):,} averages of {flights:,} flights {verdict} those computed in SQL")
    console.print(f"{waiting:,} flights wait in the state for the end of their day")


def total(averages: Sequence[Average]) -> tuple[int, float]:
    """The total number of flights in these averages, and their average delay."""
    flights = sum(each.flights for each in averages)
    return flights, sum(each.flights * each.average_delay for each in averages) / max(flights, 1)


def ranked(averages: Sequence[Average], key: Callable[[Average], object]) -> list[tuple[object, float]]:
    """Groups with their average delay, lowest first, without groups of less than a thousandth of the flights."""
    groups: dict[object, list[Average]] = {}
    for each in averages:
        groups.setdefault(key(each), []).append(each)
    least = total(averages)[0] / 1000
    totals = [(group, *total(members)) for group, members in groups.items()]
    return sorted(((group, delay) for group, flights, delay in totals if flights >= least), key=lambda each: each[1])


def named(group: tuple[object, float]) -> str:
    """The text for a group and its delay."""
    return f"{group[0]} {group[1]:+.1f}"


@contextmanager
def timed() -> Iterator[Callable[[], float]]:
    """Yields a function that returns the seconds since the start of the block."""
    began = time.perf_counter()
    yield lambda: time.perf_counter() - began


# -- the program --------------------------------------------------------------------------------


def main() -> int:
    """Run the pipeline and show the result; returns 1 if an average differs, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dsn", help="a database with mqdb, postgresql://...; default: embedded")
    parser.add_argument("--flights", type=int, default=ALL_FLIGHTS, metavar="N", help="send only the first N flights")
    parser.add_argument("--home", type=Path, default=default_home() / "flights-pipeline", help="for checkpoints")
    parser.add_argument("--output", type=Path, help="directory of the Parquet files; default: in the home")
    given = parser.parse_args()
    if given.flights < 1:
        parser.error("--flights must be at least 1")

    console = Console(highlight=False, soft_wrap=True)
    home = given.home.expanduser().resolve()
    output = (given.output or home / DELAYS).expanduser().resolve()
    # A broker process inside this process. If `mqdb serve` already runs on the DSN, this broker only stands by.
    broker = Server(Settings(dsn=given.dsn, home=home / "broker"))
    with broker, session("flights pipeline") as spark:
        # Streams with a state run without adaptive execution, and Spark logs a warning each time.
        spark.sparkContext.setLogLevel("ERROR")
        result = run(spark, broker.dsn, home, output, given.flights, console.print)
    show(result, console)
    return 0 if result.differences == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
