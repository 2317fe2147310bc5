"""Pop batches: messages that members of a group have popped, and not acknowledged yet.

Whoever pops locks a queue by its row of consumer_offset, reads on from there, and takes what it has read. One row then
holds up to 64 messages until all of them are acknowledged. RocketMQ: PopMessageProcessor, PopCheckPoint.
In SQL: `mqdb/sql/consumers/pop.sql`.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection

from mqdb.common import receipt_handle
from mqdb.store.engine import driver, is_idle


class Cursor(NamedTuple):
    """Where the group reads a queue next. `segment`: no message from there on lies in an older one."""

    queue_key: int
    next_offset: int
    segment: int


class PoppedMessage(NamedTuple):
    """A message that is in flight."""

    queue_key: int
    queue_offset: int
    segment: int
    attempt: int
    receipt_handle: str


def lock_queues(connection: Connection, group: str, queue_keys: Sequence[int], wanted: int) -> list[Cursor] | None:
    """Lock as many of the queues as are likely to hold `wanted` new messages, until the transaction ends.

    Those first that nobody has popped for longest. Queues that others pop right now are left out, unless that leaves
    none: then it waits up to 0.1 s for one. None if others still pop all that have messages.
    """
    rows = driver(connection).execute("SELECT * FROM mqdb.pop_queues(%s, %s, %s)", [group, _array(queue_keys), wanted])
    cursors = rows.fetchall()
    return None if cursors and cursors[0][0] is None else [Cursor._make(row) for row in cursors]


def take(
    connection: Connection,
    group: str,
    client_id: str,
    invisible: timedelta,
    cursors: Sequence[Cursor],
    messages: Sequence[Cursor],
    *,
    is_durable: bool,
) -> dict[tuple[int, int], str]:
    """Move the cursors of locked queues on; returns the receipt handle of each message, by queue and offset.

    `messages` have the offset of the message as `next_offset`, in ascending order for each queue. Unless `is_durable`,
    the transaction commits without waiting for the disk.
    """
    arrays = [_array(column) for rows in (cursors, messages) for column in zip(*rows, strict=True)]
    arrays += ["{}"] * (6 - len(arrays))
    values = [group, client_id, invisible, *arrays, is_durable]
    rows = driver(connection).execute("SELECT * FROM mqdb.pop_take(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)", values)
    return {(each.queue_key, each.queue_offset): each.receipt_handle for each in _messages(rows)}


def due(
    connection: Connection,
    group: str,
    client_id: str,
    invisible: timedelta,
    queue_keys: Sequence[int],
    wanted: int,
    look_back: timedelta | None,
) -> list[PoppedMessage]:
    """Put up to `wanted` messages in flight again whose time has passed, the one that is due for longest first.

    With `look_back` only those whose time has passed within it.
    """
    rows = driver(connection).execute(
        "SELECT * FROM mqdb.pop_due(%s, %s, %s, %s, %s, %s)",
        [group, client_id, invisible, _array(queue_keys), wanted, look_back],
    )
    return list(_messages(rows))


def ack(connection: Connection, group: str, receipt_handles: Sequence[str]) -> list[bool]:
    """Acknowledge messages; whether each handle counted. One counts as long as its time runs, however often.

    It waits for the disk only as a part of another transaction.
    """
    batches = receipt_handle.together(receipt_handles)
    [(answers,)] = driver(connection).execute(
        "SELECT mqdb.ack(%s, %s, %s)", [group, list(batches.values()), not is_idle(connection)]
    )
    counted = dict(zip(batches, answers, strict=True))
    return [counted[receipt_handle.head_of(handle)] for handle in receipt_handles]


def change_invisible(
    connection: Connection, group: str, receipt_handles: Sequence[str], invisible: timedelta
) -> list[str | None]:
    """Have messages come again `invisible` from now; the new handles, None for what is not in flight."""
    batches = receipt_handle.together(receipt_handles)
    [(answers,)] = driver(connection).execute(
        "SELECT mqdb.change_invisible(%s, %s, %s)", [group, list(batches.values()), invisible]
    )
    changed = dict(zip(batches, answers, strict=True))
    return [receipt_handle.moved(handle, changed) for handle in receipt_handles]


def seconds_to_next(connection: Connection, group: str) -> float | None:
    """How long it takes until the next message in flight is due; None if there is none.

    A message that is due, and that the last pop has not found, is for another session, or waits for one before it.
    """
    seconds: float | None
    [(seconds,)] = driver(connection).execute(
        """SELECT extract(epoch FROM min(b.visible_at) - min(clock.now))::double precision
           FROM (SELECT mqdb.now() AS now OFFSET 0) AS clock JOIN mqdb.pop_batch b ON b.visible_at > clock.now
           WHERE b.group_id = (SELECT g.group_id FROM mqdb.subscription_group g
                               WHERE g.group_name = mqdb.full_group(%s))""",
        [group],
    )
    return seconds


def _messages(rows: Iterable[tuple[Any, ...]]) -> Iterator[PoppedMessage]:
    for queue_key, first_offset, steps, segment, attempt, handle in rows:
        for place, its_handle in receipt_handle.each(handle):
            offset = first_offset + (place if steps is None else steps[place])
            yield PoppedMessage(queue_key, offset, segment, attempt, its_handle)


def _array(numbers: Iterable[int]) -> str:
    # As text: the driver takes 8 µs for an array of one number.
    return "{" + ",".join(map(str, numbers)) + "}"
