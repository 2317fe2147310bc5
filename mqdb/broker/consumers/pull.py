"""Pull: messages of several queues in one statement, with the verdict on each offset.

The verdicts are RocketMQ's (PullMessageProcessor, DefaultMessageStore.getMessage):

    offset < min                OFFSET_ILLEGAL, go on at min
    offset > max                OFFSET_ILLEGAL, go on at max
    offset = max                NO_NEW_MSG, the caller may hold
    entries, none matches       NO_MATCHED_MSG, go on behind the last one looked at, at max if that is all there is
    entries                     FOUND, go on behind the last one returned, or looked at if fewer than `limit` matched
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import Connection

from mqdb.broker.consumers.horizon import UNKNOWN_HORIZON, Horizon, SegmentBounds, Window, open_window
from mqdb.common.message import MessageQueue
from mqdb.common.property import Property
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import is_group_topic, without_namespace
from mqdb.errors import MessageMissing
from mqdb.selector.subscription import MessageFilter
from mqdb.selector.tags import TagExpression
from mqdb.store import acl
from mqdb.store.dispatch import consume_queue
from mqdb.store.engine import translates
from mqdb.store.log.history import History
from mqdb.store.segments import segments

#: The number of messages of one queue in one answer. Source: DefaultMQPushConsumer.pullBatchSize.
DEFAULT_LIMIT = 32

#: The number of entries of one queue whose messages a selector checks in one pull.
#: Source: MessageStoreConfig.maxFilterMessageSize / 20.
DEFAULT_SCAN_LIMIT = 800

#: The number of entries of all queues together whose tag codes one pull compares, without reading messages: 10 ms of
#: work, up to 60 ms if the entries of a hundred queues are interleaved.
TAG_SCAN_BUDGET = 65_536

#: The maximum bytes of bodies of one queue in one answer; a larger message is returned alone.
DEFAULT_MAX_BYTES = 4 * 1024 * 1024


class PullStatus(StrEnum):
    """RocketMQ's four answers."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


@dataclass(frozen=True, slots=True)
class PullRequest:
    """The offset from which to read a queue. `segment` comes from the last answer; 0 before the first.

    `history` is the history of the log in which the offset was found; None means any history.
    """

    queue: MessageQueue
    queue_key: int
    offset: int
    segment: int = 0
    history: History | None = None


@dataclass(frozen=True, slots=True)
class PullResult:
    """The answer for one queue. The next request starts at `next_begin_offset` in `segment`."""

    request: PullRequest
    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    segment: int
    messages: list[ReceivedMessage]


@translates
def pull(
    connection: Connection,
    requests: Sequence[PullRequest],
    *,
    limit: int = DEFAULT_LIMIT,
    filter: MessageFilter | None = None,
    scan_limit: int | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
    horizon: Horizon = UNKNOWN_HORIZON,
) -> tuple[list[PullResult], Horizon]:
    """Up to `limit` messages of each queue, ascending and without gaps, in one round trip.

    With a `filter` only matching messages count, and at most `scan_limit` entries of each queue are checked: None means
    DEFAULT_SCAN_LIMIT for a selector, and a share of TAG_SCAN_BUDGET for tags. Two tags may have the same code, so the
    reader has to check again with `filter.matches`. Queues of deleted topics, and queues from another history of the
    log, are left out of the answer.
    Raises MessageMissing if an entry has lost its record, and the errors of `translate`.
    """
    if not requests:
        return [], horizon
    if filter is not None and filter.matches_all:
        filter = None
    wish = _Wish(limit, how_far(filter, scan_limit, limit, len(requests)), max_bytes, filter)
    if any(request.history != horizon.history for request in requests):
        horizon = Horizon(history=requests[0].history)
    horizon, window = window_of(connection, {request.segment for request in requests}, horizon)
    answers = _ask(connection, requests, wish, horizon, window)
    newest = max((rows[0][NEWEST] for rows in answers.values()), default=horizon.newest_segment)
    results, missed = {}, []
    for index, rows in answers.items():
        try:
            results[index] = _result(requests[index], rows, wish)
        except MessageMissing:
            missed.append(index)  # it may be outside the window
    if missed:
        window = open_window(min(requests[index].segment for index in missed))
        again = _ask(connection, [requests[index] for index in missed], wish, UNKNOWN_HORIZON, window)
        for nth, rows in again.items():
            results[missed[nth]] = _result(requests[missed[nth]], rows, wish)
    found = [result for _, result in sorted(results.items())]
    name_origins(connection, [message for result in found for message in result.messages])
    return found, horizon._replace(newest_segment=newest)


@translates
def explain_pull(connection: Connection, requests: Sequence[PullRequest], *, filter: MessageFilter) -> list[str]:
    """The plan of a pull with a filter, as readable lines.

    The pull is executed, with all segments from those of the requests on.
    """
    wish = _Wish(DEFAULT_LIMIT, how_far(filter, None, DEFAULT_LIMIT, len(requests)), DEFAULT_MAX_BYTES, filter)
    window = open_window(min(request.segment for request in requests))
    return consume_queue.explain(connection, _parameters(requests, wish, UNKNOWN_HORIZON, window), filter)


class _Wish(NamedTuple):
    limit: int
    scan_limit: int
    max_bytes: int
    filter: MessageFilter | None


