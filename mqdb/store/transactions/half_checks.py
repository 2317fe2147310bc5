"""Half checks: the progress of the scan, the due checks, and the producers that are asked.

The row of a half message is also the request: `check_client` is the producer that is asked. NOTIFY wakes it, and it
reads its checks from these rows. So a check survives the process that made it.
RocketMQ: TransactionalMessageServiceImpl.check, AbstractTransactionalMessageCheckListener.
In SQL: `mqdb/sql/log/try_lock.sql`, `mqdb/sql/transactions/half_own.sql`.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    DateTime,
    Interval,
    ScalarSelect,
    Select,
    Text,
    bindparam,
    cast,
    delete,
    exists,
    extract,
    func,
    literal,
    literal_column,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.dialects.postgresql import UUID as PgUUID

from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.transaction import CHECK_TIMES
from mqdb.store import acl
from mqdb.store.clients import clients
from mqdb.store.dispatch.consume_queue import ONE, ZERO
from mqdb.store.dispatch.entries import entries as queue_entries
from mqdb.store.engine import driver, text_of, translates
from mqdb.store.fragments import given
from mqdb.store.log.commit_log import cl, record_of
from mqdb.store.schedule.real_queue import aim_of, is_readable
from mqdb.store.tables import checkpoint, half_message, half_step, queue
from mqdb.store.transactions import half_messages
from mqdb.store.transactions.half_messages import half_queue

hm = half_message.c


class HalfPosition(NamedTuple):
    """The progress through the half messages: offsets of their queue."""

    seq: int
    """The number of the newest step."""
    next_offset: int


class Entry(NamedTuple):
    """A half message that was not scanned yet."""

    queue_offset: int
    log_pos: int


class NewHalf(NamedTuple):
    """A new row for a half message that has no row yet."""

    log_pos: int
    queue_offset: int
    msg_id: UUID
    producer_group: str
    topic: str
    stored_at: datetime
    check_at: datetime
    check_wait: timedelta
    """The time from now to `check_at`."""


class DueHalf(NamedTuple):
    """A half message whose check is due."""

    log_pos: int
    producer_group: str
    principal: str | None
    """The role that sent it; None for the owner of the broker and the members of its role."""
    check_times: int
    age: timedelta
    """The time since it was stored or resumed."""
    is_lost: bool
    """Whether the half message's segment is gone from the log."""


class HalfCheck(NamedTuple):
    """A check that a producer has to answer, with its number for this message's transaction."""

    log_pos: int
    check_times: int
    message: ReceivedMessage


def begin(connection: Connection) -> bool:
    """Take the right to check until the end of the transaction; False while another session has it."""
    return bool(connection.scalar(select(func.mqdb.try_lock("transaction"))))


def has_work(connection: Connection) -> bool:
    """Whether a half message has not ended, was not scanned yet, or is gone from the log.

    Called every second. Uses half_message_check_at, queue_run_offset and half_message_pkey.
    """
    row = driver(connection).execute(has_work_text(), {}).fetchone()
    return row == (True,)


@cache
def has_work_text() -> str:
    is_open = exists().where(half_messages.PREPARED)
    looked = _position(queue.c.queue_key).subquery("looked")
    entry = queue_entries(looked.c.queue_key, looked.c.next_offset)
    is_unseen = exists(select(ONE).select_from(looked.join(entry, true())))
    first = select(hm.log_pos).order_by(hm.log_pos).limit(ONE).scalar_subquery()
    is_gone = func.coalesce(first < half_messages.first_pos(), literal_column("false"))
    return text_of(select(or_(is_open, is_unseen, is_gone)))


# -- the scan ---------------------------------------------------------------------------------


def position(connection: Connection) -> HalfPosition:
    """The position of the newest step, or of retention if that is higher: those half messages have all ended."""
    return HalfPosition(*connection.execute(_position()).one())


def _position(*columns: ColumnElement[int]) -> Select[Any]:
    """The columns of a position, and others of the queue."""
    newest = select(half_step.c.seq, half_step.c.next_offset).order_by(half_step.c.seq.desc()).limit(ONE).subquery()
    next_offset = func.greatest(newest.c.next_offset, queue.c.base_offset).label("next_offset")
    of_position = func.coalesce(newest.c.seq, ZERO).label("seq"), next_offset
    return (
        select(*of_position, *columns)
        .select_from(queue.outerjoin(newest, true()))
        .where(queue.c.queue_key == half_queue())
    )


def entries(connection: Connection, next_offset: int, limit: int) -> list[Entry]:
    """The half messages from an offset on, in order. Uses queue_run_offset."""
    return [Entry(offset, log_pos) for offset, log_pos, _ in connection.execute(_entries(next_offset).limit(limit))]


def _entries(next_offset: int) -> Select[int, int, int]:
    half = select(half_queue().label("queue_key")).subquery("half")
    entry = queue_entries(half.c.queue_key, cast(next_offset, BigInteger))
    columns = entry.c.queue_offset, entry.c.log_pos, entry.c.segment
    return select(*columns).select_from(half.join(entry, true())).order_by(entry.c.last_offset)


