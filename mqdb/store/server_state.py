"""The state of the PostgreSQL server, as far as it affects a broker; and the start time of this session."""

from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    DateTime,
    Integer,
    ScalarSelect,
    case,
    cast,
    column,
    func,
    literal,
    not_,
    select,
    table,
    text,
)
from sqlalchemy.dialects.postgresql import BIT

from mqdb.store.engine import driver

_activity = table("pg_stat_activity", *map(column, ("pid", "state", "usename")), schema="pg_catalog")

_STATE = text(
    """
    SELECT coalesce((SELECT max(age(held.xmin)) FROM (
               SELECT backend_xmin FROM pg_stat_activity WHERE pid <> pg_backend_pid()
               UNION ALL SELECT xmin FROM pg_replication_slots
               UNION ALL SELECT catalog_xmin FROM pg_replication_slots
               UNION ALL SELECT transaction FROM pg_prepared_xacts) AS held (xmin)), 0),
           coalesce((SELECT extract(epoch FROM clock_timestamp() - min(began.at)) FROM (
               SELECT xact_start FROM pg_stat_activity
               WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
               UNION ALL SELECT prepared FROM pg_prepared_xacts) AS began (at)), 0)::double precision,
           pg_notification_queue_usage(),
           CASE WHEN pg_is_in_recovery() THEN 0 ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0') END::bigint
    """
)


class ServerState(NamedTuple):
    """The state of the server, over all databases. Only members of pg_read_all_stats see sessions of other roles."""

    xmin_age: int
    """The number of transactions since the oldest snapshot in use: newer rows cannot be vacuumed."""
    longest_transaction_seconds: float
    notify_queue_ratio: float
    """0 to 1: at 1 commits with notifications fail."""
    wal_bytes: int
    """The bytes that the server has written to its log since it was created; 0 on a standby."""


def look(connection: Connection) -> ServerState:
    """The current state."""
    return ServerState(*connection.execute(_STATE).one())


def backends_at_work(connection: Connection, pids: Collection[int]) -> set[int]:
    """The backends in `pids`, of this role, that run a statement, or wait for a lock or a commit."""
    states = select(_activity.c.pid).where(_activity.c.pid.in_(pids), _activity.c.state == "active")
    return set(connection.scalars(states.where(_activity.c.usename == func.session_user())))


def timeline() -> ColumnElement[int]:
    """The timeline that the server writes, as part of a statement; NULL on a standby."""
    is_standby = func.pg_is_in_recovery(type_=Boolean)
    # The first eight digits of the name of a WAL file; pg_control_checkpoint() returns that of the last checkpoint.
    digits = func.substr(func.pg_walfile_name(func.pg_current_wal_lsn()), 1, 8)
    return case((not_(is_standby), cast(cast(literal("x").concat(digits), BIT(32)), Integer)))


def can_write(connection: Connection) -> bool:
    """Whether a transaction of this session can write. False on a standby, and in a read-only session."""
    row = driver(connection).execute("SELECT current_setting('transaction_read_only') = 'off'").fetchone()
    return row == (True,)


def own_backend_start() -> ScalarSelect[datetime]:
    """The start time of this session's backend, as part of a statement.

    The time comes from the function below the view pg_stat_activity, which joins three relations and takes 2 ms to
    plan.
    """
    activity = func.pg_stat_get_activity(func.pg_backend_pid())
    start = column("backend_start", DateTime(timezone=True))
    return select(start).select_from(activity.table_valued(start.name)).scalar_subquery()
