"""The segment keeper: creates segments ahead of the log, and removes old segments behind it.

A round goes once through the life cycle of segments (`mqdb.store.segments`). The keeper's steps and other sessions
never wait for each other longer than `lock_timeout`: a blocked step is left for a later round.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from apscheduler.schedulers.background import BackgroundScheduler
from psycopg import errors as pg
from sqlalchemy import Connection, func, select
from sqlalchemy.exc import DBAPIError

from mqdb.broker.schedule.delay import first_undelivered_segment
from mqdb.broker.schedule.timers import first_uncollected_segment
from mqdb.broker.transactions.transaction_checks import first_unresolved_segment
from mqdb.service.retention import (
    RetentionRules,
    SegmentSizing,
    before_delays,
    expired,
    segment_size,
    to_make_room,
)
from mqdb.service.service import Context, PeriodicService
from mqdb.store import dead_letters, operations
from mqdb.store.dispatch import checkpoints
from mqdb.store.segments import archived_segments, partitions, segments
from mqdb.store.segments.segments import SegmentState
from mqdb.store.topics import topics

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SegmentKeeperConfig:
    """The configuration of the segment keeper."""

    interval: timedelta = timedelta(seconds=1)
    """The pause after a round that found work."""
    idle_interval: timedelta = timedelta(seconds=10)
    """Source:

    MessageStoreConfig.cleanResourceInterval. At the end of a segment, dispatch creates the next segments itself.
    """
    segments_ahead: int = 2
    sizing: SegmentSizing = field(default_factory=SegmentSizing)
    retention: RetentionRules = field(default_factory=RetentionRules)
    disk_used_percent: Callable[[], float] | None = None
    """The usage of the database's disk; None if it is not visible, so that only age counts."""
    retain_until_archived: bool = False
    """Whether to drop only segments that are completely archived in `mqdb.archived_segment`, with all topics."""
    force_pause: timedelta = timedelta(seconds=10)
    """The pause after a segment was dropped to make room: sessions that read it may keep its files."""
    lock_timeout: timedelta = timedelta(milliseconds=200)
    drained_per_round: int = 10
    """Source: MessageStoreConfig.deleteFileBatchMax."""
    checkpoints_kept: int = 1000
    """The number of checkpoints kept per service, for measuring the speed of the last seconds."""
    operation_reserved_time: timedelta = timedelta(days=365)
    operation_pause: timedelta = timedelta(hours=1)
    """The time between two checks for operations to remove."""
    removal_time: timedelta = timedelta(milliseconds=200)
    """The time in a round for removing deleted topics, because roles may delete any number."""
    queues_per_removal: int = 32
    """The number of queues removed by one statement, for which dispatch waits at the end of a segment."""


@dataclass(slots=True)
class KeeperCounts:
    """The result of a round."""

    made: int = 0
    closed: int = 0
    sealed: int = 0
    drained: int = 0
    dropped: int = 0
    """The number of completely removed segments."""
    waiting: bool = False
    """Whether a lock prevented a drop; the next round tries again."""
    checkpoints_pruned: int = 0
    redrives_pruned: int = 0
    operations_pruned: int = 0
    topics_removed: int = 0
    """The number of removed topics that roles which do not own the broker have deleted."""
    removing: bool = False
    """Whether parts of such a topic are left for the next round."""


