"""The web application of a broker process: the permitted clients, and the answers to probes."""

import asyncio
import base64
import json
import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPException
from unittest.mock import patch

import pytest

from mqdb.errors import CannotListen, SettingInvalid
from mqdb.server import Server
from mqdb.settings import load_settings
from mqdb.web import guesses, web_server
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.proxy import Proxy
from tests.fixtures.web import ANY_PORT, get, scrape, wait_for_sample

PASSWORD = "geheim: ö%"


@pytest.fixture(scope="module")
def guarded(shared_database: Database) -> Iterator[Server]:
    """A broker process whose metrics need a password."""
    settings = load_settings(dsn=shared_database.dsn, http=ANY_PORT, web_password=PASSWORD)
    with pytest.MonkeyPatch.context() as patch, Server(settings) as server:
        patch.setattr(guesses, "_WAIT_SECONDS", 0)
        wait_until(lambda: server.is_leader)
        yield server


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_metrics_are_for_who_knows_the_password_and_probes_need_none(guarded: Server) -> None:
    bearer = f"Bearer {PASSWORD}".encode().decode("latin-1")
    wrong = ["", "Bearer", "Bearer x", basic("u", "x"), basic("u", ""), basic("u", PASSWORD + "x"), "Basic ~", PASSWORD]

    assert [get(guarded, "/metrics", Authorization=each).status for each in wrong] == [401] * len(wrong)
    for right in (basic("anybody", PASSWORD), basic("", PASSWORD), bearer):
        assert get(guarded, "/metrics", Authorization=right).status == 200
    assert get(guarded, "/healthz").status == 200
    wait_until(lambda: get(guarded, "/readyz").status == 200)
    assert get(guarded, "/elsewhere").status == 401


@pytest.mark.parametrize("version", ["1.0.0", "x", "9.x", ""])
def test_metrics_come_in_whatever_version_somebody_asks_for(guarded: Server, version: str) -> None:
    accept = f"application/openmetrics-text; version={version}"

    assert "mqdb_up" in scrape(guarded, Accept=accept, Authorization=basic("", PASSWORD))


def test_only_a_loopback_host_is_answered_on_loopback(guarded: Server) -> None:
    mine = ("localhost", "LOCALHOST:1", "127.0.0.1", "127.1.2.3:80", "[::1]:8090")
    others = ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "10.0.0.1", "", "[::1", "0.0.0.0")

    assert [get(guarded, "/healthz", Host=host).status for host in mine] == [200] * len(mine)
    assert [get(guarded, "/healthz", Host=host).status for host in others] == [403] * len(others)
    assert get(guarded, "/metrics", Host="evil.example", Authorization=basic("", PASSWORD)).status == 403


def test_beyond_loopback_any_host_is_answered_and_a_password_is_needed(database: Database) -> None:
    with pytest.raises(SettingInvalid, match=r"http = '0\.0\.0\.0:0' .*set web_password, or use 127\.0\.0\.1"):
        load_settings(dsn=database.dsn, http="0.0.0.0:0")

    with Server(load_settings(dsn=database.dsn, http="0.0.0.0:0", web_password=PASSWORD)) as server:
        assert get(server, "/healthz", Host="mqdb.example").status == 200
        assert get(server, "/metrics", Host="mqdb.example").status == 401


def test_metrics_are_for_viewers_and_for_persons_of_a_trusted_proxy(database: Database) -> None:
    proxy = {"web_user_header": "X-Person", "web_trusted_proxies": "127.0.0.2"}
    with Server(load_settings(dsn=database.dsn, http="0.0.0.0:0", **proxy)) as server:
        assert get(server, "/healthz", Host="mqdb.example").status == 200
        assert get(server, "/metrics", **{"X-Person": "ada"}).status == 403
    with Server(load_settings(dsn=database.dsn, http=ANY_PORT, web_viewer_password="v", **proxy)) as server:
        assert get(server, "/metrics", Authorization="Bearer v").status == 200
        assert get(server, "/metrics", **{"X-Person": "ada"}).status == 401
        assert get(server, "/metrics", source="127.0.0.2", **{"X-Person": "ada"}).status == 200
        assert get(server, "/metrics", source="127.0.0.2").status == 401


