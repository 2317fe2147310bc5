"""Appends for a sender that joins the caller's transaction.

In such a transaction a failed statement is more than a failed send: it aborts the whole transaction. So these
statements find the queues themselves, by the names of the topics. If a topic is missing or not writable, they append
nothing and raise no error. No cache can be outdated, and a topic created in this transaction is found.

The statements work with psycopg on any connection: values are passed in binary form (%b), which needs no custom adapter
for arrays.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from psycopg.types.numeric import Int4, Int8
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Text,
    and_,
    bindparam,
    cast,
    extract,
    func,
    insert,
    literal_column,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.sql import ClauseElement, FromClause
from sqlalchemy.types import TypeEngine

from mqdb.common.topic import Perm
from mqdb.store.acl import Access, ResourceType
from mqdb.store.engine import text_of
from mqdb.store.fragments import full_topic
from mqdb.store.log.commit_log import Record
from mqdb.store.schedule.placement import WAIT_TYPES, clock, placed, wait_values
from mqdb.store.tables import broker, commit_log, queue, topic


class Statement(NamedTuple):
    """A statement for psycopg, and its values."""

    text: str
    values: Mapping[str, object]


def append(
    records: Sequence[Record], topics: Sequence[str], turns: Mapping[str, int], queue_ids: Mapping[str, int]
) -> Statement:
    """Append all records in order, or none.

    `topics` has the topic of each record, which goes to the topic's queue in `queue_ids`, or else to the next queue in
    turn: `turns` has a number for each topic. The result is log_pos, queue_key and queue_id of each record, or no rows.
    Uses topic_topic_key and queue_topic_id_queue_id_key. A record with a later time of delivery must be alone:
    queue_key is that of the queue where it waits, and queue_id that of its target queue.
    """
    # Int4, Int8: otherwise psycopg takes the smallest type for each number, and prepares a statement for each.
    chosen = {name: Int4(queue_id) for name, queue_id in queue_ids.items()}
    if len(records) == 1:
        [name] = topics
        target: dict[str, object] = {"topic": name, "turn": Int8(turns[name]), "queue_id": chosen.get(name)}
        values = records[0]._asdict() | target
        if records[0].wait is not None:
            return Statement(_append_waiting_text(), values | wait_values(records[0].wait))
        return Statement(_append_one_text(), values)
    columns = dict(zip(Record._fields, map(list, zip(*records, strict=True)), strict=True))
    numbers = {name: number for number, name in enumerate(turns, start=1)}
    targets: dict[str, list[Any]] = {
        "topic": list(turns),
        "turn": list(map(Int8, turns.values())),
        "queue_id": list(map(chosen.get, turns)),
        "target": [numbers[name] for name in topics],
    }
    shared = {name: columns.pop(name)[0] for name in _SHARED}
    arrays = {name: _list_or_null(values) for name, values in (columns | targets).items()}
    return Statement(_append_many_text(), arrays | shared)


def _list_or_null(values: list[Any]) -> list[Any] | None:
    """NULL for a list that contains only None: unnest() treats both alike.

    psycopg would write such a list as text, in which NULL is a string if the caller's session has array_nulls off.
    """
    return values if any(value is not None for value in values) else None


def find_topics(names: Sequence[str]) -> Statement:
    """Returns name, perm, read_queue_nums and write_queue_nums of each topic, NULL for missing topics.

    Also returns the current role, and whether it may send to the topic.
    """
    return Statement(_find_topics_text(), {"names": list(names)})


def find_farthest() -> Statement:
    """Returns the broker's time in milliseconds since 1970, and how far ahead a time of delivery may be."""
    return Statement(_find_farthest_text(), {})


_TYPES: Final[dict[str, TypeEngine[Any]]] = {
    name: commit_log.c[name].type for name in Record._fields if name in commit_log.c
}

# The common values of all messages of one call.
_SHARED: Final = ("born_time", "born_host", "reconsume_times")


def _text(statement: ClauseElement) -> str:
    return re.sub(r"%\((\w+)\)s", r"%(\1)b", text_of(statement))


def _value(name: str, type_: TypeEngine[Any]) -> ColumnElement[Any]:
    return cast(bindparam(name), type_)


def _array(name: str, type_: TypeEngine[Any]) -> ColumnElement[Any]:
    # There is no array of jsonb in binary form.
    return cast(bindparam(name), ARRAY(Text() if isinstance(type_, JSONB) else type_))


def _is_target(found: FromClause, turn: ColumnElement[int], queue_id: ColumnElement[int]) -> ColumnElement[bool]:
    """Whether a row is the queue for a message to the topic in `found`."""
    chosen = func.coalesce(queue_id, turn % found.c.write_queue_nums)
    return and_(
        found.c.perm.bitwise_and(literal_column(str(int(Perm.WRITE)))) != literal_column("0"),
        queue.c.topic_id == found.c.topic_id,
        queue.c.queue_id == chosen,
        # As everywhere, an explicitly chosen queue may be one that is only read.
        queue.c.queue_id < func.greatest(found.c.read_queue_nums, found.c.write_queue_nums),
    )


