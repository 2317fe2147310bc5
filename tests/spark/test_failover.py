"""A streaming query of format("mqdb") while its server dies and the synchronous standby takes over."""

import random
import sys
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from mqdb.embedded import EmbeddedPostgres
from mqdb.store.engine import connected
from mqdb.store.topics.topics import find_topic
from tests.fixtures.broker import bodies
from tests.fixtures.clusters import home_with_cluster
from tests.fixtures.faults import kill_server
from tests.fixtures.history import QUEUES, Past
from tests.fixtures.postgres import superuser_dsn
from tests.fixtures.processes import wait_until
from tests.fixtures.proxy import Proxy
from tests.fixtures.spark_sink import stored
from tests.fixtures.standby import Standby

MESSAGES = 400


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("run", range(3))
def test_a_stream_goes_on_at_the_standby(spark: SparkSession, tmp_path: Path, run: int) -> None:
    seed = random.randrange(1_000_000)
    with (
        home_with_cluster() as home,
        EmbeddedPostgres(home, durable=False) as primary,
        Proxy(superuser_dsn(primary)) as way,
    ):
        standby = Standby(primary, way)
        standby.create()
        standby.start()
        standby.make_synchronous()
        with psycopg.connect(superuser_dsn(primary, "mqdb"), autocommit=True) as connection:
            connection.execute("ALTER DATABASE mqdb SET synchronous_commit = 'on'")
        past = Past(primary)
        for name in ("orders", "copies"):
            past.create_topic(name)
        past.log_stage()
        sent = [f"{number:03}" for number in range(MESSAGES)]
        past.store(*sent)
        orders = spark.readStream.format("mqdb").options(url=past.dsn, subscribe="orders", startingOffsets="earliest")
        writer = orders.option("maxOffsetsPerTrigger", "20").load().select("body").writeStream.format("mqdb")
        query = writer.options(url=past.dsn, topic="copies", checkpointLocation=str(tmp_path)).start()

        some = random.Random(seed).randrange(20, MESSAGES - 100)
        wait_until(lambda: len(copies(past)) >= some, 60)
        kill_server(primary)
        standby.promote_in_place_of(primary)
        wait_until(lambda: len(copies(past)) >= MESSAGES or not query.isActive, 120)

        sys.stdout.write(f"seed {seed}: the server died after {some} messages\n")
        assert (query.isActive, query.exception()) == (True, None)
        query.stop()
        assert sorted(copies(past)) == sent


def copies(past: Past) -> list[str]:
    """The messages in the copied topic."""
    with connected(past.dsn, "test") as connection:
        route = find_topic(connection, "copies")
        assert route is not None
        return [body for queue_id in range(QUEUES) for body in bodies(stored(connection, route, queue_id))]
