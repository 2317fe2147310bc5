"""Messages: show one, find several, read a topic, send one.

RocketMQ: mqadmin queryMsgById, queryMsgByKey, queryMsgByOffset, sendMessage.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import islice

from sqlalchemy import Connection

from mqdb.broker.consumers import offsets
from mqdb.broker.filters.filters import check_filters
from mqdb.broker.log import messages, query
from mqdb.broker.log import trace as tracing
from mqdb.broker.log.send import send_by_sql
from mqdb.broker.log.trace import MessageTrace
from mqdb.broker.topics.topics import topic_stats
from mqdb.common.clock import check_moment
from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import MAX_QUEUE_NUMS, check_topic_name
from mqdb.common.unique_id import parse_unique_id
from mqdb.errors import ParameterInvalid, QueueNotFound
from mqdb.store.dispatch.queues import ends as ends_of
from mqdb.store.engine import translated
from mqdb.store.topics.topics import TopicRoute, existing_topic
from mqdb_client.admin.broker_access import tend_dispatch
from mqdb_client.admin.latest_messages import LatestMessages, QueueSpan, read_latest
from mqdb_client.admin.subject import Subject
from mqdb_client.admin.topic_reader import TopicReader
from mqdb_client.consumer.message_selector import MessageSelector
from mqdb_client.option_rules import LIMIT, or_none, whole


class Messages(Subject):
    """The messages of a broker. Reading them changes nothing and does not affect groups."""

    def show(self, message_id: str) -> list[ReceivedMessage]:
        """The copies of a message, by its unique id, as they were stored; [] if there are no copies.

        A delayed, retried or dead message has several copies. Copies that wait for their time or for the end of their
        transaction are left out. Raises ParameterInvalid if `message_id` is not a message id, and DispatchTimeout if a
        copy is not dispatched in time.
        """
        unique_id = parse_unique_id(message_id)
        with self._access.dispatched() as connection:
            copies = messages.find_copies(connection, unique_id)
            return [messages.read_copy(connection, self._access.name, copy) for copy in copies]

    def trace(self, message_id: str) -> MessageTrace:
        """The history of a message, by its unique id: all its copies, and their state in each group.

        The history includes copies that wait for their time or for the end of their transaction, and copies that are
        not dispatched yet. If the message does not exist, there are no copies. Raises ParameterInvalid if `message_id`
        is not a message id.
        """
        unique_id = parse_unique_id(message_id)
        with self._access.connected() as connection:
            return tracing.trace(connection, unique_id)

    def find(
        self,
        topic: str,
        *,
        key: str | None = None,
        queue_id: int | None = None,
        offset: int | None = None,
        time: datetime | timedelta | None = None,
        limit: int = 32,
    ) -> list[ReceivedMessage]:
        """Up to `limit` messages of a topic, in roughly the order in which they were sent.

        Finds messages with a key, or the first messages at `offset` or later in each queue, or the first messages
        stored at `time` or later. `time` is a datetime, or a timedelta before now by the broker's clock. A key can be
        combined with an offset or a time. `queue_id` limits the search to one queue. A key is looked up in the key
        index. Raises TopicNotFound, QueueNotFound, and ParameterInvalid for a topic that cannot be read, for offset and
        time together, and for a time without a zone.
        """
        LIMIT.check("limit", limit)
        or_none(whole(0, 2**63 - 1)).check("offset", offset)
        or_none(whole(0, MAX_QUEUE_NUMS - 1)).check("queue_id", queue_id)
        if offset is not None and time is not None:
            raise ParameterInvalid("offset", offset, "give an offset or a time, not both")
        with self._access.dispatched() as connection:
            found = _route(connection, topic)
            if queue_id is not None and not 0 <= queue_id < len(found.read_queue_keys):
                raise QueueNotFound(topic, queue_id, len(found.read_queue_keys))
            chosen = range(len(found.read_queue_keys)) if queue_id is None else [queue_id]
            keys = [found.read_queue_keys[each] for each in chosen]
            first = {} if time is None else offsets.search_offsets(connection, keys, _moment(connection, "time", time))
            queues = [
                (MessageQueue(topic, self._access.name, each), key, first.get(key, offset or 0))
                for each, key in zip(chosen, keys, strict=True)
            ]
            if key is None:
                reader = TopicReader(connection, queues, MessageSelector.by_tag().message_filter, limit)
                return list(islice(reader, limit))
            first_offsets = {queue.queue_id: first_offset for queue, _, first_offset in queues}
            copies = messages.find_by_key(connection, found, key)
            read = (messages.read_copy(connection, self._access.name, copy) for copy in copies)
            wanted = (
                each
                for each in read
                if each.queue.queue_id in first_offsets and each.queue_offset >= first_offsets[each.queue.queue_id]
            )
            return list(islice(wanted, limit))

    @contextmanager
    def reading(
        self, topic: str, start: int | None = 0, selector: MessageSelector | None = None
    ) -> Iterator[TopicReader]:
        """A reader of a topic, for a `with` statement.

        The reader starts at offset `start` of each queue, or at the end of each queue if `start` is None.
        Raises NameInvalid, TopicNotFound, FilterDisabled, and ParameterInvalid for a topic that cannot be read.
        """
        message_filter = (selector or MessageSelector.by_tag()).message_filter
        with self._access.lent() as connection:
            with translated(connection):
                found = _route(connection, topic)
                check_filters(connection, {message_filter.expression_type})
                tend_dispatch(connection)
                ends = [queue.max_offset for queue in topic_stats(connection, topic)]
            queues = [
                (MessageQueue(topic, self._access.name, queue_id), key, ends[queue_id] if start is None else start)
                for queue_id, key in enumerate(found.read_queue_keys)
            ]
            yield TopicReader(connection, queues, message_filter)

    def latest(
        self,
        topic: str,
        *,
        before: Sequence[int] | None = None,
        since: Sequence[int] | None = None,
        until: datetime | timedelta | None = None,
        queue_id: int | None = None,
        selector: MessageSelector | None = None,
        limit: int = 50,
        scan_limit: int = 5_000,
    ) -> LatestMessages:
        """The newest messages of a topic, or of one of its queues, that match a selector; newest first.

        With `before`, returns only messages before these offsets, one per readable queue; pass the `before` of one
        result to the next call. With `since`, returns only messages at these offsets or later. With `until`, returns
        only messages stored before a datetime, or longer ago than a timedelta. Checks about `scan_limit` messages at
        most.

        Raises TopicNotFound, QueueNotFound, SelectorSyntaxError, FilterDisabled, and ParameterInvalid for a topic that
        cannot be read, for a wrong number of offsets, and for offsets and a time together.
        """
        LIMIT.check("limit", limit)
        LIMIT.check("scan_limit", scan_limit)
        if before is not None and until is not None:
            raise ParameterInvalid("before", list(before), "give offsets or a time, not both")
        message_filter = (selector or MessageSelector.by_tag()).message_filter
        with self._access.dispatched() as connection:
            found = _route(connection, topic)
            keys = found.read_queue_keys
            if queue_id is not None and not 0 <= queue_id < len(keys):
                raise QueueNotFound(topic, queue_id, len(keys))
            for name, offsets_given in (("before", before), ("since", since)):
                if offsets_given is not None and len(offsets_given) != len(keys):
                    raise ParameterInvalid(name, list(offsets_given), f"give {len(keys):,} offsets, one for each queue")
            check_filters(connection, {message_filter.expression_type})
            ends = ends_of(connection, keys)
            chosen = range(len(keys)) if queue_id is None else [queue_id]
            past = {key: end.max_offset for key, end in ends.items()}
            if before is not None:
                past = {key: min(offset, past[key]) for key, offset in zip(keys, before, strict=True) if key in past}
            elif until is not None:
                moment = _moment(connection, "until", until)
                past |= offsets.search_offsets(connection, [keys[each] for each in chosen], moment)
            first = {key: end.min_offset for key, end in ends.items()}
            if since is not None:
                first |= {key: max(offset, first[key]) for key, offset in zip(keys, since, strict=True) if key in first}
            spans = [
                QueueSpan(MessageQueue(topic, self._access.name, each), key, first[key], past[key])
                for each in chosen
                if (key := keys[each]) in ends
            ]
            answer = read_latest(connection, spans, message_filter, limit, scan_limit)
        rest = answer.before
        if rest is not None and queue_id is not None:
            # One offset for each queue, even if only one queue was read.
            rest = tuple(rest[0] if each == queue_id else 0 for each in range(len(keys)))
        return answer._replace(before=rest)

    def send(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        delay_level: int | None = None,
    ) -> str:
        """Send a message, for example to test a consumer; returns its unique id.

        Applications should use a Producer instead. The arguments are those of the SQL function `mqdb.send`. Raises
        TopicNotFound, TopicNotWritable, NameInvalid, MessageIllegal and ScheduleInvalid. RocketMQ: mqadmin sendMessage.
        """
        with self._access.connected() as connection:
            return send_by_sql(connection, topic, body, tag, keys, properties or {}, sharding_key, delay_level)

    def end_of(self, topic: str) -> dict[int, int]:
        """The max offset of each readable queue. Raises the errors of `reading`."""
        with self._access.dispatched() as connection:
            queues = len(_route(connection, topic).read_queue_keys)
            return {queue.queue_id: queue.max_offset for queue in topic_stats(connection, topic)[:queues]}


def _moment(connection: Connection, name: str, time: datetime | timedelta) -> datetime:
    check_moment(name, time)
    return time if isinstance(time, datetime) else query.server_time(connection) - time


def _route(connection: Connection, topic: str) -> TopicRoute:
    check_topic_name(topic)
    found = existing_topic(connection, topic)
    if not found.read_queue_keys:
        raise ParameterInvalid("topic", topic, f"its perm {int(found.config.perm)} does not let anybody read it")
    return found
