"""A member of a popping group: a push consumer's part on one broker, from start to shutdown.

    broker ── pop ──▶ popped queue ──▶ listener
      ▲                    │ done, or failed
      └── ack, or another invisible time

One thread acknowledges, extends and pops, so acknowledgements gather while it is busy. The thread extends the invisible
time of all messages in hand while their listeners run. RocketMQ: DefaultMQPushConsumerImpl.popMessage,
ConsumeMessagePopConcurrentlyService.
"""

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from itertools import groupby
from operator import attrgetter
from typing import Final

from sqlalchemy import Connection

from mqdb.broker.clients.membership import reap
from mqdb.broker.consumers.pop import MAX_POPPED, Failed, ack, change_invisible, fail
from mqdb.broker.consumers.send_back import SendBackRequest, SentBack
from mqdb.common.backoff import pauses
from mqdb.common.group import ConsumeMode
from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import BrokerUnavailable, ConsumeModeConflict, MqdbError
from mqdb.selector.subscription import MessageFilter
from mqdb.store.clients.clients import ClientKind
from mqdb_client.consumer.member import MemberParts
from mqdb_client.consumer.push_strategy import PushStrategy
from mqdb_client.consumer.queues.broker_pops import LONGEST_WAIT_SECONDS, BrokerPops
from mqdb_client.consumer.queues.consume_pace import ConsumePace
from mqdb_client.consumer.queues.popped_queue import PoppedQueue
from mqdb_client.consumer.queues.rebalance_service import REAP_SECONDS

logger = logging.getLogger(__name__)

#: The time between attempts while the broker cannot be reached.
_LONGEST_PAUSE_SECONDS: Final = 2.0

_AT_ONCE: Final = timedelta(0)


