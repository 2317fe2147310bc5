"""The message index: where the records with a key or a unique id are. Written by `mqdb.index_keys`, read here.

A span of positions (`id_span`) says from when to when the ids of its records were made, and an id says when it was made
itself. So most ids have no entry in the index.

The index follows the log as dispatch does, a moment behind, or hours where no `mqdb serve` runs. Who has to know for
certain whether a record is stored reads what the index does not have yet as well. RocketMQ: IndexFile.
"""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Connection,
    FromClause,
    Integer,
    Select,
    Text,
    any_,
    bindparam,
    cast,
    func,
    literal_column,
    select,
    true,
    union_all,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import UUID as PgUUID

from mqdb.common.property import KEY_SEPARATOR
from mqdb.store.dispatch.consume_queue import ONE, ZERO
from mqdb.store.tables import checkpoint, commit_log, id_span, message_index, queue, segment

cl = commit_log.alias("cl")

_ids = cast(bindparam("unique_ids"), ARRAY(PgUUID()))
_after_pos = cast(bindparam("after_pos"), BigInteger)

#: Off for this statement, as in `mqdb.index_keys`: its plan may be made while partitions are empty, and is kept.
PLANNER_SETTINGS: Final = ("enable_seqscan", "enable_bitmapscan", "enable_sort", "jit")


def find_unique_ids() -> CompoundSelect[tuple[UUID, int, int]]:
    """msg_id, log_pos and queue_key of all records with one of the ids, in no order. Only such records count that lie
    above `after_pos`, a bound that saves reading what lies below.

    Uses message_index_key, id_span_made_ms and commit_log_pkey for what is indexed, and for the rest the rules of
    begin_batch.sql: the newest checkpoint of the index says that all records up to done_pos which were visible in `cur`
    are indexed, whether its round goes on or not. So what is not indexed lies above done_pos (commit_log_pkey), or is a
    straggler that cur did not see (commit_log_xid): of a younger transaction, or of one that was in progress then. In
    progress now means invisible, so those are left out; one long transaction may have many records. Sealed segments and
    positions up to floor_pos have no stragglers.

    One statement, so that checkpoint, index and log are of one snapshot, and no record is between two places.
    """
    indexed = _indexed()
    done_pos = select(indexed.c.done_pos).scalar_subquery()
    straggler_floor = select(indexed.c.straggler_floor).scalar_subquery()
    youngest = select(func.pg_snapshot_xmax(indexed.c.cur)).scalar_subquery()
    has_room = select(indexed.c.straggler_floor < indexed.c.done_pos).scalar_subquery()
    is_straggler = (cl.c.log_pos > straggler_floor, cl.c.log_pos <= done_pos)

    # An ORDER BY, with sorts off, binds each of these to the index of that order, and is a fence.
    younger = _log(has_room, cl.c.xid >= youngest, *is_straggler).order_by(cl.c.xid).subquery("younger")
    ended = (
        select(func.pg_snapshot_xip(indexed.c.cur).label("xid"))
        .except_(select(func.pg_snapshot_xip(func.pg_current_snapshot())))
        .subquery("ended")
    )
    of_ended = (
        _log(cl.c.xid >= ended.c.xid, cl.c.xid <= ended.c.xid, *is_straggler)
        .order_by(cl.c.xid)
        .correlate(ended)
        .lateral("of_ended")
    )
    not_walked = _log(cl.c.log_pos > func.greatest(_after_pos, done_pos)).order_by(cl.c.log_pos).subquery("not_walked")
    return union_all(
        _by_hash(),
        _by_time(),
        select(younger),
        select(of_ended).select_from(ended.join(of_ended, true())),
        select(not_walked),
    )


def _indexed() -> FromClause:
    """One row: how far the index has come, and below which position nothing can be missing from it."""
    newest = (
        select(checkpoint.c.cur, checkpoint.c.done_pos, checkpoint.c.floor_pos)
        .where(checkpoint.c.service == literal_column("'index'"))
        .order_by(checkpoint.c.seq.desc())
        .limit(ONE)
        .subquery("newest")
    )
    unsealed = (
        select(func.min(segment.c.start_pos) - ONE)
        .where(segment.c.state.in_([literal_column("'open'"), literal_column("'closed'")]))
        .scalar_subquery()
    )
    floor = func.greatest(_after_pos, newest.c.floor_pos, unsealed)
    return select(newest.c.cur, newest.c.done_pos, floor.label("straggler_floor")).cte("indexed")


