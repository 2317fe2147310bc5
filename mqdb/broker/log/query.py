"""Query: who the broker is, and where a message has got to."""

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection, func, select, text

from mqdb.errors import BrokerMisnamed
from mqdb.store.engine import translates
from mqdb.store.log.history import History
from mqdb.store.tables import broker, own_namespace


class BrokerInfo(NamedTuple):
    """What a database says of itself as a broker."""

    broker_name: str
    cluster_name: str
    namespace: str | None
    """The namespace of the role that is logged in."""

    def require_name(self, expected: str, target: str) -> None:
        """Raise BrokerMisnamed unless that is its name. `target` says where the database is."""
        if self.broker_name != expected:
            raise BrokerMisnamed(target, f"this database is broker {self.broker_name!r}, not {expected!r}")


@translates
def broker_info(connection: Connection) -> BrokerInfo:
    """The broker's name and cluster, and the namespace of who asks."""
    namespace = select(own_namespace.c.namespace).scalar_subquery()
    return BrokerInfo(*connection.execute(select(broker.c.broker_name, broker.c.cluster_name, namespace)).one())


@translates
def server_time(connection: Connection) -> datetime:
    """The time by the broker's clock; aware."""
    now: datetime = connection.scalars(select(func.mqdb.now())).one()
    return now


@translates
def queue_offset_of(
    connection: Connection,
    queue_key: int,
    log_pos: int,
    msg_id: UUID | None = None,
    history: History | None = None,
) -> int | None:
    """The offset that dispatch gave to a record, None while it has given none.

    Looks backward from the end of the queue, so it is fast for what was sent a moment ago. If `msg_id` is given, it
    counts unless the log still has the `history` in which the record was stored: another one may have another message
    at that position.
    """
    return connection.scalar(select(func.mqdb.find_queue_offset(queue_key, log_pos, msg_id, history)))


class Aim(NamedTuple):
    """Where a record is stored, and the queue that it is for, as it says; all None where the log has dropped it."""

    queue_key: int | None
    real_topic: str | None
    real_queue_id: int | None
    tags_code: int | None
    """For a record that waits, when it is due, in milliseconds since 1970."""


@translates
def aim_of(connection: Connection, log_pos: int) -> Aim:
    """What the record at a position says. Uses commit_log_pkey."""
    return Aim(*connection.execute(select(text("*")).select_from(func.mqdb.find_aim(log_pos))).one())


def queue_key_of(connection: Connection, log_pos: int) -> int | None:
    """The queue in which a record is stored, None where the log has dropped it."""
    return aim_of(connection, log_pos).queue_key
