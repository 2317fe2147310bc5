"""The gRPC front: a server for RocketMQ 5's SDKs, and the event loop that serves them.

    SDKs ──▶ server ──▶ Callers ──▶ sends, consuming, telemetry, transactions, routes ──▶ Database

The outcome of a call is a field of the answer; for gRPC, all calls succeed. Several processes can listen on one port,
and share the connections.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any, Final

import grpc
import grpc.aio

from mqdb.common.dsn import BrokerDsn
from mqdb.common.http_address import HttpAddress
from mqdb.errors import MqdbError
from mqdb.fronts.access_keys import AccessKeys
from mqdb.fronts.database import Database
from mqdb.fronts.front_thread import FrontThread, most_connections, reachable
from mqdb.fronts.receiving import WaitingLists
from mqdb.grpc.calls import Call, Callers
from mqdb.grpc.certificate import Certificate
from mqdb.grpc.consuming import SdkConsuming
from mqdb.grpc.in_flight import SdkInFlight
from mqdb.grpc.members import MOST_CLIENTS, SdkMembers
from mqdb.grpc.questions import SdkQuestions
from mqdb.grpc.request_memory import RequestMemory
from mqdb.grpc.routes import SdkRoutes
from mqdb.grpc.sends import SdkSends
from mqdb.grpc.telemetry import Telemetry
from mqdb.grpc.traffic import CallTraffic
from mqdb.grpc.transactions import SdkTransactions
from mqdb.grpc.wire import rocketmq_pb2 as pb
from mqdb.grpc.wire.rocketmq_pb2 import Code
from mqdb.grpc.wire.status import CallRefused, status_of
from mqdb.grpc.wire.times import timestamp

#: The name of the service in calls of SDKs.
SERVICE: Final = "apache.rocketmq.v2.MessagingService"

#: Maximum size of a call: a body of 4 MiB and the other fields. gRPC's own limit would be 4 MiB.
_MOST_CALL_BYTES: Final = 5 * 2**20

#: A client whose machine fails is detected within this time, and its messages become visible again.
_PING_MS: Final = 10_000
_PING_ANSWER_MS: Final = 5_000

#: Maximum number of calls in progress, which need no file descriptors: each push consumer has a stream, and a receive
#: for each of its topics. A client that starts more calls waits by itself. Once 1,000 calls wait for the event loop,
#: gRPC would refuse the calls of all clients, and a single client that starts receives endlessly reaches this number
#: within a second.
_MOST_CALLS: Final = 100_000
_MOST_OF_A_CONNECTION: Final = 1_024

#: Timeout for the handshakes of TLS and HTTP/2, because a silent connection uses a file descriptor.
_FIRST_MS: Final = 10_000

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _MOST_CALL_BYTES),
    ("grpc.keepalive_time_ms", _PING_MS),
    ("grpc.keepalive_timeout_ms", _PING_ANSWER_MS),
    ("grpc.http2.ping_timeout_ms", _PING_ANSWER_MS),
    ("grpc.max_concurrent_streams", _MOST_OF_A_CONNECTION),
    ("grpc.server.max_pending_requests", _MOST_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", _MOST_CALLS),
    ("grpc.server_handshake_timeout_ms", _FIRST_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    # SDKs send pings, too; Java's does after five minutes without a call.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
)

_STOP_SECONDS: Final = 1.0


class GrpcFront(FrontThread):
    """Serves one broker to RocketMQ 5's SDKs from `start` to `stop`."""

    def __init__(
        self,
        broker: BrokerDsn,
        address: HttpAddress,
        *,
        tls_address: HttpAddress | None = None,
        certificate: Certificate | None = None,
        is_open: bool | None = None,
        pool_dsn: str | None = None,
        traffic: CallTraffic | None = None,
        shares_port: bool = False,
    ) -> None:
        """At `tls_address` the front uses TLS, for which `certificate` is required.

        `is_open` says whether the front serves everyone while no access key has a secret; by default it does if only
        this machine can connect. `pool_dsn` leads to the same database through a pooler, which LISTEN bypasses.
        `traffic` receives the front's counts. With `shares_port`, other processes may listen on the same ports, and the
        kernel distributes the connections.
        """
        super().__init__("grpc", broker, pool_dsn)
        self._ports = [each for each in (address, tls_address) if each is not None]
        self._is_open = all(each.is_loopback for each in self._ports) if is_open is None else is_open
        self._shares_port = shares_port
        self._wanted = address
        self.traffic = traffic or CallTraffic()
        self._wanted_tls = tls_address
        self._certificate = certificate
        #: Address for TLS, if the front uses TLS.
        self.tls_address: HttpAddress | None = None

    @property
    def lines(self) -> list[str]:
        """The addresses on which the front listens, as lines for people."""
        return super().lines + ([] if self.tls_address is None else [f"  grpc TLS {self.tls_address}"])

    async def _serve(self, database: Database, stack: AsyncExitStack) -> HttpAddress:
        keys = AccessKeys(database)
        await keys.begin(is_open=self._is_open)
        options = (
            *_OPTIONS,
            ("grpc.so_reuseport", int(self._shares_port)),
            # gRPC counts the connections of each port separately.
            ("grpc.max_allowed_incoming_connections", most_connections(MOST_CLIENTS) // len(self._ports)),
        )
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=_MOST_CALLS)
        wanted = self._wanted
        try:
            port = server.add_insecure_port(str(wanted))
            if self._wanted_tls is not None and self._certificate is not None:
                pair = (self._certificate.key, self._certificate.certificate)
                credentials = grpc.ssl_server_credentials([pair])
                tls_port = server.add_secure_port(str(self._wanted_tls), credentials)
                self.tls_address = HttpAddress(self._wanted_tls.host, tls_port)
        except RuntimeError as error:  # gRPC reports no details
            raise OSError(str(error)) from error
        host = reachable(wanted.host, database.instance)
        calls = _Calls(database, keys, (host, port), self.traffic)
        stack.push_async_callback(calls.close)
        server.add_generic_rpc_handlers((calls.handlers(),))
        await server.start()
        stack.push_async_callback(server.stop, _STOP_SECONDS)
        stack.callback(calls.let_go)
        return HttpAddress(wanted.host, port)


