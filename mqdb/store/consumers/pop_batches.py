"""Pop batches: messages that members of a group have popped but not acknowledged yet.

A pop locks a queue by its row of consumer_offset, reads from the row's offset on, and puts these messages in flight.
One row then holds up to 64 messages until all of them are acknowledged. RocketMQ: PopMessageProcessor, PopCheckPoint.
In SQL: `mqdb/sql/consumers/pop.sql`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache, lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    Connection,
    Integer,
    Interval,
    Select,
    Text,
    and_,
    bindparam,
    cast,
    column,
    func,
    null,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY, aggregate_order_by

from mqdb.common import receipt_handle
from mqdb.selector import Selector
from mqdb.selector.subscription import MessageFilter
from mqdb.selector.tags import TagExpression
from mqdb.store.dispatch.consume_queue import Where, pull_from, run_statement
from mqdb.store.engine import NumberedStatement, driver, is_idle, numbered
from mqdb.store.filters.retry_filter import RetryFilter


class PoppedMessage(NamedTuple):
    """A message in flight."""

    queue_key: int
    queue_offset: int
    segment: int
    attempt: int
    receipt_handle: str


def _pop(of_properties: Where | None = None, *, by_tags: bool = False) -> Select[Any]:
    """Lock queues, read them, and put the wanted messages in flight: one statement, one round trip.

    Parameters: group, client_id, invisible, wanted, is_durable, queue_keys, and those of `pull_from`. After the columns
    of the pull each row has the key of the queue, and the offset and segment from which it was read; then first_offset,
    steps and receipt handle of the batch, NULL for a message that was not taken. A row without a queue means that other
    sessions hold all queues with messages.

    The pull may have an older snapshot than the locks. In that case the pull only misses the latest messages of a
    queue.
    """
    group, wanted = cast(bindparam("group"), Text), cast(bindparam("wanted"), Integer)
    locked = func.mqdb.pop_queues(group, cast(bindparam("queue_keys"), ARRAY(Integer)), wanted)
    queue = locked.table_valued(
        column("queue_key", Integer),
        column("next_offset", BigInteger),
        column("segment", Integer),
        with_ordinality="ordinal",
        name="locked",
    ).render_derived("locked")
    its_request = (
        queue.c.queue_key,
        queue.c.next_offset.label("first_offset"),
        queue.c.segment,
        cast(null(), BigInteger).label("history"),
        queue.c.ordinal,
    )
    request = select(*its_request).cte("request").prefix_with("MATERIALIZED")
    answer = pull_from(request, of_properties, by_tags=by_tags).cte("answer").prefix_with("MATERIALIZED")
    is_filtered = by_tags or of_properties is not None
    looked_at = answer.c.looked_at if is_filtered else cast(null(), BigInteger)
    looked_at_segment = answer.c.looked_at_segment if is_filtered else cast(null(), Integer)
    columns = {
        "queue_keys": request.c.queue_key,
        "max_offsets": answer.c.max_offset,
        "newest": answer.c.newest_segment,
        "offsets": answer.c.queue_offset,
        "segments": answer.c.segment,
        "sizes": func.octet_length(answer.c.body),
        "seen_offsets": looked_at,
        "seen_segments": looked_at_segment,
    }
    arrays = select(
        *(
            func.array_agg(aggregate_order_by(each, answer.c.ordinal, answer.c.queue_offset)).label(name)
            for name, each in columns.items()
        )
    ).join_from(
        answer,
        request,
        # In a queue that is behind the window, the pull may have skipped entries.
        and_(request.c.ordinal == answer.c.ordinal, request.c.segment >= cast(bindparam("first_segment"), Integer)),
    )
    read = arrays.subquery("read")
    popped = func.mqdb.pop_take(
        group,
        cast(bindparam("client_id"), Text),
        cast(bindparam("invisible"), Interval),
        wanted,
        cast(bindparam("max_bytes"), BigInteger),
        cast(bindparam("is_durable"), Boolean),
        *(read.c[name] for name in columns),
    ).table_valued(
        column("queue_key", Integer),
        column("first_offset", BigInteger),
        column("last_offset", BigInteger),
        column("steps", ARRAY(Integer)),
        column("segment", Integer),
        column("attempt", Integer),
        column("receipt_handle", Text),
    )
    batch = popped.lateral("popped")
    taken = select(batch).select_from(read.join(batch, true())).cte("taken").prefix_with("MATERIALIZED")
    is_in = and_(
        taken.c.queue_key == request.c.queue_key,
        answer.c.queue_offset >= taken.c.first_offset,
        answer.c.queue_offset <= taken.c.last_offset,
    )
    return (
        select(
            answer,
            request.c.queue_key,
            request.c.first_offset,
            request.c.segment,
            taken.c.first_offset,
            taken.c.steps,
            taken.c.receipt_handle,
        )
        .select_from(request.outerjoin(answer, answer.c.ordinal == request.c.ordinal).outerjoin(taken, is_in))
        .order_by(request.c.ordinal, answer.c.queue_offset)
    )


@cache
def _pop_all() -> NumberedStatement:
    return numbered(_pop())


@cache
def _pop_tags() -> NumberedStatement:
    return numbered(_pop(by_tags=True))


@lru_cache(maxsize=256)
def _pop_selected(selector: Selector | RetryFilter) -> NumberedStatement:
    return numbered(_pop(selector.where))


def pop(
    connection: Connection, parameters: Mapping[str, Any], message_filter: MessageFilter | None
) -> list[tuple[Any, ...]]:
    """Rows as described in `_pop`, in the binary forms that ReceivedMessage decodes on demand."""
    match message_filter:
        case None:
            statement = _pop_all()
        case TagExpression():
            statement = _pop_tags()
        case Selector() | RetryFilter():
            statement = _pop_selected(message_filter)
        case _:
            raise TypeError(message_filter)
    return run_statement(connection, statement, parameters, message_filter)


def due(
    connection: Connection,
    group: str,
    client_id: str,
    invisible: timedelta,
    queue_keys: Sequence[int],
    wanted: int,
    look_back: timedelta | None,
) -> list[PoppedMessage]:
    """Put up to `wanted` messages whose invisible time has passed in flight again, the longest overdue first.

    With `look_back`, only messages whose invisible time ended within this duration are taken.
    """
    rows = driver(connection).execute(
        "SELECT * FROM mqdb.pop_due(%s, %s, %s, %s, %s, %s)",
        [group, client_id, invisible, _array(queue_keys), wanted, look_back],
    )
    return list(_messages(rows))


def ack(connection: Connection, group: str, receipt_handles: Sequence[str]) -> list[bool]:
    """Acknowledge messages; returns whether each handle was valid.

    A handle stays valid until its invisible time has passed. The statement waits for the disk only as part of another
    transaction.
    """
    if not receipt_handles:
        return []
    batches = receipt_handle.together(receipt_handles)
    [(answers,)] = driver(connection).execute(
        "SELECT mqdb.ack(%s, %s, %s)", [group, list(batches.values()), not is_idle(connection)]
    )
    counted = dict(zip(batches, answers, strict=True))
    return [counted[receipt_handle.head_of(handle)] for handle in receipt_handles]


def change_invisible(
    connection: Connection, group: str, receipt_handles: Sequence[str], invisible: timedelta, *, is_unread: bool = False
) -> list[str | None]:
    """Make messages visible again after `invisible`; returns the new handles, None for messages not in flight.

    With `is_unread` this delivery is not counted.
    """
    batches = receipt_handle.together(receipt_handles)
    [(answers,)] = driver(connection).execute(
        "SELECT mqdb.change_invisible(%s, %s, %s, %s)", [group, list(batches.values()), invisible, is_unread]
    )
    changed = dict(zip(batches, answers, strict=True))
    return [receipt_handle.moved(handle, changed) for handle in receipt_handles]


class FoundInFlight(NamedTuple):
    """The place of the message to which a receipt handle belongs."""

    topic: str
    queue_id: int
    message: PoppedMessage


def find(connection: Connection, group: str, handle: str) -> FoundInFlight | None:
    """The message of a receipt handle, or the first of several; None if it is not in flight, or its time is over."""
    row = (
        driver(connection)
        .execute(
            """SELECT mqdb.own_name(t.topic), q.queue_id, b.first_offset, b.steps, b.in_flight & r.messages,
                      b.queue_key, b.segment, b.attempt
               FROM mqdb.subscription_group g
               CROSS JOIN LATERAL mqdb.receipts(g.group_id, ARRAY[%s::text]) r
               JOIN mqdb.pop_batch b
                 ON b.group_id = g.group_id AND b.queue_key = r.queue_key AND b.batch_id = r.batch_id
               JOIN mqdb.queue q ON q.queue_key = b.queue_key JOIN mqdb.topic t ON t.topic_id = q.topic_id
               WHERE g.group_name = mqdb.full_group(%s) AND b.in_flight & r.messages <> 0""",
            [handle, group],
        )
        .fetchone()
    )
    if row is None:
        return None
    topic, queue_id, first_offset, steps, messages, queue_key, segment, attempt = row
    place = (messages & -messages).bit_length() - 1
    offset = first_offset + (place if steps is None else steps[place])
    return FoundInFlight(topic, queue_id, PoppedMessage(queue_key, offset, segment, attempt, handle))


class Leftover(NamedTuple):
    """A message that was in flight in a group that now pulls."""

    topic: str
    queue_id: int
    queue_key: int
    queue_offset: int
    segment: int
    attempt: int
    client_id: str


def groups_with_leftovers(connection: Connection) -> list[str]:
    """The pulling groups with messages in flight whose invisible time has passed."""
    rows = driver(connection).execute(
        """SELECT g.group_name FROM mqdb.subscription_group g
           WHERE g.consume_mode = 'PULL'
             AND EXISTS (SELECT FROM mqdb.pop_batch b WHERE b.group_id = g.group_id AND b.visible_at <= mqdb.now())
           ORDER BY g.group_name"""
    )
    return [name for (name,) in rows]


def take_leftovers(connection: Connection, group: str) -> list[Leftover]:
    """Take the messages of one due row out of flight, if the group pulls; returns them sorted by offset."""
    rows = driver(connection).execute(
        """WITH gone AS (
               DELETE FROM mqdb.pop_batch b WHERE b.ctid = ANY (ARRAY(
                   SELECT d.ctid FROM mqdb.pop_batch d JOIN mqdb.subscription_group g USING (group_id)
                   WHERE g.group_name = %s AND g.consume_mode = 'PULL' AND d.visible_at <= mqdb.now()
                   ORDER BY d.visible_at LIMIT 1 FOR UPDATE OF d SKIP LOCKED))
               RETURNING b.*)
           SELECT t.topic, q.queue_id, b.queue_key,
                  b.first_offset + coalesce(b.steps[place + 1], place) AS queue_offset,
                  b.segment, b.attempt, b.client_id
           FROM gone b CROSS JOIN LATERAL unnest(mqdb.places_of(b.in_flight)) AS place
           JOIN mqdb.queue q ON q.queue_key = b.queue_key JOIN mqdb.topic t ON t.topic_id = q.topic_id
           ORDER BY queue_offset""",
        [group],
    )
    return [Leftover(*row) for row in rows]


def seconds_to_next(connection: Connection, group: str) -> float | None:
    """The seconds until the next message in flight is due; None if no message is in flight.

    Messages that are already due are ignored: if a pop has not found such a message, another session has it, or an
    earlier message of its queue comes first.
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
    for queue_key, first_offset, _, steps, segment, attempt, handle in rows:
        for place, its_handle in receipt_handle.each(handle):
            offset = first_offset + (place if steps is None else steps[place])
            yield PoppedMessage(queue_key, offset, segment, attempt, its_handle)


def _array(numbers: Iterable[int]) -> str:
    # As text, because the driver takes 8 µs for an array of one number.
    return "{" + ",".join(map(str, numbers)) + "}"