def how_far(filter: MessageFilter | None, given: int | None, limit: int, queues: int) -> int:
    """The number of entries that a pull checks in each of `queues` queues."""
    if filter is None:
        return limit
    if given is None:
        share = TAG_SCAN_BUDGET // queues if isinstance(filter, TagExpression) else 0
        given = max(DEFAULT_SCAN_LIMIT, share)
    return max(limit, given)


# The columns of a row of consume_queue.pull; the last two only with a filter.
_ORDINAL, BASE, MAX, NEWEST, SEGMENT, ENTRY_POS, QUEUE_OFFSET, LOG_POS = range(8)
_BODY = LOG_POS + 5
LOOKED_AT, _LOOKED_AT_SEGMENT = LOG_POS + 12, LOG_POS + 13
_RECORD = slice(LOG_POS, LOOKED_AT)

_Rows = list[tuple[Any, ...]]


def window_of(connection: Connection, hints: Collection[int], horizon: Horizon) -> tuple[Horizon, Window]:
    """The window for readers in these segments; 0 stands for a reader that may be anywhere."""
    if 0 in hints:
        return horizon, open_window(0)
    window = horizon.window(hints)
    if window is None:
        bounds = {number: SegmentBounds(lowest, past) for number, lowest, past in segments.bounds(connection)}
        horizon = horizon._replace(segments=bounds)
        window = horizon.window(hints) or open_window(min(hints))
    return horizon, window


def _ask(
    connection: Connection, requests: Sequence[PullRequest], wish: _Wish, horizon: Horizon, window: Window
) -> dict[int, _Rows]:
    """The rows of each request that has rows, by the index of the request."""
    rows = consume_queue.pull(connection, _parameters(requests, wish, horizon, window), wish.filter)
    return {ordinal - 1: list(group) for ordinal, group in groupby(rows, key=itemgetter(_ORDINAL))}


def _parameters(requests: Sequence[PullRequest], wish: _Wish, horizon: Horizon, window: Window) -> dict[str, object]:
    return {
        "queue_keys": [request.queue_key for request in requests],
        "offsets": [request.offset for request in requests],
        "histories": [request.history for request in requests],
        "limit": wish.limit,
        "scan_limit": wish.scan_limit,
        "max_bytes": wish.max_bytes,
        "newest_segment": horizon.newest_segment,
        **window._asdict(),
    }


def _result(request: PullRequest, rows: _Rows, wish: _Wish) -> PullResult:
    """The verdict on one queue. Raises MessageMissing if entries or their records are not in the window."""
    minimum, maximum, newest = rows[0][BASE], rows[0][MAX], rows[0][NEWEST]
    messages: list[ReceivedMessage] = []
    segment = request.segment
    if not minimum <= request.offset < maximum:
        status, next_begin = verdict(request.offset, minimum, maximum)
    elif rows[0][QUEUE_OFFSET if wish.filter is None else LOOKED_AT] is None:
        # The first entry. The entries after it in the window also exist, because offsets have no gaps.
        raise MessageMissing(request.queue_key, request.offset, 0)
    else:
        entries = rows if rows[0][QUEUE_OFFSET] is not None else []
        messages = [message_of(request.queue, request.queue_key, row) for row in entries]
        status = PullStatus.FOUND if messages else PullStatus.NO_MATCHED_MSG
        # A full answer ends at its last message. Otherwise, with a filter, the search went further than that message.
        is_full = len(entries) >= wish.limit or sum(len(row[_BODY]) for row in entries) >= wish.max_bytes
        last = LOOKED_AT if wish.filter is not None and not is_full else QUEUE_OFFSET
        next_begin = rows[-1][last] + 1
        segment = rows[-1][SEGMENT if last == QUEUE_OFFSET else _LOOKED_AT_SEGMENT]
    if next_begin == maximum:  # dispatch has yet to write the next entries
        segment = newest
    return PullResult(request, status, next_begin, minimum, maximum, segment, messages)


def name_origins(connection: Connection, messages: Sequence[ReceivedMessage]) -> None:
    """Shorten the name of the first topic in failed messages, which contain it with its namespace."""
    again = [message for message in messages if is_group_topic(message.queue.topic)]
    namespace = acl.own_namespace(connection) if again else None
    if namespace is None:
        return
    for message in again:
        if (topic := message.properties.get(Property.RETRY_TOPIC)) is not None:
            message.properties[Property.RETRY_TOPIC] = without_namespace(topic, namespace)


def verdict(offset: int, minimum: int, maximum: int) -> tuple[PullStatus, int]:
    """The verdict on an offset at which there is nothing to read."""
    if offset == maximum:
        return PullStatus.NO_NEW_MSG, offset
    return PullStatus.OFFSET_ILLEGAL, minimum if offset < minimum else maximum


def message_of(queue: MessageQueue, queue_key: int, row: tuple[Any, ...]) -> ReceivedMessage:
    """The message in a row of a pull, which has an entry. Raises MessageMissing if its record is missing."""
    if row[LOG_POS] is None:
        raise MessageMissing(queue_key, row[QUEUE_OFFSET], row[ENTRY_POS])
    values: list[Any] = [queue, row[QUEUE_OFFSET], *row[_RECORD], row[BASE], row[MAX]]
    return ReceivedMessage(*values)