class _Calls:
    """The parts that the calls of a front share, and the handlers."""

    def __init__(self, database: Database, keys: AccessKeys, address: tuple[str, int], traffic: CallTraffic) -> None:
        """`address` is the front's address as clients know it."""
        self._traffic = traffic
        self._memory = RequestMemory()
        store_host = f"{address[0]}:{address[1]}"
        self._callers = Callers(keys)
        members = SdkMembers(database, traffic)
        routes = SdkRoutes(database, address)
        in_flight = SdkInFlight(database, members, traffic)
        self._receiving = WaitingLists(database, in_flight, traffic)
        self._routes = routes
        self._sends = SdkSends(database, keys, members, routes)
        self._transactions = SdkTransactions(database, keys, members, store_host)
        self._questions = SdkQuestions(database, keys, members, store_host)
        self._telemetry = Telemetry(database, keys, members, routes, self._receiving, in_flight, self._questions)
        self._consuming = SdkConsuming(database, keys, members, routes, self._receiving, in_flight, store_host)

    def let_go(self) -> None:
        """End all calls and streams that are waiting."""
        self._receiving.close()
        self._telemetry.close()

    async def close(self) -> None:
        """Wait for sends in progress, and stop listening for notifications."""
        await asyncio.to_thread(self._sends.appends.close)
        for each in (self._transactions, self._questions):
            each.close()

    def handlers(self) -> grpc.GenericRpcHandler:
        """The table of calls, for a server."""
        answers: dict[str, Callable[[Call, Any], Awaitable[Any]]] = {
            "QueryRoute": self._routes.query,
            "QueryAssignment": self._routes.assignment,
            "Heartbeat": self._telemetry.heartbeat,
            "NotifyClientTermination": self._telemetry.end,
            "SendMessage": self._sends.send,
            "RecallMessage": self._sends.recall,
            "EndTransaction": self._transactions.end,
            "AckMessage": self._consuming.ack,
            "ChangeInvisibleDuration": self._consuming.change,
            "ForwardMessageToDeadLetterQueue": self._consuming.forward,
        }
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                **{name: self._unary(name, answer) for name, answer in answers.items()},
                "ReceiveMessage": grpc.unary_stream_rpc_method_handler(
                    self._receive, pb.ReceiveMessageRequest.FromString, pb.ReceiveMessageResponse.SerializeToString
                ),
                "Telemetry": grpc.stream_stream_rpc_method_handler(
                    self._stream, pb.TelemetryCommand.FromString, pb.TelemetryCommand.SerializeToString
                ),
            },
        )

    def _unary(self, name: str, answer: Callable[[Call, Any], Awaitable[Any]]) -> "grpc.RpcMethodHandler[Any, Any]":
        request_type, response_type = getattr(pb, f"{name}Request"), getattr(pb, f"{name}Response")

        def parsed(data: bytes) -> tuple[Any, int]:
            return request_type.FromString(data), len(data)

        async def run(sized: tuple[Any, int], context: Any) -> Any:
            began = time.monotonic()
            request, size = sized
            try:
                with self._memory.held(size):
                    response = await answer(self._callers.caller(context), request)
            except Exception as error:  # noqa: BLE001 - the client is told
                response = response_type(status=status_of(error))
            self._traffic.ended(name, response.status.code, time.monotonic() - began)
            return response

        return grpc.unary_unary_rpc_method_handler(run, parsed, response_type.SerializeToString)

    async def _receive(
        self, request: pb.ReceiveMessageRequest, context: Any
    ) -> AsyncIterator[pb.ReceiveMessageResponse]:
        began, code = time.monotonic(), Code.CODE_UNSPECIFIED
        try:
            call = self._callers.caller(context)
            async for frame in self._consuming.receive(call, request, context.time_remaining()):
                code = code or frame.status.code
                yield frame
        except Exception as error:  # noqa: BLE001 - the client is told
            status = status_of(error)
            code = status.code
            yield pb.ReceiveMessageResponse(status=status)
            yield pb.ReceiveMessageResponse(delivery_timestamp=timestamp(datetime.now(UTC)))
        self._traffic.ended("ReceiveMessage", code, time.monotonic() - began)

    async def _stream(self, said: AsyncIterator[pb.TelemetryCommand], context: Any) -> None:
        try:
            call = self._callers.caller(context)
        except (CallRefused, MqdbError) as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        await self._telemetry.serve(call, said, context)
