"""Query: who the broker is, and where a message has got to."""

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection, func, or_, select

from mqdb.errors import BrokerMisnamed
from mqdb.store.engine import translates
from mqdb.store.log.history import History
from mqdb.store.tables import broker, commit_log, consume_queue, segment


class BrokerInfo(NamedTuple):
    """What a database says of itself as a broker."""

    broker_name: str
    cluster_name: str

    def require_name(self, expected: str, target: str) -> None:
        """Raise BrokerMisnamed unless that is its name. `target` says where the database is."""
        if self.broker_name != expected:
            raise BrokerMisnamed(target, f"this database is broker {self.broker_name!r}, not {expected!r}")


@translates
def broker_info(connection: Connection) -> BrokerInfo:
    """The broker's name and cluster."""
    return BrokerInfo(*connection.execute(select(broker.c.broker_name, broker.c.cluster_name)).one())


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
    # Bound to the primary key by the order asked for: the plan may be made while a segment is empty.
    at_pos = (commit_log.c.log_pos >= log_pos, commit_log.c.log_pos <= log_pos)
    id_there = select(commit_log.c.msg_id).where(*at_pos).order_by(commit_log.c.log_pos).limit(1).scalar_subquery()
    sent_in = select(func.max(segment.c.segment)).where(segment.c.start_pos <= log_pos).scalar_subquery()
    entry = select(consume_queue.c.queue_offset).where(
        consume_queue.c.queue_key == queue_key,
        consume_queue.c.log_pos == log_pos,
        consume_queue.c.segment >= sent_in,
    )
    if msg_id is not None:
        entry = entry.where(or_(func.mqdb.history() == history, id_there == msg_id))
    return connection.scalar(entry.order_by(consume_queue.c.queue_offset.desc()).limit(1))


@translates
def queue_key_of(connection: Connection, log_pos: int) -> int | None:
    """The queue in which a record is stored, None where the log has dropped it. Uses commit_log_pkey."""
    return connection.scalar(select(commit_log.c.queue_key).where(commit_log.c.log_pos == log_pos))
