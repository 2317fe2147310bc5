"""Pop: members of a group take messages from any queue, and acknowledge each. Queues have no owners.

    pop                 messages are in flight: invisible to the group for a while
    ack                 done
    change_invisible    longer, for a listener that still runs; shorter, for one that has failed
    nothing             when the time has passed, the next pop redelivers the message, with one more attempt

A message that was delivered as often as the group allows goes to %DLQ%group at the next pop. RocketMQ leaves such
messages to its proxy. RocketMQ: PopMessageProcessor, AckMessageProcessor, ChangeInvisibleTimeProcessor.
"""

import logging
import math
import random
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection

from mqdb.broker.consumers.horizon import UNKNOWN_HORIZON, Horizon, Window, open_window
from mqdb.broker.consumers.in_flight import read_in_flight
from mqdb.broker.consumers.pull import (
    BASE,
    DEFAULT_MAX_BYTES,
    ENTRY_POS,
    LOG_POS,
    LOOKED_AT,
    MAX,
    NEWEST,
    QUEUE_OFFSET,
    PullRequest,
    how_far,
    message_of,
    name_origins,
    window_of,
)
from mqdb.broker.consumers.send_back import SendBackRequest, SentBack, send_back
from mqdb.broker.log.query import broker_info
from mqdb.common import receipt_handle
from mqdb.common.failure import Failure
from mqdb.common.message import MessageQueue
from mqdb.common.receipt_handle import is_handle
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.retry import Dead, Retry, decide
from mqdb.common.retry_delays import LONGEST_RETRY_DELAY, delay_after
from mqdb.errors import BrokerUnavailable, MessageMissing, MqdbError, ParameterInvalid, ReceiptHandleInvalid
from mqdb.selector.subscription import MessageFilter
from mqdb.selector.tags import TagExpression
from mqdb.store.consumers import groups, pop_batches
from mqdb.store.consumers.pop_batches import PoppedMessage
from mqdb.store.engine import is_idle, transaction, translated, translates
from mqdb.store.schedule import delay_levels

logger = logging.getLogger(__name__)

#: The maximum number of messages that one pop returns.
MAX_POPPED: Final = 1_024

#: Source: the proxy's MAX_INVISIBLE_TIME.
LONGEST_INVISIBLE: Final = LONGEST_RETRY_DELAY

#: How often a pop looks for redelivered messages before new ones. Source: BrokerConfig.popFromRetryProbability.
_DUE_FIRST: Final = 0.2

#: The maximum number of transactions in which a pop searches on if nothing matches its filter, or others hold all
#: queues.
_LOOKS: Final = 16


#: Due messages are searched from the last search on, and this often among all: another session may have held them in a
#: transaction that was rolled back.
_WHOLE_LOOK_SECONDS: Final = 10.0

#: How much more than ours the server's clock may advance between two searches.
_MARGIN: Final = timedelta(seconds=1)


class Seen(NamedTuple):
    """The state that a reader keeps between pops of its queues."""

    horizon: Horizon = UNKNOWN_HORIZON
    segments: frozenset[int] = frozenset({0})
    """The segments from which queues were last read; 0 stands for any segment."""
    looked_at: float = -math.inf
    """The monotonic time of the last complete search for messages that had become due since the previous search."""
    looked_at_all: float = -math.inf
    """The monotonic time of the last complete search for all due messages."""

    @property
    def look_back(self) -> timedelta | None:
        """The time span of the next search for due messages; None for all due messages."""
        now = time.monotonic()
        is_whole = now - self.looked_at_all > _WHOLE_LOOK_SECONDS
        return None if is_whole else timedelta(seconds=now - self.looked_at) + _MARGIN


NOTHING_SEEN: Final = Seen()


class Popped(NamedTuple):
    """The result of a pop. Pass `seen` to the next pop of these queues."""

    messages: list[ReceivedMessage]
    seen: Seen
    seconds_to_next: float | None = None
    """If no messages were found: the seconds until messages may be found, unless new messages arrive earlier. None if
    nothing is in flight.
    """