class PopMember:
    """A popping member.

    The member is started once, after the instance has joined the group, and leaves the group once.
    """

    #: The mode of the group in which it consumes.
    consume_mode: Final = ConsumeMode.POP

    def __init__(self, parts: MemberParts[PushStrategy]) -> None:
        instance, config, strategy, filters, start, presence = parts
        #: Whether the consumer replaces this member with another, and so stays in the group.
        self.has_successor = False
        self._group = config.group
        self._instance = instance
        self._strategy = strategy
        self._pops = BrokerPops(instance, config.group, filters, start, presence, strategy.max_reconsume_times)
        self._invisible = strategy.invisible
        strategy.popping[instance.broker_name] = self.fail
        self._guard = threading.Lock()
        self._queues: dict[MessageQueue, PoppedQueue] = {}
        #: The messages in hand, by their positions in the log.
        self._in_hand: dict[int, ReceivedMessage] = {}
        self._acks: list[str] = []
        self._pace = ConsumePace(time.monotonic())
        #: Held while messages are popped, fail or are extended: a failed message must not be extended, nor be popped
        #: again before it is removed from those in hand.
        self._changing = threading.Lock()
        self._prolong_at = time.monotonic()
        self._reap_at = time.monotonic()
        self._woken = threading.Event()
        self._seconds = 0.0
        self._pauses: Iterator[float] | None = None
        self._is_suspended = False
        self._is_leaving = False
        self._is_over = False
        self._thread = threading.Thread(
            target=self._run, name=f"mqdb-{config.group}-pop-{instance.broker_name}", daemon=True
        )

    # -- life -----------------------------------------------------------------------------------

    def start(self, *, may_be_down: bool) -> None:
        """Pop. If this fails, nothing keeps running.

        With `may_be_down` the thread waits for a broker that cannot be reached.
        """
        with ExitStack() as undo:
            self._callback = self._instance.on_arrival(self._on_arrival)
            undo.callback(self._callback.cancel)
            if not may_be_down:
                self._pops.begin()
            elif self._instance.is_met:
                with suppress(BrokerUnavailable):
                    self._pops.begin()
            self._thread.start()
            undo.pop_all()

    def read(self, filters: Mapping[str, MessageFilter]) -> None:
        """Read only these topics from now on. Messages in hand are consumed."""
        self._pops.filters = filters
        self._woken.set()

    def suspend(self) -> None:
        """Pop nothing until `resume`. Messages in hand are consumed."""
        self._is_suspended = True

    def resume(self) -> None:
        """Pop again, after `suspend`."""
        self._is_suspended = False
        self._woken.set()

    def look_again(self) -> None:
        """Check topics and queues again, because they may have changed."""
        self._woken.set()

    def on_arrival(self, _queue_keys: Sequence[int]) -> None:
        """Note that these queues have messages."""
        self._woken.set()

    def begin_to_leave(self) -> None:
        """Stop popping, and give back messages not yet started; if there is a successor, they are consumed here."""
        self._callback.cancel()
        self._is_leaving = True
        self._woken.set()

    def leave(self, seconds: float | None = None) -> None:
        """Wait until all messages in hand are settled, or for `seconds`; the rest is redelivered immediately."""
        if self._thread.is_alive():
            self._thread.join(seconds)
            self._is_over = True
            self._woken.set()
            self._thread.join()
        if not self.has_successor:
            self._instance.unregister(self._group, ClientKind.CONSUMER)

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """An empty tuple, because popping members do not own queues."""
        return ()

    @property
    def held(self) -> list[PoppedQueue]:
        """The queues from which messages were popped."""
        return list(self._queues.values())

    # -- the end of messages ----------------------------------------------------------------------

    def fail(self, requests: Sequence[SendBackRequest]) -> list[SentBack]:
        """Send failed messages to a retry or to the dead letter queue.

        If this raises MqdbError, the messages stay in hand.
        """
        with self._changing:
            with self._guard:
                held = {request.log_pos: self._in_hand.get(request.log_pos) for request in requests}
            failed = [
                Failed(message, request.failure, request.retry)
                for request in requests
                if (message := held[request.log_pos]) is not None
            ]
            with self._instance.connect() as connection:
                results = fail(connection, self._group, failed, self._strategy.max_reconsume_times)
            self._forget([each.message for each in failed])
            for each in failed:
                self._queues[each.message.queue].forget([each.message])
        return results

    def _forget(self, messages: Sequence[ReceivedMessage]) -> None:
        """Remove messages from the messages in hand."""
        if messages:
            with self._guard:
                for message in messages:
                    self._in_hand.pop(message.log_pos, None)
            self._woken.set()

    def _done(self, messages: list[ReceivedMessage]) -> None:
        with self._guard:
            for message in messages:
                if self._in_hand.pop(message.log_pos, None) is not None:
                    self._acks.append(str(message.receipt_handle))
        self._woken.set()

    # -- the thread -----------------------------------------------------------------------------

    def _on_arrival(self, queue_keys: frozenset[int] | None) -> None:
        if self._pops.concerns(queue_keys):
            self._woken.set()

    def _run(self) -> None:
        outage = self._instance.outage
        while not self._has_ended():
            self._woken.wait(self._seconds)
            self._woken.clear()
            try:
                self._settle()
                self._reap()
                self._seconds = min(self._pop(), max(self._prolong_at - time.monotonic(), 0.0))
                outage.works(self)
                self._pauses = None
            except ConsumeModeConflict:  # the group now pulls: a successor follows
                self._seconds = LONGEST_WAIT_SECONDS
            except Exception as error:  # the outermost level of the thread: any error is logged, and the work retried
                if not outage.covers(self, error) and self._pauses is None:
                    unexpected = None if isinstance(error, MqdbError) else error
                    fields = {"group": self._group, "reason": str(error)}
                    sentence = "could not pop messages for group %(group)s; will retry: %(reason)s"
                    logger.warning(sentence, fields, extra=fields, exc_info=unexpected)
                self._pauses = self._pauses or pauses(_LONGEST_PAUSE_SECONDS)
                self._seconds = next(self._pauses)
        with suppress(MqdbError):  # otherwise the messages are redelivered after their invisible time
            self._settle()
        outage.leave(self)

    def _reap(self) -> None:
        """Remove dead members if no broker process does.

        A dead member may still own a queue since the time when the group pulled.
        """
        if self._reap_at <= time.monotonic() and not self._instance.is_attended:
            with self._instance.connect() as connection:
                reap(connection)
            self._reap_at = time.monotonic() + REAP_SECONDS

    def _has_ended(self) -> bool:
        return self._is_over or (self._is_leaving and not self._in_hand and not self._acks)

    def _settle(self) -> None:
        """Acknowledge finished messages, extend messages in hand, and give back messages that will not be started."""
        with self._guard:
            acks, self._acks = self._acks, []
        is_time = time.monotonic() >= self._prolong_at and not self._is_over
        if not acks and not is_time and not self._is_leaving:
            return
        with self._instance.connect() as connection:
            try:
                refused = ack(connection, self._group, acks).count(False)
            except BaseException:
                with self._guard:
                    self._acks = acks + self._acks
                raise
            self._pace.count(len(acks))
            if refused:
                fields = {"group": self._group, "count": refused}
                sentence = (
                    "acknowledged %(count)s messages of group %(group)s after their invisible time; they are "
                    "redelivered"
                )
                logger.warning(sentence, fields, extra=fields)
            if self._is_leaving and not self.has_successor:
                for queue in self.held:
                    self._give_back(connection, queue.give_up(), is_unread=True)
                if self._is_over:
                    self._give_back(connection, list(self._in_hand.values()), is_unread=False)
            if is_time:
                self._prolong(connection)
                self._prolong_at = time.monotonic() + self._invisible.total_seconds() / 3

    def _give_back(self, connection: Connection, messages: list[ReceivedMessage], *, is_unread: bool) -> None:
        handles = [str(message.receipt_handle) for message in messages]
        change_invisible(connection, self._group, handles, _AT_ONCE, is_unread=is_unread)
        self._forget(messages)

    def _prolong(self, connection: Connection) -> None:
        with self._changing:
            with self._guard:
                messages = list(self._in_hand.values())
            handles = [str(message.receipt_handle) for message in messages]
            changed = change_invisible(connection, self._group, handles, self._invisible)
            for message, handle in zip(messages, changed, strict=True):
                if handle is not None:
                    message.popped(handle)

    def _pop(self) -> float:
        """Pop as many messages as there is room for; returns the number of seconds until the next check."""
        # Quick listeners have more messages in hand, so that one pop gets many.
        most = max(self._strategy.most_in_hand, min(self._pace.messages(time.monotonic()), MAX_POPPED))
        room = most - len(self._in_hand)
        if self._is_suspended or self._is_leaving or room < max(most // 4, 1):
            return LONGEST_WAIT_SECONDS
        with self._changing:
            popped = self._pops.pop(min(room, MAX_POPPED), self._invisible)
            by_queue = attrgetter("queue")
            for queue, messages in groupby(sorted(popped.messages, key=by_queue), by_queue):
                self._deliver(queue, list(messages))
        if popped.messages:
            return 0.0
        wait = LONGEST_WAIT_SECONDS if popped.seconds_to_next is None else popped.seconds_to_next
        return min(wait, LONGEST_WAIT_SECONDS)

    def _deliver(self, queue: MessageQueue, messages: list[ReceivedMessage]) -> None:
        new: list[ReceivedMessage] = []
        with self._guard:
            for message in messages:
                mine = self._in_hand.setdefault(message.log_pos, message)
                if mine is message:
                    new.append(message)
                else:  # its invisible time has passed while a listener still runs
                    mine.popped(str(message.receipt_handle))
            popped_queue = self._queues.get(queue)
            if popped_queue is None or popped_queue.is_dropped:
                popped_queue = PoppedQueue(queue, self._strategy.limits, self._done, self._forget)
                self._queues[queue] = popped_queue
        if new:
            popped_queue.add(new)
            self._strategy.deliver(popped_queue, len(new))
