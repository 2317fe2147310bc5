"""The archive: the segments to archive, their contents, and the catalogue of archived segments.

    one session    lock ─▶ unfinished folders ─▶ plan ─▶ for each segment: begin ─▶ (files) ─▶ record

The lock is held on the connection that records, so a process that loses the lock cannot record. RocketMQ's tiered
storage (MessageStoreDispatcherImpl) copies each queue as it grows; here a segment is archived once, as a whole. Single
topics can be archived earlier, so that they can soon be read in the archive; retention still waits for the whole
segment.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from sqlalchemy import Connection

from mqdb.common.topic import is_system_topic
from mqdb.errors import MqdbError, TopicNotFound
from mqdb.store import locks
from mqdb.store.engine import transaction, translated, translates
from mqdb.store.segments import archived_segments
from mqdb.store.segments.archived_segments import ArchivedSegment, Offsets, Topics
from mqdb.store.topics import topic_ranges
from mqdb.store.topics.topic_ranges import OffsetRange


class SegmentContents(NamedTuple):
    """The contents of a segment to archive: the offsets of `topics`, or of all topics except system topics."""

    segment: int
    offsets: Offsets
    topics: Topics = None

    @property
    def messages(self) -> int:
        """The number of messages; offsets have no gaps."""
        return sum(past - first for queues in self.offsets.values() for first, past in queues.values())


@contextmanager
def sole_archiver(connection: Connection) -> Iterator[bool]:
    """Hold the lock of the archive while the block runs; yields False if another session holds it.

    PostgreSQL frees the lock some time after the connection is closed, but the next process tries to take it only once.
    So the lock is released explicitly.
    """
    with translated(connection):
        is_taken = locks.take_archive(connection)
    try:
        yield is_taken
    finally:
        if is_taken and not connection.invalidated:
            with suppress(MqdbError), translated(connection):  # it is lost with the connection
                locks.release_archive(connection)


@translates
def plan(connection: Connection, topics: Sequence[str] | None = None) -> list[SegmentContents]:
    """The sealed segments that are not archived completely, oldest first, with the contents to archive.

    Without topics a segment is complete if one archive contains all its topics except system topics, whatever other
    archives contain. Messages waiting in system topics are copied to their own topic when they are due. With `topics`,
    those that none of a segment's archives contains are missing. Raises TopicNotFound.
    """
    with transaction(connection):
        known = topic_ranges.topic_names(connection)
        for name in topics or ():
            if name not in known:
                raise TopicNotFound(name)
        lacking = _lacking(connection, topics)
        if not lacking:
            return []
        names = topics if topics is not None else [name for name in known if not is_system_topic(name)]
        queues = {each.queue_key: each for each in topic_ranges.bounds(connection, names)}
        ranges = [OffsetRange(key, each.min_offset, each.max_offset) for key, each in queues.items()]
        held: dict[int, dict[str, dict[int, tuple[int, int]]]] = {number: {} for number in lacking}
        for span in topic_ranges.spans(connection, ranges, min(lacking)):
            queue = queues[span.queue_key]
            if span.segment in held and queue.topic in (lacking[span.segment] or names):
                held[span.segment].setdefault(queue.topic, {})[queue.queue_id] = span.first, span.past
        # A segment that retention has dropped in the meantime looks empty.
        still_there = archived_segments.sealed(connection)
        return [SegmentContents(number, held[number], lacking[number]) for number in still_there if number in held]


def _lacking(connection: Connection, wanted: Sequence[str] | None) -> dict[int, Topics]:
    """The sealed segments that are not completely archived, oldest first, with the missing topics."""
    sealed = archived_segments.sealed(connection)
    archived = archived_segments.topics_archived(connection, sealed[0]) if sealed else {}
    lacking = {number: topics_lacking(archived.get(number, ()), wanted) for number in sealed}
    return {number: topics for number, topics in lacking.items() if topics != ()}


def topics_lacking(archived: Sequence[Topics], wanted: Sequence[str] | None) -> Topics:
    """The topics of `wanted` that a segment lacks, given the topics of its archives; () if it lacks nothing."""
    if wanted is None:
        return () if None in archived else None
    return tuple(sorted({name for name in wanted if not any(_has(topics, name) for topics in archived)}))


def _has(topics: Topics, name: str) -> bool:
    return not is_system_topic(name) if topics is None else name in topics


@translates
def record(connection: Connection, archived: ArchivedSegment) -> bool:
    """Record a segment, or these topics of it, as archived, in one transaction with the end of its run.

    Returns False if it is already recorded: the next run then removes its folder.
    """
    with transaction(connection):
        is_new = archived_segments.record(connection, archived)
        if is_new and archived.path is not None:
            archived_segments.forget_run(connection, archived.path)
        return is_new
