"""Timer slots: the partitions for messages waiting for their time of delivery.

A slot is an hour, a day, 30 days or 900 days long, and a message goes to the longest one that is no longer than its
remaining wait. So there are about 30 slots of each length, however far ahead messages are sent, and messages are never
moved between slots. A slot is dropped as a whole when all of its messages are delivered. So a delivered row is kept for
at most as long as it had to wait, or for an hour. This is short compared with the log, which also has the message. Slot
0 is for messages that wait although delivery has already passed their time, because the clock was set back.
In SQL: `mqdb/sql/schedule/add_timer_slot.sql`.
"""

from collections.abc import Collection
from typing import Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    case,
    cast,
    delete,
    func,
    literal_column,
    select,
)

from mqdb.common.delivery_schedule import MAX_MILLISECONDS
from mqdb.store.tables import timer_slot

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS

#: The lengths in milliseconds; the index of a length is the first part of a slot's number.
LENGTHS: Final = (_HOUR_MS, _DAY_MS, 30 * _DAY_MS, 900 * _DAY_MS)

#: More than the number of slots of one length: the hours before the year 10,000.
_STRIDE: Final = 100_000_000

BEHIND: Final = 0


class Bounds(NamedTuple):
    """The times of delivery in a slot, in milliseconds since 1970."""

    first_ms: int
    past_ms: int


def bounds_of(slot: int) -> Bounds:
    """The bounds of a slot."""
    length, number = LENGTHS[slot // _STRIDE], slot % _STRIDE
    return Bounds(number * length, (number + 1) * length)


def slot_of(
    deliver_ms: ColumnElement[int], now_ms: ColumnElement[int], delivered_ms: ColumnElement[int]
) -> ColumnElement[int]:
    """The slot for a message that is not due yet, while all slots are delivered up to `delivered_ms`."""
    waits_ms = deliver_ms - now_ms
    shorter = ((waits_ms < _number(longer), _slot(part, deliver_ms)) for part, longer in enumerate(LENGTHS[1:]))
    return case((deliver_ms <= delivered_ms, _number(BEHIND)), *shorter, else_=_slot(len(LENGTHS) - 1, deliver_ms))


def _slot(part: int, deliver_ms: ColumnElement[int]) -> ColumnElement[int]:
    number = func.least(deliver_ms, _number(MAX_MILLISECONDS), type_=BigInteger) // _number(LENGTHS[part])
    return cast(number + _number(part * _STRIDE), Integer)


def _number(value: int) -> ColumnElement[int]:
    return literal_column(str(value), BigInteger)


def add_missing(connection: Connection, slots: Collection[int]) -> int:
    """Create those of the slots that are missing, each in its own transaction; returns the number of new slots."""
    wanted = set(slots) - {BEHIND}
    if not wanted:
        return 0
    missing = wanted - set(connection.scalars(select(timer_slot.c.slot).where(timer_slot.c.slot.in_(wanted))))
    for slot in sorted(missing):
        connection.execute(select(func.mqdb.add_timer_slot(slot, *bounds_of(slot))))
    return len(missing)


def find(connection: Connection, before_ms: int, delivered_ms: int) -> list[int]:
    """The slots that may contain undelivered messages that are due before `before_ms`."""
    holds = timer_slot.c.first_ms < before_ms, timer_slot.c.past_ms > delivered_ms
    return list(connection.scalars(select(timer_slot.c.slot).where(*holds).order_by(timer_slot.c.first_ms)))


def find_delivered(connection: Connection, delivered_ms: int) -> list[int]:
    """The completely delivered slots, oldest first."""
    past = timer_slot.c.past_ms <= delivered_ms
    return list(connection.scalars(select(timer_slot.c.slot).where(past).order_by(timer_slot.c.past_ms)))


def forget(connection: Connection, slot: int) -> None:
    """Remove the row of a slot whose partition is gone."""
    connection.execute(delete(timer_slot).where(timer_slot.c.slot == slot))
