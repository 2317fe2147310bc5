"""Planning on the driver: queries the broker for the ends and places of queues, and makes the tasks for workers.

Queries and decisions alternate, and each decision is one call of `planner`:

    topics ──▶ bounds of their queues ──▶ ranges ──▶ where these lie ──▶ parts ──▶ statements, which make tasks
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine

from mqdb.broker.log.proofs import proven
from mqdb.broker.topics import topic_ranges as verbs
from mqdb.common.proof import Proof
from mqdb.errors import BrokerUnavailable, IllegalState
from mqdb.pipeline.broker_wait import patiently
from mqdb.pipeline.errors import DataLoss, StreamUnreadable
from mqdb.pipeline.read import planner
from mqdb.pipeline.read.offsets import Queue, StreamOffset
from mqdb.pipeline.read.progress import GroupProgress
from mqdb.pipeline.read.source_options import MessageChoice, SourceOptions, Subscription
from mqdb.pipeline.read.tasks import OffsetCheck, Read, Task
from mqdb.selector import compile_selector
from mqdb.selector.tags import parse_tag_expression
from mqdb.store.engine import create_engine, target_of, translated
from mqdb.store.log import proofs
from mqdb.store.log.time_search import offsets_of_time
from mqdb.store.server_choice import ServerRole
from mqdb.store.topics.topic_ranges import (
    BrokerIdentity,
    Choice,
    OffsetRange,
    Part,
    QueueBounds,
    bounds,
    broker_identity,
    topic_names,
)

_Queues = dict[Queue, QueueBounds]
_Proofs = Mapping[Queue, Proof]
_NONE: Final[_Proofs] = MappingProxyType({})
_Answer = TypeVar("_Answer")


def batch_tasks(options: SourceOptions) -> list[Task]:
    """The tasks of a batch read, as of now."""
    return plan_batch(options).tasks


class BatchPlan(NamedTuple):
    """The tasks of a batch read, the topics found, and the name of the broker."""

    tasks: list[Task]
    topics: frozenset[str]
    broker: str


def plan_batch(options: SourceOptions) -> BatchPlan:
    """Plan a batch read of one broker, as of now."""

    def plan(connection: Connection) -> BatchPlan:
        found = _bounds(connection, options.subscription)
        queues, wanted = planner.batch_ranges(options, found, partial(offsets_of_time, connection))
        tasks, _ = _tasks(connection, options, queues, wanted)
        return BatchPlan(tasks, frozenset(queue.topic for queue in queues), broker_identity(connection).name)

    engine = create_engine(options.url, application_name="mqdb-spark", pool_size=1, server=ServerRole.ANY)
    try:
        return _answer(engine, plan, options.reading.broker_wait_seconds)
    finally:
        engine.dispose()


class Backlog(NamedTuple):
    """The messages that a stream has not read: in each queue, from `first` to before `end`.

    `start` is the end of the last batch; `reached` contains its offsets at which the log is unchanged.
    """

    start: StreamOffset
    reached: Mapping[Queue, int]
    first: Mapping[Queue, int]
    end: Mapping[Queue, int]
    queues: _Queues

    @property
    def topics(self) -> frozenset[str]:
        """The topics that were found."""
        return frozenset(queue.topic for queue in self.queues)


class StreamPlanner:
    """Plans a stream's reads of one broker for the driver, over one connection that is kept as long as the query.

    Each query waits for the broker, up to brokerWaitSeconds.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._engine = create_engine(options.url, application_name="mqdb-spark", pool_size=1, server=ServerRole.ANY)
        self._target: dict[Queue, int] | None = None
        # As found by the last query: a running query may be redirected to another database.
        self._broker: BrokerIdentity | None = None
        self._progress = GroupProgress(options.url, options.group) if options.group is not None else None
        # The segment of the last batch; the next batch is there or further on.
        self._first_segment = 0

    def close(self) -> None:
        """Release the connection."""
        self._engine.dispose()
        if self._progress is not None:
            self._progress.close()

    def initial(self) -> StreamOffset:
        """The offset at which a query without a checkpoint starts."""

        def ask(connection: Connection) -> tuple[dict[Queue, int], _Queues]:
            queues = self._queues(connection, must_exist=True)
            return planner.starting(self._options, queues, partial(offsets_of_time, connection)), queues

        offsets, queues = self._ask(ask)
        return self._offset(offsets, queues, self._prove(offsets, queues))

    def set_target(self) -> None:
        """Limit the query to the messages that exist now: Trigger.AvailableNow."""
        self._target = self._ends(self._ask(lambda connection: self._queues(connection)))

    def backlog(self, start: StreamOffset) -> Backlog:
        """The messages after an offset of this broker, up to the target if one is set.

        Raises DataLoss if the next messages have been dropped, LogReplaced if the log is not the log that was read up
        to `start`, and DatabaseReplaced.
        """

        def ask(connection: Connection) -> tuple[dict[Queue, int], _Queues]:
            queues = self._queues(connection, start)
            return self._of_same_log(connection, start, queues), queues

        reached, queues = self._ask(ask)
        if self._progress is not None:
            # Spark asks when the batch that ended there is done.
            self._progress.report(reached)
        if self._options.reading.fail_on_data_loss:
            planner.check_kept(reached, queues)
        # A new queue is read from its beginning.
        first = {queue: reached.get(queue, bounds.min_offset) for queue, bounds in queues.items()}
        end = self._ends(queues)
        if self._target is not None:
            end = {queue: min(past, self._target[queue]) for queue, past in end.items() if queue in self._target}
        return Backlog(start, reached, first, end, queues)

    def offset(self, backlog: Backlog, end: Mapping[Queue, int]) -> StreamOffset:
        """The end of a batch in a backlog, with proofs that it was read in this log."""
        proofs_before, reached = backlog.start.proofs, backlog.reached
        held = {queue: proof for queue, proof in proofs_before.items() if reached.get(queue) == end.get(queue)}
        return self._offset(end, backlog.queues, self._prove(end, backlog.queues, held))

    def whole(self, backlog: Backlog) -> StreamOffset:
        """The end of a backlog without proofs, as shown to people."""
        return self._offset(backlog.end, backlog.queues)

    def tasks(self, start: StreamOffset, end: StreamOffset) -> list[Task]:
        """The tasks of the batch between two offsets.

        Equal offsets give the same messages, as long as these are kept.
        """
        if start == end:
            return []

        def ask(connection: Connection) -> tuple[list[Task], int]:
            queues = self._queues(connection, start, end)
            first, past = (self._of_same_log(connection, offset, queues) for offset in (start, end))
            must_be_whole = self._options.reading.fail_on_data_loss
            wanted = planner.ranges(first, past, queues, fail_on_data_loss=must_be_whole)
            return _tasks(connection, self._options, queues, wanted, self._first_segment)

        tasks, self._first_segment = self._ask(ask)
        return tasks

    def _queues(self, connection: Connection, *offsets: StreamOffset, must_exist: bool | None = None) -> _Queues:
        """The queues that are read. Each query first identifies the broker and checks its offsets."""
        self._broker = broker_identity(connection)
        must_be_whole = self._options.reading.fail_on_data_loss
        if must_be_whole:
            # First of all, because the topics of another database are other topics.
            for offset in offsets:
                self._is_of_same_database(offset)
        subscription = self._options.subscription
        must_exist = must_be_whole if must_exist is None else must_exist
        return planner.subscribed(subscription, _bounds(connection, subscription), must_exist=must_exist)

    @staticmethod
    def _ends(queues: _Queues) -> dict[Queue, int]:
        return {queue: bounds.max_offset for queue, bounds in queues.items()}

    def _of_same_log(self, connection: Connection, offset: StreamOffset, queues: _Queues) -> dict[Queue, int]:
        """The offsets at which the log is still the one in which they were found."""
        must_be_whole = self._options.reading.fail_on_data_loss
        if not self._is_of_same_database(offset):
            return {}
        claims = {queues[queue].queue_key: proof for queue, proof in offset.proofs.items() if queue in queues}
        held = proven(connection, claims)
        of_same_topics = planner.of_same_topics(offset, queues, fail_on_data_loss=must_be_whole)
        return planner.of_same_log(of_same_topics, queues, held, fail_on_data_loss=must_be_whole)

    def _prove(self, offsets: Mapping[Queue, int], queues: _Queues, held: _Proofs = _NONE) -> _Proofs:
        """The proofs of these offsets. Proofs in `held` are kept, so that equal offsets give equal JSON."""
        keys = {queues[queue].queue_key: queue for queue in offsets if queue not in held}
        if not keys:
            return held
        found = self._ask(lambda connection: proofs.find(connection, {key: offsets[keys[key]] for key in keys}))
        return {**held, **{keys[key]: proof for key, proof in found.items()}}

    def _is_of_same_database(self, offset: StreamOffset) -> bool:
        """Whether an offset is from this database. Raises StreamUnreadable and DatabaseReplaced."""
        broker = self._found_broker
        if offset.broker != broker.name:
            reason = f"they are those of broker {offset.broker!r}, and the url leads to {broker.name!r}"
            raise StreamUnreadable(str(offset.to_dict()), reason)
        must_be_whole = self._options.reading.fail_on_data_loss
        return planner.is_of_same_database(offset, broker, fail_on_data_loss=must_be_whole)

    @property
    def _found_broker(self) -> BrokerIdentity:
        if self._broker is None:
            raise IllegalState("a plan of a stream", "asked for its broker before its queues")
        return self._broker

    @property
    def broker(self) -> str:
        """The name of the broker in its database."""
        if self._broker is None:
            self._broker = self._ask(broker_identity)
        return self._broker.name

    def _offset(self, offsets: Mapping[Queue, int], queues: _Queues, found: _Proofs = _NONE) -> StreamOffset:
        broker, topic_ids = self._found_broker, {queue.topic: queues[queue].topic_id for queue in offsets}
        return StreamOffset(broker.name, offsets, topic_ids, found, broker.created_at)

    def _ask(self, question: Callable[[Connection], _Answer]) -> _Answer:
        return _answer(self._engine, question, self._options.reading.broker_wait_seconds)


