"""The catalogue of the archive: the messages in Parquet files, and unfinished folders.

    archive_run         a folder that is being written; a crash leaves it here, for the next run to remove
    archived_segment    a segment, or some of its topics, whose files were read back and agreed with the broker

A segment has one row for the whole segment, for which retention waits, and one for each run that archived missing
topics. If both contain a message, the copies are equal, so a reader takes one of them. Readers take paths from here and
never scan the file system: a folder without a row is ignored.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, TypeAlias

from sqlalchemy import Connection, delete, exists, func, insert, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.dialects.postgresql import insert as upsert

from mqdb.store.engine import translates
from mqdb.store.segments.segments import SegmentState
from mqdb.store.tables import archive_run, archived_segment, segment

#: The requested topics, sorted; None means all except system topics.
Topics: TypeAlias = tuple[str, ...] | None

#: By topic and queue id: the first offset, and the offset after the last. There are no gaps in between.
Offsets: TypeAlias = Mapping[str, Mapping[int, tuple[int, int]]]


class ArchivedSegment(NamedTuple):
    """The result of a run for a segment. `path` and times are None if there were no messages to archive.

    `topics` are the requested topics, sorted; None means all except system topics. `bytes` is the size of the files.
    """

    segment: int
    path: str | None
    topics: Topics
    offsets: Offsets
    messages: int
    bytes: int
    first_stored_at: datetime | None
    last_stored_at: datetime | None


def first_missing(connection: Connection) -> int:
    """The first segment that still contains messages and is not completely archived.

    Such a segment always exists, because the log continues.
    """
    whole = exists().where(archived_segment.c.segment == segment.c.segment, archived_segment.c.topics.is_(None))
    missing = select(func.min(segment.c.segment)).where(segment.c.state != SegmentState.DRAINED, ~whole)
    return connection.execute(missing).scalar_one() or 0


def sealed(connection: Connection) -> list[int]:
    """The sealed segments, oldest first."""
    wanted = select(segment.c.segment).where(segment.c.state == SegmentState.SEALED)
    return list(connection.scalars(wanted.order_by(segment.c.segment)))


def topics_archived(connection: Connection, first: int) -> dict[int, list[Topics]]:
    """The archived topics of the segments from `first` on, for each of their rows."""
    columns = archived_segment.c.segment, archived_segment.c.topics
    found: dict[int, list[Topics]] = {}
    for number, topics in connection.execute(select(*columns).where(archived_segment.c.segment >= first)):
        found.setdefault(number, []).append(_topics(topics))
    return found


@translates
def is_sealed(connection: Connection, number: int) -> bool:
    """Whether the segment exists and is sealed."""
    found = select(segment.c.state).where(segment.c.segment == number)
    return connection.scalar(found) == SegmentState.SEALED


@translates
def begin_run(connection: Connection, number: int, path: str) -> None:
    """Record that a folder is going to be written."""
    connection.execute(insert(archive_run).values(path=path, segment=number))


@translates
def unfinished_runs(connection: Connection) -> list[str]:
    """The folders that were begun but did not become archived segments, oldest first."""
    return list(connection.scalars(select(archive_run.c.path).order_by(archive_run.c.started_at, archive_run.c.path)))


@translates
def forget_run(connection: Connection, path: str) -> None:
    """Remove the row of a folder."""
    connection.execute(delete(archive_run).where(archive_run.c.path == path))


def record(connection: Connection, archived: ArchivedSegment) -> bool:
    """Add a row to the catalogue; returns False if there is a row for this segment and these topics."""
    row = archived._asdict() | {"topics": None if archived.topics is None else list(archived.topics)}
    statement = upsert(archived_segment).values(**row).on_conflict_do_nothing().returning(archived_segment.c.segment)
    return connection.execute(statement).first() is not None


@translates
def find_archived(connection: Connection, topic: str) -> list[ArchivedSegment]:
    """The archived segments that contain messages of a topic, each once, oldest first. Reads the whole catalogue."""
    columns = [archived_segment.c[name] for name in ArchivedSegment._fields]
    has_topic = archived_segment.c.offsets.has_key(topic)
    one_of_each = select(*columns).ext(distinct_on(archived_segment.c.segment)).where(has_topic)
    by_segment = archived_segment.c.segment, archived_segment.c.topics.nulls_first()
    return [_segment(row) for row in connection.execute(one_of_each.order_by(*by_segment))]


def _segment(row: Sequence[object]) -> ArchivedSegment:
    archived = ArchivedSegment._make(row)
    offsets = {
        topic: {int(queue_id): (first, past) for queue_id, (first, past) in queues.items()}
        for topic, queues in archived.offsets.items()
    }
    return archived._replace(topics=_topics(archived.topics), offsets=offsets)


def _topics(names: Sequence[str] | None) -> Topics:
    return None if names is None else tuple(names)
