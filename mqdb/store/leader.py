"""The leader lease: who runs the services, and until when it has promised to be alive.

The advisory lock (LOCK_CLASS, LEADER) elects: PostgreSQL frees it the moment the leader's connection ends. The
lease stands behind it for a leader that hangs with its connection open: when it has run out, a challenger ends
the backend that holds the lock. The lease never elects by itself, so there is no moment with two holders.
"""

from datetime import datetime, timedelta

from sqlalchemy import Boolean, ColumnElement, Connection, case, column, func, literal, select, table, update
from sqlalchemy.dialects.postgresql import insert

from mqdb.store.locks import LEADER, LOCK_CLASS
from mqdb.store.tables import leader

_pg_locks = table("pg_locks", *map(column, ("locktype", "database", "classid", "objid", "objsubid", "granted", "pid")))
_pg_database = table("pg_database", column("oid"), column("datname"))


def elect(connection: Connection, service_set: str, holder: str, lease: timedelta) -> int | None:
    """Try to become the leader; the new epoch, None while another session holds the lock.

    Lock and lease are one statement. A process that is stopped between two would hold the lock without a lease
    that could run out, and nobody would ever end it.
    """
    lock = select(func.pg_try_advisory_lock(LOCK_CLASS, LEADER).label("is_mine")).cte("lock")
    mine = select(literal(service_set), literal(holder), literal(1), func.pg_backend_pid(), _until(lease)).where(
        lock.c.is_mine
    )
    row = insert(leader).from_select(["service_set", "holder", "epoch", "backend_pid", "expires_at"], mine)
    elected = row.on_conflict_do_update(
        index_elements=[leader.c.service_set],
        set_={
            "holder": row.excluded.holder,
            "epoch": leader.c.epoch + 1,
            "backend_pid": row.excluded.backend_pid,
            "expires_at": row.excluded.expires_at,
        },
    ).returning(leader.c.epoch)
    epoch: int | None = connection.scalar(elected)
    return epoch


def renew(connection: Connection, service_set: str, epoch: int, lease: timedelta) -> bool:
    """Promise to be alive for another `lease`; False when the lease belongs to somebody else."""
    row = update(leader).where(_is_mine(service_set, epoch)).values(expires_at=_until(lease))
    return connection.execute(row.returning(leader.c.epoch)).first() is not None


def resign(connection: Connection, service_set: str, epoch: int) -> None:
    """Let the lease run out now, so that everybody sees that nobody leads."""
    connection.execute(update(leader).where(_is_mine(service_set, epoch)).values(expires_at=func.mqdb.now()))


def is_held(connection: Connection, service_set: str, epoch: int) -> bool:
    """Whether this session still is the leader of that epoch."""
    return connection.execute(select(leader.c.epoch).where(_is_mine(service_set, epoch))).first() is not None


def end_hung_leader(connection: Connection, service_set: str) -> bool:
    """End the backend of a leader whose lease has run out while it holds the lock; whether there was one."""
    # In the list of columns: among the conditions PostgreSQL is free to call it first, for every lock there is.
    terminate = (
        select(func.pg_terminate_backend(_pg_locks.c.pid, type_=Boolean))
        .join(_pg_database, _pg_database.c.oid == _pg_locks.c.database)
        .where(
            _pg_database.c.datname == func.current_database(),
            _pg_locks.c.locktype == "advisory",
            _pg_locks.c.classid == LOCK_CLASS,
            _pg_locks.c.objid == LEADER,
            _pg_locks.c.objsubid == 2,  # a pair of numbers
            _pg_locks.c.granted,
            _pg_locks.c.pid == leader.c.backend_pid,
        )
        .correlate(leader)
        .scalar_subquery()
    )
    # CASE: ten looks a second at all locks of the server would be dear, and one is needed only now.
    ended = case((leader.c.expires_at < func.mqdb.now(), terminate), else_=False)
    return bool(connection.scalar(select(ended).where(leader.c.service_set == service_set)))


def _is_mine(service_set: str, epoch: int) -> ColumnElement[bool]:
    # The backend too: after a crash of a server that had not flushed, an epoch may come twice.
    return (
        (leader.c.service_set == service_set)
        & (leader.c.epoch == epoch)
        & (leader.c.backend_pid == func.pg_backend_pid())
    )


def _until(lease: timedelta) -> ColumnElement[datetime]:
    return func.mqdb.now() + literal(lease)
