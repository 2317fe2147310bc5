"""Partitions of a segment, and how they go away without anybody waiting.

    attached ──▶ detaching ──▶ detached ──▶ gone

A plain DROP locks the parent: it waits for every transaction that has looked at the table, and all sends and pulls
wait behind it (1.5 s behind one idle transaction, measured). DETACH CONCURRENTLY locks the partition only, and lets
new statements do without it at once; then it waits for the older ones. A lock timeout ends that wait, and FINALIZE
takes it up later, as it does after a crash. Each step can be repeated from the state that the catalog shows.
"""

from enum import StrEnum
from typing import Final, LiteralString, NamedTuple

from psycopg import errors as pg
from psycopg import sql
from sqlalchemy import Connection, text

from mqdb.store.engine import driver

#: The partitions of one segment, in the order in which retention takes them away.
INDEXES: Final = ("queue_run", "message_index")
LOG: Final = "commit_log"


class PartitionState(StrEnum):
    """The progress of removing a partition."""

    ATTACHED = "ATTACHED"
    DETACHING = "DETACHING"
    DETACHED = "DETACHED"
    GONE = "GONE"


_STEPS: Final[dict[PartitionState, LiteralString]] = {
    PartitionState.ATTACHED: "ALTER TABLE mqdb.{parent} DETACH PARTITION mqdb.{partition} CONCURRENTLY",
    PartitionState.DETACHING: "ALTER TABLE mqdb.{parent} DETACH PARTITION mqdb.{partition} FINALIZE",
    PartitionState.DETACHED: "DROP TABLE mqdb.{partition}",
}

_STATE = text(
    """
    SELECT CASE WHEN c.oid IS NULL THEN 'GONE'
                WHEN i.inhrelid IS NULL THEN 'DETACHED'
                WHEN i.inhdetachpending THEN 'DETACHING'
                ELSE 'ATTACHED' END
    FROM (SELECT to_regclass('mqdb.' || :partition) AS oid) c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
    """
)


def state_of(connection: Connection, parent: str, segment: int) -> PartitionState:
    """The state of a partition in the catalog."""
    return PartitionState(connection.scalar(_STATE, {"partition": _name(parent, segment)}))


_SIZE = text(
    """
    SELECT coalesce(sum(pg_total_relation_size(relid)), 0)::bigint
    FROM pg_partition_tree(cast('mqdb.' || :parent AS regclass)) WHERE isleaf
    """
)


def size_bytes(connection: Connection, parent: str) -> int:
    """Bytes of all partitions of a table, with their indexes. Takes a look at each of their files."""
    size: int = connection.execute(_SIZE, {"parent": parent}).scalar_one()
    return size


class SegmentSize(NamedTuple):
    """Bytes of the partitions of a segment, with their indexes; 0 for one that is gone."""

    number: int
    commit_log: int
    queue_run: int
    message_index: int


_SIZES = text(
    """
    SELECT s.segment, coalesce(pg_total_relation_size(to_regclass('mqdb.commit_log_' || s.segment)), 0),
           coalesce(pg_total_relation_size(to_regclass('mqdb.queue_run_' || s.segment)), 0),
           coalesce(pg_total_relation_size(to_regclass('mqdb.message_index_' || s.segment)), 0)
    FROM mqdb.segment s ORDER BY s.segment
    """
)


def sizes(connection: Connection) -> list[SegmentSize]:
    """The sizes of all segments, the oldest first. Takes a look at each of their files."""
    return [SegmentSize(*row) for row in connection.execute(_SIZES)]


def step(connection: Connection, parent: str, segment: int) -> bool:
    """Take a partition one state further; False when it is gone. Needs a connection in AUTOCOMMIT.

    Raises psycopg's LockNotAvailable after the session's lock_timeout.
    """
    statement = _STEPS.get(state_of(connection, parent, segment))
    if statement is None:
        return False
    names = {"parent": sql.Identifier(parent), "partition": sql.Identifier(_name(parent, segment))}
    driver(connection).execute(sql.SQL(statement).format(**names), prepare=False)
    return True


def remove(connection: Connection, parent: str, segment: int) -> bool:
    """Remove a partition; returns False if a lock is in the way, so that the rest is left for later."""
    try:
        while step(connection, parent, segment):
            pass
    except pg.LockNotAvailable:
        return False
    return True


def _name(parent: str, segment: int) -> str:
    return f"{parent}_{segment}"
