"""Checks of the log: whether there is room ahead of it, and whether old segments are dropped."""

import shlex
from typing import Final

from sqlalchemy import Connection

from mqdb.broker.doctor.finding import (
    HOUR_SECONDS,
    LOOK_AT_SERVICES,
    Checks,
    DoctorCheck,
    DoctorThresholds,
    FindingStatus,
    Observation,
    fine,
    graded,
    row,
    span,
)
from mqdb.broker.schedule.delay import first_undelivered_segment
from mqdb.broker.schedule.timers import first_uncollected_segment
from mqdb.broker.transactions.transaction_checks import first_unresolved_segment
from mqdb.store.segments import archived_segments, segments
from mqdb.store.segments.segments import SegmentState

FAIL, WARN, INFO, OK = FindingStatus.FAIL, FindingStatus.WARN, FindingStatus.INFO, FindingStatus.OK


def _segments(connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    last_pos = segments.log(connection).last_pos
    found = segments.find_all(connection)
    ahead = sum(each.start_pos > last_pos for each in found)
    room = segments.room(found, last_pos)
    few = (thresholds.segments_fail, FAIL), (thresholds.segments_warn, WARN)
    status = next((status for most, status in few if ahead <= most), OK)
    seen = f"{ahead} empty segments are ahead; there is room for {room:,} messages"
    return graded(status, seen, LOOK_AT_SERVICES, segments_ahead=ahead, room_messages=room)


def _retention(connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    now = segments.log(connection).now
    found = segments.find_all(connection)
    lowest = segments.needed_from(found)
    most_seconds = (thresholds.reserved_hours + thresholds.overdue_warn_hours) * HOUR_SECONDS
    overdue = [
        (each, seconds)
        for each in found
        # A drained segment is kept as long as a newer one points into its log.
        if each.closed_at is not None and (each.state is not SegmentState.DRAINED or each.end_pos <= lowest)
        if (seconds := (now - each.closed_at).total_seconds()) > most_seconds
    ]
    if not overdue:
        return fine(f"no segment is kept much longer than {thresholds.reserved_hours:g} h")
    oldest, seconds = overdue[0]
    why, remedy = _what_keeps(connection, oldest.number, oldest.state)
    seen = (
        f"{len(overdue):,} segments are overdue; number {oldest.number}, which has been full for {span(seconds)}, {why}"
    )
    figures = {"segments": len(overdue), "oldest_segment": oldest.number, "oldest_seconds": round(seconds)}
    return [Observation(WARN, seen, remedy, figures)]


def _what_keeps(connection: Connection, number: int, state: SegmentState) -> tuple[str, str]:
    """Why an overdue segment is not dropped, and what to do about it."""
    if state is SegmentState.DRAINED:
        return "waits for a session that reads its tables", "mqdb doctor --only xmin,idle-in-transaction,locks"
    if state is not SegmentState.SEALED:
        why = "may still get records of an open transaction, or is not completely dispatched and indexed"
        return why, "mqdb doctor --only dispatch-behind,index-behind,xmin"
    if first_unresolved_segment(connection) <= number:
        return "contains an unresolved half message", "mqdb transaction list"
    if first_undelivered_segment(connection) <= number:
        return "contains a delayed message that is not delivered", "mqdb delay list"
    if first_uncollected_segment(connection) <= number:
        return "contains a message with a delivery time that is not collected", "mqdb doctor --only leader,deliveries"
    archive = row(
        connection,
        """SELECT count(*) AS segments,
                  (array_agg(path ORDER BY archived_at DESC) FILTER (WHERE path IS NOT NULL))[1] AS path
           FROM mqdb.archived_segment""",
    )
    if archived_segments.first_missing(connection) <= number and archive.segments:
        # Segments without messages have no path.
        folder = archive.path and archive.path.rpartition("/broker=")[0]
        remedy = f"mqdb spark archive {shlex.quote(folder)}" if folder else "mqdb spark archive --help"
        return "is not archived, which `retain_until_archived` requires", remedy
    why = "is not needed here; `mqdb serve` may have a longer file_reserved_time, or wait for an archive"
    return why, "mqdb doctor --only leader"


def _positions(connection: Connection, _thresholds: DoctorThresholds) -> list[Observation]:
    last = segments.log(connection).last_pos
    return [Observation(INFO, f"position {last:,}, {last / 2**63:.0e} of all positions", None, {"position": last})]


CHECKS: Final[Checks] = {
    DoctorCheck(
        "segments",
        "empty segments ahead of the log",
        "WARN at {segments_warn}, FAIL at {segments_fail}",
        "see `leader` and `locks`",
    ): _segments,
    DoctorCheck(
        "retention",
        "segments that have been full for longer than `file_reserved_time`, and the reason why the oldest is kept",
        "WARN {overdue_warn_hours} h after {reserved_hours} h",
        "resolve the half message, skip the delay level, archive, or end the reader",
        needs_owner=True,
    ): _retention,
    DoctorCheck("positions", "the share of the log's positions that are used", "INFO always", "none"): _positions,
}