def _answer(engine: Engine, question: Callable[[Connection], _Answer], wait_seconds: float) -> _Answer:
    """The result of a query, which is repeated while the broker is unavailable."""

    def ask() -> _Answer:
        try:
            with _connected(engine) as connection:
                return question(connection)
        except BrokerUnavailable:
            # The next attempt needs a new connection.
            engine.dispose()
            raise

    return patiently(ask, "plan a read", wait_seconds)


@contextmanager
def _connected(engine: Engine) -> Iterator[Connection]:
    with translated(target_of(engine)), engine.connect() as connection:
        yield connection


# -- queries --------------------------------------------------------------------------------------


def _bounds(connection: Connection, subscription: Subscription) -> list[QueueBounds]:
    return bounds(connection, planner.wanted_topics(subscription, partial(topic_names, connection)))


def _tasks(
    connection: Connection,
    options: SourceOptions,
    queues: _Queues,
    wanted: Sequence[OffsetRange],
    first_segment: int = 0,
) -> tuple[list[Task], int]:
    """The tasks, and the first segment that is read."""
    if not wanted:
        return [], first_segment
    by_key = {bounds.queue_key: queue for queue, bounds in queues.items()}
    layout = verbs.layout(connection, wanted, first_segment)
    if (gap := layout.missing) is not None and options.reading.fail_on_data_loss:
        what = f"{by_key[gap.queue_key]}, offsets {gap.first:,} to before {gap.past:,}"
        raise DataLoss(what, "retention has dropped them since the read was planned")
    planned = planner.tasks(layout, by_key, options.splitting)
    return _with_statements(connection, options, planned, by_key), min((s.segment for s in layout.spans), default=0)


