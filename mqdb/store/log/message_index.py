"""The message index: positions of the records with a key or a unique id.

`mqdb.index_keys` writes it, and this module reads it.

A span of positions (`id_span`) has the time range in which the ids of its records were made, and an id contains its own
time. So most ids do not need an entry in the index.

The index follows the log like dispatch, a moment behind, or hours behind if no `mqdb serve` runs. A caller that has to
be certain whether a record is stored also reads the records that are not indexed yet. RocketMQ: IndexFile.
"""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    Select,
    Text,
    any_,
    bindparam,
    cast,
    func,
    select,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import UUID as PgUUID

from mqdb.common.property import KEY_SEPARATOR
from mqdb.store.dispatch.consume_queue import ZERO
from mqdb.store.tables import commit_log, message_index, queue

cl = commit_log.alias("cl")

#: Disabled for a lookup, as in `mqdb.find_records`: its plan is kept, and may be made while partitions are empty.
PLANNER_SETTINGS: Final = ("enable_seqscan", "enable_bitmapscan", "enable_sort", "jit")


def find(connection: Connection, unique_ids: Sequence[UUID], after_pos: int) -> list[tuple[UUID, int, int]]:
    """msg_id, log_pos and queue_key of the records with one of the ids, each once, in no particular order.

    Only records above `after_pos` are returned, so records below it need not be read.

    `mqdb/sql/log/find_records.sql` explains the search. A role that does not own the broker finds only records that it
    may send or read.
    """
    ids = cast(list(unique_ids), ARRAY(PgUUID()))
    rows = connection.execute(select(text("*")).select_from(func.mqdb.find_records(ids, after_pos)))
    return list(dict.fromkeys((row.msg_id, row.log_pos, row.queue_key) for row in rows))


def with_key() -> Select[int, int]:
    """log_pos and queue_key of the indexed records with a `key` in the topic of `topic_id`, in no particular order.

    Uses message_index_key and commit_log_pkey. Hashes may collide, so the record is checked, too.
    """
    key, topic_id = bindparam("key", type_=Text), bindparam("topic_id", type_=Integer)
    entry = (
        select(message_index.c.log_pos)
        .where(message_index.c.key_hash == func.hashtextextended(key, cast(topic_id, BigInteger)))
        .offset(ZERO)
        .subquery("entry")
    )
    record = (
        select(cl.c.log_pos, cl.c.queue_key)
        .where(cl.c.log_pos >= entry.c.log_pos, cl.c.log_pos <= entry.c.log_pos)
        .where(key == any_(func.string_to_array(cl.c["keys"], KEY_SEPARATOR)))
        .order_by(cl.c.log_pos)
        .correlate(entry)
        .lateral("record")
    )
    of_topic = select(queue.c.queue_key).where(queue.c.topic_id == topic_id)
    return select(record).select_from(entry.join(record, true())).where(record.c.queue_key.in_(of_topic))


_WITH_KEY: Final = with_key()
_BIND_TO_INDEXES: Final = select(*(func.set_config(name, "off", True) for name in PLANNER_SETTINGS))


def find_key(connection: Connection, topic_id: int, key: str) -> list[tuple[int, int]]:
    """Rows as `with_key` describes them, each once, in the order of the log.

    Needs a transaction, for which it changes planner settings.
    """
    connection.execute(_BIND_TO_INDEXES)
    rows = connection.execute(_WITH_KEY, {"key": key, "topic_id": topic_id})
    return sorted({(log_pos, queue_key) for log_pos, queue_key in rows})
