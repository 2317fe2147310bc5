"""Outcome: whether a send was stored whose connection was lost before the answer came.

An append is one INSERT in autocommit. When its answer is missing, the statement may still lie unread in the socket of
its backend, wait for a lock, or be about to commit. So before it is sent again, on one connection to that server:

    end_backend    until the backend is gone: it can no longer store its statements
    find_sent      then: is it stored?

The other way round would store it twice. A backend that waits for a synchronous standby has committed, but its record
is not visible yet; ending the backend makes it visible.

A backend is gone when pg_stat_activity does not show it. It leaves in this order: it aborts its transaction, unless
that has ended before (ShutdownPostgres, called before_shmem_exit), and then clears its entry (pgstat_beshutdown_hook,
called on_shmem_exit, which is later: ipc.c, shmem_exit). A commit that has begun is not interrupted. So a snapshot
taken when the entry is gone sees all that this backend will ever have committed. A backend that is killed by kill -9
takes all others with it: PostgreSQL refuses connections until recovery has settled what was committed. A restarted
server shows none of the old backends. Neither does a promoted standby: the records that it has replayed are in its log,
and it will replay nothing else.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Boolean, Connection, DateTime, and_, case, column, func, literal, select, table

from mqdb.broker.log import query
from mqdb.common.topic import TIMER_TOPIC, is_system_topic
from mqdb.errors import StorageRefused
from mqdb.store.engine import translates
from mqdb.store.log import message_index
from mqdb.store.server_state import own_backend_start
from mqdb.store.tables import queue, topic

_activity = table("pg_stat_activity", *map(column, ("pid", "usesysid", "backend_start")), schema="pg_catalog")
_log_pos = table("log_pos", column("last_value"), schema="mqdb")

_READ_ONLY = "25006"
_INSUFFICIENT_PRIVILEGE = "42501"


class Backend(NamedTuple):
    """The server process of one connection. Its number alone is used again one day, number and start are not.

    `started_at` is None where PostgreSQL hides it from the session itself: after SET ROLE to a role without the
    privileges of the login. All that this backend appends lies above `after_pos`.
    """

    pid: int
    started_at: datetime | None
    after_pos: int = 0


class StoredAt(NamedTuple):
    """The place of a stored record."""

    log_pos: int
    queue_key: int


class TopicQueue(NamedTuple):
    """A queue as its users call it."""

    topic: str
    queue_id: int
    deliver_ms: int | None = None
    """When a record for it that waits for a time of its own is due, in milliseconds since 1970."""


@translates
def backend_of(connection: Connection) -> Backend:
    """The backend of this connection, asked when it has been opened. Not through a pooler that shares backends."""
    last_pos = select(_log_pos.c.last_value).scalar_subquery()
    return Backend(*connection.execute(select(func.pg_backend_pid(), own_backend_start(), last_pos)).one())


@translates
def end_backend(connection: Connection, backend: Backend) -> bool:
    """Ask a backend to end; True when it is gone, False while it is there: ask again, until your deadline.

    In AUTOCOMMIT: a transaction sees the pg_stat_activity of its first look. Raises StorageRefused where the answer
    cannot be known, or not yet: a backend is there that the role may not see or end (42501; not of the same role), or
    the server is a standby that may receive the commit yet (25006). It says nothing about what the send has stored.
    """
    is_it = _activity.c.backend_start == literal(backend.started_at, DateTime(timezone=True))
    # In the list of columns: among the conditions PostgreSQL is free to call it first, for every backend there is.
    asked = case((is_it, func.pg_terminate_backend(_activity.c.pid, type_=Boolean)))
    # A backend without a role is not a client, and hides its start: autovacuum, a session that is logging in.
    of_client = and_(_activity.c.pid == backend.pid, _activity.c.usesysid.is_not(None))
    server = select(func.pg_is_in_recovery().label("is_standby")).subquery("server")
    look = select(server.c.is_standby, _activity.c.pid, _activity.c.backend_start, is_it.label("is_it"), asked)
    row = connection.execute(look.select_from(server.outerjoin(_activity, of_client))).one()
    if row.is_standby:
        reason = "this server is a standby, which cannot tell what its primary will still commit"
        raise StorageRefused(_READ_ONLY, reason)
    if row.pid is not None and None in (row.backend_start, backend.started_at):
        reason = f"its role may not see whether backend {backend.pid} is still the one that was lost"
        raise StorageRefused(_INSUFFICIENT_PRIVILEGE, reason)
    return not row.is_it


@translates
def find_sent(connection: Connection, unique_ids: Sequence[UUID], after_pos: int = 0) -> dict[UUID, StoredAt]:
    """The places of the stored messages with these unique ids, dispatched and indexed or not; the others are left out.

    The answer is final for ids whose backend `end_backend` has called gone, if asked in AUTOCOMMIT: a transaction may
    have an older snapshot. All records of one INSERT are stored, or none, so one id of it is enough. If a message has
    several records, the lowest position is that of the send; the others are copies made later, for a retry of its
    consumption or the dead letter queue. Messages that retention has dropped are not found. A message found is as
    durable as its producer asked, on this server; it may be missing on a standby, because ending its backend ends the
    wait for it as well.

    `after_pos` saves reading. It may be any position that was known when the try to send began, on the connection of
    that try (the lowest, if several tries are in question): `Backend.after_pos`, or the last one that an append there
    returned. The record lies above: positions are taken inside the INSERT, from a sequence that no session takes values
    from in advance. A position from another connection does not serve, because a crash may set the sequence back behind
    positions that were not flushed.

    It costs 1 to 3 ms of index probes, and the reading of all records above both `after_pos` and the end of the key
    index. If no `mqdb serve` builds the index, the whole log is read without an `after_pos`: 0.23 s for a million
    records in memory.
    """
    if not unique_ids:
        return {}
    rows = message_index.find(connection, unique_ids, after_pos)
    found: dict[UUID, StoredAt] = {}
    for unique_id, log_pos, queue_key in sorted(rows):
        found.setdefault(unique_id, StoredAt(log_pos, queue_key))
    return found


@translates
def queue_of(connection: Connection, stored: StoredAt) -> TopicQueue | None:
    """The queue that a record is for, also while it waits elsewhere; None where its topic has been deleted."""
    named = select(topic.c.topic, queue.c.queue_id).join(queue, queue.c.topic_id == topic.c.topic_id)
    row = connection.execute(named.where(queue.c.queue_key == stored.queue_key)).one_or_none()
    if row is None or not is_system_topic(row.topic):
        return TopicQueue(*row) if row is not None else None
    _, real_topic, real_queue_id, deliver_ms = query.aim_of(connection, stored.log_pos)
    if real_topic is None or real_queue_id is None:
        return TopicQueue(*row)
    return TopicQueue(real_topic, real_queue_id, deliver_ms if row.topic == TIMER_TOPIC else None)