class SegmentKeeper(PeriodicService[KeeperCounts]):
    """Runs the life cycle of segments."""

    name = "segment keeper"

    def __init__(
        self, context: Context, scheduler: BackgroundScheduler, config: SegmentKeeperConfig = SegmentKeeperConfig()
    ) -> None:
        super().__init__(context, scheduler, config.interval)
        self._config = config
        self._force_again_at = 0.0
        self._operations_again_at = 0.0
        self._pruned_to: dict[str, int] = {}

    def run_once(self, connection: Connection) -> KeeperCounts:
        """Do all work that is due in the life cycle of the segments."""
        counts = KeeperCounts()
        self._make(connection, counts)
        self._close_and_seal(connection, counts)
        # First the work that earlier rounds have begun. While it waits, nothing else is begun.
        self._drop(connection, counts)
        if not counts.waiting:
            self._drain(connection, counts)
            self._drop(connection, counts)
        self._prune_checkpoints(connection, counts)
        self._prune_redrives(connection, counts)
        self._prune_operations(connection, counts)
        self._remove_topics(connection, counts)
        return counts

    def pause_after(self, counts: KeeperCounts) -> timedelta:
        return self._config.idle_interval if counts == KeeperCounts() else timedelta(0)

    def prepare(self, connection: Connection) -> None:
        milliseconds = self._config.lock_timeout // timedelta(milliseconds=1)
        connection.execute(select(func.set_config("lock_timeout", f"{milliseconds}ms", False)))

    def _make(self, connection: Connection, counts: KeeperCounts) -> None:
        config = self._config
        log = segments.log(connection)
        size = segment_size(config.sizing, config.retention, log, segments.find_all(connection))
        if size != log.segment_size:
            segments.resize(connection, size)
            logger.info("changed the size of segments", extra={"records": size, "records_before": log.segment_size})
        counts.made = segments.ensure(connection, config.segments_ahead)
        if counts.made:
            logger.info("made segments", extra={"count": counts.made, "records": size})

    def _close_and_seal(self, connection: Connection, counts: KeeperCounts) -> None:
        counts.closed = len(segments.close_passed(connection))
        done_pos = min(checkpoint.done_pos for checkpoint in checkpoints.newest(connection).values())
        for segment in segments.find_all(connection):
            # Sealing proves that everything is dispatched, which reads the segment; this cheap check comes first.
            is_passed = segment.state is SegmentState.CLOSED and segment.end_pos <= done_pos + 1
            if is_passed and segments.seal(connection, segment.number):
                counts.sealed += 1
                logger.info("sealed a segment", extra={"segment": segment.number})

    def _drain(self, connection: Connection, counts: KeeperCounts) -> None:
        for number in self._going(connection)[: self._config.drained_per_round]:
            # A process that was paused here must not act on an outdated disk usage.
            if not self._context.may_act():
                return
            if not segments.drain(connection, number):
                counts.waiting = True
                return
            counts.drained += 1
            logger.info("raised the min offsets", extra={"over_segment": number})

    def _going(self, connection: Connection) -> list[int]:
        """The numbers of the segments to drop now, oldest first."""
        config = self._config
        known = segments.find_all(connection)
        now = segments.log(connection).now
        writes_to = checkpoints.newest(connection)["dispatch"].segment
        disk_used = config.disk_used_percent() if config.disk_used_percent is not None else None
        old = expired(config.retention, now, known, writes_to, disk_used)
        if old and (going := before_delays(old, self._first_kept(connection))):
            return going
        oldest = to_make_room(config.retention, known, writes_to, disk_used)
        if not oldest or self._context.clock.monotonic() < self._force_again_at:
            return []
        self._force_again_at = self._context.clock.monotonic() + config.force_pause.total_seconds()
        going = before_delays(oldest, self._first_kept(connection))
        fields = {"disk_used_percent": disk_used}
        if going:
            sentence = "dropping messages early: %(disk_used_percent).0f %% of the disk is used"
        elif before_delays(oldest, _first_waiting_segment(connection)):
            sentence = "%(disk_used_percent).0f %% of the disk is used; the oldest messages are not archived"
        else:
            sentence = "%(disk_used_percent).0f %% of the disk is used; the oldest messages wait for their time"
        logger.warning(sentence, fields, extra=fields)
        return going

    def _first_kept(self, connection: Connection) -> int:
        """The first segment that must be kept, however old it is and however full the disk."""
        waiting = _first_waiting_segment(connection)
        if not self._config.retain_until_archived:
            return waiting
        return min(waiting, archived_segments.first_missing(connection))

    def _drop(self, connection: Connection, counts: KeeperCounts) -> None:
        known = segments.find_all(connection)
        for segment in known:
            if segment.state is not SegmentState.DRAINED:
                continue
            wanted = [*partitions.INDEXES]
            if segment.end_pos <= segments.needed_from(known):
                wanted.append(partitions.LOG)
            if not all(partitions.remove(connection, parent, segment.number) for parent in wanted):
                counts.waiting = True
                return
            if partitions.LOG in wanted:
                segments.forget(connection, segment.number)
                counts.dropped += 1
                logger.info("dropped a segment", extra={"segment": segment.number})

    def _prune_checkpoints(self, connection: Connection, counts: KeeperCounts) -> None:
        kept = self._config.checkpoints_kept
        for service, newest in checkpoints.newest(connection).items():
            # Not one by one, and never past those that are gone: while a session holds an old snapshot, the index keeps
            # their entries, and each round would have to skip more of them.
            first, past = self._pruned_to.get(service, 0), newest.seq - kept + 1
            if past - first >= kept:
                counts.checkpoints_pruned += checkpoints.prune(connection, service, first, past)
                self._pruned_to[service] = past

    def _remove_topics(self, connection: Connection, counts: KeeperCounts) -> None:
        clock, config = self._context.clock, self._config
        end = clock.monotonic() + config.removal_time.total_seconds()
        try:
            while (removed := topics.remove_deleted(connection, config.queues_per_removal)) is not None:
                counts.topics_removed += removed
                if clock.monotonic() >= end:
                    counts.removing = True
                    return
        except DBAPIError as error:
            if not isinstance(error.orig, pg.LockNotAvailable):
                raise
            # A member is committing offsets there. The next round tries again.
            counts.removing = True

    def _prune_redrives(self, connection: Connection, counts: KeeperCounts) -> None:
        if not counts.dropped:
            return
        counts.redrives_pruned = dead_letters.prune_redrives(connection)
        if counts.redrives_pruned:
            logger.info(
                "deleted results of redrives that are no longer in the log", extra={"count": counts.redrives_pruned}
            )

    def _prune_operations(self, connection: Connection, counts: KeeperCounts) -> None:
        now, config = self._context.clock.monotonic(), self._config
        if now < self._operations_again_at:
            return
        self._operations_again_at = now + config.operation_pause.total_seconds()
        counts.operations_pruned = operations.prune(connection, config.operation_reserved_time)
        if counts.operations_pruned:
            logger.info("deleted old operations", extra={"count": counts.operations_pruned})


def _first_waiting_segment(connection: Connection) -> int:
    """The segment of the first message that exists only there, waiting for its time or the end of its transaction."""
    first = first_undelivered_segment, first_uncollected_segment, first_unresolved_segment
    return min(segment_of(connection) for segment_of in first)
