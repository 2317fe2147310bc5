"""Pull service: the thread that brings messages from the broker into the process queues.

All queues of a topic that are worth a pull and have room are pulled in one statement. A queue at its end is
pulled again when its arrival is announced. The poll behind it is a net for announcements that never came. Pulls in vain
are limited: anybody can forge an announcement.
A topic whose pull is refused rests for a while, and the others go on; a broker that is lost stops all of them.
RocketMQ: PullMessageService, DefaultMQPushConsumerImpl.pullMessage.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import groupby

from sqlalchemy import Connection

from mqdb.broker.consumers.horizon import UNKNOWN_HORIZON, Horizon
from mqdb.broker.consumers.pull import PullRequest, PullResult, PullStatus, pull
from mqdb.errors import BrokerUnavailable, MessageMissing, MqdbError
from mqdb.selector.subscription import ExpressionType, MessageFilter
from mqdb.store.engine import is_idle, target_of, translated
from mqdb.store.log import history as histories
from mqdb.store.log.history import ANOTHER_HISTORY
from mqdb_client.backoff import pauses
from mqdb_client.consumer.process_queue import ProcessQueue
from mqdb_client.consumer.pull_schedule import PullSchedule
from mqdb_client.wake_limit import WakeLimit

logger = logging.getLogger(__name__)

#: Seconds between polls without an announcement; doubled by each one that finds nothing.
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.2, 1.0

#: Between attempts while the broker cannot be reached, or refuses the pulls of a topic.
MAX_PAUSE_SECONDS = 5.0


class PullService:
    """The pulls of one consumer.

    `deliver` gets a process queue and how many messages were put into it. A process queue whose offset does not exist
    is dropped, and its owner corrects it.
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
    ) -> None:
        self._group = group
        self._connect = connect
        #: Filters by topic; may be replaced at any time.
        self.subscriptions = subscriptions
        self._batch_size = batch_size
        self._interval = interval.total_seconds()
        self._resting: dict[int, float] = {}  # until when a queue is not to be pulled
        self._deliver = deliver
        self._wake = threading.Condition()
        self._wake_limit = WakeLimit()
        self._schedule = PullSchedule()
        self._queues: dict[int, ProcessQueue] = {}
        self._is_suspended = False
        self._is_stopping = False
        self._horizons: dict[str, Horizon] = {}
        self._poll_seconds = MIN_POLL_SECONDS
        self._poll_at = 0.0
        self._missing: set[int] = set()
        self._pauses: Iterator[float] | None = None  # while pulling fails
        self._topic_pauses: dict[str, Iterator[float]] = {}  # while pulling one topic fails
        self._thread = threading.Thread(target=self._run, name=f"mqdb-{group}-pull", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the pull that is on its way."""
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
        """Pull a queue no more."""
        with self._wake:
            if self._queues.get(process_queue.queue_key) is process_queue:
                del self._queues[process_queue.queue_key]
                self._schedule.remove(process_queue.queue_key)

    def on_arrival(self, queue_keys: Iterable[int] | None) -> None:
        """Messages may have arrived in these queues, None for all."""
        with self._wake:
            if self._schedule.mark(queue_keys):
                self._wake.notify()

    def suspend(self) -> None:
        """Pull nothing until `resume`. A pull that is on its way still brings what it finds."""
        self._is_suspended = True

    def resume(self) -> None:
        """Pull again."""
        with self._wake:
            self._is_suspended = False
            self._wake.notify()

    def on_room(self) -> None:
        """A queue that was full has room again."""
        with self._wake:
            self._wake.notify()

    # -- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_stopping:
            try:
                self._pull_until_stopped()
            except MqdbError as error:
                if self._pauses is None:
                    logger.warning("pulling fails, and is tried again", extra=self._fields(error))
                self._wait_out()
            except Exception:
                logger.exception("pulling fails, and is tried again", extra={"group": self._group})
                self._wait_out()

    def _pull_until_stopped(self) -> None:
        with self._connect() as connection:
            try:
                while queues := self._next():
                    begin = [queue.next_offset for queue in queues]
                    self._pull_all(connection, queues)
                    if begin == [queue.next_offset for queue in queues]:
                        self._wake_limit.spend()
                    else:
                        self._wake_limit.regain()
                    if self._pauses is not None:
                        self._pauses = None
                        logger.info("pulling again", extra={"group": self._group})
            finally:
                connection.invalidate()  # after an error nobody should have it, and its pool may be gone by now

    def _wait_out(self) -> None:
        """After an error: all queues are to be pulled again, in a while."""
        self._pauses = self._pauses or pauses(MAX_PAUSE_SECONDS)
        with self._wake:
            self._schedule.mark(None)
            self._wake.wait_for(lambda: self._is_stopping, next(self._pauses))

    def _next(self) -> list[ProcessQueue]:
        """Waits for queues to pull; [] when stopping."""
        with self._wake:
            while not self._is_stopping:
                now = time.monotonic()
                if now >= self._poll_at:
                    self._schedule.mark(None)
                    self._poll_at = now + self._poll_seconds
                    self._poll_seconds = min(self._poll_seconds * 2, MAX_POLL_SECONDS)
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
            return []

    def _may_be_pulled(self, queue_key: int) -> bool:
        return queue_key not in self._resting and self._queues[queue_key].has_room()

    def _pull_all(self, connection: Connection, queues: Sequence[ProcessQueue]) -> None:
        by_topic = sorted(queues, key=lambda process_queue: process_queue.queue)
        for topic, group in groupby(by_topic, key=lambda process_queue: process_queue.queue.topic):
            message_filter = self.subscriptions.get(topic)
            if message_filter is not None:  # else rebalance is about to give it back
                self._pull_topic(connection, list(group), message_filter)

    def _pull_topic(
        self, connection: Connection, queues: Sequence[ProcessQueue], message_filter: MessageFilter
    ) -> None:
        topic = queues[0].queue.topic
        try:
            self._pull(connection, queues, message_filter)
        except MqdbError as error:
            if isinstance(error, BrokerUnavailable) or not is_idle(connection):
                raise
            self._let_rest(topic, queues, error)
        else:
            if self._topic_pauses.pop(topic, None) is not None:
                logger.info("pulling a topic again", extra={"group": self._group, "topic": topic})

    def _let_rest(self, topic: str, queues: Sequence[ProcessQueue], error: MqdbError) -> None:
        """After an error that is of one topic, such as a selector's: its queues are to be pulled again, in a while."""
        if topic not in self._topic_pauses:
            self._topic_pauses[topic] = pauses(MAX_PAUSE_SECONDS)
            fields = self._fields(error) | {"topic": topic}
            logger.warning("pulling a topic fails, and is tried again", extra=fields)
        keys = [process_queue.queue_key for process_queue in queues]
        self._resting.update(dict.fromkeys(keys, time.monotonic() + next(self._topic_pauses[topic])))
        self._horizons.pop(topic, None)
        self.on_arrival(keys)

    def _pull(self, connection: Connection, queues: Sequence[ProcessQueue], message_filter: MessageFilter) -> None:
        topic = queues[0].queue.topic
        by_key = {queue.queue_key: queue for queue in queues}
        requests = [PullRequest(q.queue, q.queue_key, q.next_offset, q.segment, q.history) for q in queues]
        try:
            results, self._horizons[topic] = pull(
                connection,
                requests,
                limit=self._batch_size,
                filter=message_filter,
                horizon=self._horizons.get(topic, UNKNOWN_HORIZON),
            )
        except MessageMissing as error:
            self._leave_out(error)
            self.on_arrival(by_key.keys() - {error.queue_key})
            return
        if len(results) < len(requests):
            self._check_history(connection, queues)
        unfinished = [
            result.request.queue_key
            for result in results
            if self._take_over(by_key[result.request.queue_key], result, message_filter)
        ]
        self._missing.difference_update(result.request.queue_key for result in results)
        self.on_arrival(unfinished)

    def _check_history(self, connection: Connection, queues: Sequence[ProcessQueue]) -> None:
        """Raise BrokerUnavailable if the connection leads to a log of another history than that of the queues."""
        with translated(target_of(connection)):
            current = histories.find(connection)
        if any(process_queue.history not in (None, current) for process_queue in queues):
            raise BrokerUnavailable(target_of(connection), ANOTHER_HISTORY)

    def _leave_out(self, error: MessageMissing) -> None:
        """The queue is not pulled until the next poll; the others must not wait for it."""
        if error.queue_key not in self._missing:
            self._missing.add(error.queue_key)
            logger.error("a queue stands still", extra=self._fields(error))

    def _fields(self, error: MqdbError) -> dict[str, object]:
        return {"group": self._group, "reason": str(error)}

    def _take_over(self, process_queue: ProcessQueue, result: PullResult, message_filter: MessageFilter) -> bool:
        """Hand on what a pull has found in one queue; True when there is more behind it."""
        if result.status is PullStatus.OFFSET_ILLEGAL:
            process_queue.drop()
            if process_queue.owner is not None:
                process_queue.owner.correct(process_queue, result.next_begin_offset)
            return False
        messages = result.messages
        if message_filter.expression_type is ExpressionType.TAG and not message_filter.matches_all:
            messages = [message for message in messages if message_filter.matches(message.tag)]  # two may have one code
        # Also without messages: what was looked at need not be looked at again after a restart.
        if process_queue.put(messages, result.next_begin_offset, result.segment) and messages:
            self._poll_seconds = MIN_POLL_SECONDS
            self._deliver(process_queue, len(messages))
        return result.next_begin_offset < result.max_offset
