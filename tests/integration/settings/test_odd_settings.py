"""All operations once, in a database or as a role whose sessions begin with odd settings.

No mqdb session depends on these settings. The SQL functions and views of mqdb, which run in sessions of others, do not
depend on them either.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from psycopg import sql
from pyspark.sql.types import StructType

from mqdb.broker.doctor.finding import FindingStatus
from mqdb.pipeline.jobs.statistics_source import StatisticsSource
from mqdb.pipeline.read import engines
from mqdb_client import Admin, Message, TransactionProducer
from tests.fixtures.consuming import LATER, OWNERS, starting
from tests.fixtures.dashboard import Site, paths, serving_site
from tests.fixtures.odd_settings import ALONE, TOGETHER, Level, set_odd
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.remoting_client import Fronts, consumer
from tests.fixtures.spark_sink import write
from tests.fixtures.spark_source import bodies, read
from tests.fixtures.transactions import COMMIT, UNKNOWN, Asked

SENT: Final = {"sent", "joined", "one", "two", "delayed", "timed", "half", "in sql", "in sql, timed", "cron", "spark"}

#: Text in which a backslash and a NULL are no special characters.
ODD_NAME: Final = "a\\b 'NULL'"


def variants() -> Iterator[Any]:
    """Level, settings, and whether clients treat their sessions as a pooler's, in which they set nothing."""
    yield pytest.param("role", TOGETHER["one"], True, id="role-one-pooled")
    yield pytest.param("database", TOGETHER["two"], False, id="database-two")
    for level in ("role", "database"):
        for name, settings in TOGETHER.items():
            for is_pooled in (False, True):
                name = f"all-{level}-{name}-{is_pooled}"
                yield pytest.param(level, settings, is_pooled, id=name, marks=pytest.mark.long)
    for name, value in ALONE:
        # Behind a pooler the time-outs of the role hold.
        is_pooled = not name.endswith("_timeout")
        yield pytest.param("role", {name: value}, is_pooled, id=f"{name}-{value}", marks=pytest.mark.long)


@pytest.fixture
def fronts(database: Database) -> Iterator[Fronts]:
    fronts = Fronts(database)
    yield fronts
    fronts.close()
    engines.close_idle()


@pytest.mark.parametrize(("level", "settings", "is_pooled"), list(variants()))
def test_a_round_of_everything(
    database: Database,
    tmp_path: Path,
    fronts: Fronts,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    level: Level,
    settings: Mapping[str, str],
    is_pooled: bool,
) -> None:
    set_odd(database, level, settings)
    if is_pooled:
        monkeypatch.setenv("MQDB_POOL_DSN", f"{database.dsn}&application_name=pooled")
    half = Asked(UNKNOWN, COMMIT)
    quick = {"transaction_timeout": "100ms", "transaction_check_interval": "100ms"}

    with (
        serving_site(database, message_delay_level="1s", **quick) as site,
        TransactionProducer("senders", database.dsn, listener=half) as producer,
    ):
        _send(database, producer)
        _send_in_sql(database)
        write(database, {"body": ["spark"], "deliver_at": [datetime.now(UTC)]}, topic="orders")
        _consume(database, tmp_path)
        assert "half" in {check.body.decode() for check in half.checks}
        _look(site)
        _read_by_the_front(fronts)
        _read_by_spark(database)

    assert [each.getMessage() for each in caplog.records if "fail" in each.getMessage()] == []


def _send(database: Database, producer: TransactionProducer) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=0.5)
    producer.send(Message("orders", "sent", "new", keys="k1 k3", properties={"price": "1.25e1", "name": ODD_NAME}))
    producer.send_batch([Message("orders", "one", "new"), Message("orders", "two", keys="k2")])
    producer.send(Message("orders", "delayed", delay_level=1))
    producer.send(Message("orders", "timed", deliver_at=soon))
    producer.send_in_transaction(Message("orders", "half"))
    with psycopg.connect(database.dsn, client_encoding="utf8") as connection:
        producer.send(Message("orders", "joined"), connection=connection)
        batch = [Message("payments", "j1"), Message("payments", "j2", "t", keys="k")]
        producer.send_batch(batch, connection=connection)
        stored = connection.execute("SELECT tags, keys FROM mqdb.commit_log WHERE body IN ('j1', 'j2') ORDER BY body")
        assert stored.fetchall() == [(None, None), ("t", "k")]