def _log(*conditions: ColumnElement[bool]) -> Select[tuple[UUID, int, int]]:
    # IS TRUE keeps it a test of each row by a hash. A join the planner may turn round, and read the log for each id;
    # = ANY compares each row with each id.
    is_wanted = cl.c.msg_id.in_(select(func.unnest(_ids))).is_(true())
    return select(cl.c.msg_id, cl.c.log_pos, cl.c.queue_key).where(*conditions, is_wanted)


def _by_hash() -> Select[tuple[UUID, int, int]]:
    wanted = func.unnest(_ids).table_valued("msg_id", name="wanted").render_derived()
    msg_id = cast(wanted.c.msg_id, PgUUID())
    # A record is indexed in its own segment, or as a straggler in a younger one.
    first_segment = (
        select(func.coalesce(func.max(segment.c.segment), ZERO))
        .where(segment.c.start_pos <= _after_pos + ONE)
        .scalar_subquery()
    )
    # OFFSET 0 is a fence, as ORDER BY is: one look at the index for each id, one at the log for each entry.
    entry = (
        select(message_index.c.log_pos)
        .where(
            message_index.c.key_hash == func.uuid_hash_extended(msg_id, cast(ZERO, BigInteger)),
            message_index.c.segment >= cast(first_segment, Integer),
            message_index.c.log_pos > _after_pos,
        )
        .offset(ZERO)
        .correlate(wanted)
        .lateral("entry")
    )
    record = (
        select(cl.c.msg_id, cl.c.log_pos, cl.c.queue_key)
        # Not by =, which leaves no order to ask for: an empty partition could be read by its other index.
        .where(cl.c.log_pos >= entry.c.log_pos, cl.c.log_pos <= entry.c.log_pos, cl.c.msg_id == msg_id)
        .order_by(cl.c.log_pos)
        .correlate(wanted, entry)
        .lateral("record")
    )
    return select(record).select_from(wanted.join(entry, true()).join(record, true()))


def _by_time() -> Select[tuple[UUID, int, int]]:
    wanted = func.unnest(_ids).table_valued("msg_id", name="wanted").render_derived()
    made_ms = func.mqdb.unique_id_ms(cast(wanted.c.msg_id, PgUUID()), type_=BigInteger)
    covering = (
        select(id_span.c.first_pos, id_span.c.last_pos)
        .where(id_span.c.made_ms.op("@>")(made_ms), id_span.c.last_pos > _after_pos)
        .offset(ZERO)
        .correlate(wanted)
        .lateral("covering")
    )
    # Each once, for ids that were made together.
    span = select(covering).select_from(wanted.join(covering, true())).distinct().subquery("span")
    record = (
        _log(cl.c.log_pos >= span.c.first_pos, cl.c.log_pos <= span.c.last_pos, cl.c.log_pos > _after_pos)
        .order_by(cl.c.log_pos)
        .correlate(span)
        .lateral("covered")
    )
    return select(record).select_from(span.join(record, true()))


_FIND_UNIQUE_IDS: Final = find_unique_ids()
_BIND_TO_INDEXES: Final = select(*(func.set_config(name, "off", True) for name in PLANNER_SETTINGS))


def find(connection: Connection, unique_ids: Sequence[UUID], after_pos: int) -> list[tuple[UUID, int, int]]:
    """Rows as `find_unique_ids` describes them, each once. Needs a transaction: it changes planner settings for it."""
    connection.execute(_BIND_TO_INDEXES)
    rows = connection.execute(_FIND_UNIQUE_IDS, {"unique_ids": list(unique_ids), "after_pos": after_pos})
    # While the index takes the stragglers of a round batch by batch, those that it has count as not indexed, too.
    return list(dict.fromkeys((row.msg_id, row.log_pos, row.queue_key) for row in rows))


def with_key() -> Select[int, int]:
    """log_pos and queue_key of the indexed records with a `key` in the topic of `topic_id`, in no order.

    Uses message_index_key and commit_log_pkey. Hashes may be equal by chance, so the record is asked, too.
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


def find_key(connection: Connection, topic_id: int, key: str) -> list[tuple[int, int]]:
    """Rows as `with_key` describes them, each once, in the order of the log. Needs a transaction, as `find` does."""
    connection.execute(_BIND_TO_INDEXES)
    rows = connection.execute(_WITH_KEY, {"key": key, "topic_id": topic_id})
    return sorted({(log_pos, queue_key) for log_pos, queue_key in rows})