@translates
def pop(
    connection: Connection,
    group: str,
    client_id: str,
    queues: Mapping[int, MessageQueue],
    *,
    limit: int,
    invisible: timedelta,
    filter: MessageFilter | None = None,
    seen: Seen = NOTHING_SEEN,
    max_reconsume_times: int | None = None,
) -> Popped:
    """Pop up to `limit` messages from these queues, given by key; the caller owns the messages for `invisible`.

    One in five pops looks for redelivered messages first, all other pops for new messages. Messages that do not match
    `filter` are skipped. Each message has its receipt handle. The commit waits for the disk only as part of another
    transaction: after a server crash all handles are refused anyway. `max_reconsume_times` has the same meaning as in
    `send_back`. If an error occurs after some messages were popped, these are returned. Raises ParameterInvalid, also
    for a group that does not exist, AccessDenied, ConsumeModeConflict, and MessageMissing like `pull`.
    """
    if not 1 <= limit <= MAX_POPPED:
        raise ParameterInvalid("limit", limit, f"must be from 1 to {MAX_POPPED:,}")
    if filter is not None and filter.matches_all:
        filter = None
    is_durable = not is_idle(connection)
    wish = _Wish(group, client_id, queues, invisible, filter, is_durable, max_reconsume_times)
    is_due_first = random.random() < _DUE_FIRST
    messages: list[ReceivedMessage] = []
    has_more = False
    for pop_some in (_due, _new) if is_due_first else (_new, _due):
        if len(messages) == limit:
            break
        try:
            with translated(connection):
                some = pop_some(connection, wish, limit - len(messages), seen)
        except MqdbError:
            if not messages:
                raise
            break  # the next pop runs into it again; the caller already owns these messages
        messages += some.messages
        seen = some.seen
        has_more |= some.has_more
    wait = None
    if not messages:
        wait = 0.0 if has_more else pop_batches.seconds_to_next(connection, group)
    return Popped(messages, seen, wait)


@translates
def ack(connection: Connection, group: str, receipt_handles: Sequence[str]) -> list[bool]:
    """Acknowledge messages, all in one statement; returns for each handle whether it was valid.

    A handle is valid until its invisible time has passed, even for a message that was already acknowledged, and even
    after `change_invisible` has returned another handle. Raises AccessDenied, ConsumeModeConflict.
    """
    return pop_batches.ack(connection, group, receipt_handles)


@translates
def change_invisible(
    connection: Connection, group: str, receipt_handles: Sequence[str], invisible: timedelta, *, is_unread: bool = False
) -> list[str | None]:
    """Have messages redelivered `invisible` from now, 0 for immediately; returns a new handle for each.

    The result is None for an acknowledged message and for an invalid handle. With `is_unread` this delivery is not
    counted. Raises ParameterInvalid, AccessDenied, ConsumeModeConflict.
    """
    if not receipt_handles:
        return []
    return pop_batches.change_invisible(connection, group, receipt_handles, invisible, is_unread=is_unread)


class Failed(NamedTuple):
    """A popped message that a listener has failed to consume."""

    message: ReceivedMessage
    failure: Failure
    retry: Retry = Retry()


@translates
def fail(
    connection: Connection, group: str, failed: Sequence[Failed], max_reconsume_times: int | None = None
) -> list[SentBack]:
    """Have messages redelivered after the delays of their levels, or append them to the dead letter queue.

    This is one transaction. `max_reconsume_times` has the same meaning as in `send_back`. A message whose invisible
    time has passed is redelivered anyway. Raises GroupNotFound, AccessDenied, ConsumeModeConflict, and the errors of
    `send_back`.
    """
    results: list[SentBack] = []
    later: dict[timedelta, list[str]] = {}
    dead: list[Failed] = []
    with transaction(connection):
        settings = groups.existing(connection, group)
        levels = delay_levels.find(connection)
        for each in failed:
            message, retry = each.message, each.retry
            given = max_reconsume_times if retry.max_reconsume_times is None else retry.max_reconsume_times
            most = settings.retry_max_times if given is None else given
            verdict = decide(message.reconsume_times, retry.delay_level, most)
            level = 0
            if isinstance(verdict, Dead):
                dead.append(each)
            else:
                delay = retry.delay
                if delay is None and retry.delay_level == 0 and settings.retry_delays:
                    delay = delay_after(settings.retry_delays, message.reconsume_times)
                elif delay is None:
                    level = levels.clamp(verdict.level)
                    delay = levels.delay(level)
                later.setdefault(min(delay, LONGEST_INVISIBLE), []).append(str(message.receipt_handle))
            times = message.reconsume_times + 1
            results.append(SentBack(message.log_pos, isinstance(verdict, Dead), level, times))
        for delay, handles in later.items():
            pop_batches.change_invisible(connection, group, handles, delay)
        counted = _acknowledged(connection, group, [each.message for each in dead])
        buried = [each for each in dead if each.message in counted]
        _bury(connection, group, [(each.message, each.failure, each.message.reconsume_times) for each in buried])
    return results


