"""Checks of waiting messages: delayed messages and timers, crons, half messages."""

import shlex
from typing import Final

from sqlalchemy import Connection, func, select

from mqdb.broker.doctor.finding import (
    LOOK_AT_SERVICES,
    Checks,
    DoctorCheck,
    DoctorThresholds,
    FindingStatus,
    Observation,
    fine,
    listed,
    one_each,
    row,
    span,
)
from mqdb.store.schedule import cron, timer_looks, timer_slots
from mqdb.store.schedule.delay_queues import list_delays
from mqdb.store.schedule.timer_looks import Look
from mqdb.store.schedule.timer_steps import TimerStep

FAIL, WARN = FindingStatus.FAIL, FindingStatus.WARN

#: The number of uncollected timers that are searched for the first due one.
_LOOKED_AT: Final = 1_000

#: The maximum number of half messages that are counted.
_COUNTED: Final = 1_000


def _deliveries(connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    # These queries must use only indexes.
    connection.execute(select(func.set_config("enable_seqscan", "off", True)))
    late = [("timers", _late_seconds(timer_looks.look(connection, _LOOKED_AT, 0), connection))]
    levels = list_delays(connection)
    late += [(f"delay level {each.level}", each.late.total_seconds()) for each in levels if each.late is not None]
    found = [
        Observation(
            FAIL,
            f"delay level {each.level} is stuck: the log has lost its next message",
            f"mqdb delay skip {each.level}",
            {"level": each.level},
        )
        for each in levels
        if each.lost is not None
    ]
    found += one_each(
        [each for each in late if each[1] > thresholds.delivery_warn_seconds],
        lambda each: Observation(
            WARN,
            f"{each[0]}: a message has been due for {span(each[1])}",
            LOOK_AT_SERVICES,
            {"of": each[0], "late_seconds": round(each[1], 1)},
        ),
    )
    latest = max((seconds for _, seconds in late), default=0.0)
    return found or fine(f"at most {span(max(latest, 0.0))} late", late_seconds=round(max(latest, 0.0), 1))


def _late_seconds(at: Look, connection: Connection) -> float:
    """The time for which the first timer, collected or not, has been overdue; 0 if no timer is due."""
    first_ms = [] if at.first_due_ms is None else [at.first_due_ms]
    if at.next_due_ms <= at.now_ms:
        step = TimerStep(at.seq, at.next_offset, at.delivered_ms, at.delivered_pos, at.next_due_ms, at.waiting)
        slots = timer_slots.find(connection, at.now_ms + 1, at.delivered_ms)
        collected_ms = timer_looks.next_due_ms(connection, slots, step, at.now_ms + 1)
        first_ms += [] if collected_ms is None else [collected_ms]
    return max(at.now_ms - min(first_ms, default=at.now_ms), 0) / 1_000


def _crons(connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    now = cron.now(connection)
    waiting = [
        ((now - each.next_at).total_seconds(), each.name) for each in cron.list_crons(connection) if not each.is_paused
    ]
    late = [each for each in waiting if each[0] > thresholds.cron_warn_seconds]
    return one_each(
        sorted(late, reverse=True),
        lambda each: Observation(
            WARN,
            f"cron {each[1]} has been due for {span(each[0])}",
            LOOK_AT_SERVICES,
            {"cron": each[1], "late_seconds": round(each[0], 1)},
        ),
    ) or fine("no cron is late")


def _paused_crons(connection: Connection, _thresholds: DoctorThresholds) -> list[Observation]:
    return one_each(
        [each for each in cron.list_crons(connection) if each.is_paused],
        lambda each: Observation(
            WARN, f"cron {each.name} is paused", f"mqdb cron resume {shlex.quote(each.name)}", {"cron": each.name}
        ),
    ) or fine("no crons are paused")


def _half_messages(connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    # An immune half message is checked much later than at the next interval.
    open_ends = row(
        connection,
        """SELECT count(*) AS messages, array_agg(DISTINCT producer_group) AS groups, max(seconds) AS seconds FROM (
               SELECT h.producer_group, extract(epoch FROM mqdb.now() - h.stored_at)::float AS seconds
               FROM mqdb.half_message h
               WHERE h.state = 'PREPARED' AND h.stored_at < mqdb.now() - make_interval(secs => %(seconds)s)
                 AND coalesce(h.check_at, h.stored_at) < mqdb.now() + interval '1 minute'
               LIMIT %(limit)s) AS old""",
        seconds=thresholds.half_warn_seconds,
        limit=_COUNTED,
    )
    if not open_ends.messages:
        return fine("no half message has been open for long")
    more = "or more " if open_ends.messages == _COUNTED else ""
    seen = (
        f"{open_ends.messages:,} {more}half messages have been open for up to {span(open_ends.seconds)}, "
        f"of {listed(open_ends.groups)}"
    )
    remedy = "mqdb transaction list  # start their producers, or mqdb transaction resolve"
    return [
        Observation(WARN, seen, remedy, {"messages": open_ends.messages, "oldest_seconds": round(open_ends.seconds, 1)})
    ]


CHECKS: Final[Checks] = {
    DoctorCheck(
        "deliveries",
        "the lateness of the next message in each delay level, and of the next timer",
        "WARN above {delivery_warn_seconds} s, FAIL if a level is stuck",
        "see `leader` and `locks`; `mqdb delay skip`",
        needs_owner=True,
    ): _deliveries,
    DoctorCheck(
        "crons",
        "the lateness of crons",
        "WARN above {cron_warn_seconds} s",
        "see `leader` and `locks`",
        is_partial=True,
    ): _crons,
    DoctorCheck(
        "paused-crons", "paused crons", "WARN if a cron is paused", "`mqdb cron resume`", is_partial=True
    ): _paused_crons,
    DoctorCheck(
        "half-messages",
        "unresolved half messages, whether or not a producer can be asked",
        "WARN if a half message is older than {half_warn_seconds} s",
        "start the producer; `mqdb transaction resolve`",
        needs_owner=True,
    ): _half_messages,
}
