"""Single messages: find them by key or id (12), show them by position (33), recall them (370).

RocketMQ: QueryMessageProcessor, RecallMessageProcessor.
"""

from datetime import UTC, datetime
from functools import partial
from typing import Final

from sqlalchemy import Connection as DatabaseConnection

from mqdb.broker.log.messages import find_by_key, find_copies, locate, read_copy
from mqdb.broker.schedule.timers import recall_from
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.unique_id import unique_id_of
from mqdb.errors import ResponseCode, TopicNotFound
from mqdb.fronts.access_keys import topic_right
from mqdb.fronts.database import Database
from mqdb.remoting.session.access import FrameAccess
from mqdb.remoting.session.connection import Connection
from mqdb.remoting.wire.answers import Answer
from mqdb.remoting.wire.bodies import milliseconds_of
from mqdb.remoting.wire.frame import Frame
from mqdb.remoting.wire.messages import encode_message
from mqdb.store.acl import Access

#: Source: MessageStoreConfig.defaultQueryMaxNum.
_MOST_FOUND: Final = 32

_END: Final = 2**63 - 1


class Lookup:
    """Looks up messages of one broker. `address` is the front's address as clients know it."""

    def __init__(self, database: Database, access: FrameAccess, address: tuple[str, int]) -> None:
        self._database = database
        self._access = access
        self._instance = database.instance
        self._address = address

    async def query(self, _connection: Connection, frame: Frame) -> Answer:
        """Code 12: the newest messages of a topic with a key, or all copies of a message by its unique id.

        Returns 22 if nothing is found.
        """
        find = partial(
            self._find,
            topic=frame.text("topic"),
            key=frame.text("key"),
            is_unique=frame.truth("_UNIQUE_KEY_QUERY"),
            most=min(frame.number("maxNum", _MOST_FOUND), _MOST_FOUND),
        )
        begin, end = frame.number("beginTimestamp", 0), frame.number("endTimestamp", _END)
        found = [each for each in await self._database.run(find) if begin <= each.store_ms <= end]
        now = str(milliseconds_of(datetime.now(UTC)))
        fields = {"indexLastUpdateTimestamp": now, "indexLastUpdatePhyoffset": "0"}
        if not found:
            remark = "can not find message, maybe time range not correct"
            return Answer(ResponseCode.QUERY_NOT_FOUND, fields, remark=remark)
        return Answer(fields=fields, body=b"".join(encode_message(each, self._address) for each in found))

    async def view(self, _connection: Connection, frame: Frame) -> Answer:
        """Code 33: the message at a position. Raises ParameterInvalid if there is no message."""
        log_pos = frame.number("offset")
        message = await self._database.run(partial(self._at, log_pos=log_pos))
        await self._access.require(frame, topic_right(Access.READ, message.queue.topic))
        return Answer(body=encode_message(message, self._address))

    async def recall(self, _connection: Connection, frame: Frame) -> Answer:
        """Code 370: recall a message before its delivery time. Raises RecallHandleInvalid if that time has passed."""
        topic, handle = frame.text("topic"), frame.text("recallHandle")
        return Answer(fields={"msgId": await self._database.run(partial(recall_from, topic=topic, handle=handle))})

    def _find(
        self, connection: DatabaseConnection, topic: str, key: str, is_unique: bool, most: int
    ) -> list[ReceivedMessage]:
        if is_unique:
            copies = [copy for copy in find_copies(connection, unique_id_of(key)) if copy.topic == topic]
        else:
            route = self._instance.routes.ask(topic, connection)
            if route is None:
                raise TopicNotFound(topic)
            copies = find_by_key(connection, route, key)
        return [read_copy(connection, self._instance.broker_name, copy) for copy in copies[-most:]] if most > 0 else []

    def _at(self, connection: DatabaseConnection, log_pos: int) -> ReceivedMessage:
        copy = locate(connection, log_pos)
        return read_copy(connection, self._instance.broker_name, copy)
