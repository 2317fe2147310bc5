"""Steps of the timer deliverer: the progress of collecting and delivering timers.

A step is one row of `timer_step`, appended in the transaction whose progress it stores. The key of the row prevents a
step from being taken twice. RocketMQ: TimerCheckpoint.
"""

from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Float, Select, cast, delete, extract, func, insert, select

from mqdb.store import locks
from mqdb.store.dispatch.consume_queue import ONE
from mqdb.store.tables import segment, timer, timer_recall, timer_slot, timer_step


class TimerStep(NamedTuple):
    """The progress of timers: a row of timer_step."""

    seq: int
    next_offset: int
    delivered_ms: int
    delivered_pos: int
    next_due_ms: int
    waiting: int


def newest_step(*columns: ColumnElement[Any]) -> Select[Any]:
    """A select of columns of the newest step."""
    return select(*columns).order_by(timer_step.c.seq.desc()).limit(ONE)


def begin(connection: Connection) -> bool:
    """Acquire the right to take steps until the end of the transaction, which is durable.

    Returns False while another session has this right, or is recalling a message.
    """
    return locks.take_durably(connection, "timer")


def append(connection: Connection, step: TimerStep, collected: int, messages: int) -> None:
    """Take a step. Raises SQLAlchemy's IntegrityError if another session has taken the step of that number."""
    counts = {"collected": collected, "messages": messages}
    connection.execute(insert(timer_step).values(step._asdict() | counts))


def newest(connection: Connection) -> TimerStep:
    """The newest step."""
    return TimerStep(*connection.execute(newest_step(*(timer_step.c[name] for name in TimerStep._fields))).one())


def late_seconds(connection: Connection) -> float:
    """The seconds for which the first collected timer has been due; 0 if no timer is due, and before the first step."""
    due_ms = func.nullif(newest_step(timer_step.c.next_due_ms).scalar_subquery(), 0)
    late = cast(extract("epoch", func.mqdb.now()), Float) - due_ms / 1_000.0
    seconds: float = connection.scalars(select(func.greatest(late, 0.0))).one()
    return seconds


def prune(connection: Connection, first: int, past: int) -> int:
    """Remove the steps with `first` <= seq < `past`; returns how many there were."""
    old = timer_step.c.seq >= first, timer_step.c.seq < past
    return connection.execute(delete(timer_step).where(*old)).rowcount


def prune_recalls(connection: Connection) -> int:
    """Delete recalls of messages that are no longer in the log or in a slot; returns their number."""
    first_pos = select(func.min(segment.c.start_pos)).scalar_subquery()
    delivered_ms = newest_step(timer_step.c.delivered_ms).scalar_subquery()
    gone = timer_recall.c.log_pos < first_pos, timer_recall.c.deliver_ms < delivered_ms, ~_is_in_a_slot()
    return connection.execute(delete(timer_recall).where(*gone)).rowcount


def _is_in_a_slot() -> ColumnElement[bool]:
    """Whether the message of a row of timer_recall still has a row in a slot that is not dropped yet.

    Slot 0 contains no recalled messages. Sub-selects are used because a join could read all waiting messages. Uses
    timer_due of the few slots that may contain it.
    """
    recalled, slot = timer_recall.c, timer_slot.c
    is_it = timer.c.slot == slot.slot, timer.c.deliver_ms == recalled.deliver_ms, timer.c.log_pos == recalled.log_pos
    row = select(ONE).select_from(timer).where(*is_it).limit(ONE).correlate(timer_slot, timer_recall).scalar_subquery()
    holds = slot.first_ms <= recalled.deliver_ms, slot.past_ms > recalled.deliver_ms, row.is_not(None)
    found = select(ONE).select_from(timer_slot).where(*holds).limit(ONE).correlate(timer_recall).scalar_subquery()
    return found.is_not(None)