def prepare(connection: Connection, halves: Sequence[NewHalf]) -> int:
    """Make the rows of half messages that have no row yet; returns the number of new ones."""
    if not halves:
        return 0
    types = {name: half_message.c[name].type for name in NewHalf._fields}
    rows = given(types, halves)
    made = insert(half_message).from_select(list(types), select(*(rows.c[name] for name in types)))
    return len(connection.execute(made.on_conflict_do_nothing().returning(hm.log_pos)).all())


def add_step(connection: Connection, seq: int, next_offset: int, messages: int) -> None:
    """Store the progress. Raises SQLAlchemy's IntegrityError if another session has taken the step of that number."""
    connection.execute(insert(half_step).values(seq=seq, next_offset=next_offset, messages=messages))


def prune_steps(connection: Connection, past_seq: int) -> None:
    """Remove the steps with lower numbers."""
    connection.execute(delete(half_step).where(half_step.c.seq < past_seq))


def first_unseen_segment(connection: Connection) -> int:
    """The segment of the first half message that was not scanned, or the one to which dispatch writes."""
    newest = checkpoint.c.service == "dispatch"
    writes_to = select(checkpoint.c.segment).where(newest).order_by(checkpoint.c.seq.desc()).limit(1).scalar_subquery()
    unseen = _entries(position(connection).next_offset).limit(1).subquery()
    first = select(unseen.c.segment).scalar_subquery()
    segment: int = connection.execute(select(func.coalesce(first, writes_to))).scalar_one()
    return segment


# -- asking -----------------------------------------------------------------------------------


def take_from_the_dead(connection: Connection) -> int:
    """Make checks of producers that are gone or have left their group due immediately; returns their number.

    Uses half_message_check_client.
    """
    asked = select(hm.producer_group, hm.principal, hm.check_client).where(hm.check_client.is_not(None)).distinct()
    open_ends = connection.execute(asked).all()
    if not open_ends:
        return 0
    live = clients.live_checkers(connection, sorted({row.producer_group for row in open_ends}))
    dead = [row for row in open_ends if row.check_client not in live.get((row.producer_group, row.principal), ())]
    if not dead:
        return 0
    gone = given({"producer_group": Text(), "principal": Text(), "check_client": Text()}, dead)
    is_gone = select(ONE).where(
        hm.producer_group == gone.c.producer_group,
        hm.principal.is_not_distinct_from(gone.c.principal),
        hm.check_client == gone.c.check_client,
    )
    # Without its own condition the index would not be used.
    found = _unlocked(hm.check_client.in_([row.check_client for row in dead]), exists(is_gone.correlate(half_message)))
    freed = update(half_message).where(hm.log_pos.in_(found))
    return connection.execute(freed.values(check_client=None, **_from_now(timedelta(0)))).rowcount


def _unlocked(*conditions: ColumnElement[bool]) -> ScalarSelect[int]:
    """The positions of half messages, except those that are just being ended, which may take long."""
    return select(hm.log_pos).where(*conditions).with_for_update(skip_locked=True).scalar_subquery()


def take_from_ahead(connection: Connection, longest: timedelta) -> int:
    """Make checks that were scheduled by a clock that was ahead due immediately; returns their number.

    Examines only checks that wait longer than `longest`, most of which are immune. Uses half_message_check_at.
    """
    now = select(func.mqdb.now()).scalar_subquery()
    is_far = hm.check_at > now + literal(longest, Interval()), hm.check_at > now + hm.check_wait
    found = _unlocked(half_messages.PREPARED, *is_far)
    freed = update(half_message).where(hm.log_pos.in_(found)).values(_from_now(timedelta(0)))
    return connection.execute(freed).rowcount


def take_due(connection: Connection, limit: int, youngest: timedelta) -> list[DueHalf]:
    """The due checks, oldest first, locked until the end of the transaction. Half messages being ended are skipped.

    Rows of roles that do not own the broker are made with the record, without knowing the transaction timeout: half
    messages younger than `youngest` are not due. Uses half_message_check_at.
    """
    now = func.mqdb.now()
    is_lost = hm.log_pos < half_messages.first_pos()
    columns = (
        hm.log_pos,
        hm.producer_group,
        hm.principal,
        hm.check_times,
        (now - hm.stored_at).label("age"),
        is_lost.label("is_lost"),
    )
    this_moment = select(now).scalar_subquery()
    long_ago = this_moment - cast(literal(youngest, Interval()), Interval())
    is_ripe = or_(hm.principal.is_(None), hm.check_times > ZERO, hm.stored_at <= long_ago)
    due = select(*columns).where(half_messages.PREPARED, hm.check_at <= this_moment, is_ripe)
    rows = connection.execute(due.order_by(hm.check_at).limit(limit).with_for_update(skip_locked=True))
    return [DueHalf(*row) for row in rows]


