"""Recurring sends: the message, the next time, and the outcomes. All statements are for a table of few rows.

In SQL: `mqdb/sql/log/send.sql`, `mqdb/sql/schedule/crons.sql`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Final, NamedTuple

from sqlalchemy import (
    Boolean,
    Connection,
    Float,
    Text,
    and_,
    cast,
    column,
    exists,
    extract,
    func,
    literal,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB

from mqdb.common.topic import Perm
from mqdb.store import acl
from mqdb.store.engine import driver, text_of, translates
from mqdb.store.tables import cron, topic

_NOW: Final = cast(func.mqdb.now(), cron.c.next_at.type)


class NewCron(NamedTuple):
    """A new recurring send; the comments of the columns explain the fields."""

    name: str
    cron: str
    timezone: str
    topic: str
    body: bytes
    tag: str | None
    keys: str | None
    properties: Mapping[str, str]
    sharding_key: str | None
    catch_up: str
    application: str | None


class CronSummary(NamedTuple):
    """A recurring send as shown to people."""

    name: str
    cron: str
    timezone: str
    topic: str
    catch_up: str
    is_paused: bool
    next_at: datetime
    last_fired_at: datetime | None
    sent: int
    skipped: int
    created_at: datetime
    created_by: str
    application: str | None
    """The application whose code declares it; None if it was added by hand."""


class DueCron(NamedTuple):
    """A recurring send whose time has come, with this time."""

    name: str
    cron: str
    timezone: str
    topic: str
    catch_up: str
    next_at: datetime
    takes_messages: bool
    """Whether its topic exists and is writable, also for the principal that added the cron."""


def now(connection: Connection) -> datetime:
    """The time by the broker's clock."""
    time: datetime = connection.scalars(select(_NOW)).one()
    return time


def add(connection: Connection, new: NewCron, next_at: datetime, actor: str | None, principal: str | None) -> bool:
    """Store a cron, or change the existing one of the same application, and record this; False if the name is taken."""
    *columns, application = (cast(value, cron.c[name].type) for name, value in new._asdict().items())
    rest = cast(next_at, cron.c.next_at.type), cast(actor, Text), cast(principal, Text)
    added = func.mqdb.add_cron(*columns, *rest, application, type_=Boolean())
    return connection.scalars(select(added)).one()


@translates
def list_crons(connection: Connection) -> list[CronSummary]:
    """All recurring sends, by name."""
    rows = connection.execute(select(*(cron.c[name] for name in CronSummary._fields)).order_by(cron.c.name))
    return [CronSummary._make(row) for row in rows]


class CronsAtWork(NamedTuple):
    """A summary of all recurring sends in one line."""

    late_seconds: float
    """The seconds for which the first cron has been due; 0 if no cron is due."""
    paused: int


def at_work(connection: Connection) -> CronsAtWork:
    """The lateness of crons, and the number of paused crons."""
    late = func.max(cast(extract("epoch", _NOW - cron.c.next_at), Float)).filter(~cron.c.is_paused)
    columns = func.greatest(late, 0.0), func.count().filter(cron.c.is_paused)
    return CronsAtWork(*connection.execute(select(*columns)).one())


def find(connection: Connection, name: str) -> CronSummary | None:
    """The cron of this name, or None."""
    wanted = select(*(cron.c[name] for name in CronSummary._fields)).where(cron.c.name == name)
    row = connection.execute(wanted).first()
    return None if row is None else CronSummary._make(row)


def change(connection: Connection, name: str, change: str, actor: str | None, next_at: datetime | None = None) -> bool:
    """Pause, resume or remove the cron, according to `change`, and record it; returns False if it does not exist.

    Waits for a firing in progress. Resuming a cron that is not paused has no effect.
    """
    time = cast(next_at, cron.c.next_at.type)
    changed = func.mqdb.change_cron(cast(name, Text), cast(change, Text), time, cast(actor, Text), type_=Boolean())
    return connection.scalars(select(changed)).one()


def pause(connection: Connection, name: str) -> None:
    """Pause a cron."""
    connection.execute(update(cron).where(cron.c.name == name).values(is_paused=True))


def next_due_in(connection: Connection) -> timedelta | None:
    """The time until the next cron is due, negative if it is overdue; None if all are paused."""
    row = driver(connection).execute(_next_due_text()).fetchone()
    assert row is not None
    waits: timedelta | None = row[0]
    return waits


@cache
def _next_due_text() -> str:
    return text_of(select(func.min(cron.c.next_at) - _NOW).where(~cron.c.is_paused))


def take_due(connection: Connection, limit: int) -> tuple[datetime, list[DueCron]]:
    """Lock the due crons that are not locked by other sessions, for this transaction; returns the time and the crons.

    Other sessions that fire crons do not wait for these, and see their new next times when this transaction has ended.
    """
    present = now(connection)
    writable = topic.c.perm.bitwise_and(int(Perm.WRITE)) != 0
    may = [
        acl.is_held(cron.c.principal, literal(access), literal("TOPIC"), cron.c.topic) for access in ("OPERATE", "SEND")
    ]
    is_there = exists().where(topic.c.topic == cron.c.topic, writable)
    takes_messages = and_(is_there, or_(cron.c.principal.is_(None), and_(*may)))
    columns = [cron.c[name] for name in DueCron._fields if name != "takes_messages"]
    due = select(*columns, takes_messages).where(~cron.c.is_paused, cron.c.next_at <= present)
    rows = connection.execute(due.order_by(cron.c.next_at, cron.c.name).limit(limit).with_for_update(skip_locked=True))
    return present, [DueCron._make(row) for row in rows]


def send(connection: Connection, name: str, messages: Sequence[Mapping[str, str]]) -> None:
    """Append a cron's message once for each set of additional properties, by calling mqdb.send, whose rules apply.

    The order is kept: PostgreSQL first sorts, and then calls a volatile function.
    """
    given = func.jsonb_array_elements(cast(list(messages), JSONB))
    more = given.table_valued(column("value", JSONB), with_ordinality="number").render_derived("more")
    content = [cron.c[column_name] for column_name in ("topic", "body", "tag", "keys")]
    all_properties = cron.c.properties.op("||", return_type=JSONB())(more.c.value)
    sending = select(func.mqdb.send(*content, all_properties, cron.c.sharding_key, type_=Text()))
    from_both = sending.select_from(cron.join(more, true())).where(cron.c.name == name)
    connection.execute(from_both.order_by(more.c.number))


def move(
    connection: Connection, name: str, next_at: datetime, fired_at: datetime | None, sent: int, skipped: int
) -> None:
    """Store the next due time of a cron, and the outcome of earlier times;

    `fired_at` is the time of the last message.
    """
    changes = {
        "next_at": next_at,
        "last_fired_at": func.coalesce(fired_at, cron.c.last_fired_at),
        "sent": cron.c.sent + sent,
        "skipped": cron.c.skipped + skipped,
    }
    connection.execute(update(cron).where(cron.c.name == name).values(changes))
