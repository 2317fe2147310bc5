"""A front's socket: TLS and plain connections on one port, garbage, many clients, and a front that stops."""

import asyncio
import gc
import logging
import resource
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sized
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from sqlalchemy import Connection, text

from mqdb.common.dsn import BrokerDsn
from mqdb.common.http_address import HttpAddress
from mqdb.errors import BrokerUnavailable
from mqdb.fronts import front_thread as front_module
from mqdb.remoting import front as remoting_front
from mqdb.remoting.front import Front
from mqdb.remoting.session import connection as connection_module
from mqdb.remoting.session import members
from mqdb.remoting.session.connection import MAX_FRAME_BYTES
from mqdb.remoting.session.connection import Connection as FrontConnection
from mqdb.remoting.session.held_memory import HeldMemory
from mqdb.remoting.session.listener import Tls
from mqdb.remoting.wire.answers import Answer, refusal
from mqdb.remoting.wire.codes import RequestCode
from mqdb.remoting.wire.frame import Frame, decode_frame, encode_frame
from tests.fixtures.broker import topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.remoting_client import PATIENCE_SECONDS, Fronts, RemotingClient, consumer
from tests.integration.remoting.test_sends import header, properties, send

ROUTE = Frame(RequestCode.GET_BROKER_CLUSTER_INFO, opaque=1)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    folder = tmp_path_factory.mktemp("tls")
    files = Tls(folder / "certificate.pem", folder / "key.pem")
    command = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    names = ("-subj", "/CN=localhost", "-keyout", str(files.key), "-out", str(files.certificate))
    subprocess.run((*command, *names), check=True, capture_output=True)
    return files


def front_with(database: Database, tls: Tls) -> Iterator[Front]:
    front = Front(BrokerDsn("broker-a", database.dsn), HttpAddress("127.0.0.1", 0), tls=tls)
    front.start()
    yield front
    front.stop()


@pytest.fixture
def secure(database: Database, certificate: Tls) -> Iterator[Front]:
    """A front that also accepts TLS."""
    yield from front_with(database, certificate)


@pytest.fixture
def strict(database: Database, certificate: Tls) -> Iterator[Front]:
    """A front that accepts only TLS."""
    yield from front_with(database, certificate._replace(is_required=True))


def ask(front: Front, tls: Tls | None) -> Frame:
    """Request the cluster. Raises OSError if the connection is closed."""
    with socket.create_connection((front.address.host, front.address.port), PATIENCE_SECONDS) as plain:
        context = None if tls is None else ssl.create_default_context(cafile=str(tls.certificate))
        client = plain if context is None else context.wrap_socket(plain, server_hostname="localhost")
        with client, client.makefile("rb") as stream:
            client.sendall(encode_frame(ROUTE))
            size = stream.read(4)
            if not size:
                raise ConnectionError("closed")
            return decode_frame(stream.read(int.from_bytes(size)))


def test_one_port_takes_clients_with_tls_and_without(secure: Front, certificate: Tls) -> None:
    assert ask(secure, certificate).code == 0
    assert ask(secure, None).code == 0


def test_a_front_may_want_tls_only(strict: Front, certificate: Tls) -> None:
    assert ask(strict, certificate).code == 0
    with pytest.raises(ConnectionError):
        ask(strict, None)


def test_a_file_that_is_no_certificate_stops_the_start(database: Database, tmp_path: Path, broker: Connection) -> None:
    file = tmp_path / "certificate.pem"
    file.write_text("no certificate")
    front = Front(BrokerDsn("broker-a", database.dsn), HttpAddress("127.0.0.1", 0), tls=Tls(file, file))

    with pytest.raises(ssl.SSLError):
        front.start()


def test_who_says_nothing_or_half_a_frame_keeps_nobody_waiting(secure: Front, certificate: Tls) -> None:
    with socket.create_connection((secure.address.host, secure.address.port)) as silent:
        assert ask(secure, certificate).code == 0
        silent.sendall(b"\x16")  # TLS that does not come
        assert ask(secure, None).code == 0


def test_connections_beyond_the_limit_are_refused_until_another_ends(
    broker: Connection, fronts: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_module, "_MOST_CONNECTIONS", 2)
    first, second = fronts.connect(), fronts.connect()
    assert [each.request(ROUTE.code).code for each in (first, second)] == [0, 0]

    with pytest.raises((ConnectionError, OSError)):
        fronts.connect().request(ROUTE.code)

    first.close()
    wait_until(lambda: is_served(fronts))


