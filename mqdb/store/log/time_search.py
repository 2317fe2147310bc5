"""Search by time: the first message of a queue that was stored at a time or later. RocketMQ: searchOffset, LOWER.

Store times ascend along the log, so a search there gives the position of a time: records at this position or above were
stored then or later. Positions also ascend along a queue, except for messages of long transactions, which enter the
queue late. So a position that is high enough proves that the first such message is not behind it; a position that is
too low proves nothing. The result of a search in the queue is therefore checked: up to 100,000 messages before it are
examined, and if one of them is high enough, the search continues before it.
"""

from collections.abc import Callable, Generator, Sequence
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias

from sqlalchemy import BigInteger, ColumnElement, Connection, Integer, cast, func, select, true
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.selectable import LateralFromClause, TableValuedAlias

from mqdb.store.dispatch.entries import entries
from mqdb.store.dispatch.queues import max_offset
from mqdb.store.engine import translates
from mqdb.store.fragments import array_of, given
from mqdb.store.segments.segments import log
from mqdb.store.tables import commit_log, queue, segment

#: The number of places that a round examines: five rounds for 10 million.
PROBES: Final = 32

#: The number of messages examined before the one found. Transactions with this many messages in one queue are rare.
NEAR: Final = 100_000

_PLACE: Final = {"queue_key": Integer(), "place": BigInteger()}

#: Yields ascending places, receives which of them are late enough, and returns the place that was found.
Search: TypeAlias = "Generator[list[int], list[bool], int]"


def offset_of_time(connection: Connection, queue_key: int, time: datetime) -> int:
    """The first offset whose message was stored at `time` or later; the max offset if there is no such message.

    A time before all messages gives the min offset. A queue that does not exist has the offset 0.
    """
    return offsets_of_time(connection, [queue_key], time).get(queue_key, 0)


@translates
def offsets_of_time(connection: Connection, queue_keys: Sequence[int], time: datetime) -> dict[int, int]:
    """The results of `offset_of_time` for several queues at once: each round is one statement for all of them."""
    ends = {end.queue_key: end for end in _ends(connection, queue_keys)}
    found: dict[int, int] = {}
    doubtful = {key: end.max_offset for key, end in ends.items()}
    target = _target(connection, time)
    while doubtful:
        searches = {key: search(ends[key].min_offset, high) for key, high in doubtful.items()}
        found |= _run(searches, lambda places: _are_late(connection, target, places))
        doubtful = _earlier(connection, target, {key: found[key] for key in doubtful}, ends)
    return found


@translates
def position_of_time(connection: Connection, time: datetime) -> int:
    """The lowest log position of a record stored at `time` or later, or else the position after the last record."""
    return _target(connection, time).lowest_pos


class _Target(NamedTuple):
    """Messages stored at the time or later: their positions, and the segments with their entries."""

    lowest_pos: int
    first_segment: int


class _End(NamedTuple):
    queue_key: int
    min_offset: int
    max_offset: int


# -- the search itself ----------------------------------------------------------------------------


def search(low: int, high: int) -> Search:
    """The first of the places `low` to before `high` that is late enough, or `high`.

    The result is exact only if all places behind a late one are also late; otherwise it may be a later one of the late
    places.
    """
    while low < high:
        places = _spread(low, high)
        are_late = yield places
        first = are_late.index(True) if True in are_late else None
        if first is None:
            low = places[-1] + 1
        else:
            low, high = (places[first - 1] + 1 if first else low), places[first]
    return high


