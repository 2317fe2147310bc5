"""One connection of a client: its frames, their answers, and the front's own requests to the client.

Answers may be sent in a different order than their requests arrived: `opaque` matches answers to requests.
RocketMQ: NettyRemotingAbstract.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from mqdb.errors import ResponseCode
from mqdb.remoting.session.held_memory import HeldMemory
from mqdb.remoting.session.traffic import Traffic
from mqdb.remoting.wire.answers import Answer
from mqdb.remoting.wire.codes import RequestCode
from mqdb.remoting.wire.frame import ONEWAY, RESPONSE, Frame, FrameInvalid, Serializer, decode_frame, encode_frame

logger = logging.getLogger(__name__)

#: Source: NettySystemConfig.com.rocketmq.remoting.frameMaxLength.
MAX_FRAME_BYTES: Final = 16 * 2**20

#: Maximum bytes that wait for a slow client; beyond it, the connection is closed.
_MOST_UNSENT_BYTES: Final = 64 * 2**20

#: From here on, the front stops reading from a client until half of its requests are answered.
_MOST_REQUESTS: Final = 4_096
_MOST_REQUEST_BYTES: Final = 64 * 2**20

#: Characters. A remark may quote input from the client.
_MOST_OF_A_REMARK: Final = 4_000


class Connection(asyncio.Protocol):
    """A client's connection; only its event loop may call it.

    `receive` is called with each request, `made` when the connection is open, and `lost` when it is closed. `begun`
    counts the bytes of incomplete frames, `strangers` all bytes held until the connection is admitted.
    """

    def __init__(
        self,
        receive: "Callable[[Connection, Frame], None]",
        made: "Callable[[Connection], None]",
        lost: "Callable[[Connection], None]",
        traffic: Traffic | None = None,
        begun: HeldMemory | None = None,
        strangers: HeldMemory | None = None,
    ) -> None:
        self._receive = receive
        self._made = made
        self._lost = lost
        self._traffic = traffic or Traffic()
        self._begun = begun
        self._strangers = strangers
        self._now = asyncio.get_running_loop().time
        self._unread = bytearray()
        self._unsent: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._opaque = itertools.count()
        self._asked: dict[int, asyncio.Future[Frame]] = {}
        self._under_way = 0
        self._under_way_bytes = 0
        self._is_paused = False
        self._serializer = Serializer.JSON
        self._turns: deque[Callable[[], Awaitable[None]]] = deque()
        self._taking_turns: asyncio.Task[None] | None = None
        #: Time of the last complete frame, by the loop's clock: an incomplete frame does not keep a connection open.
        self.heard_at = self._now()
        #: Address of the client, `host:port`.
        self.peer = ""
        #: The client whose last heartbeat arrived on this connection, or None.
        self.client_id: str | None = None
        #: The client whose replies are relayed on this connection, after it has sent a request.
        self.requester_id: str | None = None
        #: The access key that signed the last request, if keys are required.
        self.access_key = ""
        #: Groups that sent half messages on this connection before the client's first heartbeat.
        self.transaction_groups: set[str] = set()

    # -- what comes ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        host, port, *_ = transport.get_extra_info("peername") or ("", 0)
        self.peer = f"{host}:{port}"
        self._made(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._release()
        for future in self._asked.values():
            if not future.done():
                future.set_exception(ConnectionResetError("the client has disconnected"))
        self._lost(self)

    def data_received(self, data: bytes) -> None:
        now = self._now()
        self._traffic.received_bytes += len(data)
        unread = self._unread
        was_begun = bool(unread)
        unread += data
        start = 0
        try:
            while len(unread) - start >= 4:
                size = int.from_bytes(unread[start : start + 4])
                if size > MAX_FRAME_BYTES:
                    raise FrameInvalid(f"a frame of {size:,} bytes; the limit is {MAX_FRAME_BYTES:,}")
                end = start + 4 + size
                if len(unread) < end:
                    break
                self.heard_at = now
                frame = decode_frame(bytes(unread[start + 4 : end]))
                frame.heard_at, frame.size = now, size
                self._take(frame)
                start = end
        except FrameInvalid as error:
            fields = {"peer": self.peer, "reason": str(error)}
            sentence = "closed the connection of %(peer)s, which does not use the protocol: %(reason)s"
            logger.warning(sentence, fields, extra=fields)
            self._traffic.invalid += 1
            self.close()
            return
        del unread[:start]
        if self._begun is not None and (unread or was_begun):
            if start:
                self._begun.release(self)  # the incomplete frame is now complete
            self._begun.hold(self, len(unread))
        self._count()

    def admit(self) -> None:
        """Count the connection as admitted from now on: it has signed a request, or need not."""
        if self._strangers is not None:
            self._strangers.release(self)
            self._strangers = None

    def _release(self) -> None:
        """Release the memory of a closed connection."""
        self.admit()
        if self._begun is not None:
            self._begun.release(self)
            self._begun = None

    def _count(self) -> None:
        if self._strangers is not None and self._transport is not None:
            unsent = self._transport.get_write_buffer_size()
            self._strangers.hold(self, len(self._unread) + self._under_way_bytes + unsent)

    def _take(self, frame: Frame) -> None:
        self._serializer = frame.serializer
        if frame.is_response:
            future = self._asked.pop(frame.opaque, None)
            if future is not None and not future.done():
                future.set_result(frame)
            return
        self._under_way += 1
        self._under_way_bytes += frame.size
        has_many = self._under_way > _MOST_REQUESTS or self._under_way_bytes > _MOST_REQUEST_BYTES
        if has_many and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()
        self._receive(self, frame)

    # -- what goes ----------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the connection is open."""
        return self._transport is not None

    def answer(self, request: Frame, answer: Answer) -> None:
        """End a request; only its first answer counts.

        A oneway request gets no answer, and neither does a disconnected client.
        """
        if request.is_answered:
            return
        request.is_answered = True
        self._under_way -= 1
        self._under_way_bytes -= request.size
        if self._is_paused and self._transport is not None:
            has_few = self._under_way <= _MOST_REQUESTS // 2 and self._under_way_bytes <= _MOST_REQUEST_BYTES // 2
            if has_few:
                self._is_paused = False
                self._transport.resume_reading()
        if not request.is_oneway:
            try:
                self._write(_response(request, answer))
            except FrameInvalid as error:
                fields = {"peer": self.peer, "code": request.code}
                sentence = "could not write the answer to a request of %(peer)s with code %(code)s"
                logger.exception(sentence, fields, extra=fields)
                answer = Answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
                self._write(_response(request, answer))
        self._traffic.ended(request.code, answer.code, self._now() - request.heard_at)

    def tell(self, code: RequestCode, fields: Mapping[str, str], body: bytes = b"") -> None:
        """Send the client a request that needs no answer."""
        self._write(self._request(code, fields, body, ONEWAY))

    async def ask(self, code: RequestCode, fields: Mapping[str, str], body: bytes, seconds: float) -> Frame:
        """Send the client a request, and wait for its answer.

        Raises TimeoutError, and ConnectionResetError if the client has disconnected.
        """
        request = self._request(code, fields, body, 0)
        future = self._asked[request.opaque] = asyncio.get_running_loop().create_future()
        self._write(request)
        try:
            async with asyncio.timeout(seconds):
                answer: Frame = await future
                return answer
        finally:
            self._asked.pop(request.opaque, None)

    def stop_reading(self) -> None:
        """Stop reading requests; those in progress are still answered."""
        self._is_paused = False  # otherwise the next answer would resume reading
        if self._transport is not None:
            self._transport.pause_reading()

    def close(self) -> None:
        """Close the connection now, after the data that the socket accepts immediately."""
        self._release()
        self._flush()
        if self._transport is not None:
            self._transport.abort()

    def _request(self, code: RequestCode, fields: Mapping[str, str], body: bytes, flag: int) -> Frame:
        return Frame(
            code=code,
            fields=dict(fields),
            body=body,
            opaque=next(self._opaque),
            flag=flag,
            serializer=self._serializer,
        )

    def _write(self, frame: Frame) -> None:
        """Send a frame.

        Frames of one turn of the event loop are sent together, because a client has many requests in progress.
        """
        encoded = encode_frame(frame)
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(encoded)

    def _flush(self) -> None:
        transport, unsent = self._transport, self._unsent
        self._unsent = []
        if transport is None or not unsent:
            return
        data = b"".join(unsent)
        self._traffic.sent_bytes += len(data)
        transport.write(data)
        if transport.get_write_buffer_size() > _MOST_UNSENT_BYTES:
            fields = {"peer": self.peer}
            logger.warning("closed the connection of %(peer)s, which does not read", fields, extra=fields)
            self.close()
        self._count()

    # -- order --------------------------------------------------------------------------------

    def take_turn(self, work: Callable[[], Awaitable[None]], spawn: Callable[[Any], "asyncio.Task[None]"]) -> None:
        """Run the work of a request after that of the connection's earlier requests."""
        self._turns.append(work)
        if self._taking_turns is None:
            self._taking_turns = spawn(self._take_turns())

    async def _take_turns(self) -> None:
        try:
            while self._turns:
                await self._turns.popleft()()
        finally:
            self._taking_turns = None


def _response(request: Frame, answer: Answer) -> Frame:
    return Frame(
        answer.code,
        dict(answer.fields),
        answer.body,
        request.opaque,
        RESPONSE,
        answer.remark and answer.remark[:_MOST_OF_A_REMARK],
        serializer=request.serializer,
    )
