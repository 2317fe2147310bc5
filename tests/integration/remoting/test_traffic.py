"""A front's statistics about its clients, in /metrics and probes, and traces of messages that passed through it."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import Connection

from mqdb.common.dsn import BrokerDsn
from mqdb.common.http_address import HttpAddress
from mqdb.fronts import front_thread as front_module
from mqdb.remoting.front import Front
from mqdb.remoting.session.connection import Connection as FrontConnection
from mqdb.remoting.session.metrics import TrafficCollector
from mqdb.remoting.session.traffic import Traffic
from mqdb.remoting.wire.answers import Answer
from mqdb.remoting.wire.codes import RequestCode
from mqdb.remoting.wire.frame import Frame, Serializer, encode_frame
from mqdb.server import Server, WebParts
from mqdb.serving import broker
from mqdb.settings import load_settings
from mqdb.web.durations import BOUNDS
from mqdb_client import Message
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.command_line import Place
from tests.fixtures.consumers import Inbox, Member
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import producer_of, refuse_appends
from tests.fixtures.proxy import Proxy
from tests.fixtures.remoting_client import PATIENCE_SECONDS, UNDISTURBED, Fronts, consumer, pulled
from tests.fixtures.spans import Spans, linked, trace_of
from tests.fixtures.web import ANY_PORT, scrape, series
from tests.integration.remoting.test_sends import SHORT_ID, header, properties, send

EVENTS = ("accepted", "refused", "invalid")

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

REQUESTS = "mqdb_remoting_requests_total"


def metrics(traffic: Traffic) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(TrafficCollector("b", "c", traffic))
    return series(generate_latest(registry).decode())


def requests(traffic: Traffic) -> dict[str, float]:
    """The number of finished requests by the names of request and response."""
    found = metrics(traffic).items()
    return {key.removeprefix(REQUESTS)[1:-1]: number for key, number in found if key.startswith(REQUESTS)}


# -- requests -------------------------------------------------------------------------------------


def test_requests_count_by_what_was_asked_and_answered(broker: Connection, fronts: Fronts) -> None:
    topic(broker)
    front = fronts.start()
    client = fronts.connect()

    for queue_id in (0, 0, 99):
        send(client, e=queue_id)
    client.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "absent"})
    client.request(RequestCode.PEEK_MESSAGE)
    for code in (9_998, 9_999):
        client.request(code)
    client.begin(RequestCode.SEND_MESSAGE_V2, header(b="no topic"), oneway=True)

    wait_until(lambda: requests(front.traffic).get("SEND_MESSAGE_V2,INVALID_PARAMETER") == 2)
    assert requests(front.traffic) == {
        "SEND_MESSAGE_V2,SUCCESS": 2,
        "SEND_MESSAGE_V2,INVALID_PARAMETER": 2,
        "GET_ROUTEINFO_BY_TOPIC,TOPIC_NOT_EXIST": 1,
        "PEEK_MESSAGE,REQUEST_CODE_NOT_SUPPORTED": 1,
        "OTHER,REQUEST_CODE_NOT_SUPPORTED": 2,
    }
    found = metrics(front.traffic)
    name = "mqdb_remoting_request_seconds"
    assert found[f"{name}_bucket{{+Inf,SEND_MESSAGE_V2}}"] == found[f"{name}_count{{SEND_MESSAGE_V2}}"] == 4
    assert 0 < found[f"{name}_sum{{SEND_MESSAGE_V2}}"] < PATIENCE_SECONDS


def test_a_held_pull_counts_when_it_is_answered_with_the_time_that_it_was_held(
    broker: Connection, fronts: Fronts
) -> None:
    route = topic(broker)
    traffic = fronts.start(UNDISTURBED).traffic
    client = fronts.connect()
    client.heartbeat("1.2.3.4@1", consumer(orders="*"))
    held = client.begin_pull("readers", "orders", 0, hold_ms=20_000)
    wait_until(lambda: metrics(traffic)["mqdb_remoting_held_pulls"] == 1)
    assert "PULL_MESSAGE,SUCCESS" not in requests(traffic)
    time.sleep(0.05)  # the least that the histogram has to say

    append(broker, route, "a")
    dispatch_all(broker)

    assert pulled(held.result(PATIENCE_SECONDS)).bodies == ["a"]
    found = metrics(traffic)
    assert (found["mqdb_remoting_held_pulls"], requests(traffic)["PULL_MESSAGE,SUCCESS"]) == (0, 1)
    assert found["mqdb_remoting_request_seconds_sum{PULL_MESSAGE}"] >= 0.05


def test_a_held_pull_whose_client_has_gone_is_held_no_more_and_counts_nowhere(
    broker: Connection, fronts: Fronts
) -> None:
    topic(broker)
    traffic = fronts.start().traffic
    client = fronts.connect()
    client.heartbeat("1.2.3.4@1", consumer(orders="*"))
    client.begin_pull("readers", "orders", 0, hold_ms=20_000)
    wait_until(lambda: traffic.held_pulls == 1)

    client.close()

    wait_until(lambda: (traffic.held_pulls, traffic.connections) == (0, 0))
    assert list(requests(traffic)) == ["HEART_BEAT,SUCCESS"]


def test_an_answer_that_cannot_be_written_counts_as_what_the_client_was_told() -> None:
    traffic = Traffic()

    async def answer() -> None:
        connection = FrontConnection(lambda *_: None, lambda _: None, lambda _: None, traffic)
        request = Frame(RequestCode.HEART_BEAT, serializer=Serializer.ROCKETMQ, heard_at=connection.heard_at)
        connection.answer(request, Answer(2**20))

    asyncio.run(answer())

    assert requests(traffic) == {"HEART_BEAT,SYSTEM_ERROR": 1}


def test_codes_that_strangers_choose_make_no_series() -> None:
    """Codes that clients choose freely create no metric series.

    This includes answer codes: a client may answer 307 and 309 with any code.
    """
    traffic = Traffic()
    for code in range(2_000_000, 2_000_100):
        traffic.ended(code, code, 0.0)
        traffic.ended(-code, -code, BOUNDS[-1] + 1)

    assert requests(traffic) == {"OTHER,OTHER": 200}
    assert metrics(traffic)["mqdb_remoting_request_seconds_bucket{10.0,OTHER}"] == 100


# -- connections ----------------------------------------------------------------------------------


def test_bytes_are_those_of_frames(fronts: Fronts) -> None:
    front = fronts.start()
    request = encode_frame(Frame(RequestCode.GET_BROKER_CLUSTER_INFO, opaque=1))
    with socket.create_connection((front.address.host, front.address.port), PATIENCE_SECONDS) as client:
        client.sendall(request)
        with client.makefile("rb") as stream:
            size = int.from_bytes(stream.read(4))
            stream.read(size)

    wait_until(lambda: front.traffic.connections == 0)
    found = metrics(front.traffic)
    assert found["mqdb_remoting_received_bytes_total"] == len(request)
    assert found["mqdb_remoting_sent_bytes_total"] == 4 + size


def test_connections_count_as_accepted_as_refused_and_as_closed_for_rubbish(
    broker: Connection, fronts: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_module, "_MOST_CONNECTIONS", 2)
    traffic = fronts.start().traffic
    first, second = fronts.connect(), fronts.connect()
    for each in (first, second):
        each.request(RequestCode.GET_BROKER_CLUSTER_INFO)
    with pytest.raises((ConnectionError, OSError)):
        fronts.connect().request(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert metrics(traffic)["mqdb_remoting_connections"] == 2

    second._socket.sendall((2**32 - 1).to_bytes(4))

    wait_until(lambda: traffic.connections == 1)
    events = {name: metrics(traffic)[f"mqdb_remoting_connection_events_total{{{name}}}"] for name in EVENTS}
    assert events == {"accepted": 2, "refused": 1, "invalid": 1}


# -- the broker -----------------------------------------------------------------------------------


def test_a_front_tells_of_refused_appends_and_outages_as_any_client(
    database: Database, broker: Connection, fronts: Fronts, proxy: Proxy
) -> None:
    topic(broker)
    registry = CollectorRegistry()
    registry.register(TrafficCollector("b", "c", Traffic()))

    def told(name: str) -> float | None:
        return series(generate_latest(registry).decode()).get(f"mqdb_client_{name}")

    front = Front(BrokerDsn("broker-a", proxy.dsn), HttpAddress("127.0.0.1", 0))
    front.start()
    client = fronts.connect(front)
    try:
        wait_until(lambda: told("broker_away") == 0)
        assert "mqdb_client_server_info" in generate_latest(registry).decode()
        refuse_appends(database)
        assert send(client).code != 0
        wait_until(lambda: told("refused_appends_total{53100}") is not None)

        proxy.cut()
        wait_until(lambda: told("broker_away") == 1)
        proxy.restore()
        wait_until(lambda: told("broker_away") == 0)
        assert told("outages_total") == 1
        assert (told("outage_seconds_total") or 0) > 0
    finally:
        front.stop()


# -- where it is told -----------------------------------------------------------------------------


def test_a_process_that_does_not_lead_tells_its_own_front(database: Database) -> None:
    settings = load_settings(dsn=database.dsn, http=ANY_PORT)
    with Server(settings) as leader:
        wait_until(lambda: leader.is_leader)
        with Server(settings, web=WebParts(metrics_of=[partial(TrafficCollector, traffic=Traffic())])) as standby:
            told, untold = scrape(standby), scrape(leader)

    assert (told["mqdb_leader"], told["mqdb_remoting_connections"]) == (0, 0)
    assert not [name for name in untold if "remoting" in name]


@pytest.mark.parametrize("command", [("serve",), ("remoting", "--http", ANY_PORT)])
def test_a_process_with_a_front_tells_its_traffic(
    tmp_path: Path, database: Database, broker: Connection, command: tuple[str, ...]
) -> None:
    environment = {"MQDB_HTTP": ANY_PORT, "MQDB_REMOTING": ANY_PORT}
    with Place(tmp_path, database.dsn).running(*command, **environment) as process:
        addresses = {}
        while "Ctrl-C" not in (line := process.line()):
            name, _, address = line.strip().partition(" ")
            addresses[name] = address.strip()
        host, port = addresses["remoting"].split(":")
        with socket.create_connection((host, int(port)), PATIENCE_SECONDS) as client:
            client.sendall(encode_frame(Frame(RequestCode.GET_BROKER_CLUSTER_INFO)))
            assert client.recv(1)
        wait_until(lambda: "mqdb_client_outages_total{" in page(addresses["metrics"]))
        found = series(page(addresses["metrics"]))
        probes = [page_in_time(addresses["metrics"].replace("metrics", name)) for name in ("healthz", "readyz")]
        code, errors = process.interrupt()

    assert found[f"{REQUESTS}{{GET_BROKER_CLUSTER_INFO,SUCCESS}}"] == 1
    assert (found["mqdb_client_outages_total"], found["mqdb_client_broker_away"]) == (0, 0)
    assert [json.loads(each)["status"] for each in probes] == ["ok", "ok"]
    assert [json.loads(each)["checks"]["remoting"] for each in probes] == ["ok", "ok"]
    assert (code, "Traceback" in errors) == (0, False)


def test_a_process_is_not_ready_while_its_front_starts_and_while_it_stops(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing: list[list[str]] = []
    server = Server(load_settings(dsn=database.dsn))

    @contextmanager
    def slow_front(*_: object, **__: object) -> Iterator[None]:
        wait_until(lambda: server.is_leader and server.health.database_answers())
        failing.append(server.health.readiness().failing)
        signal.raise_signal(signal.SIGTERM)
        yield
        failing.append(server.health.readiness().failing)

    monkeypatch.setattr(broker, "front_of", slow_front)
    broker.run(server, lambda front: None)

    assert failing == [["process"], ["process"]]


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
        return str(answer.read().decode())


def page_in_time(url: str) -> str:
    """The page of a probe, once it passes: the process prints its greeting a moment earlier."""
    pages: list[str] = []

    def has_passed() -> bool:
        with suppress(urllib.error.HTTPError):
            pages.append(page(url))
        return bool(pages)

    wait_until(has_passed)
    return pages[0]


def test_a_front_alone_is_ready_while_the_database_answers(
    proxy: Proxy, broker: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_module, "_ANSWER_SECONDS", 2.0)
    front = Front(BrokerDsn("broker-a", proxy.dsn), HttpAddress("127.0.0.1", 0))
    front.start()
    try:
        wait_until(lambda: front.readiness().has_passed)
        proxy.cut()
        wait_until(lambda: front.readiness().failing == ["database"])
        assert front.liveness().has_passed
        proxy.restore()
        wait_until(lambda: front.readiness().has_passed)
    finally:
        front.stop()
    assert front.readiness().failing


def test_a_front_whose_loop_is_stuck_is_not_alive(fronts: Fronts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_module, "_TURN_SECONDS", 0.05)
    monkeypatch.setattr(front_module, "_STUCK_SECONDS", 0.5)
    front = fronts.start()
    wait_until(lambda: front.liveness().has_passed)
    going_on = threading.Event()
    assert front._loop is not None

    front._loop.call_soon_threadsafe(going_on.wait)
    try:
        wait_until(lambda: not front.liveness().has_passed)
    finally:
        going_on.set()

    wait_until(lambda: front.liveness().has_passed)


def test_without_http_a_front_imports_no_library_of_the_web(database: Database, broker: Connection) -> None:
    statements = f"""
