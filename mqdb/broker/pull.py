"""Pull: messages of several queues in one statement, with the verdict on each offset.

The verdicts are RocketMQ's (PullMessageProcessor, DefaultMessageStore.getMessage):

    offset < min                OFFSET_ILLEGAL, go on at min
    offset > max                OFFSET_ILLEGAL, go on at max
    offset = max                NO_NEW_MSG, the caller may hold
    entries, none matches       NO_MATCHED_MSG, go on behind the last one looked at
    entries                     FOUND, go on behind the last one returned, or looked at if fewer than `limit` matched
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import Connection

from mqdb.broker.horizon import UNKNOWN_HORIZON, Horizon, SegmentBounds, Window, open_window
from mqdb.errors import MessageMissing
from mqdb.message import MessageQueue, ReceivedMessage
from mqdb.store import consume_queue, segments
from mqdb.store.engine import target_of, translated

#: Messages of one queue in one answer. Source: DefaultMQPushConsumer.pullBatchSize.
DEFAULT_LIMIT = 32

#: Entries looked at in one pull while nothing matches. Source: MessageStoreConfig.maxFilterMessageSize / 20.
DEFAULT_SCAN_LIMIT = 800

#: Bytes of bodies of one queue in one answer; a larger message still comes, alone.
DEFAULT_MAX_BYTES = 4 * 1024 * 1024


class PullStatus(StrEnum):
    """RocketMQ's four answers."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


@dataclass(frozen=True, slots=True)
class PullRequest:
    """From where to read a queue. `segment` comes with the offset: from the last answer, 0 where there was none."""

    queue: MessageQueue
    queue_key: int
    offset: int
    segment: int = 0


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


def pull(
    connection: Connection,
    requests: Sequence[PullRequest],
    *,
    limit: int = DEFAULT_LIMIT,
    tag_codes: Sequence[int] | None = None,
    scan_limit: int = DEFAULT_SCAN_LIMIT,
    max_bytes: int = DEFAULT_MAX_BYTES,
    horizon: Horizon = UNKNOWN_HORIZON,
) -> tuple[list[PullResult], Horizon]:
    """Up to `limit` messages of each queue, ascending and without gaps, in one round trip.

    With `tag_codes` only entries with one of these codes count, and at most `scan_limit` are looked at; two tags
    may share a code, so the reader compares the text. Queues of deleted topics are left out of the answer.
    Raises MessageMissing when an entry has lost its record, and what `translate` makes of the driver's errors.
    """
    if not requests:
        return [], horizon
    wish = _Wish(limit, limit if tag_codes is None else max(limit, scan_limit), max_bytes, tag_codes)
    with translated(target_of(connection)):
        horizon, window = _window(connection, requests, horizon)
        answers = _ask(connection, requests, wish, horizon, window)
        missed = [requests[n - 1] for n, rows in answers.items() if not _is_complete(requests[n - 1], rows)]
        if missed:
            window = open_window(min(request.segment for request in missed))
            again = _ask(connection, missed, wish, UNKNOWN_HORIZON, window)
            answers |= {requests.index(missed[ordinal - 1]) + 1: rows for ordinal, rows in again.items()}
    newest = max((rows[0][_NEWEST] for rows in answers.values()), default=horizon.newest_segment)
    results = [_result(requests[ordinal - 1], rows, wish) for ordinal, rows in sorted(answers.items())]
    return results, horizon._replace(newest_segment=newest)


class _Wish(NamedTuple):
    limit: int
    scan_limit: int
    max_bytes: int
    tag_codes: Sequence[int] | None


# Columns of a row of consume_queue.pull.
_ORDINAL, _BASE, _MAX, _NEWEST, _IS_COVERED, _SEGMENT, _ENTRY_POS, _QUEUE_OFFSET, _LOG_POS = range(9)
_RECORD = slice(_LOG_POS, None)
_BODY = _LOG_POS + 5

_Rows = list[tuple[Any, ...]]


def _window(connection: Connection, requests: Sequence[PullRequest], horizon: Horizon) -> tuple[Horizon, Window]:
    hints = {request.segment for request in requests}
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
    parameters: dict[str, object] = {
        "queue_keys": [request.queue_key for request in requests],
        "offsets": [request.offset for request in requests],
        "limit": wish.limit,
        "scan_limit": wish.scan_limit,
        "max_bytes": wish.max_bytes,
        "newest_segment": horizon.newest_segment,
    }
    if wish.tag_codes is not None:
        parameters["tag_codes"] = list(wish.tag_codes)
    rows = consume_queue.pull(connection, parameters | window._asdict())
    return {ordinal: list(group) for ordinal, group in groupby(rows, key=itemgetter(_ORDINAL))}


def _is_legal(request: PullRequest, rows: _Rows) -> bool:
    minimum: int = rows[0][_BASE]
    maximum: int = rows[0][_MAX]
    return minimum <= request.offset < maximum


def _is_complete(request: PullRequest, rows: _Rows) -> bool:
    if not _is_legal(request, rows):
        return True
    return rows[0][_IS_COVERED] and all(row[_LOG_POS] is not None for row in rows if row[_ENTRY_POS] is not None)


def _result(request: PullRequest, rows: _Rows, wish: _Wish) -> PullResult:
    minimum, maximum, newest = rows[0][_BASE], rows[0][_MAX], rows[0][_NEWEST]
    is_legal = _is_legal(request, rows)
    if is_legal and not rows[0][_IS_COVERED]:
        raise MessageMissing(request.queue_key, request.offset, 0)  # offsets have no gaps
    entries = rows if is_legal and rows[0][_QUEUE_OFFSET] is not None else []
    messages = [_message(request, row, minimum, maximum) for row in entries]
    status, next_begin = _verdict(request.offset, minimum, maximum, entries, wish)
    segment = entries[-1][_SEGMENT] if entries else request.segment
    if next_begin == maximum:  # what comes next, dispatch has yet to write
        segment = newest
    return PullResult(request, status, next_begin, minimum, maximum, segment, messages)


def _verdict(offset: int, minimum: int, maximum: int, entries: _Rows, wish: _Wish) -> tuple[PullStatus, int]:
    if offset < minimum:
        return PullStatus.OFFSET_ILLEGAL, minimum
    if offset > maximum:
        return PullStatus.OFFSET_ILLEGAL, maximum
    if offset == maximum:
        return PullStatus.NO_NEW_MSG, offset
    looked_at = min(offset + wish.scan_limit, maximum)
    if not entries:
        return PullStatus.NO_MATCHED_MSG, looked_at
    # The answer ends where the bodies so far have reached max_bytes. Without a filter it may end with the window, too.
    is_cut = (
        wish.tag_codes is None
        or len(entries) >= wish.limit
        or sum(len(row[_BODY]) for row in entries) >= wish.max_bytes
    )
    return PullStatus.FOUND, entries[-1][_QUEUE_OFFSET] + 1 if is_cut else looked_at


def _message(request: PullRequest, row: tuple[Any, ...], minimum: int, maximum: int) -> ReceivedMessage:
    if row[_LOG_POS] is None:
        raise MessageMissing(request.queue_key, row[_QUEUE_OFFSET], row[_ENTRY_POS])
    values: list[Any] = [request.queue, row[_QUEUE_OFFSET], *row[_RECORD], minimum, maximum]
    return ReceivedMessage(*values)
