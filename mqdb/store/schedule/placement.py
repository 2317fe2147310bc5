"""The place of records that have to wait before they go to their queue: `mqdb.place`, for appending statements.

The database decides it when it stores the record: the time of delivery is by its clock, the current levels apply, and
no record waits for a missing queue. RocketMQ: HookUtils, TransactionalMessageBridge.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from psycopg.types.numeric import Int8
from sqlalchemy import BigInteger, Boolean, ColumnElement, FromClause, Integer, Subquery, func, literal_column, select
from sqlalchemy.types import TypeEngine

from mqdb.common.delivery_schedule import DelayLevel, DeliverAfter, DeliverAt, Half, Wait
from mqdb.store.log.queue_fence import or_refused

#: The arguments of `mqdb.place` for a wait: one of these is set, or none for a record that does not wait.
WAIT_TYPES: Final[dict[str, TypeEngine[Any]]] = {
    "delay_level": Integer(),
    "delay_ms": BigInteger(),
    "deliver_ms": BigInteger(),
    "is_half": Boolean(),
}


def clock() -> Subquery:
    """One row, `now`: the store time of all records of a statement."""
    return select(func.mqdb.now().label("now")).offset(literal_column("0")).subquery("clock")


def placed(
    columns: Mapping[str, ColumnElement[Any]], now: FromClause
) -> tuple[FromClause, dict[str, ColumnElement[Any]]]:
    """The function's row for a record, and the columns to store: `columns`, some with values from the function.

    The columns are those of the log and of WAIT_TYPES. Uses live_queue_pkey, topic_pkey, topic_topic_key,
    queue_pkey, queue_topic_id_queue_id_key and delay_level_pkey.
    """
    told = [columns[name] for name in ("queue_key", "tags_code", "properties")]
    call = func.mqdb.place(*told, now.c.now, *(columns[name] for name in WAIT_TYPES))
    place = call.table_valued("placed_key", "placed_code", "placed_properties").lateral("place")
    decided = {
        "queue_key": or_refused(place.c.placed_key),
        "tags_code": place.c.placed_code,
        "properties": place.c.placed_properties,
        "store_time": now.c.now,
    }
    return place, {name: column for name, column in columns.items() if name not in WAIT_TYPES} | decided


def wait_values(wait: Wait | None) -> dict[str, int | None]:
    """The parameters of WAIT_TYPES for one record."""
    values: dict[str, int | None] = dict.fromkeys(WAIT_TYPES)
    # Int8: otherwise the driver takes the smallest type for each number, and prepares a statement for each.
    match wait:
        case DelayLevel(level):
            values["delay_level"] = Int8(level)
        case DeliverAfter(milliseconds):
            values["delay_ms"] = Int8(milliseconds)
        case DeliverAt(milliseconds):
            values["deliver_ms"] = Int8(milliseconds)
        case Half():
            values["is_half"] = True
    return values


def wait_arrays(waits: Iterable[Wait | None]) -> list[list[int | None]]:
    """The parameters of WAIT_TYPES for records that are appended together, in order."""
    rows = [wait_values(wait) for wait in waits]
    return [[row[name] for row in rows] for name in WAIT_TYPES]
