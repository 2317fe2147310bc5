"""Partitions of a segment, and how they are removed without blocking other sessions.

    attached ──▶ detaching ──▶ detached ──▶ gone

A plain DROP locks the parent: it waits for every transaction that has read the table, and all sends and pulls wait
behind it (measured: 1.5 s behind one idle transaction). DETACH CONCURRENTLY locks only the partition, which new
statements immediately ignore; then it waits for older statements. A lock timeout ends this wait, and FINALIZE completes
the removal later, as it does after a crash. Each step can be repeated from the state in the catalog.
"""

from enum import StrEnum
from typing import Final, LiteralString, NamedTuple

from psycopg import errors as pg
from psycopg import sql
from sqlalchemy import Connection, text

from mqdb.store.engine import driver

#: The partitions of one segment, in the order in which retention removes them.
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
    """The bytes of all partitions of a table, with their indexes. Checks each of their files."""
    size: int = connection.execute(_SIZE, {"parent": parent}).scalar_one()
    return size


class SegmentSize(NamedTuple):
    """The bytes of the partitions of a segment, with their indexes; 0 for a missing partition."""

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
    """The sizes of all segments, oldest first. Checks each of their files."""
    return [SegmentSize(*row) for row in connection.execute(_SIZES)]


def step(connection: Connection, parent: str, segment: int) -> bool:
    """Move a partition to the next state; False if it is gone. Needs a connection in AUTOCOMMIT.

    Raises psycopg's LockNotAvailable after the session's lock_timeout.
    """
    statement = _STEPS.get(state_of(connection, parent, segment))
    if statement is None:
        return False
    names = {"parent": sql.Identifier(parent), "partition": sql.Identifier(_name(parent, segment))}
    driver(connection).execute(sql.SQL(statement).format(**names), prepare=False)
    return True


def remove(connection: Connection, parent: str, segment: int) -> bool:
    """Remove a partition; returns False if a lock prevents this, and leaves the remaining steps for later."""
    try:
        while step(connection, parent, segment):
            pass
    except pg.LockNotAvailable:
        return False
    return True


def _name(parent: str, segment: int) -> str:
    return f"{parent}_{segment}"
