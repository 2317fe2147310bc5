"""Ranges of topics, for reading many messages at once.

A read needs the bounds of queues, the segments of a range, and the statement that reads part of one segment. This
statement names the partitions of its segment, so it takes no lock for which a send, a pull or retention waits. Other
processes run this statement with their own drivers, so its values are literals.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from psycopg import ClientCursor
from psycopg.types.array import ListDumper
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    Integer,
    Select,
    Table,
    TableClause,
    Text,
    bindparam,
    cast,
    column,
    func,
    or_,
    select,
    table,
    true,
    union_all,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.engine.interfaces import Compiled
from sqlalchemy.sql import ClauseElement
from sqlalchemy.types import TypeEngine

from mqdb.common.kafka_record import KafkaProperty
from mqdb.common.property import KEY_SEPARATOR
from mqdb.selector import Selector
from mqdb.selector.tags import TagExpression
from mqdb.store.dispatch.entries import entries_of, first_offset, holds
from mqdb.store.dispatch.queues import max_offset
from mqdb.store.engine import driver, translates
from mqdb.store.fragments import array_of, full_topic, given
from mqdb.store.log.properties import all_properties, kafka_property, of_columns, value_of
from mqdb.store.segments.segments import SegmentState
from mqdb.store.tables import broker, commit_log, queue, queue_run, segment, topic


class BrokerIdentity(NamedTuple):
    """The name of a broker, and when its database was created.

    A backup, a standby and a dump keep this time, so it distinguishes another database from a restored one.
    """

    name: str
    created_at: datetime


class QueueBounds(NamedTuple):
    """A queue with its lowest kept offset, and the next offset that dispatch will assign.

    A topic that is deleted and created again gets another id; the offsets of its queues start at 0.
    """

    topic: str
    topic_id: int
    queue_id: int
    queue_key: int
    min_offset: int
    max_offset: int


class SegmentRange(NamedTuple):
    """The positions of a segment, and the lowest position to which its consume queue points."""

    number: int
    start_pos: int
    end_pos: int
    lowest_log_pos: int


class OffsetRange(NamedTuple):
    """The offsets from `first` to before `past` of a queue."""

    queue_key: int
    first: int
    past: int


class Span(NamedTuple):
    """The offsets from `first` to before `past` of a queue, all in one segment."""

    segment: int
    queue_key: int
    first: int
    past: int


class Choice(NamedTuple):
    """The messages to read, which meet all conditions. If `keys` are given, a message has to have one of them."""

    tags: TagExpression | None = None
    selector: Selector | None = None
    keys: tuple[str, ...] = ()


class Part(NamedTuple):
    """The work of one statement: spans of one segment, without records outside `lowest_pos` to before `past_pos`.

    `log_segments` are those whose log partitions contain such records; `queues` maps keys to queues. Only a part with a
    single span can be ordered, by offset. `is_whole` means that the positions exclude nothing in the spans.
    """

    segment: int
    log_segments: tuple[int, ...]
    lowest_pos: int
    past_pos: int
    spans: tuple[OffsetRange, ...]
    queues: Mapping[int, tuple[str, int]]
    is_ordered: bool
    is_whole: bool


@translates
def broker_name(connection: Connection) -> str:
    """The name of the broker."""
    name: str = connection.execute(select(broker.c.broker_name)).scalar_one()
    return name


@translates
def broker_identity(connection: Connection) -> BrokerIdentity:
    """The identity of the broker behind a connection."""
    return BrokerIdentity(*connection.execute(select(broker.c.broker_name, broker.c.created_at)).one())


@translates
def topic_names(connection: Connection) -> list[str]:
    """The names of all topics."""
    return list(connection.scalars(select(topic.c.topic).order_by(topic.c.topic)))


@translates
def bounds(connection: Connection, topics: Sequence[str]) -> list[QueueBounds]:
    """The bounds of all queues of these topics at one moment; missing topics are left out."""
    asked = func.unnest(cast(list(topics), ARRAY(Text))).column_valued("asked")
    columns = asked, topic.c.topic_id, queue.c.queue_id, queue.c.queue_key, queue.c.base_offset, max_offset()
    named = select(*columns).join_from(queue, topic, topic.c.topic_id == queue.c.topic_id)
    named = named.where(topic.c.topic == full_topic(asked))
    rows = connection.execute(named.order_by(topic.c.topic, queue.c.queue_id))
    return [QueueBounds(*row) for row in rows]


_RANGE: Final[Mapping[str, TypeEngine[Any]]] = {
    "queue_key": Integer(),
    "first": BigInteger(),
    "past": BigInteger(),
}
_NAMED_RANGE: Final[Mapping[str, TypeEngine[Any]]] = {"topic": Text(), "queue_id": Integer(), **_RANGE}


def spans(connection: Connection, ranges: Iterable[OffsetRange], first_segment: int) -> list[Span]:
    """The parts of these ranges in each segment from `first_segment` on, by segment and queue.

    Offsets are dense and dispatch never returns to a segment, so two ends determine a span. Uses queue_run_offset,
    twice per segment and range.
    """
    wanted = given(_RANGE, ranges)
    ends = [_end_of(wanted, is_last=is_last) for is_last in (False, True)]
    first, last = (end.lateral(name) for end, name in zip(ends, ("first_run", "last_run"), strict=True))
    first_entry = func.greatest(first_offset(first), wanted.c.first)
    last_entry = func.least(last.c.last_offset, wanted.c.past - 1)
    rows = connection.execute(
        select(segment.c.segment, wanted.c.queue_key, first_entry, last_entry + 1)
        .select_from(segment.join(wanted, true()).join(first, true()).join(last, true()))
        .where(segment.c.state != SegmentState.DRAINED, segment.c.segment >= first_segment)
        .order_by(segment.c.segment, wanted.c.queue_key)
    )
    return [Span(*row) for row in rows]


def _end_of(wanted: FromClause, *, is_last: bool) -> Select[Any]:
    run = queue_run.c
    return (
        select(run.last_offset, run.positions)
        .where(
            run.segment == segment.c.segment,
            run.queue_key == cast(wanted.c.queue_key, Integer),
            *holds(queue_run, cast(wanted.c.first, BigInteger), cast(wanted.c.past, BigInteger)),
        )
        .order_by(run.last_offset.desc() if is_last else run.last_offset)
        .limit(1)
        .correlate(segment, wanted)
    )


def segment_bounds(connection: Connection) -> list[SegmentRange]:
    """All segments, oldest first.

    A drained segment has no consume queue, but may have records to which the consume queue of a newer segment points.
    """
    columns = segment.c.segment, segment.c.start_pos, segment.c.end_pos, segment.c.lowest_log_pos
    return [SegmentRange(*row) for row in connection.execute(select(*columns).order_by(segment.c.segment))]


# -- statements for others to run -----------------------------------------------------------------


def read_texts(connection: Connection, parts: Sequence[Part], columns: Sequence[str], choice: Choice) -> list[str]:
    """For each part, the statement that reads its messages, with these columns, as named by bulk readers."""
    cursor = _cursor(connection)
    compiled: dict[tuple[object, ...], Compiled] = {}
    texts = []
    for number, part in enumerate(parts):
        # Ranges of a segment differ only in values, and SQLAlchemy takes 2 ms to compile a statement.
        shape = (part.segment, part.lowest_pos, part.past_pos, part.is_ordered) if len(part.spans) == 1 else (number,)
        if shape not in compiled:
            compiled[shape] = _compiled(connection, _read(part, columns, choice))
        texts.append(_text(cursor, compiled[shape], _values(part)))
    return texts


def _values(part: Part) -> dict[str, Any]:
    if len(part.spans) > 1:
        return {}
    (span,) = part.spans
    return dict(zip(_NAMED_RANGE, (*part.queues[span.queue_key], *span), strict=True))


def _read(part: Part, columns: Sequence[str], choice: Choice) -> Select[Any]:
    """The values of a single span are parameters, those of several spans are literals."""
    run = partition(queue_run, part.segment).alias("run")
    cl = log_of(part.log_segments)
    if len(part.spans) == 1:
        span = {name: bindparam(name, type_=type_) for name, type_ in _NAMED_RANGE.items()}
        its_topic: ColumnElement[Any] = span["topic"]
        its_queue_id: ColumnElement[Any] = span["queue_id"]
        first: ColumnElement[int] = span["first"]
        past: ColumnElement[int] = span["past"]
        its_runs = [run.c.queue_key == span["queue_key"], *holds(run, first, past)]
        cq = entries_of(run, *its_runs, *_has_tag(choice, run), is_ordered=part.is_ordered)
        source: FromClause = cq.join(cl, cl.c.log_pos == cq.c.log_pos)
        conditions = []
    else:
        spans = given(_NAMED_RANGE, [(*part.queues[span.queue_key], *span) for span in part.spans])
        its_topic, its_queue_id, first, past = spans.c.topic, spans.c.queue_id, spans.c.first, spans.c.past
        keys = array_of([span.queue_key for span in part.spans])
        cq = entries_of(run, run.c.queue_key == func.any(keys), *_has_tag(choice, run))
        source = cq.join(cl, cl.c.log_pos == cq.c.log_pos)
        source = source.join(spans, cast(spans.c.queue_key, Integer) == cq.c.queue_key)
        conditions = [cl.c.queue_key == func.any(keys)]
    conditions += [cq.c.queue_offset >= first, cq.c.queue_offset < past]
    if not part.is_whole:
        # For both: the planner does not know that one follows from the other.
        for each in (cq, cl):
            conditions += [each.c.log_pos >= part.lowest_pos, each.c.log_pos < part.past_pos]
    elif len(part.log_segments) > 1 and not part.is_ordered:
        conditions.append(cl.c.log_pos >= part.lowest_pos)  # only the end of the older segment
    expressions: dict[str, ColumnElement[Any]] = {
        "topic": cast(its_topic, Text),
        "queue_id": cast(its_queue_id, Integer),
        "queue_offset": cq.c.queue_offset,
        "msg_id": func.mqdb.unique_id_text(cl.c.msg_id),
        "keys": cl.c["keys"],
        "tags": cl.c.tags,
        "sys_flag": cl.c.sys_flag,
        "properties": cast(all_properties(cl), Text),
        "body": value_of(cl),
        "born_timestamp": cl.c.born_time,
        "store_timestamp": cl.c.store_time,
        "kafka_key": kafka_property(cl, KafkaProperty.KEY),
    }
    statement = select(*(expressions[name].label(name) for name in columns)).select_from(source)
    statement = statement.where(*conditions, *_conditions(choice, cq, cl))
    return statement.order_by(cq.c.last_offset, cq.c.queue_offset) if part.is_ordered else statement


def _has_tag(choice: Choice, run: FromClause) -> list[ColumnElement[bool]]:
    """Whether a run may have entries with one of the tags."""
    if (codes := _codes(choice)) is None:
        return []
    return [or_(run.c.tags_code == func.any(codes), run.c.codes.op("&&", is_comparison=True)(codes))]


def _codes(choice: Choice) -> ColumnElement[Any] | None:
    if choice.tags is None or choice.tags.matches_all:
        return None
    return cast(list(choice.tags.codes), ARRAY(BigInteger))


def _conditions(choice: Choice, cq: FromClause, cl: FromClause) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if choice.tags is not None and (codes := _codes(choice)) is not None:
        # The codes save reading records; two tags may have the same code.
        conditions.append(cq.c.tags_code == func.any(codes))
        conditions.append(cl.c.tags == func.any(cast(sorted(choice.tags.tags), ARRAY(Text))))
    if choice.selector is not None:
        conditions.append(choice.selector.where(cl.c.properties, of_columns(cl)))
    if choice.keys:
        words = func.string_to_array(cl.c["keys"], KEY_SEPARATOR)
        conditions.append(words.op("&&", is_comparison=True)(cast(list(choice.keys), ARRAY(Text))))
    return conditions


def partition(parent: Table, number: int) -> TableClause:
    """The partition of a segment, under its own name."""
    columns = (column(each.name, each.type) for each in parent.c)
    return table(f"{parent.name}_{number}", *columns, schema=parent.schema)


def log_of(segments: Sequence[int]) -> FromClause:
    """The records of these segments as one table."""
    partitions = [partition(commit_log, number) for number in segments]
    if len(partitions) == 1:
        return partitions[0].alias("cl")
    return union_all(*(select(each) for each in partitions)).subquery("cl")


def min_offsets(queue_keys: Sequence[int]) -> Select[int, int]:
    """Key and min offset of each of these queues that exists; reads and locks nothing else."""
    return select(queue.c.queue_key, queue.c.base_offset).where(queue.c.queue_key == func.any(array_of(queue_keys)))


def max_offsets(queue_keys: Sequence[int]) -> Select[int, int]:
    """Key and max offset of each of these queues that exists."""
    return select(queue.c.queue_key, max_offset()).where(queue.c.queue_key == func.any(array_of(queue_keys)))


def text_with_values(connection: Connection, statement: ClauseElement) -> str:
    """The SQL text of a statement with literal values, quoted by the driver for this server."""
    return _text(_cursor(connection), _compiled(connection, statement), {})


def _compiled(connection: Connection, statement: ClauseElement) -> Compiled:
    return statement.compile(dialect=connection.dialect, compile_kwargs={"render_postcompile": True})


def _cursor(connection: Connection) -> ClientCursor[Any]:
    cursor = ClientCursor(driver(connection))
    # The engine's own dumper for lists makes binary values, which cannot be in SQL text.
    cursor.adapters.register_dumper(list, ListDumper)
    return cursor


def _text(cursor: ClientCursor[Any], compiled: Compiled, values: Mapping[str, Any]) -> str:
    return cursor.mogrify(compiled.string, {**(compiled.params or {}), **values})