def test_an_address_that_is_taken_is_named(database: Database) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        server = Server(load_settings(dsn=database.dsn, http=address))

        with pytest.raises(CannotListen, match=rf"'{address}' \(from argument\): cannot listen there: .*in use"):
            server.start()


def test_who_opens_many_connections_takes_no_more_than_a_hundred_files(
    guarded: Server, caplog: pytest.LogCaptureFixture
) -> None:
    address = guarded.http_address
    assert address is not None
    with ExitStack() as stack:
        for _ in range(100):
            idle = stack.enter_context(socket.create_connection(address))
        # Open connections are still served, and each further connection is closed.
        idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle.recv(1_024).startswith(b"HTTP/1.1 200")
        more = stack.enter_context(socket.create_connection(address))
        with suppress(ConnectionResetError):
            assert more.recv(1) == b""

    wait_until(lambda: is_answered(guarded))
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def is_answered(server: Server) -> bool:
    """Whether the server accepts another connection."""
    with suppress(OSError, HTTPException):
        return get(server, "/healthz").status == 200
    return False


def test_a_connection_without_a_request_is_closed(guarded: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "_REQUEST_SECONDS", 0.1)
    assert guarded.http_address is not None
    with socket.create_connection(guarded.http_address, timeout=30) as slow:
        slow.sendall(b"GET /healthz HT")

        assert slow.recv(1) == b""


def failing(server: Server) -> list[str]:
    """The names of the failing checks of readiness."""
    names: list[str] = json.loads(get(server, "/readyz").body)["failing"]
    return names


def test_a_database_that_is_away_makes_a_process_unready_and_leaves_it_alive(proxy: Proxy) -> None:
    with Server(load_settings(dsn=proxy.dsn, http=ANY_PORT)) as server:
        wait_for_sample(server)
        assert get(server, "/readyz").status == 200

        proxy.cut()
        # While the process steps down, the failing check is leadership only.
        wait_until(lambda: failing(server) == ["database"])
        answer = get(server, "/readyz")
        assert answer.status == 503
        assert "127.0.0.1" not in answer.body
        assert get(server, "/healthz").status == 200
        found = scrape(server)
        assert (found["mqdb_up"], found["mqdb_leader"]) == (0, 0)

        proxy.restore()
        wait_until(lambda: get(server, "/readyz").status == 200)


def test_a_database_that_does_not_answer_counts_as_away(proxy: Proxy) -> None:
    with Server(load_settings(dsn=proxy.dsn, http=ANY_PORT)) as server:
        wait_for_sample(server)

        proxy.freeze()
        wait_until(lambda: failing(server) == ["database"])
        assert get(server, "/healthz").status == 200

        proxy.restore()


def test_a_process_that_stops_is_unready_first_and_alive(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(load_settings(dsn=database.dsn, http=ANY_PORT))
    seen: list[tuple[int, str]] = []
    stop_leadership = server._leadership.stop

    def stop() -> None:
        seen.extend((answer.status, answer.body) for answer in (get(server, "/readyz"), get(server, "/healthz")))
        stop_leadership()

    with server:
        wait_until(lambda: get(server, "/readyz").status == 200)
        monkeypatch.setattr(server._leadership, "stop", stop)

    (ready, body), (alive, _) = seen
    assert (ready, json.loads(body)["failing"], alive) == (503, ["process"], 200)
    assert server.http_address is None


def test_answers_on_a_connection_that_stays_do_not_wait_for_acknowledgements(guarded: Server) -> None:
    sockets = []
    connection_made = web_server._Protocol.connection_made

    def made(protocol: web_server._Protocol, transport: asyncio.Transport) -> None:
        connection_made(protocol, transport)
        sockets.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    with patch.object(web_server._Protocol, "connection_made", made):
        assert get(guarded, "/healthz").status == 200

    assert sockets != []
    assert 0 not in sockets