import sys
from mqdb.serving.front import front_of
from mqdb.settings import load_settings
with front_of(load_settings(remoting="127.0.0.1:0"), {database.dsn!r}) as front:
    assert front.readiness().has_passed
    print(*(name for name in ("starlette", "uvicorn", "prometheus_client") if name in sys.modules))
"""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MQDB_")}
    environment = clean | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", statements]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    assert (done.stdout, done.returncode) == ("\n", 0), done.stderr


# -- traces ---------------------------------------------------------------------------------------


def test_a_message_of_a_client_is_traced_and_shown_as_one_of_python(
    tmp_path: Path, broker: Connection, database: Database, fronts: Fronts
) -> None:
    topic(broker)
    send(fronts.connect(), i=properties(UNIQ_KEY=SHORT_ID))
    with producer_of(database.dsn) as producer:
        ids = [SHORT_ID, producer.send(Message("orders", "x")).message_id]
    dispatch_all(broker)
    place = Place(tmp_path, database.dsn)

    traces = [json.loads(place.done("message", "trace", each, "--json")) for each in ids]
    shown = [json.loads(place.done("message", "show", each, "--json")) for each in ids]

    assert [each["message_id"] for each in traces] == [each["message_id"] for each in shown] == ids
    assert [[copy["topic"] for copy in each["copies"]] for each in traces] == [["orders"]] * 2
    assert shown[0]["born_host"].startswith("127.0.0.1:")
    assert shown[1]["born_host"]


def test_a_context_of_a_client_goes_on_in_a_consumer_of_python(
    broker: Connection, fronts: Fronts, member: Member, spans: Spans
) -> None:
    topic(broker)
    assert send(fronts.connect(), i=properties(UNIQ_KEY=SHORT_ID, traceparent=TRACEPARENT)).code == 0

    inbox = Inbox()
    member(inbox)
    [processed] = spans.wait_for("process")

    _, trace_id, span_id, _ = TRACEPARENT.split("-")
    assert [f"{trace_of(processed):032x}", *linked(processed)] == [trace_id, int(span_id, 16)]