def _spread(low: int, high: int) -> list[int]:
    """Ascending places from `low` to before `high`, the first and the last among them."""
    count = min(PROBES, high - low)
    return sorted({low + (high - 1 - low) * number // max(count - 1, 1) for number in range(count)})


_Places: TypeAlias = dict[int, list[int]]


def _run(searches: dict[int, Search], look: Callable[[_Places], dict[int, list[bool]]]) -> dict[int, int]:
    """The results of all searches, which share their rounds."""
    found: dict[int, int] = {}
    answers: dict[int, list[bool]] = {}
    while len(found) < len(searches):
        asked: _Places = {}
        for key, running in searches.items():
            if key not in found:
                try:
                    asked[key] = running.send(answers[key]) if answers else next(running)
                except StopIteration as stop:
                    found[key] = stop.value
        answers = look(asked) if asked else {}
    return found


# -- examined places ------------------------------------------------------------------------------


def _target(connection: Connection, time: datetime) -> _Target:
    first_pos = connection.scalar(select(func.min(segment.c.start_pos))) or 0
    in_log = {0: search(first_pos, log(connection).last_pos + 1)}
    lowest_pos = _run(in_log, lambda places: {0: _are_stored_since(connection, time, places[0])})[0]
    its_segment = select(func.max(segment.c.segment)).where(segment.c.start_pos <= lowest_pos)
    return _Target(lowest_pos, connection.scalar(its_segment) or 0)


def _are_stored_since(connection: Connection, time: datetime, positions: list[int]) -> list[bool]:
    """Whether the first record at each position or above is late enough. Uses commit_log_pkey."""
    probe = func.unnest(cast(positions, ARRAY(BigInteger))).table_valued("log_pos", name="probe").render_derived()
    record = (
        select(commit_log.c.store_time)
        .where(commit_log.c.log_pos >= cast(probe.c.log_pos, BigInteger))
        .order_by(commit_log.c.log_pos)
        .limit(1)
        .correlate(probe)
        .lateral("record")
    )
    rows = connection.execute(
        select(probe.c.log_pos, record.c.store_time >= time).select_from(probe.outerjoin(record, true()))
    )
    # Above the last record: a future record is late enough for any past time.
    are_late = {log_pos: is_late is not False for log_pos, is_late in rows}
    return [are_late[log_pos] for log_pos in positions]


def _ends(connection: Connection, queue_keys: Sequence[int]) -> list[_End]:
    columns = queue.c.queue_key, queue.c.base_offset, max_offset()
    wanted = queue.c.queue_key == func.any(array_of(queue_keys))
    return [_End(*row) for row in connection.execute(select(*columns).where(wanted))]


def _are_late(connection: Connection, target: _Target, places: _Places) -> dict[int, list[bool]]:
    """Whether the message at each offset is late enough, by queue. Uses queue_run_offset."""
    probe = given(_PLACE, [(key, offset) for key, offsets in places.items() for offset in offsets])
    place = cast(probe.c.place, BigInteger)
    entry = _first(probe, target, place, place + 1)
    rows = connection.execute(select(probe.c.queue_key, entry.c.queue_offset).select_from(probe.join(entry, true())))
    late = {(key, offset) for key, offset in rows}
    return {key: [(key, offset) in late for offset in offsets] for key, offsets in places.items()}


def _earlier(connection: Connection, target: _Target, found: dict[int, int], ends: dict[int, _End]) -> dict[int, int]:
    """The first message that is late enough shortly before the one found, for queues that have one."""
    probe = given(_PLACE, found.items())
    place = cast(probe.c.place, BigInteger)
    entry = _first(probe, target, place - NEAR, place)
    rows = connection.execute(select(probe.c.queue_key, entry.c.queue_offset).select_from(probe.join(entry, true())))
    return {key: offset for key, offset in rows if offset >= ends[key].min_offset}


def _first(
    probe: TableValuedAlias, target: _Target, first: ColumnElement[int], past: ColumnElement[int]
) -> LateralFromClause:
    """The first entry of the given queue that is late enough, from one offset to before another."""
    first_segment = cast(target.first_segment, Integer)
    entry = entries(cast(probe.c.queue_key, Integer), first, past, first_segment, name="of_queue")
    is_late = entry.c.log_pos >= target.lowest_pos
    return select(entry.c.queue_offset).where(is_late).order_by(entry.c.last_offset).limit(1).lateral("entry")
