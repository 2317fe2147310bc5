"""Outcome: whether a send was stored although its connection was lost before the answer.

An append is one INSERT in autocommit. If its answer is missing, the statement may still be unread in the socket of its
backend, wait for a lock, or be about to commit. So before the send is retried, these steps are made on one connection
to the same server:

    end_backend    until the backend is gone and can no longer store anything
    find_sent      then checks whether the record is stored

In the reverse order the record could be stored twice. A backend that waits for a synchronous standby has committed, but
its record is not visible yet; ending the backend makes it visible.

A backend is gone when pg_stat_activity no longer shows it. On exit, it first aborts its transaction, unless that has
already ended (ShutdownPostgres, called before_shmem_exit), and then clears its entry (pgstat_beshutdown_hook, called
on_shmem_exit, which is later: ipc.c, shmem_exit). A commit that has begun is not interrupted. So a snapshot taken after
the entry is gone sees everything that this backend will ever have committed. If a backend is killed by kill -9, all
other backends end too: PostgreSQL refuses connections until recovery has settled what was committed. A restarted server
shows no old backends. Neither does a promoted standby: the records that it has replayed are in its log, and it will
replay nothing more.
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
    """The server process of one connection. Its process id may be reused, but not together with its start time.

    `started_at` is None if PostgreSQL hides it from the session itself: after SET ROLE to a role without the privileges
    of the login role. Everything that this backend appends is above `after_pos`.
    """

    pid: int
    started_at: datetime | None
    after_pos: int = 0


class StoredAt(NamedTuple):
    """The place of a stored record."""

    log_pos: int
    queue_key: int


class TopicQueue(NamedTuple):
    """A queue with the names that users see."""

    topic: str
    queue_id: int
    deliver_ms: int | None = None
    """The due time of a record that waits for its own time of delivery, in milliseconds since 1970."""


@translates
def backend_of(connection: Connection) -> Backend:
    """The backend of this connection; read it when the connection is opened.

    Not for use behind a pooler that shares backends.
    """
    last_pos = select(_log_pos.c.last_value).scalar_subquery()
    return Backend(*connection.execute(select(func.pg_backend_pid(), own_backend_start(), last_pos)).one())


@translates
def end_backend(connection: Connection, backend: Backend) -> bool:
    """Ask a backend to exit. True if it is gone, False if it still exists: repeat the call until your deadline.

    Requires AUTOCOMMIT, because a transaction always sees pg_stat_activity as of its first query. Raises StorageRefused
    if the answer is unknown, or not known yet: there is a backend that the role may not see or end (42501; of another
    role), or the server is a standby that may still receive the commit (25006). This error does not show whether the
    send has stored its messages.
    """
    is_it = _activity.c.backend_start == literal(backend.started_at, DateTime(timezone=True))
    # In the list of columns: as a condition, PostgreSQL might call it first, for every backend.
    asked = case((is_it, func.pg_terminate_backend(_activity.c.pid, type_=Boolean)))
    # A backend without a role is not a client, and hides its start time: autovacuum, or a session that is logging in.
    of_client = and_(_activity.c.pid == backend.pid, _activity.c.usesysid.is_not(None))
    server = select(func.pg_is_in_recovery().label("is_standby")).subquery("server")
    look = select(server.c.is_standby, _activity.c.pid, _activity.c.backend_start, is_it.label("is_it"), asked)
    row = connection.execute(look.select_from(server.outerjoin(_activity, of_client))).one()
    if row.is_standby:
        reason = "this server is a standby, which does not show what its primary will still commit"
        raise StorageRefused(_READ_ONLY, reason)
    if row.pid is not None and None in (row.backend_start, backend.started_at):
        reason = f"its role may not see whether backend {backend.pid} is still the one that was lost"
        raise StorageRefused(_INSUFFICIENT_PRIVILEGE, reason)
    return not row.is_it


@translates
def find_sent(connection: Connection, unique_ids: Sequence[UUID], after_pos: int = 0) -> dict[UUID, StoredAt]:
    """The places of the stored messages with these unique ids, even if not dispatched or indexed; others are left out.

    The answer is final for ids whose backend is gone according to `end_backend`, if this runs in AUTOCOMMIT: a
    transaction may have an older snapshot. The records of one INSERT are stored together or not at all, so one id is
    enough. If a message has several records, the lowest position is that of the send; the others are copies made later,
    for a retry or the dead letter queue. Messages that retention has dropped are not found. A message that is found is
    as durable on this server as its producer requested; it may be missing on a standby, because ending its backend also
    ends the wait for the standby.

    `after_pos` reduces the search. `after_pos` can be any position known when the attempt to send began, on the
    connection of that attempt (the lowest, if there were several attempts): `Backend.after_pos`, or the last position
    that an append there returned. The record is above it: positions are taken inside the INSERT, from a sequence from
    which no session takes values in advance. A position from another connection is not suitable, because a crash may
    set the sequence back below positions that were not flushed.

    The search costs 1 to 3 ms for index probes, plus reading all records above both `after_pos` and the end of the key
    index. Without `after_pos`, the whole log is read if no `mqdb serve` builds the index: 0.23 s for a million records
    in memory.
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
    """The queue for which a record is intended, even while it waits elsewhere; None if its topic has been deleted."""
    named = select(topic.c.topic, queue.c.queue_id).join(queue, queue.c.topic_id == topic.c.topic_id)
    row = connection.execute(named.where(queue.c.queue_key == stored.queue_key)).one_or_none()
    if row is None or not is_system_topic(row.topic):
        return TopicQueue(*row) if row is not None else None
    _, real_topic, real_queue_id, deliver_ms = query.aim_of(connection, stored.log_pos)
    if real_topic is None or real_queue_id is None:
        return TopicQueue(*row)
    return TopicQueue(real_topic, real_queue_id, deliver_ms if row.topic == TIMER_TOPIC else None)