@translates
def forward_to_dlq(connection: Connection, group: str, messages: Sequence[ReceivedMessage], failure: Failure) -> None:
    """Acknowledge popped messages and append them to the group's dead letter queue, all or none.

    Raises ReceiptHandleInvalid, and the errors of `send_back`.
    """
    with transaction(connection):
        handles = [str(message.receipt_handle) for message in messages]
        answers = ack(connection, group, handles)
        lost = [handle for handle, is_valid in zip(handles, answers, strict=True) if not is_valid]
        if lost:
            raise ReceiptHandleInvalid(tuple(lost))
        _bury(connection, group, [(message, failure, message.reconsume_times) for message in messages])


@translates
def forward_handle_to_dlq(connection: Connection, group: str, receipt_handle: str, failure: Failure) -> None:
    """Forward a message to the dead letter queue, given only its receipt handle.

    Has no effect if the message is no longer in flight: a client that missed the answer may repeat its request, or the
    message is redelivered. Raises ReceiptHandleInvalid if `receipt_handle` is not a handle.
    """
    with transaction(connection):
        if not is_handle(receipt_handle):
            raise ReceiptHandleInvalid((receipt_handle,))
        found = pop_batches.find(connection, group, receipt_handle)
        if found is None:
            return
        place = found.message
        queue = MessageQueue(found.topic, broker_info(connection).broker_name, found.queue_id)
        request = PullRequest(queue, place.queue_key, place.queue_offset, place.segment)
        message = read_in_flight(connection, group, [request]).get(request)
        if message is None:
            ack(connection, group, [receipt_handle])
            return
        message.popped(receipt_handle, place.attempt - 1)
        forward_to_dlq(connection, group, [message], failure)


class _Wish(NamedTuple):
    group: str
    client_id: str
    queues: Mapping[int, MessageQueue]
    invisible: timedelta
    filter: MessageFilter | None
    #: Whether the commit waits for the disk.
    is_durable: bool
    max_reconsume_times: int | None


class _Some(NamedTuple):
    messages: list[ReceivedMessage]
    seen: Seen
    has_more: bool = False
    """Whether it stopped before it had searched everything."""


def _new(connection: Connection, wish: _Wish, limit: int, seen: Seen) -> _Some:
    horizon, window = window_of(connection, seen.segments, seen.horizon)
    for _ in range(_LOOKS):
        rows = pop_batches.pop(connection, _parameters(wish, limit, horizon, window), wish.filter)
        if not rows:
            return _Some([], seen)
        found = _read(wish, rows, window)
        if not found.segments:  # others hold all queues
            continue
        # The next window contains the segments of these queues.
        seen = seen._replace(horizon=horizon._replace(newest_segment=found.newest), segments=found.segments)
        pop_batches.ack(connection, wish.group, found.others)
        if found.messages:
            name_origins(connection, found.messages)
            return _Some(found.messages, seen)
        if found.missing is not None:
            before, window = window, open_window(min(found.segments))
            if window == before:
                raise found.missing
    return _Some([], seen, has_more=True)


def _parameters(wish: _Wish, limit: int, horizon: Horizon, window: Window) -> dict[str, object]:
    return {
        "group": wish.group,
        "client_id": wish.client_id,
        "invisible": wish.invisible,
        "is_durable": wish.is_durable,
        "queue_keys": list(wish.queues),
        "wanted": limit,
        "limit": limit,
        "scan_limit": how_far(wish.filter, None, limit, len(wish.queues)),
        "max_bytes": DEFAULT_MAX_BYTES,
        "newest_segment": horizon.newest_segment,
        **window._asdict(),
    }


class _Found(NamedTuple):
    messages: list[ReceivedMessage]
    others: list[str]
    """The handles of messages that do not match the filter after all."""
    missing: MessageMissing | None
    """Whether an entry or its record is outside the window."""
    segments: frozenset[int]
    """The segments from which the queues were read."""
    newest: int


def _read(wish: _Wish, rows: Sequence[tuple[Any, ...]], window: Window) -> _Found:
    messages: list[ReceivedMessage] = []
    others: list[str] = []
    missing: MessageMissing | None = None
    segments: set[int] = set()
    newest = 0
    for *answer, queue_key, first_offset, segment, batch_offset, steps, handle in rows:
        if queue_key is None:  # others hold all queues
            continue
        segments.add(segment)
        newest = answer[NEWEST]
        if handle is not None:
            message = message_of(wish.queues[queue_key], queue_key, tuple(answer))
            step = message.queue_offset - batch_offset
            message.popped(receipt_handle.of_place(handle, step if steps is None else steps.index(step)))
            if _matches(wish.filter, message):
                messages.append(message)
            else:
                others.append(str(message.receipt_handle))
        elif segment < window.first_segment or (
            _is_missing(wish.filter, answer) and answer[BASE] <= first_offset < answer[MAX]
        ):
            missing = MessageMissing(queue_key, first_offset, answer[ENTRY_POS] or 0)
    return _Found(messages, others, missing, frozenset(segments), newest)


