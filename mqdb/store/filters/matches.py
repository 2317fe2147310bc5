"""The number of matches among the latest messages of some queues, for operators who try a filter."""

from typing import NamedTuple

from sqlalchemy import BigInteger, Connection, Integer, Select, bindparam, cast, func, select, true
from sqlalchemy.dialects.postgresql import ARRAY

from mqdb.selector import Selector
from mqdb.selector.tags import TagExpression
from mqdb.store.dispatch.entries import entries
from mqdb.store.dispatch.queues import queue_ends
from mqdb.store.log.properties import of_columns
from mqdb.store.tables import commit_log


class Matches(NamedTuple):
    """The numbers of examined messages and of matches among them."""

    examined: int
    matched: int


def count(connection: Connection, queue_keys: list[int], wanted: Selector | TagExpression, last: int) -> Matches:
    """Count the matches among the `last` messages in all these queues together."""
    examined, matched = connection.execute(_count(wanted), {"queue_keys": queue_keys, "last": last}).one()
    return Matches(examined, matched)


def _count(wanted: Selector | TagExpression) -> Select[int, int]:
    """Uses queue_run_offset and commit_log_pkey. Parameters: queue_keys, last."""
    last = cast(bindparam("last"), BigInteger)
    entry = entries(queue_ends.c.queue_key, queue_ends.c.max_offset - last, queue_ends.c.max_offset)
    newest = (
        select(entry.c.log_pos)
        .select_from(queue_ends.join(entry, true()))
        .where(queue_ends.c.queue_key == func.any(cast(bindparam("queue_keys"), ARRAY(Integer))))
        .order_by(entry.c.log_pos.desc())
        .limit(last)
        .subquery("newest")
    )
    columns = (commit_log.c[name] for name in ("properties", "tags", "keys", "msg_id"))
    record = select(*columns).join(newest, newest.c.log_pos == commit_log.c.log_pos).subquery("record")
    if isinstance(wanted, Selector):
        is_wanted = wanted.where(record.c.properties, of_columns(record))
    else:
        is_wanted = record.c.tags.in_(wanted.tags)
    return select(func.count(), func.count().filter(is_wanted)).select_from(record)
