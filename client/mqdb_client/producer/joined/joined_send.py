"""A send inside the caller's own SQL transaction.

The messages are appended on the caller's connection: they become visible when the caller commits, and vanish when the
caller rolls back, also to a savepoint. This module does not begin, commit or roll back, and takes no locks. While the
transaction is open, dispatch skips its messages, and no other session waits for it. The queue offsets of these messages
are assigned after the commit.

No statement should fail, because an error would abort the caller's transaction. So possible errors are checked first,
or the statement reports them in its result (`mqdb.store.log.joined_append`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID
from weakref import WeakKeyDictionary

from mqdb.broker.schedule.recall_handles import recall_handle_of
from mqdb.common.delivery_schedule import DeliverAfter, DeliverAt, Wait
from mqdb.common.message import MessageQueue, SendStatus
from mqdb.common.topic import Perm
from mqdb.common.unique_id import format_unique_id
from mqdb.errors import (
    AccessDenied,
    MqdbError,
    ParameterInvalid,
    QueueNotFound,
    ScheduleInvalid,
    SchemaMissing,
    TopicNotFound,
    TopicNotWritable,
)
from mqdb.selector.tags import java_string_hash
from mqdb.store.log import joined_append
from mqdb.store.log.commit_log import Record
from mqdb.store.log.joined_append import Statement
from mqdb.store.migrations import check_revision
from mqdb_client.producer.joined.callers_connection import (
    CallersConnection,
    DriverConnection,
    JoinedConnection,
    join,
)
from mqdb_client.producer.queues.queue_selector import turns
from mqdb_client.producer.sends.send_result import SendResult

_NO_QUEUES: Final[Mapping[str, MessageQueue]] = {}


def check_untimed(timeout: object) -> None:
    """Raise ParameterInvalid if a timeout is given: timeouts are up to the caller's transaction."""
    if timeout is not None:
        reason = "does not apply to a send in your transaction; set statement_timeout there"
        raise ParameterInvalid("timeout", timeout, reason)


class JoinedSend:
    """Appends on connections of the caller. Thread-safe if each thread uses its own connection.

    No error affects the transaction, except BrokerUnavailable and StorageRefused, which mean that a statement has
    failed.
    """

    def __init__(self, find_queue_offset: Callable[[MessageQueue, int, int, UUID], int]) -> None:
        """Reading `SendResult.queue_offset` calls `find_queue_offset` with queue, queue_key, log_pos and unique id."""
        self._find_queue_offset = find_queue_offset
        # Keyed by the driver's connection: a pooled connection may have a different one after a reconnect.
        self._brokers: WeakKeyDictionary[DriverConnection, _Broker] = WeakKeyDictionary()
        self._turns: dict[tuple[str, str], Iterator[int]] = {}

    def send(
        self,
        connection: CallersConnection,
        records: Sequence[Record],
        topics: Sequence[str],
        sharding_key: str | None = None,
        queues: Mapping[str, MessageQueue] = _NO_QUEUES,
    ) -> list[SendResult]:
        """Append all records or none. `topics` has the topic of each record; the `queue_key` of a record is ignored.

        The records of a topic go to one of its queues, in order: to its queue in `queues`, to the queue that
        `sharding_key` chooses, or to the next in turn. A record with a later time of delivery is sent alone: see
        `joined_append.append`. A send takes one statement, two more for a connection that was not used before, and one
        more for a record with a time of delivery. Raises TopicNotFound, TopicNotWritable, QueueNotFound,
        ScheduleInvalid, SchemaMissing, SchemaTooOld, SchemaTooNew; ParameterInvalid for a connection that cannot be
        joined, for text that its client_encoding does not have, and for a queue of another broker or topic;
        IllegalState for a closed connection, and for a transaction that has failed already.
        """
        joined = join(connection)
        broker = self._broker(joined)
        for topic, queue in queues.items():
            _check_queue(queue, broker, topic)
        for record in records:
            _check_wait(joined, broker, record.wait)
        turns = {topic: self._turn(broker.name, topic, sharding_key) for topic in dict.fromkeys(topics)}
        queue_ids = {topic: queue.queue_id for topic, queue in queues.items()}
        rows = joined.run(joined_append.append(records, topics, turns, queue_ids), broker.target)
        if not rows:
            raise self._refusal(joined, broker, tuple(turns), queues)
        results = []
        found: dict[str, MessageQueue] = {}
        for record, topic, (log_pos, queue_key, found_id) in zip(records, topics, rows, strict=True):
            to = found.get(topic)
            if to is None:
                to = found[topic] = MessageQueue(topic, broker.name, found_id)
            find = partial(self._find_queue_offset, to, queue_key, log_pos, record.msg_id)
            result = SendResult(SendStatus.SEND_OK, format_unique_id(record.msg_id), to, log_pos, find)
            result.recall_handle = recall_handle_of(record, to)
            results.append(result)
        return results

    def publish_queues(
        self, connection: CallersConnection, topics: Sequence[str]
    ) -> dict[str, tuple[MessageQueue, ...]]:
        """The queues from which a sender may choose, for each topic, as the caller's transaction sees them.

        Raises the errors of `send`.
        """
        joined = join(connection)
        broker = self._broker(joined)
        nums = _queue_nums(joined, broker, topics)
        return {
            topic: tuple(MessageQueue(topic, broker.name, queue_id) for queue_id in range(nums[topic].write))
            for topic in topics
        }

    def _broker(self, joined: JoinedConnection) -> "_Broker":
        broker = self._brokers.get(joined.driver)
        if broker is None:
            broker = self._brokers[joined.driver] = _meet(joined)
        return broker

    def _turn(self, broker_name: str, topic: str, sharding_key: str | None) -> int:
        """A number that, modulo the number of queues, gives the queue by the rules of `queue_selector`; SQL uses it."""
        if sharding_key is not None:
            return abs(java_string_hash(sharding_key))
        its_turns = self._turns.get((broker_name, topic))
        if its_turns is None:
            its_turns = self._turns.setdefault((broker_name, topic), turns())
        return next(its_turns)

    def _refusal(
        self, joined: JoinedConnection, broker: "_Broker", topics: Sequence[str], queues: Mapping[str, MessageQueue]
    ) -> MqdbError:
        """The error that tells why nothing was appended."""
        nums = _queue_nums(joined, broker, topics)
        for queue in queues.values():
            if queue.queue_id >= (count := max(nums[queue.topic])):
                return QueueNotFound(queue.topic, queue.queue_id, count)
        return TopicNotFound(topics[0])  # created just now