def _is_only_target() -> ColumnElement[bool]:
    """Whether rows of topic and queue are the target of the single message."""
    is_target = _is_target(topic, _value("turn", BigInteger()), _value("queue_id", Integer()))
    return and_(topic.c.topic == full_topic(_value("topic", Text())), is_target)


@cache
def _append_one_text() -> str:
    values = [_value(name, type_) for name, type_ in _TYPES.items() if name != "queue_key"]
    row = select(queue.c.queue_key, *values).select_from(topic, queue).where(_is_only_target())
    # RETURNING sees the new row only; Core would name the table of `commit_log.c.queue_key` in FROM again.
    found = queue.alias("found")
    queue_id = select(found.c.queue_id).where(found.c.queue_key == literal_column("commit_log.queue_key"))
    append_ = insert(commit_log).from_select(list(_TYPES), row)
    return _text(append_.returning(commit_log.c.log_pos, commit_log.c.queue_key, queue_id.scalar_subquery()))


@cache
def _append_waiting_text() -> str:
    types = _TYPES | WAIT_TYPES
    values = {name: _value(name, type_) for name, type_ in types.items() if name != "queue_key"}
    target = (
        select(queue.c.queue_key, queue.c.queue_id).select_from(topic, queue).where(_is_only_target()).cte("target")
    )
    now = clock()
    place, columns = placed({"queue_key": target.c.queue_key} | values, now)
    row = select(*columns.values()).select_from(target.join(now, true()).join(place, true()))
    append_ = insert(commit_log).from_select(list(columns), row)
    stored = append_.returning(commit_log.c.log_pos, commit_log.c.queue_key).cte("stored")
    return _text(
        select(stored.c.log_pos, stored.c.queue_key, target.c.queue_id).select_from(stored.join(target, true()))
    )


@cache
def _append_many_text() -> str:
    names = _array("topic", Text())
    given_targets = func.unnest(names, _array("turn", BigInteger()), _array("queue_id", Integer()))
    wanted = given_targets.table_valued("topic", "turn", "queue_id", with_ordinality="number").render_derived("wanted")
    # The limit forces the index; with a join, all topics might be read.
    found = (
        select(topic)
        .where(topic.c.topic == full_topic(wanted.c.topic))
        .limit(literal_column("1", Integer))
        .lateral("found")
    )
    columns = (wanted.c.number, queue.c.queue_key, queue.c.queue_id)
    sources = wanted.join(found, true()).join(queue, _is_target(found, wanted.c.turn, wanted.c.queue_id))
    target = select(*columns).select_from(sources).cte("target")

    own = {name: type_ for name, type_ in _TYPES.items() if name not in ("queue_key", *_SHARED)}
    arrays = [_array("target", Integer()), *(_array(name, type_) for name, type_ in own.items())]
    given = func.unnest(*arrays).table_valued("target", *own).render_derived("given")
    values: dict[str, Any] = {name: cast(given.c[name], type_) for name, type_ in own.items()}
    values |= {name: _value(name, _TYPES[name]) for name in _SHARED}
    values["queue_key"] = select(target.c.queue_key).where(target.c.number == given.c.target).scalar_subquery()
    all_there = select(func.count()).select_from(target).scalar_subquery() == func.cardinality(names)
    rows = select(*(values[name] for name in _TYPES)).select_from(given).where(all_there)
    append_ = insert(commit_log).from_select(list(_TYPES), rows)
    stored = append_.returning(commit_log.c.log_pos, commit_log.c.queue_key).cte("stored")

    queue_id = select(target.c.queue_id).where(target.c.queue_key == stored.c.queue_key).scalar_subquery()
    return _text(select(stored.c.log_pos, stored.c.queue_key, queue_id))


def _constant(word: str) -> ColumnElement[str]:
    return literal_column(f"'{word}'", Text)


@cache
def _find_topics_text() -> str:
    name = func.unnest(_array("names", Text())).table_valued("name").render_derived("wanted").c.name
    who = func.session_user()
    may_send = func.mqdb.is_allowed(who, _constant(Access.SEND), _constant(ResourceType.TOPIC), cast(name, Text))
    columns = name, topic.c.perm, topic.c.read_queue_nums, topic.c.write_queue_nums, who, may_send
    return _text(
        select(*columns).select_from(name.table.outerjoin(topic, topic.c.topic == full_topic(cast(name, Text))))
    )


@cache
def _find_farthest_text() -> str:
    now_ms = cast(func.ceil(extract("epoch", func.mqdb.now()) * literal_column("1000")), BigInteger)
    return _text(select(now_ms, broker.c.timer_max_delay_ms))