def test_connections_leave_files_for_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(1_024, 4_096), (1_048_576, 1_048_576), (resource.RLIM_INFINITY, resource.RLIM_INFINITY)]

    def most(limit: tuple[int, int]) -> int:
        monkeypatch.setattr(resource, "getrlimit", lambda _: limit)
        return front_module.most_connections()

    assert [most(limit) for limit in limits] == [512, 4_096, 4_096]


def is_served(fronts: Fronts) -> bool:
    with suppress(OSError):
        return fronts.connect().request(ROUTE.code).code == 0
    return False


def test_a_connection_that_says_nothing_is_closed(
    broker: Connection, fronts: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remoting_front, "_IDLE_SECONDS", 1.0)
    address = fronts.start().address
    talking = Talking(fronts)

    with socket.create_connection((address.host, address.port), PATIENCE_SECONDS) as silent:
        silent.setblocking(False)
        wait_until(lambda: talking.is_served() and is_closed(silent))


def test_a_frame_that_does_not_end_keeps_no_connection_open(
    broker: Connection, fronts: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remoting_front, "_IDLE_SECONDS", 1.0)
    address = fronts.start().address
    talking = Talking(fronts)

    with socket.create_connection((address.host, address.port), PATIENCE_SECONDS) as slow:
        slow.setblocking(False)
        slow.send(MAX_FRAME_BYTES.to_bytes(4))

        def is_closed_however_it_goes_on() -> bool:
            with suppress(ConnectionError):
                slow.send(b"a")
            return talking.is_served() and is_closed(slow)

        wait_until(is_closed_however_it_goes_on)


class Talking:
    """A client that keeps sending requests.

    The client's connection may be closed only if it was idle for the allowed time.
    """

    def __init__(self, fronts: Fronts) -> None:
        self._fronts = fronts
        self._client, self._said_at = fronts.connect(), time.monotonic()

    def is_served(self) -> bool:
        said_at = self._said_at
        try:
            asking_at = time.monotonic()
            answer = self._client.request(ROUTE.code)
        except OSError:  # the machine stood still
            assert time.monotonic() - said_at > remoting_front._IDLE_SECONDS
            self._client, self._said_at = self._fronts.connect(), time.monotonic()
            return False
        self._said_at = asking_at
        return answer.code == 0


def is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_handshakes_that_fail_take_no_connection_from_others(
    secure: Front, certificate: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_module, "_MOST_CONNECTIONS", 2)
    for _ in range(3):
        with socket.create_connection((secure.address.host, secure.address.port)) as rude:
            rude.sendall(b"\x16 no handshake at all")
            rude.recv(100)

    assert ask(secure, certificate).code == 0