def _with_statements(
    connection: Connection, options: SourceOptions, planned: Sequence[Sequence[Part]], queues: Mapping[int, Queue]
) -> list[Task]:
    columns = options.reading.sources(options.columns)
    parts = [part for task in planned for part in task]
    texts = verbs.statements(connection, parts, columns, _choice(options.choice))
    reads = iter(texts.reads)
    names = {key: str(queue) for key, queue in queues.items()}
    may_count = options.choice.is_everything
    return [
        Task(
            reads=tuple(_read(part, next(reads), names, may_count=may_count) for part in task),
            checks=tuple(OffsetCheck(key, names[key], first, past) for key, first, past in _widest(task)),
            min_offsets=texts.min_offsets,
            max_offsets=texts.max_offsets,
        )
        for task in planned
    ]


def _read(part: Part, text: str, names: Mapping[int, str], *, may_count: bool) -> Read:
    count = sum(span.past - span.first for span in part.spans)
    what = ", ".join(f"{names[span.queue_key]}, offsets {span.first:,} to before {span.past:,}" for span in part.spans)
    return Read(text, what, not part.is_ordered, count if part.is_whole and may_count else None)


def _widest(parts: Sequence[Part]) -> list[OffsetRange]:
    """The widest range of each queue in these parts, from its first offset to its last."""
    widest: dict[int, OffsetRange] = {}
    for span in (span for part in parts for span in part.spans):
        known = widest.get(span.queue_key, span)
        widest[span.queue_key] = OffsetRange(span.queue_key, min(known.first, span.first), max(known.past, span.past))
    return list(widest.values())


def _choice(choice: MessageChoice) -> Choice:
    return Choice(
        parse_tag_expression(choice.sub_expression) if choice.sub_expression is not None else None,
        compile_selector(choice.selector) if choice.selector is not None else None,
        choice.keys,
    )
