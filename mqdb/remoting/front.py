"""The front: a socket on which RocketMQ's clients find a name server and a broker, and the event loop that serves them.

    clients ──▶ Connection ──▶ handlers ──▶ Database (threads with connections), Sends (group append)
                     ▲                          ▲
                     └── 40, 39, 326 ── Members ┴── the LISTEN connection of the client instance

All state belongs to the event loop, which runs in its own thread.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

from mqdb.common.dsn import BrokerDsn
from mqdb.common.http_address import HttpAddress
from mqdb.errors import ResponseCode
from mqdb.fronts.database import Database
from mqdb.fronts.front_thread import FrontThread, most_connections, reachable
from mqdb.remoting.consuming.consuming import CONSUMING_TIMES, Consuming, ConsumingTimes
from mqdb.remoting.handlers import Handler, administration_handlers, consuming_handlers, handlers
from mqdb.remoting.producing.replies import Replies
from mqdb.remoting.producing.send_back import SendBack
from mqdb.remoting.producing.sends import Sends
from mqdb.remoting.producing.transactions import ClientTransactions
from mqdb.remoting.routes import NameServer
from mqdb.remoting.session.access import FrameAccess
from mqdb.remoting.session.connection import Connection
from mqdb.remoting.session.held_memory import HeldMemory
from mqdb.remoting.session.listener import SocketListener, Tls
from mqdb.remoting.session.traffic import Traffic
from mqdb.remoting.tools.lookup import Lookup
from mqdb.remoting.tools.questions import Questions
from mqdb.remoting.wire.answers import NO_ANSWER, Answer, refusal
from mqdb.remoting.wire.frame import Frame

logger = logging.getLogger(__name__)

#: A connection without a complete frame for this long is closed: its client is gone or does not need it. Clients send a
#: frame every 30 s.
#: Source: NettyServerConfig.serverChannelMaxIdleTimeSeconds.
_IDLE_SECONDS: Final = 120.0

#: Maximum bytes of incomplete frames on all connections: 128 of the largest messages. They need that much only if
#: clients stop in the middle of a frame.
_MOST_BEGUN_BYTES: Final = 512 * 2**20

#: Maximum bytes held by all connections without a signed request: eight of the largest frames. A client's first signed
#: request may be such a frame.
_MOST_STRANGERS_BYTES: Final = 128 * 2**20


class Front(FrontThread):
    """Serves one broker to RocketMQ's clients from `start` to `stop`."""

    def __init__(
        self,
        broker: BrokerDsn,
        address: HttpAddress,
        advertised: HttpAddress | None = None,
        *,
        is_open: bool | None = None,
        tls: Tls | None = None,
        pool_dsn: str | None = None,
        times: ConsumingTimes = CONSUMING_TIMES,
        traffic: Traffic | None = None,
    ) -> None:
        """`advertised` is the address for clients if it differs from the listening address, for example behind a NAT.

        `is_open` says whether the front serves everyone while no access key has a secret; by default it does if only
        this machine can connect. `pool_dsn` leads to the same database through a pooler, which LISTEN bypasses.
        `traffic` receives the front's counts.
        """
        super().__init__("remoting", broker, pool_dsn)
        self._is_open = address.is_loopback if is_open is None else is_open
        self._tls = tls
        self._wanted = address
        self._advertised = advertised
        self._times = times
        self.traffic = traffic or Traffic()

    async def _serve(self, database: Database, stack: AsyncExitStack) -> HttpAddress:
        access = FrameAccess(database)
        await access.begin(is_open=self._is_open)
        listener = SocketListener(self._wanted, self._tls, most_connections() // 2)
        stack.callback(listener.close)
        own = HttpAddress(reachable(self._wanted.host, database.instance), listener.port)
        core = _Core(database, access, self._advertised or own, self._times, self.traffic)
        stack.push_async_callback(core.close)
        stack.callback(listener.close)
        listener.start(core.connect)
        return HttpAddress(self._wanted.host, listener.port)


def _ipv4_of(host: str) -> str:
    """The IPv4 address of a host name, or the name itself if it has no address.

    An address is needed because offset ids have no room for a name.
    """
    try:
        return socket.gethostbyname(host)
    except OSError:
        fields = {"host": host}
        logger.warning("clients cannot look up offset ids: %(host)s has no IPv4 address", fields, extra=fields)
        return host


class _Core:
    """The parts that the connections of a front share."""

    def __init__(
        self,
        database: Database,
        access: FrameAccess,
        address: HttpAddress,
        times: ConsumingTimes,
        traffic: Traffic,
    ) -> None:
        """`address` is the front's address as clients know it."""
        self._traffic = traffic
        self._database = database
        self._access = access
        self._connections: set[Connection] = set()
        self._begun = HeldMemory(_MOST_BEGUN_BYTES, "with an unfinished frame")
        self._strangers = HeldMemory(_MOST_STRANGERS_BYTES, "without a signed request")
        self._is_full = False
        self._most_connections = most_connections()
        place = (_ipv4_of(address.host), address.port)
        self._consuming = Consuming(database, place, traffic, times)
        members = self._consuming.members
        send_back = SendBack(database, access)
        self._replies = Replies(database, members, place)
        self._sends = Sends(database, members, send_back, self._replies, place)
        self._transactions = ClientTransactions(database, access, members, place)
        self._questions = Questions(database, members, access, place)
        self._handlers = handlers(
            NameServer(database, access, members, (address.host, address.port)),
            members,
            self._sends,
            send_back,
            self._transactions,
            Lookup(database, access, place),
        )
        self._handlers |= consuming_handlers(self._consuming)
        self._handlers |= administration_handlers(database, members, access, self._questions, place)
        database.spawn(self._close_idle_forever())

    async def close(self) -> None:
        """Disconnect all clients after answering their requests, because clients would send them again."""
        for connection in self._connections:
            connection.stop_reading()
        await asyncio.to_thread(self._sends.appends.close)
        for connection in list(self._connections):
            connection.close()
        for each in (self._transactions, self._replies, self._questions):
            each.close()
        await self._consuming.close()

    def connect(self) -> Connection:
        """Create the protocol for a new connection."""
        return Connection(self._receive, self._made, self._lost, self._traffic, self._begun, self._strangers)

    def _made(self, connection: Connection) -> None:
        """Count the connection only now, so that a failed handshake never displaces another connection."""
        if len(self._connections) < self._most_connections:
            self._connections.add(connection)
            self._traffic.accepted += 1
            self._traffic.connections = len(self._connections)
            self._is_full = False
            return
        self._traffic.refused += 1
        if not self._is_full:
            fields = {"connections": self._most_connections}
            logger.warning("refusing new connections: the limit is %(connections)s", fields, extra=fields)
            self._is_full = True
        connection.close()

    async def _close_idle_forever(self) -> None:
        while True:
            await asyncio.sleep(_IDLE_SECONDS / 4)
            earliest = self._database.loop.time() - _IDLE_SECONDS
            for connection in [each for each in self._connections if each.heard_at < earliest]:
                connection.close()

    def _lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._traffic.connections = len(self._connections)
        self._consuming.disconnected(connection)

    def _receive(self, connection: Connection, frame: Frame) -> None:
        if "\0" in "".join(frame.fields.values()):
            remark = "a field contains U+0000, which PostgreSQL cannot store"
            connection.answer(frame, Answer(ResponseCode.INVALID_PARAMETER, remark=remark))
            return
        handler = self._handlers.get(frame.code)
        if handler is None:
            remark = f"request type {frame.code} not supported"
            connection.answer(frame, Answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark))
            return
        if self._access.are_asked_for:
            handler = handler._replace(run=partial(self._run_if_allowed, handler))
        else:
            connection.admit()
        late = None
        if handler.seconds is not None:
            late = self._database.loop.call_later(handler.seconds, connection.answer, frame, NO_ANSWER)
        if handler.is_in_turn:
            work = partial(self._answer, connection, frame, partial(handler.run, connection, frame), late)
            connection.take_turn(work, self._database.spawn)
            return
        try:
            working = handler.run(connection, frame)
        except Exception as error:  # noqa: BLE001 - the client is told
            connection.answer(frame, refusal(error))
            return
        if working is not None:
            self._database.spawn(self._answer(connection, frame, lambda: working, late))

    async def _run_if_allowed(self, handler: Handler, connection: Connection, frame: Frame) -> Answer | None:
        await self._access.check(connection, frame)
        working = handler.run(connection, frame)
        return None if working is None else await working

    async def _answer(
        self,
        connection: Connection,
        frame: Frame,
        begin: "Callable[[], Awaitable[Answer | None] | None]",
        late: asyncio.TimerHandle | None,
    ) -> None:
        try:
            working = begin()
            answer = None if working is None else await working
        except Exception as error:  # noqa: BLE001 - the client is told
            answer = refusal(error)
        finally:
            if late is not None:
                late.cancel()
        if answer is not None:
            connection.answer(frame, answer)