def _is_missing(message_filter: MessageFilter | None, answer: Sequence[Any]) -> bool:
    if answer[QUEUE_OFFSET] is not None:
        return answer[LOG_POS] is None
    return message_filter is None or answer[LOOKED_AT] is None


def _matches(message_filter: MessageFilter | None, message: ReceivedMessage) -> bool:
    """Check a match again, because two tags may have the same code."""
    return not isinstance(message_filter, TagExpression) or message_filter.matches(message.tag)


def _due(connection: Connection, wish: _Wish, limit: int, seen: Seen) -> _Some:
    """Pop messages whose invisible time has passed.

    Messages that were delivered too often go to the dead letter queue.
    """
    looked_at, look_back = time.monotonic(), seen.look_back
    with transaction(connection):
        deliveries = pop_batches.due(
            connection, wish.group, wish.client_id, wish.invisible, list(wish.queues), limit, look_back
        )
        has_more = len(deliveries) == limit
        if not has_more:
            looked_at_all = looked_at if look_back is None else seen.looked_at_all
            seen = seen._replace(looked_at=looked_at, looked_at_all=looked_at_all)
        if not deliveries:
            return _Some([], seen)
        messages, gone = _read_again(connection, wish, deliveries)
        pop_batches.ack(connection, wish.group, gone)
        most = wish.max_reconsume_times
        if most is None:
            most = groups.existing(connection, wish.group).retry_max_times
    alive = [message for message in messages if message.reconsume_times <= most]
    _give_up(connection, wish, [message for message in messages if message.reconsume_times > most])
    return _Some(alive, seen, has_more)


def _read_again(
    connection: Connection, wish: _Wish, deliveries: Sequence[PoppedMessage]
) -> tuple[list[ReceivedMessage], list[str]]:
    """The delivered messages, and the handles of those that retention has dropped."""
    places = {
        PullRequest(wish.queues[each.queue_key], each.queue_key, each.queue_offset, each.segment): each
        for each in deliveries
    }
    found = read_in_flight(connection, wish.group, list(places))
    for request, message in found.items():
        message.popped(places[request].receipt_handle, places[request].attempt - 1)
    return list(found.values()), [each.receipt_handle for request, each in places.items() if request not in found]


def _give_up(connection: Connection, wish: _Wish, messages: Sequence[ReceivedMessage]) -> None:
    """Append messages to the dead letter queue.

    If that fails, they stay in flight, and the next delivery tries again.
    """
    dead = [
        (message, Failure.unacknowledged(wish.client_id, datetime.now(UTC), message.reconsume_times))
        for message in messages
    ]
    try:
        with translated(connection), transaction(connection):
            counted = _acknowledged(connection, wish.group, messages)
            _bury(
                connection,
                wish.group,
                [(message, failure, message.reconsume_times - 1) for message, failure in dead if message in counted],
            )
    except BrokerUnavailable:
        raise
    except MqdbError as error:
        first = messages[0]
        fields = {
            "group": wish.group,
            "message_id": first.message_id,
            "queue": str(first.queue),
            "delivery": first.delivery_attempt,
            "count": len(messages),
            "reason": str(error),
        }
        logger.warning(
            "could not append %(count)s messages to the DLQ of group %(group)s, first %(message_id)s of queue "
            "%(queue)s, delivery %(delivery)s; will retry: %(reason)s",
            fields,
            extra=fields,
        )


def _acknowledged(connection: Connection, group: str, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
    """Acknowledge messages; returns those with valid handles. The others are redelivered."""
    answers = pop_batches.ack(connection, group, [str(message.receipt_handle) for message in messages])
    return [message for message, counts in zip(messages, answers, strict=True) if counts]


def _bury(connection: Connection, group: str, dead: Sequence[tuple[ReceivedMessage, Failure, int]]) -> None:
    """Append messages to the dead letter queue, each with its last failure and the number of earlier failures."""
    requests = [
        SendBackRequest(message.log_pos, message.queue, message.queue_offset, failure, Retry(-1), earlier)
        for message, failure, earlier in dead
    ]
    send_back(connection, group, requests)