def ask(connection: Connection, client_of: Sequence[tuple[int, str]], interval: timedelta) -> None:
    """Ask these clients about the half messages at these positions; they are notified when the transaction commits.

    Each check is due again after the interval.
    """
    asked = given({"log_pos": BigInteger(), "check_client": Text()}, client_of)
    changed = update(half_message).where(hm.log_pos == asked.c.log_pos)
    values = {"check_client": asked.c.check_client, "check_times": hm.check_times + 1}
    connection.execute(changed.values(values | _from_now(interval)))
    for client_id in sorted({client_id for _, client_id in client_of}):
        connection.execute(select(func.pg_notify(clients.CHANNEL, f"c:{client_id}")))


def postpone(connection: Connection, positions: Sequence[int], interval: timedelta) -> None:
    """Postpone the checks of half messages without a live producer by the interval.

    Postponing does not count as a check.
    """
    later = update(half_message).where(hm.log_pos.in_(positions))
    connection.execute(later.values(check_client=None, **_from_now(interval)))


def _from_now(wait: timedelta) -> dict[str, ColumnElement[Any]]:
    """The due time after this wait."""
    length = literal(wait, Interval())
    return {"check_at": func.mqdb.now() + length, "check_wait": length}


def forget_question(connection: Connection, log_pos: int, client_id: str) -> None:
    """Forget that a client was asked, because it answered UNKNOWN. The next check follows when it is due."""
    asked = hm.log_pos == log_pos, hm.check_client == client_id
    connection.execute(update(half_message).where(*asked).values(check_client=None))


# -- checks of a client -----------------------------------------------------------------------


def _microseconds(time: ColumnElement[Any]) -> ColumnElement[int]:
    """A time in the form of ReceivedMessage: microseconds since 2000."""
    since = time - literal_column("timestamptz '2000-01-01 00:00+00'", DateTime(timezone=True))
    return cast(extract("epoch", since) * literal_column("1000000"), BigInteger)


@cache
def checks_text() -> str:
    """Uses half_message_check_client, half_message_pkey and commit_log_pkey."""
    positions = cast(bindparam("positions"), ARRAY(BigInteger))
    wanted = func.unnest(positions).table_valued("log_pos").render_derived("wanted")
    half = select(half_message).where(hm.log_pos == wanted.c.log_pos).limit(ONE).lateral("half")
    names = ("msg_id", "tags", "keys", "properties", "body", "born_host", "flag", "sys_flag", "born_time", "store_time")
    record = record_of(wanted, *(cl.c[name] for name in names), *aim_of(cl))
    columns = (
        [record.c.real_topic, record.c.real_queue_id]
        + [half.c[name] for name in ("log_pos", "check_times", "queue_offset")]
        + [
            cast(record.c.msg_id, PgUUID()),
            *(record.c[name] for name in names[1:8]),
            *(_microseconds(record.c[name]).label(name) for name in names[8:]),
        ]
    )
    sources = wanted.join(half, true()).join(record, true())
    return text_of(select(*columns).select_from(sources).where(is_readable(record)).order_by(half.c.check_at))


@translates
def open_checks(connection: Connection, broker_name: str, client_id: str, group: str, limit: int) -> list[HalfCheck]:
    """The checks of a group that a client has not answered, oldest first."""
    asked = select(hm.log_pos).where(hm.check_client == client_id, hm.producer_group == group)
    if acl.is_guest(connection):
        rows = driver(connection).execute(_OWN_CHECKS, {"client_id": client_id, "group": group, "most": limit})
        return [_check(broker_name, row) for row in rows]
    positions = list(connection.scalars(asked.order_by(hm.check_at).limit(limit)))
    if not positions:
        return []
    parameters: dict[str, object] = {
        "positions": "{" + ",".join(map(str, positions)) + "}",
        "lowest_pos": min(positions),
        "past_pos": max(positions) + 1,
    }
    return [_check(broker_name, row) for row in driver(connection).execute(checks_text(), parameters)]


_OWN_CHECKS: Final = """
    SELECT real_topic, real_queue_id, log_pos, check_times, queue_offset, msg_id, tags, keys, properties, body,
           born_host, flag, sys_flag,
           (extract(epoch FROM born_time - timestamptz '2000-01-01 00:00+00') * 1000000)::bigint,
           (extract(epoch FROM store_time - timestamptz '2000-01-01 00:00+00') * 1000000)::bigint
    FROM mqdb.own_checks(%(client_id)s, %(group)s, %(most)s)"""


def _check(broker_name: str, row: Sequence[Any]) -> HalfCheck:
    (
        real_topic,
        real_queue_id,
        log_pos,
        check_times,
        queue_offset,
        msg_id,
        tags,
        keys,
        properties,
        body,
        born_host,
        flag,
        sys_flag,
        born,
        stored,
    ) = row
    properties = {**properties, CHECK_TIMES: str(check_times)}
    # As consumers will see it. Source: AbstractTransactionalMessageCheckListener.sendCheckMessage.
    where = MessageQueue(real_topic, broker_name, real_queue_id)
    message = ReceivedMessage(
        where, queue_offset, log_pos, msg_id, tags, keys, properties, body, born, stored, born_host, 0, flag, sys_flag,
        min_offset=0, max_offset=0,
    )  # fmt: skip
    return HalfCheck(log_pos, check_times, message)