def test_connections_that_begin_no_handshake_leave_files_for_the_database(
    database: Database, certificate: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that begin no handshake leave file descriptors for the database.

    Such connections have no client yet; the first one, which has had the most time, is closed.
    """
    monkeypatch.setattr(front_module, "_MOST_CONNECTIONS", 4)
    with contextmanager(front_with)(database, certificate) as front, ExitStack() as stack:
        address = (front.address.host, front.address.port)
        silent = [stack.enter_context(socket.create_connection(address)) for _ in range(3)]
        for each in silent:
            each.setblocking(False)

        wait_until(lambda: is_closed(silent[0]))

        assert [is_closed(each) for each in silent[1:]] == [False, False]
        assert ask(front, certificate).code == 0


@pytest.mark.parametrize("size", [MAX_FRAME_BYTES + 1, 2**31, 2**32 - 1])
def test_a_frame_that_is_too_large_ends_its_connection_only(broker: Connection, fronts: Fronts, size: int) -> None:
    topic(broker)
    other, rude = fronts.connect(), fronts.connect()

    rude._socket.sendall(size.to_bytes(4))

    with pytest.raises(ConnectionError):
        rude.request(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert send(other).code == 0


def test_a_front_that_stops_closes_its_connections_and_can_be_started_again(broker: Connection, fronts: Fronts) -> None:
    topic(broker)
    front = fronts.start()
    client = fronts.connect(front)
    assert send(client).code == 0
    port = front.address.port

    front.stop()
    with pytest.raises((ConnectionError, OSError)):
        send(client)
    again = fronts.start(port=port)

    assert send(fronts.connect(again)).code == 0


def test_what_was_stored_before_the_end_is_answered(broker: Connection, fronts: Fronts) -> None:
    """Messages stored before the end are answered. Otherwise clients would send them again, elsewhere."""
    topic(broker)
    front = fronts.start()
    sending: list[Future[Frame]] = []

    def send_until_closed(client: RemotingClient) -> None:
        with suppress(ConnectionError, OSError):
            while True:
                sending.append(client.begin(RequestCode.SEND_MESSAGE_V2, header(), b"hello"))
                if len(sending) % 20 == 0:
                    sending[-1].result(PATIENCE_SECONDS)

    threads = [threading.Thread(target=send_until_closed, args=(fronts.connect(front),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(sending) > 200)

    front.stop()

    for thread in threads:
        thread.join()
    answered = [each for each in sending if each.exception(PATIENCE_SECONDS) is None]
    assert all(each.result().code == 0 for each in answered)
    assert broker.scalar(text("SELECT count(*) FROM mqdb.commit_log")) == len(answered)


def test_clients_that_have_gone_leave_nothing(
    broker: Connection, fronts: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "GRACE_SECONDS", 0.2)
    topic(broker)
    fronts.start()
    come_and_go(fronts, "first")
    wait_until(lambda: sizes()["Members.clients"] == 0)
    before = sizes()

    for number in range(4):
        come_and_go(fronts, f"group-{number}")

    wait_until(lambda: sizes() <= before)
    wait_until(lambda: broker.scalar(text("SELECT count(*) FROM mqdb.client")) == 0)


def come_and_go(fronts: Fronts, group: str) -> None:
    """A client that consumes, sends and queries, also without being a member, and disconnects with held pulls."""
    client = fronts.connect()
    client.heartbeat(f"1.2.3.4@{group}", consumer(group, orders="*"), producers=[group])
    client.query_offset(group, "orders")
    client.query_offset(f"no-{group}", "orders")
    client.begin_pull(group, "orders", 0, hold_ms=20_000)
    client.begin_pull(f"no-{group}", "orders", 0, hold_ms=20_000, expression=("TAG", group))
    client.commit(group, "orders", 0)
    assert send(client, f=4, i=properties(TRAN_MSG="true", PGROUP=group)).code == 0
    client.close()


def sizes() -> Counter[str]:
    """The sizes of a front: the number of objects of each class, and the lengths of their collections."""
    gc.collect()
    found: Counter[str] = Counter()
    for each in gc.get_objects():
        if type(each).__module__.startswith("mqdb.remoting.") and not isinstance(each, Frame):
            name = type(each).__name__
            found[name] += 1
            contents = {key: value for key, value in getattr(each, "__dict__", {}).items() if isinstance(value, Sized)}
            found.update({f"{name}.{key}": len(value) for key, value in contents.items()})
    return found


def test_a_remark_does_not_give_back_all_that_a_client_has_sent(fronts: Fronts) -> None:
    answer = fronts.connect().request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "x" * 100_000})

    assert answer.code == 17
    assert len(str(answer.remark)) == 4_000


@pytest.mark.parametrize("code", [RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG])
def test_what_postgresql_cannot_store_goes_no_further(
    fronts: Fronts, code: RequestCode, caplog: pytest.LogCaptureFixture
) -> None:
    answer = fronts.connect().request(code, {"topic": "a\0b", "group": "a\0b"})

    assert (answer.code, "U+0000" in str(answer.remark)) == (29, True)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("client_id", ["a\0b", "a\ud800b"], ids=["U+0000", "half of a pair"])
def test_a_client_id_that_postgresql_cannot_store_is_refused(fronts: Fronts, client_id: str) -> None:
    """A client id that PostgreSQL cannot store is refused.

    The heartbeats of all clients of a front are written together.
    """
    assert fronts.connect().heartbeat(client_id, consumer(orders="*")).code == 29


def test_clients_are_not_told_where_the_database_is() -> None:
    answer = refusal(BrokerUnavailable("postgresql://db.example.org/mqdb", "connection refused"))

    assert answer.code == 1
    assert "db.example.org" not in str(answer.remark)


def open_connection(
    received: list[Frame],
    unsent_bytes: int = 0,
    *,
    begun: HeldMemory | None = None,
    strangers: HeldMemory | None = None,
) -> tuple[FrontConnection, Mock]:
    transport = Mock(spec=asyncio.Transport)
    transport.get_write_buffer_size.return_value = unsent_bytes
    transport.get_extra_info.return_value = ("127.0.0.1", 50_000)
    connection = FrontConnection(
        lambda _, frame: received.append(frame), lambda _: None, lambda _: None, None, begun, strangers
    )
    connection.connection_made(transport)
    return connection, transport


#: 600,000 bytes each: of a frame that is only begun, of a request that is not answered, of answers that are not read.
HELD = {
    "unread": (MAX_FRAME_BYTES.to_bytes(4) + bytes(599_996), 0),
    "under way": (encode_frame(Frame(RequestCode.GET_ROUTEINFO_BY_TOPIC, body=bytes(600_000))), 0),
    "unsent": (b"\x00", 600_000),
}


@pytest.mark.parametrize("how", HELD)
def test_what_strangers_hold_together_is_bounded(how: str) -> None:
    """The memory that unsigned connections hold together is bounded.

    The one that has held data for the longest time is closed.
    """
    data, unsent_bytes = HELD[how]

    async def hold() -> list[bool]:
        strangers = HeldMemory(1_500_000, "strangers")
        received: list[Frame] = []
        idle, _ = open_connection(received, strangers=strangers)
        admitted, admitted_transport = open_connection(received, unsent_bytes, strangers=strangers)
        admitted.admit()
        admitted.data_received(data)
        opened = [open_connection(received, unsent_bytes, strangers=strangers) for _ in range(4)]
        for connection, _ in opened:
            connection.data_received(data)
        idle.data_received(encode_frame(ROUTE))
        return [transport.abort.called for transport in (admitted_transport, *(each for _, each in opened))]

    assert asyncio.run(hold()) == [False, True, True, False, False]


def test_a_stranger_whose_requests_have_ended_holds_nothing() -> None:
    async def answer_all() -> list[bool]:
        strangers = HeldMemory(1_500_000, "strangers")
        received: list[Frame] = []
        connection, transport = open_connection(received, strangers=strangers)
        for _ in range(10):
            connection.data_received(HELD["under way"][0])
            connection.answer(received.pop(), Answer())
            await asyncio.sleep(0)
        return [transport.abort.called, bool(strangers._held)]

    assert asyncio.run(answer_all()) == [False, False]


def test_a_client_is_not_read_while_large_requests_of_it_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client is not read while its large requests are under way.

    The client is neither disconnected nor refused, but waits because its socket is full.
    """
    monkeypatch.setattr(connection_module, "_MOST_REQUEST_BYTES", 1_500_000)

    async def send_and_answer() -> list[tuple[bool, bool]]:
        received: list[Frame] = []
        connection, transport = open_connection(received)
        states = []
        for _ in range(3):
            connection.data_received(HELD["under way"][0])
            states.append((transport.pause_reading.called, transport.resume_reading.called))
        for request in received[:2]:
            connection.answer(request, Answer())
            states.append((transport.pause_reading.called, transport.resume_reading.called))
        return states

    assert asyncio.run(send_and_answer()) == [
        (False, False),
        (False, False),
        (True, False),
        (True, False),
        (True, True),
    ]


def test_frames_that_are_begun_are_bounded_on_all_connections_together() -> None:
    """Unfinished frames are bounded over all connections.

    The connection that stalls first is closed, not one whose frames are completed, however much it sends.
    """
    whole, begun = HELD["under way"][0], HELD["unread"][0]

    async def hold() -> list[bool]:
        memory = HeldMemory(1_500_000, "those that have begun a frame")
        received: list[Frame] = []
        busy, *others = [open_connection(received, begun=memory) for _ in range(4)]
        busy[0].data_received(whole[:-1])
        for connection, _ in others[:2]:
            busy[0].data_received(whole[-1:] + whole[:-1])
            busy[0].answer(received.pop(), Answer())
            if not others[0][1].abort.called:
                connection.data_received(begun)
        return [transport.abort.called for _, transport in (busy, *others)]

    assert asyncio.run(hold()) == [False, True, False, False]


def test_what_is_written_in_one_turn_of_the_loop_leaves_together() -> None:
    """Answers written in one turn of the event loop are sent together.

    16 threads of a Java program share one connection.
    """
    requests = [Frame(RequestCode.HEART_BEAT, opaque=7) for _ in range(2)]

    async def answer_both() -> list[bytes]:
        transport = Mock(spec=asyncio.Transport)
        transport.get_write_buffer_size.return_value = 0
        transport.get_extra_info.return_value = ("127.0.0.1", 50_000)
        connection = FrontConnection(lambda *_: None, lambda _: None, lambda _: None)
        connection.connection_made(transport)
        for request in requests:
            connection.answer(request, Answer())
        await asyncio.sleep(0)
        return [call.args[0] for call in transport.write.call_args_list]

    [written] = asyncio.run(answer_both())

    size = 4 + int.from_bytes(written[:4])
    assert written == written[:size] * 2
