"""The front for RocketMQ 5's SDKs in processes: `mqdb serve` and `mqdb grpc` are interrupted and killed."""

import json
import signal
import urllib.request
from pathlib import Path

import pytest
from sqlalchemy import Connection

from mqdb.common.http_address import parse_http_address
from mqdb.grpc.wire import rocketmq_pb2 as pb
from tests.fixtures.broker import dispatch_all, topic
from tests.fixtures.command_line import Place, Running
from tests.fixtures.grpc_client import PATIENCE_SECONDS, GrpcFronts, subscription, texts
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until

ANY_PORT = "127.0.0.1:0"
Code = pb.Code


def addresses(process: Running) -> dict[str, str]:
    """The addresses that a process prints before the line with "Ctrl-C", by service."""
    found = {}
    while "Ctrl-C" not in (line := process.line()):
        name, _, address = line.strip().rpartition(" ")
        found[name.strip()] = address
    return found


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
        text: str = answer.read().decode()
        return text


@pytest.mark.parametrize("command", [("serve",), ("grpc", "--http", ANY_PORT)])
def test_a_process_serves_sdks(
    tmp_path: Path, database: Database, broker: Connection, grpc_fronts: GrpcFronts, command: tuple[str, ...]
) -> None:
    topic(broker, "orders")
    environment = {"MQDB_HTTP": ANY_PORT, "MQDB_GRPC": ANY_PORT, "MQDB_GRPC_TLS": ANY_PORT}
    with Place(tmp_path, database.dsn).running(*command, **environment) as process:
        found = addresses(process)
        client = grpc_fronts.connect(address=parse_http_address(found["grpc"]))
        sent = client.send("orders", "x")
        checks = json.loads(page(found["metrics"].replace("metrics", "healthz")))["checks"]
        wait_until(lambda: "mqdb_client_outages_total{" in page(found["metrics"]))  # its first sample
        metrics = page(found["metrics"])
        code, errors = process.interrupt()

    assert sent.status.code == Code.OK
    assert checks["grpc"] == "ok"
    assert 'call="SendMessage",cluster="DefaultCluster",code="OK"} 1.0' in metrics
    assert found["grpc TLS"] != found["grpc"]
    assert (code, "Traceback" in errors) == (0, False)


def test_what_a_killed_process_had_given_out_is_acknowledged_through_another(
    tmp_path: Path, database: Database, broker: Connection, grpc_fronts: GrpcFronts
) -> None:
    topic(broker, "orders")
    with Place(tmp_path, database.dsn).running("grpc", MQDB_GRPC=ANY_PORT) as process:
        address = parse_http_address(addresses(process)["grpc"])
        client = grpc_fronts.connect(address=address)
        client.telemetry().ask(subscription("workers", orders="*"))
        client.send("orders", *map(str, range(10)))
        dispatch_all(broker)
        got = client.receive("workers", "orders", most=5, auto_renew=True)
        process.end(signal.SIGKILL)
    front = grpc_fronts.start(port=address.port)

    other = grpc_fronts.connect(front=front)

    assert len(got) == 5
    assert other.ack("workers", "orders", *got) == [Code.OK] * 5
    rest = other.receive("workers", "orders")
    assert len(rest) == 5
    assert {*texts(got), *texts(rest)} == set(map(str, range(10)))
