"""Metrics of clients during a real outage, and after refusals."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from mqdb.common.message import Message
from mqdb.errors import StorageRefused
from mqdb_client.metrics import MetricsHook
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import producer_of
from tests.fixtures.proxy import Proxy
from tests.fixtures.web import series


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture(autouse=True)
def hook(registry: CollectorRegistry) -> MetricsHook:
    return MetricsHook(registry)


def said(registry: CollectorRegistry) -> dict[str, float]:
    return series(generate_latest(registry).decode())


def test_a_client_without_its_broker_says_so(registry: CollectorRegistry, database: Database, proxy: Proxy) -> None:
    timeline = database.rows("SELECT timeline_id::text FROM pg_control_checkpoint()")[0][0]
    with producer_of(proxy.dsn):
        wait_until(lambda: said(registry).get("mqdb_client_broker_away") == 0)
        servers = {name for name in said(registry) if "server_info" in name}
        assert len(servers) == 1
        assert servers.pop().endswith(f",{timeline}}}")
        assert said(registry)["mqdb_client_outages_total"] == 0

        proxy.cut()
        wait_until(lambda: said(registry)["mqdb_client_broker_away"] == 1)
        at_first = said(registry)["mqdb_client_outage_seconds_total"]
        wait_until(lambda: said(registry)["mqdb_client_outage_seconds_total"] > at_first)
        proxy.restore()
        wait_until(lambda: said(registry)["mqdb_client_broker_away"] == 0)

        assert said(registry)["mqdb_client_outages_total"] == 1


def test_appends_that_postgresql_refuses_count_by_sqlstate(registry: CollectorRegistry, database: Database) -> None:
    connection = database.connect()
    create_topic(connection, "orders")
    connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$"
        "BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = '53100'; END $$"
    )
    with producer_of(database.dsn, retry_times_when_send_failed=1) as producer:
        producer.send(Message("orders", b"x"))
        connection.execute("CREATE TRIGGER refuse BEFORE INSERT ON mqdb.commit_log EXECUTE FUNCTION refuse()")
        with pytest.raises(StorageRefused):
            producer.send(Message("orders", b"x"))

    # Told when the client closes: nobody has to wait for the next look.
    refused = {name: value for name, value in said(registry).items() if "refused_appends_total" in name}
    assert refused == {"mqdb_client_refused_appends_total{53100}": 2}
