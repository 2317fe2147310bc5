"""The state of the PostgreSQL server, as far as it keeps a broker from its work; and when this session began."""

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, DateTime, ScalarSelect, column, func, select, text

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
           pg_notification_queue_usage()
    """
)


class ServerState(NamedTuple):
    """Of all databases. Of sessions of other roles PostgreSQL tells nothing, except to members of pg_read_all_stats."""

    xmin_age: int
    """Transactions since the oldest snapshot that somebody holds: what is younger cannot be vacuumed."""
    longest_transaction_seconds: float
    notify_queue_ratio: float
    """0 to 1: at 1 commits with notifications fail."""


def look(connection: Connection) -> ServerState:
    """The state now."""
    return ServerState(*connection.execute(_STATE).one())


def own_backend_start() -> ScalarSelect[datetime]:
    """When the backend of this session has begun, as a part of a statement.

    From below the view pg_stat_activity, which joins three relations and takes 2 ms to plan.
    """
    activity = func.pg_stat_get_activity(func.pg_backend_pid())
    start = column("backend_start", DateTime(timezone=True))
    return select(start).select_from(activity.table_valued(start.name)).scalar_subquery()
