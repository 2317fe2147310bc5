"""Checks of the services: who runs them, and how far they are behind the log.

In SQL: `mqdb/sql/dispatch/is_attended.sql`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection

from mqdb.broker.dispatch import is_attended
from mqdb.broker.doctor.finding import (
    Checks,
    DoctorCheck,
    DoctorThresholds,
    FindingStatus,
    Observation,
    fine,
    grade,
    listed,
    rows,
    span,
)
from mqdb.store.dispatch import checkpoints
from mqdb.store.replication import is_standby
from mqdb.store.segments import segments

FAIL, INFO, OK = FindingStatus.FAIL, FindingStatus.INFO, FindingStatus.OK


def _leader(connection: Connection, _thresholds: DoctorThresholds) -> list[Observation]:
    attended = is_attended(connection)  # first: then there is a row
    # For sessions of other roles PostgreSQL shows only the pid, as in mqdb.is_attended().
    known = rows(
        connection,
        """SELECT l.holder, l.epoch, l.backend_pid,
                  extract(epoch FROM mqdb.now() - l.expires_at)::float AS overdue_seconds,
                  EXISTS (SELECT FROM pg_stat_get_activity(l.backend_pid) a
                          WHERE a.backend_start = l.backend_start OR a.backend_start IS NULL) AS is_connected
           FROM mqdb.leader l ORDER BY l.service_set""",
    )
    if attended:
        return fine(
            f"{listed(each.holder for each in known)} runs the services",
            holder=known[0].holder,
            epoch=known[0].epoch,
        )
    if is_standby(connection):
        return [_at_primary(known)]
    if not known:
        return [Observation(FAIL, "no `mqdb serve` has run the services yet", "mqdb serve")]
    last = known[0]
    why = f"has given no sign of life for {span(last.overdue_seconds)}" if last.is_connected else "is gone"
    if last.is_connected and last.overdue_seconds < 0:
        why = "has given no sign of life since the clock was set back"
    figures = {"holder": last.holder, "epoch": last.epoch, "overdue_seconds": round(last.overdue_seconds, 1)}
    return [
        Observation(FAIL, f"no process runs the services: {last.holder}, the last leader, {why}", "mqdb serve", figures)
    ]


def _at_primary(known: Sequence[Any]) -> Observation:
    """The observation on a standby, which sees the leader's promise, but not whether the leader is alive."""
    if not known:
        return Observation(INFO, "the services run with the primary, not here; this standby has no record of them yet")
    last = known[0]
    figures = {"holder": last.holder, "epoch": last.epoch, "overdue_seconds": round(last.overdue_seconds, 1)}
    if last.overdue_seconds < 0:
        return Observation(OK, f"{last.holder} runs the services with the primary", None, figures)
    seen = f"this standby has received no sign of life of the services for {span(last.overdue_seconds)}"
    return Observation(INFO, seen, "mqdb doctor --only leader  # with the DSN of the primary", figures)


def _behind(service: str, connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    reached = checkpoints.newest(connection)[service]
    seconds = checkpoints.oldest_unreached_seconds(connection, service)
    # After the checkpoint, which would otherwise be ahead of it.
    log = segments.log(connection)
    positions = log.last_pos - reached.done_pos
    written_seconds = (log.now - reached.written_at).total_seconds()
    status = grade(seconds, thresholds.behind_warn_seconds, thresholds.behind_fail_seconds)
    figures = {
        "behind_seconds": round(seconds, 1),
        "behind_positions": positions,
        "last_checkpoint_seconds": round(written_seconds, 1),
    }
    if status is OK:
        return fine(f"behind by {span(seconds)}", **figures)
    written = span(written_seconds)
    seen = f"behind by {span(seconds)} and {positions:,} positions; the last step was {written} ago"
    return [
        Observation(status, seen, "mqdb doctor --only leader,locks,xmin  # and read the log of mqdb serve", figures)
    ]


CHECKS: Final[Checks] = {
    DoctorCheck(
        "leader",
        "the process that runs the services: its lease and its backend",
        "FAIL if there is no such process; on a standby, INFO unless a record of the process exists",
        "start `mqdb serve`",
    ): _leader,
    DoctorCheck(
        "dispatch-behind",
        "age of the first visible record that has no queue offset",
        "WARN above {behind_warn_seconds} s, FAIL above {behind_fail_seconds} s",
        "see `leader`, `locks` and `xmin`",
        needs_owner=True,
    ): partial(_behind, "dispatch"),
    DoctorCheck(
        "index-behind",
        "age of the first visible record that is not in the key index",
        "WARN above {behind_warn_seconds} s, FAIL above {behind_fail_seconds} s",
        "see `leader`, `locks` and `xmin`",
        needs_owner=True,
    ): partial(_behind, "index"),
}
