"""How many of the latest messages of some queues a condition holds for. For people who try a filter."""

from typing import NamedTuple

from sqlalchemy import BigInteger, Connection, Integer, Select, bindparam, cast, func, literal_column, select, true
from sqlalchemy.dialects.postgresql import ARRAY

from mqdb.selector import Selector
from mqdb.store.log.properties import of_columns
from mqdb.store.tables import commit_log, consume_queue


class Matches(NamedTuple):
    """Messages that were looked at, and those of them that match."""

    examined: int
    matched: int


def count(connection: Connection, queue_keys: list[int], selector: Selector, last: int) -> Matches:
    """Of the `last` messages in all these queues together."""
    examined, matched = connection.execute(_count(selector), {"queue_keys": queue_keys, "last": last}).one()
    return Matches(examined, matched)


def _count(selector: Selector) -> Select[int, int]:
    """Uses consume_queue_offset, backward, and commit_log_pkey. Parameters: queue_keys, last."""
    keys = func.unnest(cast(bindparam("queue_keys"), ARRAY(Integer)))
    queue = keys.table_valued("queue_key", name="q").render_derived("q")
    last = cast(bindparam("last"), BigInteger)
    of_queue = (
        select(consume_queue.c.log_pos)
        .where(consume_queue.c.queue_key == literal_column("q.queue_key", Integer))
        .order_by(consume_queue.c.queue_offset.desc())
        .limit(last)
        .lateral("entry")
    )
    newest = (
        select(of_queue.c.log_pos)
        .select_from(queue.join(of_queue, true()))
        .order_by(of_queue.c.log_pos.desc())
        .limit(last)
        .subquery("newest")
    )
    columns = (commit_log.c[name] for name in ("properties", "tags", "keys", "msg_id"))
    record = select(*columns).join(newest, newest.c.log_pos == commit_log.c.log_pos).subquery("record")
    matched = func.count().filter(selector.where(record.c.properties, of_columns(record)))
    return select(func.count(), matched).select_from(record)
