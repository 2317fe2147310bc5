"""Pull service: the thread that pulls messages from the broker into the process queues.

    a queue is new, an arrival is announced, a pull left messages behind ──▶ mark ──▶ pull
    sweep: dispatch has advanced since the last sweep ──▶ all queues are marked
    many marks at once ──▶ one statement tells which of these queues have messages

A marked queue is pulled when it has room. One statement pulls queues of several topics if their filters are equal.
The sweep catches lost announcements: while dispatch is idle, it costs one cheap query. Fruitless pulls are limited,
because any client can forge an announcement. A topic whose pull is refused pauses for a while, and the others continue;
a lost broker stops all topics.
RocketMQ: PullMessageService, DefaultMQPushConsumerImpl.pullMessage.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from sqlalchemy import Connection

from mqdb.broker.consumers.horizon import UNKNOWN_HORIZON
from mqdb.broker.consumers.pull import PullRequest, PullResult, PullStatus, pull
from mqdb.common.backoff import pauses
from mqdb.common.wake_limit import WakeLimit
from mqdb.errors import BrokerUnavailable, MessageMissing, MqdbError
from mqdb.selector.subscription import ExpressionType, MessageFilter
from mqdb.store.dispatch.unread import Progress, progress, unread
from mqdb.store.engine import is_idle, target_of
from mqdb.store.log.history import ANOTHER_HISTORY, History
from mqdb_client.connection_watch import line_of
from mqdb_client.consumer.queues.process_queue import ProcessQueue
from mqdb_client.consumer.queues.pull_schedule import PullSchedule
from mqdb_client.outage import Outage

logger = logging.getLogger(__name__)

#: Seconds between sweeps; doubled by each sweep that finds nothing.
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.2, 5.0

#: How many queues per second sweeps check at most, which takes less than a hundredth of a second.
_SWEPT_PER_SECOND: Final = 1_000
_MAX_SWEEP_SECONDS: Final = 10.0

#: The maximum number of queues in one pull statement. If more are marked, most of them have no messages.
_PULLED_AT_ONCE: Final = 64
_NEAR_SEGMENTS: Final = 1

#: Between attempts while the broker cannot be reached, or refuses the pulls of a topic.
MAX_PAUSE_SECONDS = 5.0


class _Asked(NamedTuple):
    """A queue and its pull request, which is read from the queue only once."""

    process_queue: ProcessQueue
    request: PullRequest


class PullService:
    """The pulls of one consumer.

    `deliver` gets a process queue and the number of messages added to it. A process queue whose offset does not exist
    is dropped, and its owner corrects the offset.
    """

    def __init__(
        self,
        group: str,
        *,
        connect: Callable[[], Connection],
        subscriptions: Mapping[str, MessageFilter],
        batch_size: int,
        interval: timedelta = timedelta(0),
        deliver: Callable[[ProcessQueue, int], None],
        outage: Outage,
    ) -> None:
        """`connect` opens a connection of a watched engine; the service keeps the connection."""
        self._group = group
        self._connect = connect
        self._outage = outage
        #: Filters by topic; may be replaced at any time.
        self.subscriptions = subscriptions
        self._batch_size = batch_size
        self._interval = interval.total_seconds()
        self._resting: dict[int, float] = {}  # until when a queue must not be pulled
        self._deliver = deliver
        self._wake = threading.Condition()
        self._wake_limit = WakeLimit()
        self._schedule = PullSchedule()
        self._queues: dict[int, ProcessQueue] = {}
        self._is_suspended = False
        self._is_stopping = False
        self._horizon = UNKNOWN_HORIZON
        self._swept: Progress | None = None
        self._poll_seconds = MIN_POLL_SECONDS
        self._poll_at = 0.0
        self._missing: set[int] = set()
        self._pauses: Iterator[float] | None = None  # backoff while pulling fails
        self._is_told = False  # whether the failure was logged
        self._is_hurried = False
        self._has_moved = False  # whether the current pull has advanced a queue
        self._topic_pauses: dict[str, Iterator[float]] = {}  # backoff while pulling one topic fails
        self._thread = threading.Thread(target=self._run, name=f"mqdb-{group}-pull", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the current pull."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        self._thread.join()

    def add(self, process_queue: ProcessQueue) -> None:
        """Pull a queue from now on."""
        with self._wake:
            self._queues[process_queue.queue_key] = process_queue
            self._schedule.add(process_queue.queue_key)
            self._wake.notify()

    def remove(self, process_queue: ProcessQueue) -> None:
        """Stop pulling a queue."""
        with self._wake:
            if self._queues.get(process_queue.queue_key) is process_queue:
                del self._queues[process_queue.queue_key]
                self._schedule.remove(process_queue.queue_key)

    def on_arrival(self, queue_keys: Iterable[int] | None) -> None:
        """Pull these queues, or all queues if None is given, because messages may have arrived."""
        with self._wake:
            if self._schedule.mark(queue_keys):
                self._wake.notify()

    def hurry(self) -> None:
        """End the wait after an error, because the broker is back."""
        with self._wake:
            self._is_hurried = True
            self._wake.notify()

    def suspend(self) -> None:
        """Pull nothing until `resume`. The current pull still delivers its messages."""
        self._is_suspended = True

    def resume(self) -> None:
        """Pull again after `suspend`."""
        with self._wake:
            self._is_suspended = False
            self._wake.notify()

    def on_room(self) -> None:
        """Note that a queue that was full has room again."""
        with self._wake:
            self._wake.notify()

    # -- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_stopping:
            try:
                self._pull_until_stopped()
            except MqdbError as error:
                if not self._outage.covers(self, error) and not self._is_told:
                    self._is_told = True
                    fields = self._fields(error)
                    logger.warning("could not pull for group %(group)s; will retry: %(reason)s", fields, extra=fields)
                self._wait_out()
            except Exception as error:
                fields = self._fields(error)
                logger.exception("could not pull for group %(group)s; will retry", fields, extra=fields)
                self._wait_out()
        self._outage.leave(self)

    def _pull_until_stopped(self) -> None:
        with self._connect() as connection:
            line = line_of(connection)
            try:
                while (queues := self._next()) is not None:
                    line.begin()
                    if not queues:
                        self._sweep(connection)
                        line.end()
                        self._outage.works(self)
                        continue
                    self._has_moved = False
                    self._pull_all(connection, [_Asked(queue, queue.pull_request()) for queue in queues])
                    line.end()
                    if self._has_moved:
                        self._wake_limit.regain()
                    else:
                        self._wake_limit.spend()
                    self._pauses = None
                    self._outage.works(self)
                    if self._is_told:
                        self._is_told = False
                        logger.info("pulling again", extra={"group": self._group})
            finally:
                connection.invalidate()  # after an error it must not be reused, and its pool may no longer exist

    def _wait_out(self) -> None:
        """After an error, schedule another pull of all queues."""
        self._pauses = self._pauses or pauses(MAX_PAUSE_SECONDS)
        with self._wake:
            self._schedule.mark(None)
            self._is_hurried = False
            self._wake.wait_for(lambda: self._is_stopping or self._is_hurried, next(self._pauses))

    def _next(self) -> list[ProcessQueue] | None:
        """Wait for queues to pull; [] when it is time for a sweep, None when stopping."""
        with self._wake:
            while not self._is_stopping:
                now = time.monotonic()
                if now >= self._poll_at:
                    swept_seconds = min(len(self._queues) / _SWEPT_PER_SECOND, _MAX_SWEEP_SECONDS)
                    self._poll_at = now + max(self._poll_seconds, swept_seconds)
                    self._poll_seconds = min(self._poll_seconds * 2, MAX_POLL_SECONDS)
                    return []
                if self._resting:
                    self._resting = {key: until for key, until in self._resting.items() if until > now}
                if seconds_left := self._wake_limit.seconds_left():
                    self._wake.wait(seconds_left)
                    continue
                if not self._is_suspended and (keys := self._schedule.take(self._may_be_pulled)):
                    if self._interval:
                        self._resting.update(dict.fromkeys(keys, now + self._interval))
                    return [self._queues[key] for key in keys]
                self._wake.wait(min((self._poll_at, *self._resting.values())) - now)
            return None

    def _may_be_pulled(self, queue_key: int) -> bool:
        process_queue = self._queues[queue_key]
        is_subscribed = process_queue.queue.topic in self.subscriptions  # otherwise rebalance is about to give it back
        return queue_key not in self._resting and is_subscribed and process_queue.has_room()

    def _sweep(self, connection: Connection) -> None:
        """Mark all queues if any of them may have received messages since the last sweep."""
        found = progress(connection)
        with self._wake:
            queues = list(self._queues.values())
        self._check_history(connection, (process_queue.history for process_queue in queues), found)
        if found.seq is None or found != self._swept:
            self._swept = found
            self.on_arrival(None)
        self.on_arrival(self._missing)

    def _pull_all(self, connection: Connection, asked: Sequence[_Asked]) -> None:
        if len(asked) > _PULLED_AT_ONCE:
            asked = self._unread(connection, asked)
        subscriptions = self.subscriptions
        groups: defaultdict[tuple[MessageFilter | None, str | None], list[_Asked]] = defaultdict(list)
        for each in asked:
            topic = each.request.queue.topic
            if topic in subscriptions:
                # A topic that is occasionally refused is pulled alone.
                alone = topic if topic in self._topic_pauses else None
                message_filter = subscriptions[topic]
                groups[None if message_filter.matches_all else message_filter, alone].append(each)
            else:
                self.on_arrival([each.request.queue_key])
        for (filter_, _), group in groups.items():
            for chunk in _chunks(group):
                self._pull_or_rest(connection, chunk, filter_)

    def _unread(self, connection: Connection, asked: Sequence[_Asked]) -> list[_Asked]:
        """The queues that hold messages; the others are at the offset where dispatch will write next."""
        found = progress(connection)
        requests = [each.request for each in asked]
        self._check_history(connection, (request.history for request in requests), found)
        keys, offsets = [request.queue_key for request in requests], [request.offset for request in requests]
        unread_keys = unread(connection, keys, offsets, found.segment)
        for process_queue, request in asked:
            if request.queue_key not in unread_keys and request.segment < found.segment:
                process_queue.put([], request.offset, found.segment)
        return [each for each in asked if each.request.queue_key in unread_keys]

    def _pull_or_rest(
        self, connection: Connection, asked: Sequence[_Asked], message_filter: MessageFilter | None
    ) -> None:
        """Pull queues with the same filter. If the pull is refused, find out which topic is the cause."""
        topics = {each.request.queue.topic for each in asked}
        try:
            self._pull(connection, asked, message_filter)
        except MqdbError as error:
            if isinstance(error, BrokerUnavailable) or not is_idle(connection):
                raise
            if len(topics) == 1:
                self._let_rest(topics.pop(), asked, error)
            for topic in topics:
                alone = [each for each in asked if each.request.queue.topic == topic]
                self._pull_or_rest(connection, alone, message_filter)
        else:
            for topic in topics & self._topic_pauses.keys():
                del self._topic_pauses[topic]
                logger.info("pulling a topic again", extra={"group": self._group, "topic": topic})

    def _let_rest(self, topic: str, asked: Sequence[_Asked], error: MqdbError) -> None:
        """After an error in one topic, such as a selector error, schedule another pull of its queues."""
        if topic not in self._topic_pauses:
            self._topic_pauses[topic] = pauses(MAX_PAUSE_SECONDS)
            fields = self._fields(error) | {"topic": topic}
            sentence = "could not pull topic %(topic)s for group %(group)s; will retry: %(reason)s"
            logger.warning(sentence, fields, extra=fields)
        keys = [each.request.queue_key for each in asked]
        self._resting.update(dict.fromkeys(keys, time.monotonic() + next(self._topic_pauses[topic])))
        self._horizon = UNKNOWN_HORIZON
        self.on_arrival(keys)

    def _pull(self, connection: Connection, asked: Sequence[_Asked], message_filter: MessageFilter | None) -> None:
        by_key = {each.request.queue_key: each.process_queue for each in asked}
        requests = [each.request for each in asked]
        try:
            results, self._horizon = pull(
                connection, requests, limit=self._batch_size, filter=message_filter, horizon=self._horizon
            )
        except MessageMissing as error:
            self._leave_out(error)
            self.on_arrival(by_key.keys() - {error.queue_key})
            return
        if len(results) < len(requests):
            self._check_history(connection, (request.history for request in requests), progress(connection))
        unfinished = [
            result.request.queue_key
            for result in results
            if self._take_over(by_key[result.request.queue_key], result, message_filter)
        ]
        self._missing.difference_update(result.request.queue_key for result in results)
        self.on_arrival(unfinished)

    def _check_history(self, connection: Connection, histories: Iterable[History | None], found: Progress) -> None:
        """Raise BrokerUnavailable if the connection's log has another history than the queues."""
        if any(history not in (None, found.history) for history in histories):
            raise BrokerUnavailable(target_of(connection), ANOTHER_HISTORY)

    def _leave_out(self, error: MessageMissing) -> None:
        """Exclude a queue from pulls until the next poll, so that the other queues do not wait for it."""
        if error.queue_key not in self._missing:
            self._missing.add(error.queue_key)
            held = self._queues.get(error.queue_key)
            fields = self._fields(error) | {"queue": str(held.queue if held else error.queue_key)}
            logger.error("queue %(queue)s stands still for group %(group)s: %(reason)s", fields, extra=fields)

    def _fields(self, error: Exception) -> dict[str, object]:
        return {"group": self._group, "reason": str(error)}

    def _take_over(self, process_queue: ProcessQueue, result: PullResult, message_filter: MessageFilter | None) -> bool:
        """Deliver the messages that a pull has found in one queue; returns True if more messages are behind them."""
        if result.status is PullStatus.OFFSET_ILLEGAL:
            process_queue.drop()
            if process_queue.owner is not None:
                process_queue.owner.correct(process_queue, result.next_begin_offset)
            return False
        messages = result.messages
        if message_filter is not None and message_filter.expression_type is ExpressionType.TAG:
            messages = [message for message in messages if message_filter.matches(message.tag)]  # codes can collide
        # Also without messages: entries that were checked need not be checked again after a restart.
        if process_queue.put(messages, result.next_begin_offset, result.segment):
            self._has_moved |= result.next_begin_offset != result.request.offset
            if messages:
                self._poll_seconds = MIN_POLL_SECONDS
                self._deliver(process_queue, len(messages))
        return result.next_begin_offset < result.max_offset


def _chunks(asked: Iterable[_Asked]) -> Iterator[list[_Asked]]:
    """Split queues into chunks that are pulled together: a chunk has few queues, close to each other in the log.

    A pull opens all segments from the queue that is furthest behind to the queue that is furthest ahead.
    """
    chunk: list[_Asked] = []
    for each in sorted(asked, key=lambda each: each.request.segment):
        hindmost = (chunk or [each])[0].request.segment
        is_near = each.request.segment - hindmost <= (_NEAR_SEGMENTS if hindmost else 0)
        if not is_near or len(chunk) == _PULLED_AT_ONCE:
            yield chunk
            chunk = []
        chunk.append(each)
    if chunk:
        yield chunk
