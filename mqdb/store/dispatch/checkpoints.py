"""Checkpoints: how far each service has read the commit log.

Checkpoints are appended, never changed; only the newest checkpoint of a service counts.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Connection, Float, cast, delete, extract, func, select, true

from mqdb.store.tables import checkpoint, commit_log


class Checkpoint(NamedTuple):
    """The newest checkpoint of a service: the segment to which it writes, and the position that it has reached."""

    service: str
    seq: int
    segment: int
    done_pos: int
    written_at: datetime


def newest(connection: Connection) -> dict[str, Checkpoint]:
    """The newest checkpoint of each service. Uses checkpoint_pkey."""
    services = select(func.unnest(["dispatch", "index", "lane"]).label("service")).subquery("services")
    last = (
        select(*(checkpoint.c[name] for name in Checkpoint._fields))
        .where(checkpoint.c.service == services.c.service)
        .order_by(checkpoint.c.seq.desc())
        .limit(1)
        .lateral("last")
    )
    return {
        row.service: Checkpoint(*row)
        for row in connection.execute(select(last).select_from(services.join(last, true())))
    }


def oldest_unreached_seconds(connection: Connection, service: str) -> float:
    """The age of the first record that a service has yet to reach; 0 without such a record. Uses commit_log_pkey.

    Records of open transactions, which are not visible yet, and late committers below the checkpoint do not count. For
    dispatch, records placed by their append do not count either.
    """
    done = select(checkpoint.c.done_pos).where(checkpoint.c.service == service)
    done_pos = done.order_by(checkpoint.c.seq.desc()).limit(1).scalar_subquery()
    waits = commit_log.c.xid.is_not(None) if service == "dispatch" else true()
    first = select(commit_log.c.store_time).where(commit_log.c.log_pos > done_pos, waits).order_by(commit_log.c.log_pos)
    age = cast(extract("epoch", func.mqdb.now() - first.limit(1).scalar_subquery()), Float)
    seconds: float = connection.scalars(select(func.greatest(age, 0.0))).one()
    return seconds


def latest_ages(connection: Connection, service: str, most: int = 100) -> list[float]:
    """The seconds that the first record of each batch waited for the service; the latest batches of the last minute.

    Records placed by their append have not waited, and do not count. Uses checkpoint_pkey and commit_log_pkey.
    """
    last = (
        select(checkpoint.c.seq, checkpoint.c.done_pos, checkpoint.c.written_at, checkpoint.c.messages)
        .where(checkpoint.c.service == service)
        .order_by(checkpoint.c.seq.desc())
        .limit(most + 1)
        .subquery("last")
    )
    before = func.lead(last.c.done_pos).over(order_by=last.c.seq.desc()).label("before_pos")
    steps = select(*last.c, before).subquery("steps")
    first = (
        select(commit_log.c.store_time)
        .where(commit_log.c.log_pos > steps.c.before_pos, commit_log.c.log_pos <= steps.c.done_pos)
        .where(commit_log.c.xid.is_not(None))
        .order_by(commit_log.c.log_pos)
        .limit(1)
        .lateral("first")
    )
    age = cast(extract("epoch", steps.c.written_at - first.c.store_time), Float)
    is_recent = steps.c.written_at > func.mqdb.now() - timedelta(minutes=1)
    found = select(func.greatest(age, 0.0)).select_from(steps.join(first, true()))
    return list(connection.scalars(found.where(is_recent, steps.c.messages > 0)))


def prune(connection: Connection, service: str, first: int, past: int) -> int:
    """Remove the checkpoints with `first` <= seq < `past`; returns how many there were."""
    old = checkpoint.c.service == service, checkpoint.c.seq >= first, checkpoint.c.seq < past
    return connection.execute(delete(checkpoint).where(*old)).rowcount
