"""The leader: the process that runs the services, its backend, and the time until which it has promised to be alive.

There is one row per set of services. A candidate may take the row if the leader's backend is gone, if the leader has
resigned, or if the leader has not renewed its promise for the duration of a lease, by the candidate's own monotonic
clock, because the server's clock may be set. A candidate that takes the row raises the epoch, so only one of two
candidates succeeds. A session without rights on the table cannot block an election with a lock.
"""

from datetime import datetime, timedelta
from functools import cache
from typing import NamedTuple

from sqlalchemy import (
    BindParameter,
    Boolean,
    ColumnElement,
    Connection,
    Interval,
    bindparam,
    column,
    exists,
    func,
    literal,
    or_,
    select,
    table,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from mqdb.store.engine import driver, text_of
from mqdb.store.server_state import own_backend_start
from mqdb.store.tables import leader

_activity = table("pg_stat_activity", *map(column, ("pid", "backend_start")), schema="pg_catalog")

#: A pid that no backend has, for a leader that has resigned.
_NOBODY = 0


class Incumbent(NamedTuple):
    """The row of a leader. Each renewal changes `expires_at`, each election the epoch."""

    epoch: int
    expires_at: datetime
    is_connected: bool
    """Whether the leader's backend exists."""


def find(connection: Connection, service_set: str) -> Incumbent | None:
    """The current leader, or the last one; None before the first."""
    columns = leader.c.epoch, leader.c.expires_at, _is_connected()
    row = connection.execute(select(*columns).where(leader.c.service_set == service_set)).first()
    return None if row is None else Incumbent(*row)


def elect(
    connection: Connection, service_set: str, holder: str, lease: timedelta, follows: Incumbent | None
) -> int | None:
    """Become the leader after `follows`; returns the new epoch, or None if another candidate was faster."""
    values = {
        "holder": holder,
        "backend_pid": func.pg_backend_pid(),
        "backend_start": own_backend_start(),
        "expires_at": _until(lease),
        "lease": literal(lease, Interval()),
    }
    if follows is None:
        first = insert(leader).values(service_set=service_set, epoch=1, **values)
        return connection.execute(first.on_conflict_do_nothing().returning(leader.c.epoch)).scalar()
    unchanged = leader.c.service_set == service_set, leader.c.epoch == follows.epoch
    row = update(leader).where(*unchanged, leader.c.expires_at == follows.expires_at)
    return connection.execute(row.values(epoch=leader.c.epoch + 1, **values).returning(leader.c.epoch)).scalar()


def renew(connection: Connection, service_set: str, epoch: int, lease: timedelta) -> bool:
    """Promise to be alive for another `lease`; returns False if the lease belongs to another leader."""
    values = {"service_set": service_set, "epoch": epoch, "lease": lease}
    return driver(connection).execute(_renew_text(), values).fetchone() is not None


@cache
def _renew_text() -> str:
    row = update(leader).where(_is_mine(bindparam("service_set"), bindparam("epoch")))
    return text_of(row.values(expires_at=_until(bindparam("lease", type_=Interval()))).returning(leader.c.epoch))


def resign(connection: Connection, service_set: str, epoch: int) -> None:
    """Give up the leadership, visibly to all candidates."""
    resigned = {"expires_at": func.mqdb.now(), "backend_pid": _NOBODY}
    connection.execute(update(leader).where(_is_mine(service_set, epoch)).values(resigned))


def is_held(connection: Connection, service_set: str, epoch: int) -> bool:
    """Whether this session is still the leader of this epoch."""
    values = {"service_set": service_set, "epoch": epoch}
    return driver(connection).execute(_is_held_text(), values).fetchone() is not None


@cache
def _is_held_text() -> str:
    return text_of(select(leader.c.epoch).where(_is_mine(bindparam("service_set"), bindparam("epoch"))))


def end_backend(connection: Connection, service_set: str, silent: Incumbent) -> bool:
    """End the backend of a leader that has not renewed its promise; returns whether it existed.

    A backend with the same pid but another start time belongs to another session.
    """
    its_backend = _activity.c.pid == leader.c.backend_pid, _activity.c.backend_start == leader.c.backend_start
    terminate = select(func.pg_terminate_backend(_activity.c.pid, type_=Boolean)).where(*its_backend)
    unchanged = leader.c.epoch == silent.epoch, leader.c.expires_at == silent.expires_at
    ended = select(terminate.correlate(leader).scalar_subquery())
    return bool(connection.scalar(ended.where(leader.c.service_set == service_set, *unchanged)))


def _is_connected() -> ColumnElement[bool]:
    # For sessions of other roles PostgreSQL shows only the pid.
    is_same = or_(_activity.c.backend_start == leader.c.backend_start, _activity.c.backend_start.is_(None))
    return exists().where(_activity.c.pid == leader.c.backend_pid, is_same)


def _is_mine(service_set: str | BindParameter[str], epoch: int | BindParameter[int]) -> ColumnElement[bool]:
    # Also the backend: after a crash of a server that had not flushed, an epoch may be used twice.
    return (
        (leader.c.service_set == service_set)
        & (leader.c.epoch == epoch)
        & (leader.c.backend_pid == func.pg_backend_pid())
    )


def _until(lease: timedelta | BindParameter[timedelta]) -> ColumnElement[datetime]:
    return func.mqdb.now() + (literal(lease, Interval()) if isinstance(lease, timedelta) else lease)
