"""The locks of mqdb, all in one place, so that they cannot be confused.

Batches of services exclude each other by a lock on an empty table (`mqdb.try_lock`), which a role without rights on it
cannot take. Advisory locks need no rights, so for the remaining advisory locks it matters which session holds them. The
archive's lock, a pair (LOCK_CLASS, ARCHIVE), is valid if its holder's role may write the catalogue of the archive. A
presence lock, a session lock on a random 64-bit number, is valid if a session of the client's own role holds it
(`mqdb.is_present`). Each LISTEN connection draws a new number. In SQL: `mqdb/sql/log/try_lock.sql`.
"""

import secrets
from typing import Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    column,
    exists,
    func,
    select,
    table,
)

LOCK_CLASS: Final = int.from_bytes(b"mqdb")

#: Held by the session that archives segments.
ARCHIVE: Final = 5

_pg_locks = table(
    "pg_locks",
    *map(column, ("locktype", "database", "classid", "objid", "objsubid", "granted", "pid")),
    schema="pg_catalog",
)
_pg_database = table("pg_database", column("oid"), column("datname"), schema="pg_catalog")
_activity = table("pg_stat_activity", *map(column, ("pid", "usesysid", "usename")), schema="pg_catalog")

_here = select(_pg_database.c.oid).where(_pg_database.c.datname == func.current_database()).scalar_subquery()

#: The mark in pg_locks of a lock on a pair of numbers; a lock on one number has 1.
_PAIR: Final = 2


def take_durably(connection: Connection, service: str) -> bool:
    """Take a service's lock until the end of the transaction; False while another session has it.

    The transaction then waits for the disk but not for standbys, whatever the session has chosen: a step that is lost
    in a crash would be taken twice.
    """
    durable = func.set_config("synchronous_commit", "local", True)
    return bool(connection.execute(select(func.mqdb.try_lock(service), durable)).scalar_one())


def take_archive(connection: Connection) -> bool:
    """Take the lock of the archive for this session; False while another session of the broker has it.

    A holder that is not a session of the broker is ignored: this session then works without the lock.
    """
    is_mine = func.pg_try_advisory_lock(LOCK_CLASS, ARCHIVE)
    if connection.scalar(select(is_mine)):
        return True
    pair = _pg_locks.c.objsubid == _PAIR, _pg_locks.c.classid == LOCK_CLASS, _pg_locks.c.objid == ARCHIVE
    return not connection.scalar(select(exists().where(_is_granted(), *pair, _is_of_the_broker(_pg_locks.c.pid))))


def release_archive(connection: Connection) -> None:
    """Release the lock of the archive before the session ends."""
    connection.execute(select(func.pg_advisory_unlock(LOCK_CLASS, ARCHIVE)))


def take_presence(connection: Connection) -> int:
    """Take a presence lock for this session; returns its key, which is random and unpredictable."""
    key = secrets.randbits(64) - 2**63
    connection.execute(select(func.pg_advisory_lock(key)))
    return key


def release_presence(connection: Connection, key: int) -> None:
    """Release a presence lock of this session."""
    connection.execute(select(func.pg_advisory_unlock(key)))


def _is_granted() -> ColumnElement[bool]:
    return and_(_pg_locks.c.locktype == "advisory", _pg_locks.c.granted, _pg_locks.c.database == _here)


def _is_of_the_broker(pid: ColumnElement[int]) -> ColumnElement[bool]:
    """Whether the role of a backend may write the catalogue of the archive."""
    may_archive = func.has_table_privilege(_activity.c.usesysid, "mqdb.archive_run", "INSERT")
    return exists().where(_activity.c.pid == pid, may_archive)
