"""Query: the identity of the broker, and the place of a message.

In SQL: `mqdb/sql/acl/is_own.sql`.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection, func, select, text
from sqlalchemy.exc import ProgrammingError

from mqdb.errors import BrokerMisnamed
from mqdb.store import migrations
from mqdb.store.engine import is_idle, target_of, translates
from mqdb.store.log import time_search
from mqdb.store.log.history import History
from mqdb.store.segments import segments
from mqdb.store.tables import broker, commit_log, own_namespace, segment


class BrokerInfo(NamedTuple):
    """The names and the history of a broker's database."""

    broker_name: str
    cluster_name: str
    namespace: str | None
    """The namespace of the current role."""

    history: History

    def require_name(self, expected: str, target: str) -> None:
        """Raise BrokerMisnamed unless this is the broker's name. `target` is the address of the database."""
        if self.broker_name != expected:
            raise BrokerMisnamed(target, f"this database is broker {self.broker_name!r}, not {expected!r}")


@translates
def broker_info(connection: Connection) -> BrokerInfo:
    """Find out which broker this is, and whether its schema is supported: one statement, the first on a connection.

    Raises SchemaMissing, SchemaTooOld, SchemaTooNew or SchemaUnreleased like `migrations.check_revision`.
    """
    namespace = select(own_namespace.c.namespace).scalar_subquery()
    info = select(migrations.revision(), broker.c.broker_name, broker.c.cluster_name, namespace, func.mqdb.history())
    try:
        found, *fields = connection.execute(info).one()
    except ProgrammingError:
        if is_idle(connection):
            # Another revision may lack any of these columns.
            migrations.check_schema(connection)
        raise
    migrations.check_revision(found, target_of(connection))
    return BrokerInfo(*fields)


@translates
def server_time(connection: Connection) -> datetime:
    """The time by the broker's clock, with a time zone."""
    now: datetime = connection.scalars(select(func.mqdb.now())).one()
    return now


class LogSpan(NamedTuple):
    """The positions in the log, from the lowest to before `past_pos`, and the oldest store time or None."""

    lowest_pos: int
    past_pos: int
    oldest: datetime | None


@translates
def log_span(connection: Connection) -> LogSpan:
    """The kept positions of the log. Uses commit_log_pkey."""
    oldest = select(commit_log.c.store_time).order_by(commit_log.c.log_pos).limit(1)
    lowest_pos = connection.scalar(select(func.min(segment.c.start_pos))) or 0
    return LogSpan(lowest_pos, segments.log(connection).last_pos + 1, connection.scalar(oldest))


@translates
def positions_since(connection: Connection, times: Sequence[datetime]) -> list[int]:
    """The number of kept positions that the log has assigned since each of the times.

    The number of positions is roughly the number of messages: a transaction that was rolled back leaves a gap, and each
    retry has its own position.
    """
    past_pos = segments.log(connection).last_pos + 1
    return [past_pos - time_search.position_of_time(connection, time) for time in times]


@translates
def queue_offset_of(
    connection: Connection,
    queue_key: int,
    log_pos: int,
    msg_id: UUID | None = None,
    history: History | None = None,
) -> int | None:
    """The offset that dispatch assigned to a record; None until it is dispatched.

    Searches backwards from the end of the queue, so it is fast for recently sent records. A `msg_id` is compared unless
    the log still has the `history` in which the record was stored, because another history may have another message at
    this position.
    """
    return connection.scalar(select(func.mqdb.find_queue_offset(queue_key, log_pos, msg_id, history)))


class Aim(NamedTuple):
    """The queue of a record, and the target queue named in the record; all None if the log has dropped it."""

    queue_key: int | None
    real_topic: str | None
    real_queue_id: int | None
    tags_code: int | None
    """For a waiting record, the time when it is due, in milliseconds since 1970."""


@translates
def aim_of(connection: Connection, log_pos: int) -> Aim:
    """The queue of the record at a position, and its target queue. Uses commit_log_pkey."""
    return Aim(*connection.execute(select(text("*")).select_from(func.mqdb.find_aim(log_pos))).one())


def queue_key_of(connection: Connection, log_pos: int) -> int | None:
    """The queue in which a record is stored; None if the log has dropped it."""
    return aim_of(connection, log_pos).queue_key
