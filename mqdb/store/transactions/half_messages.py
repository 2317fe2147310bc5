"""Half messages: the state row that each one gets, and the copy that a commit makes of it.

A half message is a record in RMQ_SYS_TRANS_HALF_TOPIC. The row of a half message is made by its END or by the checker's
first scan, whichever comes first: an INSERT that conflicts with a row becomes an UPDATE, which waits for the
transaction that holds the row and makes only transitions allowed by `mqdb.common.transaction`. The row is kept as long
as the log has the record, so a repeated END, however late, finds that it is too late. RocketMQ:
TransactionalMessageBridge.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    Integer,
    ScalarSelect,
    Text,
    and_,
    bindparam,
    case,
    cast,
    delete,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.dialects.postgresql import UUID as PgUUID
from sqlalchemy.sql import FromClause
from sqlalchemy.sql.selectable import CTE

from mqdb.common.property import Property
from mqdb.common.topic import HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from mqdb.common.transaction import (
    CHECK_IMMUNITY_TIME,
    CHECK_TIMES,
    COMMITTED_FLAG,
    HalfEvent,
    HalfState,
    source_of,
    target_of,
)
from mqdb.store.dispatch.consume_queue import ZERO
from mqdb.store.engine import driver, text_of, translates
from mqdb.store.log import message_index
from mqdb.store.log.commit_log import KEPT, cl, record_of
from mqdb.store.log.queue_fence import or_refused
from mqdb.store.schedule.real_queue import BROKERS_OWN, aim_of, is_readable, real_queue_id
from mqdb.store.tables import commit_log, half_message, queue, segment, topic
from mqdb.store.topics.deleted_topics import went_along

hm = half_message.c


class HalfRecord(NamedTuple):
    """A half message in the log, and its known state."""

    log_pos: int
    msg_id: UUID
    producer_group: str
    topic: str
    stored_at: datetime
    now: datetime
    immunity: str | None
    """The value of CHECK_IMMUNITY_TIME_IN_SECONDS."""
    is_readable: bool
    """Whether it names its group, and a queue to which messages may be sent."""
    state: HalfState | None
    """The state of its row; None without a row."""

    @property
    def key(self) -> "HalfKey":
        """The key by which its sender identifies it."""
        return HalfKey(self.log_pos, self.producer_group, self.msg_id)


class HalfMessage(NamedTuple):
    """A half message as shown to people: a row of mqdb.half_messages."""

    transaction_id: str
    log_pos: int
    producer_group: str
    topic: str
    state: str
    check_times: int
    stored_at: datetime
    check_at: datetime | None
    check_client: str | None
    ended_at: datetime | None
    copy_pos: int | None


def _constant(value: str) -> ColumnElement[str]:
    return literal_column(f"'{value}'::text", Text)


#: Not a parameter, for which the planner would not know that a partial index applies.
PREPARED: Final = hm.state == _constant(HalfState.PREPARED)


def _property(name: str) -> ColumnElement[str]:
    return cast(cl.c.properties.op("->>")(_constant(name)), Text)


def _queue_of(
    topic_name: ColumnElement[str], queue_id: ColumnElement[int], is_there: ColumnElement[bool] | None = None
) -> ScalarSelect[int]:
    """The key of a queue, or of another queue if its topic now has fewer queues; NULL without a queue."""

    def of_topic(wanted: ColumnElement[int]) -> ScalarSelect[int]:
        return select(wanted).where(topic.c.topic == topic_name).correlate_except(topic).scalar_subquery()

    # A nested sub-select, to force the indexes; with a join, all queues might be read while there are few.
    its_queue = select(queue.c.queue_key).where(
        queue.c.topic_id == of_topic(topic.c.topic_id),
        queue.c.queue_id == queue_id % of_topic(topic.c.read_queue_nums),
    )
    if is_there is not None:
        its_queue = its_queue.where(is_there)
    return its_queue.correlate_except(queue).scalar_subquery()


def half_queue() -> ScalarSelect[int]:
    """The key of the queue of all half messages. PostgreSQL looks it up once per execution."""
    return _queue_of(_constant(HALF_TOPIC), ZERO)


def _wanted() -> FromClause:
    positions = cast(bindparam("positions"), ARRAY(BigInteger))
    return func.unnest(positions).table_valued("log_pos", with_ordinality="ordinal").render_derived("wanted")


# -- look -------------------------------------------------------------------------------------


@cache
def find_text() -> str:
    """Uses commit_log_pkey and half_message_pkey."""
    wanted = _wanted()
    record = record_of(
        wanted,
        *(cl.c[name] for name in ("log_pos", "queue_key", "msg_id", "store_time")),
        func.coalesce(_property(Property.PGROUP), _constant("")).label("producer_group"),
        func.coalesce(_property(Property.REAL_TOPIC), _constant("")).label("topic"),
        _property(CHECK_IMMUNITY_TIME).label("immunity"),
        *aim_of(cl),
    )
    can_be_read = and_(record.c.producer_group != _constant(""), is_readable(record))
    state = select(hm.state).where(hm.log_pos == wanted.c.log_pos).scalar_subquery()
    columns = (record.c[name] for name in ("log_pos", "msg_id", "producer_group", "topic", "store_time"))
    rows = select(*columns, func.mqdb.now(), record.c.immunity, can_be_read, state).select_from(
        wanted.join(record, true())
    )
    return text_of(rows.where(record.c.queue_key == half_queue()).order_by(wanted.c.ordinal))


def find(connection: Connection, positions: Sequence[int]) -> list[HalfRecord]:
    """The half messages at these positions, in order; other records are left out."""
    if not positions:
        return []
    rows = driver(connection).execute(find_text(), {"positions": _array(positions)} | _bounds(positions))
    return [HalfRecord._make((*row[:-1], None if row[-1] is None else HalfState(row[-1]))) for row in rows]


def find_named(connection: Connection, unique_id: UUID) -> HalfRecord | None:
    """The half message with a unique id, dispatched or not; None if the log does not have it. Needs a transaction.

    Uses the indexes of `message_index.find_unique_ids`: the rows have no index on their ids, because each END would pay
    for it.
    """
    found = message_index.find(connection, [unique_id], after_pos=0)
    # Its copies have the same id but are not half messages.
    halves = find(connection, sorted(log_pos for _, log_pos, _ in found))
    return halves[-1] if halves else None


def state_of(connection: Connection, log_pos: int) -> HalfState:
    """The state of a half message in the log."""
    state = connection.scalar(select(hm.state).where(hm.log_pos == log_pos))
    return HalfState.PREPARED if state is None else HalfState(state)


# -- change -----------------------------------------------------------------------------------


@cache
def end_text(event: HalfEvent) -> str:
    """The statement that moves a half message to the state after the event, and makes a copy if the event needs one.

    The statement does both or nothing. If it returns no row, the event is not allowed in the current state, or the
    record is not the expected half message. Parameters: positions (one), lowest_pos, past_pos, group, unique_id,
    may_be_immune. Uses commit_log_pkey and half_message_pkey.
    """
    source, target = source_of(event), target_of(event)
    wanted = _wanted()
    record = record_of(
        wanted,
        cl.c.log_pos,
        cl.c.queue_key,
        cl.c.store_time,
        *(cl.c[name] for name in KEPT),
        cl.c.tags_code,
        cl.c.properties,
        _property(Property.PGROUP).label("producer_group"),
        _property(Property.REAL_TOPIC).label("topic"),
        real_queue_id(cl.c.properties).label("queue_id"),
    )
    is_meant = (
        record.c.queue_key == half_queue(),
        record.c.producer_group == cast(bindparam("group"), Text),
        record.c.msg_id == cast(bindparam("unique_id"), PgUUID()),
        or_(cast(bindparam("may_be_immune"), Boolean), ~record.c.properties.has_key(_constant(CHECK_IMMUNITY_TIME))),
    )
    half = select(record).select_from(wanted.join(record, true())).where(*is_meant).cte("half")
    needs_copy = event is not HalfEvent.ROLLBACK
    # The transaction must have an id before it takes a position: `mqdb/sql/dispatch/take_places.sql` explains why.
    has_id = func.pg_current_xact_id().is_not(None)
    copy_pos: Any = case((has_id, func.nextval(_constant("mqdb.log_pos")))) if needs_copy else null()
    row: dict[str, Any] = {
        "log_pos": half.c.log_pos,
        "msg_id": half.c.msg_id,
        "producer_group": half.c.producer_group,
        "topic": half.c.topic,
        "state": _constant(target),
        "stored_at": half.c.store_time,
        "ended_at": func.mqdb.now(),
        "copy_pos": cast(copy_pos, BigInteger),
    }
    made = insert(half_message).from_select(list(row), select(*row.values()))
    ended = (
        made.on_conflict_do_update(
            index_elements=[hm.log_pos],
            set_={
                "state": made.excluded.state,
                "stored_at": made.excluded.stored_at,  # `resume` has changed it
                "check_at": null(),
                "check_client": null(),
                "ended_at": made.excluded.ended_at,
                "copy_pos": made.excluded.copy_pos,
            },
            where=hm.state == _constant(source),
        )
        .returning(hm.log_pos, hm.copy_pos, hm.check_times)
        .cte("ended")
    )
    if not needs_copy:
        return text_of(select(ended.c.log_pos, ended.c.copy_pos))
    copied = _copy(event, half, ended)
    return text_of(select(ended.c.log_pos, ended.c.copy_pos).add_cte(copied))


def _copy(event: HalfEvent, half: CTE, ended: CTE) -> CTE:
    """The insert of the copy of an ended half message: for consumers after a commit, otherwise for operators."""
    is_commit = event is HalfEvent.COMMIT
    went = went_along(half.c.topic, half.c.log_pos)
    asked = func.jsonb_build_object(_constant(CHECK_TIMES), cast(ended.c.check_times, Text))
    values: dict[str, Any] = {name: half.c[name] for name in KEPT} | {
        "log_pos": ended.c.copy_pos,
        "properties": case((ended.c.check_times > ZERO, half.c.properties.concat(asked)), else_=half.c.properties),
        "tags_code": func.mqdb.copied_code(half.c.tags_code, half.c.tags, half.c.properties),
        "queue_key": or_refused(
            _queue_of(case((half.c.topic.not_in(BROKERS_OWN), half.c.topic)), half.c.queue_id, is_there=~went)
            if is_commit
            else _queue_of(_constant(TRANS_CHECK_MAX_TIME_TOPIC), ZERO)
        ),
    }
    if is_commit:
        values["sys_flag"] = half.c.sys_flag.bitwise_or(literal_column(str(COMMITTED_FLAG), Integer))
    rows = select(*values.values()).select_from(half.join(ended, ended.c.log_pos == half.c.log_pos))
    return insert(commit_log).from_select(list(values), rows).cte("copied")


class HalfKey(NamedTuple):
    """A half message as its sender identifies it."""

    log_pos: int
    producer_group: str
    msg_id: UUID


def end(connection: Connection, event: HalfEvent, half: HalfKey, *, may_be_immune: bool) -> tuple[bool, int | None]:
    """Apply an event to a half message; returns whether it was applied, and the position of the copy.

    The event is not applied if the half message does not exist, is in a state in which the event is not allowed, or is
    immune although `may_be_immune` is false. If the queue of the copy is gone, the error of `queue_fence` is raised.
    """
    parameters = {"positions": _array([half.log_pos])} | _bounds([half.log_pos])
    parameters |= {"group": half.producer_group, "unique_id": half.msg_id, "may_be_immune": may_be_immune}
    row = driver(connection).execute(end_text(event), parameters).fetchone()
    return (False, None) if row is None else (True, row[1])


# -- by hand ------------------------------------------------------------------------------------


def resume(connection: Connection, log_pos: int) -> bool:
    """Resume the checks of a discarded half message immediately, counting from 0; returns False if it is not discarded.

    The age of the half message starts again: until it ends, `stored_at` is the time of the resume. With the old age the
    checker's next round would give up the half message again.
    """
    event = HalfEvent.RESUME
    now = func.mqdb.now()
    at_once = {"check_at": now, "check_wait": timedelta(0)}
    values = {"state": target_of(event), "check_times": 0, "stored_at": now, "ended_at": None} | at_once
    discarded = hm.log_pos == log_pos, hm.state == source_of(event)
    return connection.execute(update(half_message).where(*discarded).values(values)).rowcount == 1


def close_lost(connection: Connection, positions: Sequence[int]) -> None:
    """Give up PREPARED half messages that are missing from the log, so there is nothing to copy."""
    if not positions:
        return
    event = HalfEvent.GIVE_UP
    values = {"state": target_of(event), "check_at": None, "check_client": None, "ended_at": func.mqdb.now()}
    lost = hm.log_pos.in_(positions), hm.state == source_of(event)
    connection.execute(update(half_message).where(*lost).values(values))


# -- retention -------------------------------------------------------------------------------


def first_pos() -> ScalarSelect[int]:
    """The first position of the log."""
    return select(func.min(segment.c.start_pos)).scalar_subquery()


@translates
def prune(connection: Connection, limit: int) -> int:
    """Remove the rows of up to `limit` half messages that are no longer in the log; returns their number.

    None of these half messages is PREPARED: the log keeps PREPARED half messages, and the checker ends those that are
    lost. Uses half_message_pkey.
    """
    gone = select(hm.log_pos).where(hm.log_pos < first_pos(), hm.state != HalfState.PREPARED)
    gone = gone.order_by(hm.log_pos).limit(limit)
    return connection.execute(delete(half_message).where(hm.log_pos.in_(gone.scalar_subquery()))).rowcount


def first_prepared(connection: Connection) -> int | None:
    """The segment of the first half message in the log that has a row but has not ended; None without such a message.

    Uses half_message_check_at, which contains only these.
    """
    is_open = PREPARED, hm.log_pos >= first_pos()
    first = select(func.min(hm.log_pos)).where(*is_open).scalar_subquery()
    its_segment = select(func.max(segment.c.segment)).where(segment.c.start_pos <= first)
    found: int | None = connection.scalar(its_segment)
    return found


def _bounds(positions: Sequence[int]) -> dict[str, object]:
    return {"lowest_pos": min(positions), "past_pos": max(positions) + 1}


def _array(numbers: Iterable[int]) -> str:
    # As text: otherwise the driver takes the smallest type for the numbers, and prepares a statement for each.
    return "{" + ",".join(map(str, numbers)) + "}"
