"""A message as a consumer gets it, made from the row of a pull. RocketMQ: MessageExt."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Final

from mqdb.common.compression import COMPRESSED_FLAG, decompress
from mqdb.common.message import MessageQueue
from mqdb.common.property import Property, read_properties, split_keys
from mqdb.common.topic import RETRY_PREFIX
from mqdb.common.unique_id import format_unique_id

_POSTGRESQL_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_POSTGRESQL_EPOCH_MS: Final = 946_684_800_000

_TAGS: Final = Property.TAGS.value
_KEYS: Final = Property.KEYS.value
_UNIQ_KEY: Final = Property.UNIQ_KEY.value
_RETRY_TOPIC: Final = Property.RETRY_TOPIC.value


class ReceivedMessage:
    """A message from a queue.

    A ReceivedMessage is made for each row of each pull, so it keeps the values of the row and computes the rest on
    demand: `msg_id` is the uuid or its 16 bytes, `keys` the words separated by blanks, `properties` those in the log,
    as a dict, JSON text or a jsonb value in binary form, and times are PostgreSQL's microseconds since 2000.
    `min_offset` and `max_offset` are the queue's at the time of the pull.
    `stored_body` is the body as stored in the log, compressed if `sys_flag` says so. Flow control counts its size,
    because this is what is in memory. A consumer needs queue, offset, position and failures after the listener has
    returned, so these are read-only.
    """

    __slots__ = (
        "_all_properties",
        "_born_time",
        "_keys",
        "_log_pos",
        "_msg_id",
        "_plain_body",
        "_properties",
        "_queue",
        "_queue_offset",
        "_receipt_handle",
        "_reconsume_times",
        "_store_time",
        "born_host",
        "flag",
        "max_offset",
        "min_offset",
        "stored_body",
        "sys_flag",
        "tag",
    )

    _plain_body: bytes  # set when a compressed body is first read
    _all_properties: dict[str, str]  # set when they are first read
    _receipt_handle: str  # set if it was popped

    def __init__(
        self,
        queue: MessageQueue,
        queue_offset: int,
        log_pos: int,
        msg_id: uuid.UUID | bytes,
        tag: str | None,
        keys: str | None,
        properties: dict[str, str] | str | bytes,
        body: bytes,
        born_time: int,
        store_time: int,
        born_host: str,
        reconsume_times: int,
        flag: int,
        sys_flag: int,
        min_offset: int,
        max_offset: int,
    ) -> None:
        self._queue = queue
        self._queue_offset = queue_offset
        self._log_pos = log_pos
        self._msg_id = msg_id
        self.tag = tag
        self._keys = keys
        self._properties = properties
        self.stored_body = body
        self._born_time = born_time
        self._store_time = store_time
        self.born_host = born_host
        self._reconsume_times = reconsume_times
        self.flag = flag
        self.sys_flag = sys_flag
        self.min_offset = min_offset
        self.max_offset = max_offset

    @property
    def queue(self) -> MessageQueue:
        """The queue from which the message was read."""
        return self._queue

    @property
    def queue_offset(self) -> int:
        """The offset in this queue."""
        return self._queue_offset

    @property
    def log_pos(self) -> int:
        """The position in the commit log."""
        return self._log_pos

    @property
    def reconsume_times(self) -> int:
        """The number of earlier failures."""
        return self._reconsume_times

    @property
    def delivery_attempt(self) -> int:
        """The number of this delivery to the group, from 1."""
        return self._reconsume_times + 1

    @property
    def receipt_handle(self) -> str | None:
        """The handle by which a popped message is acknowledged; None if it was pulled."""
        return getattr(self, "_receipt_handle", None)

    def popped(self, receipt_handle: str, earlier_attempts: int = 0) -> None:
        """Set the receipt handle, and add earlier deliveries that are not in the message's record."""
        self._receipt_handle = receipt_handle
        self._reconsume_times += earlier_attempts

    def count_failure(self) -> None:
        """Count one more failure, because the message is retried in this process."""
        self._reconsume_times += 1

    @property
    def topic(self) -> str:
        """The topic to which the message was sent. For a retry this is not the topic of its queue.

        Source: DefaultMQPushConsumerImpl.resetRetryAndNamespace.
        """
        topic = self._queue.topic
        return self.properties.get(_RETRY_TOPIC, topic) if topic.startswith(RETRY_PREFIX) else topic

    @property
    def message_id(self) -> str:
        """The unique id given by the sender: 32 upper-case hexadecimal digits, the same for all retries."""
        return self._msg_id.hex().upper() if isinstance(self._msg_id, bytes) else format_unique_id(self._msg_id)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys by which the message can be found."""
        return split_keys(self._keys) if self._keys else ()

    @property
    def body(self) -> bytes:
        """The body that was sent; a compressed body is decompressed on first access.

        Raises CompressedBodyBroken, and CompressionUnavailable if the library is missing.
        """
        if not self.sys_flag & COMPRESSED_FLAG:
            return self.stored_body
        try:
            return self._plain_body
        except AttributeError:
            self._plain_body = decompress(self.stored_body, self.sys_flag)
        return self._plain_body

    @property
    def properties(self) -> dict[str, str]:
        """All properties, including those of the broker. Raises PropertiesBroken."""
        # Most messages are asked at most once; catching an AttributeError here would take twice as long.
        known: dict[str, str] | None = getattr(self, "_all_properties", None)
        if known is not None:
            return known
        stored = self._properties
        properties = dict(stored) if isinstance(stored, dict) else read_properties(stored)
        if self.tag is not None:
            properties[_TAGS] = self.tag
        if self._keys:
            properties[_KEYS] = self._keys
        # An id that is not a uuid is stored as a property; the column contains its hash.
        properties.setdefault(_UNIQ_KEY, self.message_id)
        self._all_properties = properties
        return properties

    @property
    def born_time(self) -> datetime:
        """When the sender created the message, by the sender's clock; aware, in UTC."""
        return _POSTGRESQL_EPOCH + timedelta(microseconds=self._born_time)

    @property
    def store_time(self) -> datetime:
        """When the broker stored the message, by the broker's clock; aware, in UTC."""
        return _POSTGRESQL_EPOCH + timedelta(microseconds=self._store_time)

    @property
    def born_ms(self) -> int:
        """`born_time` in whole milliseconds since 1970, as in RocketMQ's own clients."""
        return self._born_time // 1_000 + _POSTGRESQL_EPOCH_MS

    @property
    def store_ms(self) -> int:
        """`store_time` in whole milliseconds since 1970."""
        return self._store_time // 1_000 + _POSTGRESQL_EPOCH_MS

    def __repr__(self) -> str:
        return (
            f"ReceivedMessage({self.message_id} at {self.queue} offset {self.queue_offset}, tag={self.tag!r}, "
            f"keys={self.keys!r}, reconsume_times={self.reconsume_times}, body of {len(self.stored_body):,} bytes)"
        )
