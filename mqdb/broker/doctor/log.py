"""Checks of the log: whether there is room ahead of it, and whether old segments go."""

from typing import Final

from sqlalchemy import Connection

from mqdb.broker.doctor.finding import (
    Checks,
    DoctorCheck,
    DoctorThresholds,
    FindingStatus,
    Observation,
    fine,
    row,
    rows,
    span,
)
from mqdb.broker.schedule.delay import first_undelivered_segment
from mqdb.broker.schedule.timers import first_uncollected_segment
from mqdb.broker.transactions.transaction_checks import first_unresolved_segment
from mqdb.store.segments import archived_segments
from mqdb.store.segments.segments import SegmentState

FAIL, WARN, INFO, OK = FindingStatus.FAIL, FindingStatus.WARN, FindingStatus.INFO, FindingStatus.OK

#: Seconds of an hour.
_HOUR: Final = 3_600


def _segments(connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    ahead = row(
        connection,
        """SELECT count(*) FILTER (WHERE s.start_pos > p.last_value) AS segments,
                  max(s.end_pos) - 1 - p.last_value AS room
           FROM mqdb.segment s, mqdb.log_pos p GROUP BY p.last_value""",
    )
    few = (thresholds.segments_fail, FAIL), (thresholds.segments_warn, WARN)
    status = next((status for most, status in few if ahead.segments <= most), OK)
    remedy = None if status is OK else "mqdb doctor --only leader,locks  # and read the log of mqdb serve"
    seen = f"{ahead.segments} empty segments lie ahead; there is room for {max(ahead.room, 0):,} messages"
    return [Observation(status, seen, remedy, {"segments_ahead": ahead.segments, "room_messages": max(ahead.room, 0)})]


def _retention(connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    # A drained segment stays for as long as a younger one points into its log.
    overdue = rows(
        connection,
        """SELECT s.segment, s.state, extract(epoch FROM mqdb.now() - s.closed_at)::float AS seconds
           FROM mqdb.segment s
           WHERE s.closed_at < mqdb.now() - make_interval(secs => %(seconds)s)
             AND (s.state <> 'drained' OR s.end_pos <= (
                 SELECT min(o.lowest_log_pos) FROM mqdb.segment o WHERE o.state <> 'drained'))
           ORDER BY s.segment""",
        seconds=(thresholds.reserved_hours + thresholds.overdue_warn_hours) * _HOUR,
    )
    if not overdue:
        return fine(f"no segment is kept much longer than {thresholds.reserved_hours:g} h")
    oldest = overdue[0]
    why, remedy = _what_keeps(connection, oldest.segment, SegmentState(oldest.state))
    seen = f"{len(overdue):,} segments are overdue; number {oldest.segment}, full for {span(oldest.seconds)}, {why}"
    figures = {"segments": len(overdue), "oldest_segment": oldest.segment, "oldest_seconds": round(oldest.seconds)}
    return [Observation(WARN, seen, remedy, figures)]


def _what_keeps(connection: Connection, number: int, state: SegmentState) -> tuple[str, str]:
    """Why a segment stays that should have gone, and what to do about it."""
    if state is SegmentState.DRAINED:
        return "waits for a session that reads its tables", "mqdb doctor --only xmin,idle-in-transaction,locks"
    if state is not SegmentState.SEALED:
        why = "may still get records of an open transaction, or is not all dispatched and indexed"
        return why, "mqdb doctor --only dispatch-behind,index-behind,xmin"
    if first_unresolved_segment(connection) <= number:
        return "holds a half message that has not ended", "mqdb transaction list"
    if first_undelivered_segment(connection) <= number:
        return "holds a delayed message that is not delivered", "mqdb delay list"
    if first_uncollected_segment(connection) <= number:
        return "holds a message with a time of delivery that is not collected", "mqdb doctor --only leader,deliveries"
    if archived_segments.first_missing(connection) <= number and _is_archived(connection):
        return "is not archived, which `retain_until_archived` waits for", "mqdb spark archive"
    return "is kept by nothing here; `mqdb serve` may have a longer file_reserved_time", "mqdb doctor --only leader"


def _is_archived(connection: Connection) -> bool:
    """Whether anybody archives."""
    return bool(row(connection, "SELECT EXISTS (SELECT FROM mqdb.archived_segment) AS is_archived").is_archived)


def _positions(connection: Connection, _thresholds: DoctorThresholds) -> list[Observation]:
    last = row(connection, "SELECT last_value AS position FROM mqdb.log_pos").position
    return [Observation(INFO, f"position {last:,}, {last / 2**63:.0e} of all that there are", None, {"position": last})]


CHECKS: Final[Checks] = {
    DoctorCheck(
        "segments",
        "empty segments ahead of the log",
        "WARN at {segments_warn}, FAIL at {segments_fail}",
        "what `leader` and `locks` say",
    ): _segments,
    DoctorCheck(
        "retention",
        "segments that are full for longer than `file_reserved_time`, and what keeps the oldest",
        "WARN {overdue_warn_hours} h after {reserved_hours} h",
        "end the half message, skip the delay level, archive, end the reader",
        needs_owner=True,
    ): _retention,
    DoctorCheck("positions", "how many of the positions of the log are used", "INFO always", "none"): _positions,
}
