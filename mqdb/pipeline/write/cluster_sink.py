"""The sink of format("mqdb") for several brokers: each broker appends its part of a batch once.

    task      rows ──▶ the broker of each ──▶ the stage of each broker
    driver    asks the ledgers of all brokers ──▶ commits on one broker after the other, in the order of the url

No transaction spans two brokers. If the driver dies between two commits, the batch is rerun: brokers that have it
report this, and the other brokers append their part. The rerun is correct if the parts are the same as before, which
`cluster_rows` ensures and the checksum in the ledger proves. All brokers are queried before the first commit, so a
batch that one broker cannot accept is not appended anywhere.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias, TypeVar
from uuid import uuid4

from mqdb.broker.log import sink
from mqdb.broker.log.sink import AppendOutcome, AppendResult, Connection, SinkBatch, StagedWrite, translated
from mqdb.broker.log.sink_outlook import SinkOutlook, broker_name, outlook, sum_of_checksums
from mqdb.errors import BrokerMisnamed, TopicNotFound, TopicNotWritable
from mqdb.pipeline.errors import SinkBatchChanged, SinkBatchesMissing, SinkBrokerMissing
from mqdb.pipeline.write.cluster_queues import cluster_queues
from mqdb.pipeline.write.sink import Staged, Writing, task_number
from mqdb.pipeline.write.sink_options import SinkOptions

if TYPE_CHECKING:
    from pyarrow import RecordBatch

logger = logging.getLogger(__name__)

_Given = TypeVar("_Given")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class BrokerShare:
    """The rows that a task has staged on one broker, and their checksum."""

    write: StagedWrite
    checksum: int


@dataclass(frozen=True)
class ClusterStaged(Staged):
    """The message of a task to the driver: `write` for all brokers together, and the share of each broker."""

    shares: tuple[BrokerShare, ...] = ()


@dataclass(frozen=True)
class ClusterWriting:
    """Writes to the brokers of a list, which are given by name. The object is sent to the tasks and to the commit."""

    names: tuple[str, ...]
    writings: tuple[Writing, ...]

    @property
    def options(self) -> SinkOptions:
        """The options of the first broker. The other brokers differ only in the url."""
        return self.writings[0].options

    def check(self) -> None:
        """Check with the brokers everything that can be checked before any task runs.

        Raises BrokerMisnamed, SchemaMismatch; TopicNotFound, TopicNotWritable and AccessDenied if an option gives the
        topic.
        """
        topics = self.options.given_topics
        found: list[_Queues] = []
        for name, writing in zip(self.names, self.writings, strict=True):
            look = partial(_look, writing=writing, name=name, topics=topics)
            found.append(writing.ask(look, "look at the topic of a write"))
        for topic in topics:
            cluster_queues([partial(_queues_in, each) for each in found], topic)

    def stage(self, batch: SinkBatch, rows: "Iterable[RecordBatch]") -> Staged:
        """Stage the rows of a task on their brokers, in a transaction on each. Raises the errors of `Writing.stage`."""
        write_id = uuid4()
        filled = (record_batch for record_batch in rows if record_batch.num_rows)
        first = next(filled, None)
        if first is None:
            nothing = StagedWrite(write_id, 0, False, ())
            return ClusterStaged(batch, nothing, 0, tuple(BrokerShare(nothing, 0) for _ in self.names))
        from mqdb.pipeline.write.bad_rows import TaskRows
        from mqdb.pipeline.write.cluster_rows import ClusterRowMaker, StageShare

        options, columns = self.options, self.writings[0].columns
        shares = [StageShare() for _ in self.names]
        with ExitStack() as stack:
            stages = [stack.enter_context(writing.open_stage(batch, write_id)) for writing in self.writings]
            lookups = [self._of_broker(place, stage.find_queues) for place, stage in enumerate(stages)]
            maker = ClusterRowMaker(columns, options, partial(cluster_queues, lookups), write_id, self.names)
            task_rows = TaskRows(maker, columns, options, task_number())
            for record_batch in chain((first,), filled):
                parts = maker.by_broker(task_rows.make(record_batch))
                for place, (stage, share, part) in enumerate(zip(stages, shares, parts, strict=True)):
                    if part:
                        self._of_broker(place, stage.add)(share.take(part))
        write = StagedWrite(write_id, maker.messages, maker.waits, maker.topics)
        of_brokers = tuple(
            BrokerShare(StagedWrite(write_id, share.messages, maker.waits, maker.topics_on(place)), share.checksum)
            for place, share in enumerate(shares)
        )
        return ClusterStaged(batch, write, task_rows.bad, of_brokers)

    def append(self, batch: SinkBatch, staged: Sequence[Staged], forgotten_sink: str | None = None) -> None:
        """Append the parts that brokers do not have. Raises the errors of `Writing.append`, and BrokerMisnamed.

        Before the first append it raises SinkBatchChanged and SinkBrokerMissing, unless failOnDataLoss is false. A
        broker that was added since the previous batch starts here.
        """
        tasks = [each for each in staged if isinstance(each, ClusterStaged)]
        batches = [
            batch._replace(checksum=_checksum(tasks, place), brokers=list(self.names))
            for place in range(len(self.names))
        ]
        outlooks = [
            writing.ask(partial(outlook, batch=own), f"look for batch {batch.batch_id}")
            for writing, own in zip(self.writings, batches, strict=True)
        ]
        joined = self._joined(outlooks)
        changed = set()
        for place, own in enumerate(batches):
            may_begin = self.names[place] in joined
            if self._is_changed(place, own, outlooks[place], _messages(tasks, place), may_begin=may_begin):
                changed.add(place)
        self._check_brokers(batch, outlooks)
        for place, (writing, own) in enumerate(zip(self.writings, batches, strict=True)):
            if place in changed:
                continue
            if self.names[place] in joined:
                logger.info("broker %s joins at batch %s", self.names[place], batch.batch_id)
                writing = replace(writing, options=replace(writing.options, fail_on_data_loss=False))
            # Bad rows are counted once.
            own_staged = [Staged(own, task.shares[place].write, 0 if place else task.bad_rows) for task in tasks]
            writing.append(own, own_staged, forgotten_sink)

    def give_up(self, staged: Sequence[Staged]) -> None:
        """Delete the rows that tasks have staged, on each broker."""
        tasks = [each for each in staged if isinstance(each, ClusterStaged)]
        for place, writing in enumerate(self.writings):
            writing.give_up([Staged(task.batch, task.shares[place].write) for task in tasks])

    def _joined(self, outlooks: Sequence[SinkOutlook]) -> set[str]:
        """The brokers without a ledger of this sink that were unknown at the newest batch of those with a ledger."""
        known = [each for each in outlooks if each.newest is not None]
        before = {name for each in known for name in each.brokers or (each.broker_name,)}
        return {each.broker_name for each in outlooks if each.newest is None and known} - before

    def _is_changed(self, place: int, batch: SinkBatch, seen: SinkOutlook, messages: int, *, may_begin: bool) -> bool:
        """Whether a broker has the batch with other rows, and failOnDataLoss is false.

        Raises the reason why the batch cannot be appended.
        """
        writing = self.writings[place]
        _check_name(self.names[place], seen.broker_name, writing)
        match seen.outcome:
            case AppendOutcome.TAKEN | AppendOutcome.PASSED:
                writing.judge(AppendResult(seen.outcome, seen.newest, seen.messages), batch, messages)
            case AppendOutcome.GAP if not may_begin and self.options.fail_on_data_loss:
                raise SinkBatchesMissing(batch.sink_id, batch.batch_id, seen.newest)
            case AppendOutcome.REPEATED if (seen.checksum, seen.messages) != (batch.checksum, messages):
                changed = SinkBatchChanged(seen.broker_name, batch.sink_id, batch.batch_id, seen.messages, messages)
                if self.options.fail_on_data_loss:
                    raise changed
                logger.warning("a batch is completed with other rows: %s", changed)
                return True
        return False

    def _check_brokers(self, batch: SinkBatch, outlooks: Sequence[SinkOutlook]) -> None:
        """Raise SinkBrokerMissing for a broker to which the newest batch went but that is not in the list."""
        for name in dict.fromkeys(name for each in outlooks for name in each.brokers or ()):
            if name not in self.names:
                missing = SinkBrokerMissing(name, batch.sink_id, batch.batch_id)
                if self.options.fail_on_data_loss:
                    raise missing
                logger.warning("a sink continues without one of its brokers: %s", missing)

    def _of_broker(self, place: int, work: Callable[[_Given], _Answer]) -> Callable[[_Given], _Answer]:
        """Wrap work so that its errors name this broker, and not other brokers whose stages are also open."""

        def translating(given: _Given) -> _Answer:
            with translated(self.writings[place].options.target):
                return work(given)

        return translating


#: The queue keys of topics on a broker, or why it does not accept messages for a topic.
_Queues: TypeAlias = dict[str, tuple[int, ...] | TopicNotFound | TopicNotWritable]


def _look(connection: Connection, writing: Writing, name: str, topics: Sequence[str]) -> _Queues:
    writing.check_database(connection)
    _check_name(name, broker_name(connection), writing)
    found: _Queues = {}
    for topic in topics:
        try:
            found[topic] = sink.write_queue_keys(connection, topic)
        except (TopicNotFound, TopicNotWritable) as error:  # another broker may have the topic
            found[topic] = error
    return found


def _queues_in(found: _Queues, topic: str) -> tuple[int, ...]:
    queues = found[topic]
    if isinstance(queues, Exception):
        raise queues
    return queues


def _checksum(tasks: Sequence[ClusterStaged], place: int) -> int:
    return sum_of_checksums(task.shares[place].checksum for task in tasks)


def _messages(tasks: Sequence[ClusterStaged], place: int) -> int:
    return sum(task.shares[place].write.messages for task in tasks)


def _check_name(name: str, found: str, writing: Writing) -> None:
    if name != found:
        raise BrokerMisnamed(writing.options.target, f"this database is broker {found!r}, not {name!r}")
