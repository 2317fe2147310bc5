"""Pull: messages of several queues in one statement, with the verdict on each offset.

The verdicts are RocketMQ's (PullMessageProcessor, DefaultMessageStore.getMessage):

    offset < min                OFFSET_ILLEGAL, go on at min
    offset > max                OFFSET_ILLEGAL, go on at max
    offset = max                NO_NEW_MSG, the caller may hold
    entries, none matches       NO_MATCHED_MSG, go on behind the last one looked at
    entries                     FOUND, go on behind the last one returned, or looked at if fewer than `limit` matched
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import psycopg
from sqlalchemy import Connection

from mqdb.errors import MessageMissing
from mqdb.message import MessageQueue, ReceivedMessage
from mqdb.store import consume_queue
from mqdb.store.engine import driver, target_of, translate

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
    """From where to read a queue. `segment` is that of the last message seen there, 0 when unknown or after a reset."""

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


class Horizon(NamedTuple):
    """How far the log has got, as the last answer said. Given back with the next pull, it prunes partitions."""

    newest_segment: int = 0
    position_floor: int = 0
    floor_segment: int = 0  #: position_floor holds from this segment on


UNKNOWN_HORIZON = Horizon()


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
    hint = min(request.segment for request in requests)
    parameters: dict[str, object] = {
        "queue_keys": [request.queue_key for request in requests],
        "offsets": [request.offset for request in requests],
        "limit": limit,
        "scan_limit": limit if tag_codes is None else max(limit, scan_limit),
        "max_bytes": max_bytes,
        "segment_hint": hint,
        "newest_segment": horizon.newest_segment,
        "position_floor": horizon.position_floor if hint >= horizon.floor_segment else 0,
    }
    if tag_codes is not None:
        parameters["tag_codes"] = list(tag_codes)
    try:
        rows = consume_queue.pull(driver(connection), parameters)
        if any(_is_missing(row) for row in rows):
            # A late committer's record may lie below the floor of the last answer.
            rows = consume_queue.pull(driver(connection), parameters | {"position_floor": 0})
    except psycopg.Error as error:
        raise translate(error, target_of(connection)) from error
    results = list(_results(requests, rows, limit, parameters))
    newest, floor = (rows[0][_NEWEST], rows[0][_FLOOR]) if rows else (0, 0)
    return results, Horizon(newest, floor or 0, hint)


# Columns of a row of consume_queue.pull.
_ORDINAL, _BASE, _MAX, _NEWEST, _FLOOR, _MATCHED, _SEGMENT, _ENTRY_POS, _QUEUE_OFFSET, _LOG_POS = range(10)
_RECORD = slice(_LOG_POS, None)


def _is_missing(row: tuple[Any, ...]) -> bool:
    return row[_LOG_POS] is None and row[_ENTRY_POS] is not None


def _results(
    requests: Sequence[PullRequest], rows: list[tuple[Any, ...]], limit: int, parameters: dict[str, Any]
) -> Iterator[PullResult]:
    for ordinal, group in groupby(rows, key=itemgetter(_ORDINAL)):
        request = requests[ordinal - 1]
        entries = list(group)
        base, maximum = entries[0][_BASE], entries[0][_MAX]
        if entries[0][_QUEUE_OFFSET] is None or not base <= request.offset < maximum:
            entries = []
        status, next_begin = _verdict(request.offset, base, maximum, parameters["scan_limit"], entries, limit)
        if status is PullStatus.NO_MATCHED_MSG and "tag_codes" not in parameters:
            raise MessageMissing(request.queue_key, request.offset, 0)  # offsets have no gaps
        messages = [_message(request, row, base, maximum) for row in entries]
        segment = entries[-1][_SEGMENT] if entries else request.segment
        yield PullResult(request, status, next_begin, base, maximum, segment, messages)


def _verdict(
    offset: int, minimum: int, maximum: int, scan_limit: int, entries: list[tuple[Any, ...]], limit: int
) -> tuple[PullStatus, int]:
    if offset < minimum:
        return PullStatus.OFFSET_ILLEGAL, minimum
    if offset > maximum:
        return PullStatus.OFFSET_ILLEGAL, maximum
    if offset == maximum:
        return PullStatus.NO_NEW_MSG, offset
    looked_at = min(offset + scan_limit, maximum)
    if not entries:
        return PullStatus.NO_MATCHED_MSG, looked_at
    matched: int = entries[0][_MATCHED]
    is_cut = matched >= limit or len(entries) < matched
    return PullStatus.FOUND, entries[-1][_QUEUE_OFFSET] + 1 if is_cut else looked_at


def _message(request: PullRequest, row: tuple[Any, ...], minimum: int, maximum: int) -> ReceivedMessage:
    if row[_LOG_POS] is None:
        raise MessageMissing(request.queue_key, row[_QUEUE_OFFSET], row[_ENTRY_POS])
    values: list[Any] = [request.queue, row[_QUEUE_OFFSET], *row[_RECORD], minimum, maximum]
    return ReceivedMessage(*values)