# -- brokers ----------------------------------------------------------------------------------


class _Broker(NamedTuple):
    """The broker behind a connection. `target` is its address, without a password."""

    name: str
    target: str


def _meet(joined: JoinedConnection) -> _Broker:
    """Look up the broker. Raises SchemaMissing, SchemaTooOld, SchemaTooNew; IllegalState for a closed connection."""
    target = joined.target
    if not joined.run(_HAS_SCHEMA, target)[0][0]:
        raise SchemaMissing(target)
    [(revision, name)] = joined.run(_IDENTITY, target)
    check_revision(revision, target)
    return _Broker(name, target)


# A missing table would make the statement fail.
_HAS_SCHEMA: Final = Statement("SELECT to_regclass('mqdb.alembic_version') IS NOT NULL", {})
_IDENTITY: Final = Statement("SELECT version_num, broker_name FROM mqdb.alembic_version, mqdb.broker", {})


def _check_queue(queue: MessageQueue, broker: _Broker, topic: str) -> None:
    if queue.broker_name != broker.name:
        raise ParameterInvalid("queue", str(queue), f"the connection leads to broker {broker.name!r}")
    if queue.topic != topic:
        raise ParameterInvalid("queue", str(queue), f"the message goes to topic {topic!r}")
    if queue.queue_id not in range(2**31):
        raise ParameterInvalid("queue", str(queue), "a queue's number is from 0 to 2,147,483,647")


def _check_wait(joined: JoinedConnection, broker: _Broker, wait: Wait | None) -> None:
    """Raise ScheduleInvalid for a time of delivery too far ahead for the broker, before it causes an SQL error."""
    if not isinstance(wait, DeliverAfter | DeliverAt):
        return
    [(now, farthest)] = joined.run(joined_append.find_farthest(), broker.target)
    waits = wait.milliseconds - (now if isinstance(wait, DeliverAt) else 0)
    if farthest is not None and waits > farthest:
        raise ScheduleInvalid("deliver_at", f"the message would wait {waits:,} ms; the limit is {farthest:,}")


class _QueueNums(NamedTuple):
    """The numbers of a topic's read and write queues. Messages without a chosen queue go to write queues."""

    read: int
    write: int


def _queue_nums(joined: JoinedConnection, broker: _Broker, topics: Sequence[str]) -> dict[str, _QueueNums]:
    """The numbers of queues by topic. Raises AccessDenied, TopicNotFound, TopicNotWritable."""
    found: dict[str, _QueueNums] = {}
    for topic, perm, read, write, principal, may_send in joined.run(joined_append.find_topics(topics), broker.target):
        if not may_send:
            raise AccessDenied(principal, "SEND", "TOPIC", topic)
        if perm is None:
            raise TopicNotFound(topic)
        if not perm & Perm.WRITE:
            raise TopicNotWritable(topic, perm)
        found[topic] = _QueueNums(read, write)
    return found