def _send_in_sql(database: Database) -> None:
    """Send like an application whose sessions have the odd settings, except that they continue after an error."""
    options = "-c client_encoding=utf8 -c exit_on_error=off"
    with psycopg.connect(database.dsn, autocommit=True, options=options) as connection:
        connection.execute("SELECT mqdb.send('orders', 'in sql'::text, 'new', properties => '{\"price\": \"0x1p4\"}')")
        connection.execute(
            "SELECT mqdb.send('orders', 'in sql, timed'::text, deliver_at => mqdb.now() + make_interval(secs => 0.5))"
        )
        connection.execute("UPDATE mqdb.cron SET next_at = mqdb.now(), body = 'cron' WHERE name = 'nightly'")
        connection.execute("SELECT mqdb.add_segment(1000)")
        for bad in ("a\x01b", " ", "\x01"):
            with pytest.raises(psycopg.Error) as refused:
                connection.execute(
                    "SELECT mqdb.send('orders', 'x'::text, properties => %s)", [json.dumps({"name": bad})]
                )
            assert refused.value.sqlstate == "MQ105"
        views = "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace('mqdb') AND relkind = 'v'"
        for (view,) in connection.execute(views.encode()).fetchall():
            connection.execute(sql.SQL("SELECT count(t::text) FROM mqdb.{} t").format(sql.Identifier(view)))
        for number, double in {"1.5": 1.5, "1x5": None, "0x1.8p1": 3.0, "0x1y8p1": None}.items():
            [found] = connection.execute("SELECT mqdb.java_any_double(%s)", [number], binary=True).fetchone() or [0]
            assert found == double


def _consume(database: Database, directory: Path) -> None:
    with starting(database.dsn, directory) as start:

        def answer(body: str) -> Any:
            return LATER[False] if body == "first" else None

        consuming = [
            start(way, answer if "orderly" not in way else lambda _: None, group=f"group{n}", max_reconsume_times=1)
            if way != "lite pull"
            else start(way, group=f"group{n}")
            for n, way in enumerate(OWNERS)
        ]
        wait_until(lambda: all(set(each.bodies()) >= SENT for each in consuming))
        with Admin(database.dsn) as admin:
            wait_until(lambda: "group0" in {each.group for each in admin.dead_letters.groups()})


def _look(site: Site) -> None:
    visitor = site.visitor()
    for path in paths(site):
        visitor.page(path)
    with Admin(site.database.dsn) as admin:
        assert [each for each in admin.doctor.examine() if each.status is FindingStatus.UNKNOWN] == []


def _read_by_the_front(fronts: Fronts) -> None:
    client = fronts.connect()
    assert client.heartbeat("1.2.3.4@1", consumer(orders="sql:price > 1.5")).code == 0
    found = [client.pull("readers", "orders", 0, queue_id, expression=("SQL92", "price > 1.5")) for queue_id in (0, 1)]
    assert {body for each in found for body in each.bodies} == {"sent", "in sql"}


def _read_by_spark(database: Database) -> None:
    name = ODD_NAME.replace("'", "''")
    selector = f"name = '{name}' AND price BETWEEN 12.4 AND 12.6"
    for engine in ("adbc", "psycopg"):
        assert set(bodies(read(database, engine=engine))) >= SENT
        assert bodies(read(database, engine=engine, selector=selector)) == ["sent"]
    source = StatisticsSource({"url": database.dsn, "topics": json.dumps(["orders"])}).reader(StructType())
    assert sum(row[4] for task in source.partitions() for row in source.read(task)) >= len(SENT)
