"""The sink of format("mqdb"): each Spark batch is appended once, even if tasks or the driver fail and are rerun.

    task      rows ──COPY──▶ sink_stage, in a transaction of its own; its commit message says what it has staged
    driver    one transaction: ledger row (sink, batch), new? ──▶ the staged messages into the log, tasks in their order

The driver's transaction decides. A task that is retried after a failure stages its rows again, and the rows of the
failed attempt are never used. If the driver dies before the commit, the batch is rerun from the checkpoint. If it dies
after the commit, the batch is also rerun, but found in the ledger. A crash of PostgreSQL empties the stage: it then has
fewer messages than the tasks wrote, so nothing is appended, and the batch is rerun.

A role that does not own the broker inserts its rows, because COPY into a table with row security is not possible; it
has its own stage and ledger.

A batch of a stream is identified by the id of the query, which is kept in the checkpoint, and its number; a batch job
by its writeId. Messages of a task keep their order, and so do messages with the same key if they are in one task.

With maxRowsPerCommit a larger batch is appended in several transactions, as `mqdb.broker.log.sink` describes.
Processes that only plan or commit a batch import this module, so it imports little.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID, uuid4

import psycopg
from psycopg.conninfo import conninfo_to_dict
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from mqdb.broker.log import sink
from mqdb.broker.log.sink import AppendOutcome, AppendResult, Connection, SinkBatch, StagedWrite, translated
from mqdb.errors import MqdbError
from mqdb.pipeline.broker_wait import patiently
from mqdb.pipeline.errors import OptionInvalid, SinkBatchesMissing, SinkBatchMismatch
from mqdb.pipeline.write.sink_columns import Columns
from mqdb.pipeline.write.sink_options import SinkOptions
from mqdb.store.log import sink as statements
from mqdb.store.server_choice import ServerChoice, ServerRole
from mqdb.store.session_settings import SESSION_SETTINGS, startup_options

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from mqdb.pipeline.write.sink_rows import StageRow

logger = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

_APPLICATION: Final = "mqdb spark sink"

_CONNECT_ARGUMENTS: Final[dict[str, Any]] = {
    "application_name": _APPLICATION,
    "autocommit": True,
    "connect_timeout": 10,
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The message of a task to the driver."""

    batch: SinkBatch
    write: StagedWrite
    bad_rows: int = 0


@dataclass(frozen=True)
class Writing:
    """The common work of both writers, with its data. The object is pickled for the tasks and for the commit."""

    options: SinkOptions
    columns: Columns

    def stage(self, batch: SinkBatch, rows: "Iterable[RecordBatch]") -> Staged:
        """Stage the rows of a task in a transaction of their own.

        The task waits for the broker before it stages. If the broker becomes unavailable later, the task fails, and
        Spark reruns it. Raises the errors of `TaskRows.make`, BrokerUnavailable and StorageRefused; nothing is staged
        in these cases.
        """
        write_id = uuid4()
        filled = (record_batch for record_batch in rows if record_batch.num_rows)
        # Often there are no rows, and the first one may take long: until then no transaction is open.
        first = next(filled, None)
        if first is None:
            return Staged(batch, StagedWrite(write_id, 0, False, ()))
        from mqdb.pipeline.write.bad_rows import TaskRows
        from mqdb.pipeline.write.sink_rows import RowMaker

        options = self.options
        with self.open_stage(batch, write_id) as stage:
            find_queues = stage.find_queues
            maker = RowMaker(self.columns, options.topic, options.reserved_properties, find_queues, write_id)
            task_rows = TaskRows(maker, self.columns, options, task_number())
            for record_batch in chain((first,), filled):
                # First all rows, then the COPY: between them topics are looked up.
                stage.add(task_rows.make(record_batch))
        write = StagedWrite(write_id, maker.messages, maker.waits, maker.topics)
        return Staged(batch, write, task_rows.bad)

    @contextmanager
    def open_stage(self, batch: SinkBatch, write_id: UUID) -> "Iterator[Stage]":
        """The stage of a task on this broker. Rows are committed if the block ends without an error."""
        named = {"write_id": write_id, "sink_id": batch.sink_id, "batch_id": batch.batch_id}
        with self._awaited_connection() as (connection, is_guest), connection.transaction():
            if is_guest:  # row security reads the owner of the rows there
                connection.execute(statements.RECORD_WRITE, named)
            yield Stage(connection, is_guest)
            if not is_guest:
                connection.execute(statements.RECORD_WRITE, named)

    def ask(self, question: Callable[[Connection], _Answer], purpose: str) -> _Answer:
        """Query this broker, waiting until it is available. `purpose` has the same meaning as in `patiently`."""

        def ask() -> _Answer:
            with self._connection() as (connection, _):
                return question(connection)

        return patiently(ask, purpose, self.options.broker_wait_seconds)

    def append(self, batch: SinkBatch, staged: "Sequence[Staged]", forgotten_sink: str | None = None) -> None:
        """Append the rows that the tasks have staged, unless the ledger has the batch.

        While the broker is unavailable, the append is retried for brokerWaitSeconds. Raises BrokerUnavailable after
        that, SinkBatchMismatch if the stage is incomplete, and SinkBatchesMissing if the ledger lacks the previous
        batch. Raises OptionInvalid for a sinkId that another query has, a checkpoint that was set back, and a writeId
        that has written another number of messages. Raises TopicNotFound if a topic has been deleted since, and
        MessageIllegal if a delivery time is beyond the broker's limit.
        """
        writes = [each.write for each in staged]

        def append() -> AppendResult:
            with self._connection() as (connection, is_guest):
                begin = partial(
                    sink.append_batch,
                    connection,
                    batch,
                    writes,
                    is_guest=is_guest,
                    part_messages=self.options.max_rows_per_commit,
                )
                result = begin()
                if result.outcome is AppendOutcome.GAP and not self.options.fail_on_data_loss:
                    missing = SinkBatchesMissing(batch.sink_id, batch.batch_id, result.batch_id)
                    logger.warning("a query continues at batch %s: %s", batch.batch_id, missing.what)
                    result = begin(may_skip=True)
                if result.outcome is AppendOutcome.OPEN:
                    result = self._append_parts(connection, batch, result)
                if result.outcome in (AppendOutcome.APPENDED, AppendOutcome.REPEATED):
                    self._sweep(connection, forgotten_sink, is_guest)
                return result

        result = patiently(append, f"commit batch {batch.batch_id}", self.options.broker_wait_seconds)
        self.judge(result, batch, sum(write.messages for write in writes))
        if bad_rows := sum(each.bad_rows for each in staged):
            became = "left out" if self.options.bad_row_topic is None else f"sent to {self.options.bad_row_topic!r}"
            logger.warning("batch %s has %s bad rows, which were %s", batch.batch_id, f"{bad_rows:,}", became)

    def _append_parts(self, connection: Connection, batch: SinkBatch, begun: AppendResult) -> AppendResult:
        """Append an open batch with several concurrent sessions."""
        from concurrent.futures import ThreadPoolExecutor

        rows, others = self.options.max_rows_per_commit, self.options.commit_sessions - 1

        def move(connection: Connection) -> bool:
            while moved := sink.move_part(connection, batch, rows):
                pass
            return moved is not None

        def help_along() -> bool:
            with self._connection() as (another, _):
                return move(another)

        while True:
            with ThreadPoolExecutor(max(others, 1)) as pool:
                helping = [pool.submit(help_along) for _ in range(others)]
                is_staged = move(connection)
                is_staged = all([is_staged, *(helper.result() for helper in helping)])
            if not is_staged:
                return begun._replace(outcome=AppendOutcome.INCOMPLETE, messages=0)
            if sink.close_parts(connection, batch):
                return begun._replace(outcome=AppendOutcome.REPEATED)

    def judge(self, result: AppendResult, batch: SinkBatch, messages: int) -> None:
        """Raise the reason why a batch was not appended."""
        given_id = self.options.given_id
        match result.outcome:
            case AppendOutcome.INCOMPLETE:
                raise SinkBatchMismatch(batch.sink_id, batch.batch_id, messages, result.messages)
            case AppendOutcome.GAP:
                raise SinkBatchesMissing(batch.sink_id, batch.batch_id, result.batch_id)
            case AppendOutcome.TAKEN:
                reason = f"another query has written batch {result.batch_id} to it; a new checkpoint needs a new sinkId"
                raise OptionInvalid("sinkId", given_id, reason)
            case AppendOutcome.LISTED:
                reason = (
                    "the sink has written to a list of brokers, so give each broker its name: broker-a=postgresql://..."
                )
                raise OptionInvalid("url", None, reason)
            case AppendOutcome.PASSED:
                reason = (
                    f"it is at batch {batch.batch_id}, but batch {result.batch_id} of the query is already written: "
                    f"it was set back, so it is unknown which messages are missing; begin with a new checkpoint, and "
                    f"give the starting point"
                )
                raise OptionInvalid("checkpointLocation", None, reason)
            case AppendOutcome.REPEATED if result.messages != messages and batch.query_id is None:
                reason = (
                    f"has written {result.messages:,} messages, but this job has {messages:,}; give this job its own "
                    f"writeId"
                )
                raise OptionInvalid("writeId", given_id, reason)

    def give_up(self, staged: "Sequence[Staged]") -> None:
        """Delete the rows that these tasks have staged, and rows older than a day. A failure is only logged."""
        try:
            with self._connection() as (connection, is_guest):
                sink.clear_writes(connection, [each.write for each in staged], is_guest=is_guest)
                sink.sweep(connection, is_guest=is_guest)
        except MqdbError:  # Spark already has an error to report
            logger.warning("could not delete staged rows on %s; a later sweep will", self.options.target, exc_info=True)

    def check(self) -> None:
        """Check with the database everything that can be checked before any task runs.

        Raises SchemaMismatch; TopicNotFound, TopicNotWritable and AccessDenied if an option gives the topic.
        """
        with self._connection() as (connection, _):
            self.check_database(connection)
            for topic in self.options.given_topics:
                sink.write_queue_keys(connection, topic)

    def check_database(self, connection: Connection) -> None:
        """Raise SchemaMismatch unless the schema has the sink, and OptionInvalid if it cannot commit in parts."""
        if not sink.has_sink(connection):
            _refuse_schema(self.options.url)
        if self.options.max_rows_per_commit is None:
            return
        name, rows = "maxRowsPerCommit", str(self.options.max_rows_per_commit)
        if _is_guest(connection):
            raise OptionInvalid(name, rows, "needs the owner of the broker, or a member of its role")
        if not sink.is_durable(connection):
            reason = (
                "needs a stage that outlives a crash of PostgreSQL; its owner has to run once: ALTER TABLE "
                "mqdb.sink_write SET LOGGED; ALTER TABLE mqdb.sink_stage SET LOGGED"
            )
            raise OptionInvalid(name, rows, reason)

    @contextmanager
    def _connection(self) -> Iterator[tuple[Connection, bool]]:
        """A connection, and whether its role does not own the broker."""
        given = conninfo_to_dict(self.options.url)
        options = f"{given.get('options', '')} {startup_options(SESSION_SETTINGS)}"
        arguments = _CONNECT_ARGUMENTS | {"options": options}
        choice = ServerChoice(given, self.options.target, ServerRole.PRIMARY, arguments)
        with translated(self.options.target), choice.connect(self.options.url) as connection:
            yield connection, _is_guest(connection)

    @contextmanager
    def _awaited_connection(self) -> Iterator[tuple[Connection, bool]]:
        """A connection like that of `_connection`; waits until the broker is available."""
        with ExitStack() as stack:

            def connect() -> tuple[Connection, bool]:
                return stack.enter_context(self._connection())

            yield patiently(connect, "stage the rows of a task", self.options.broker_wait_seconds)

    def _sweep(self, connection: Connection, forgotten_sink: str | None, is_guest: bool) -> None:
        """Delete old staged rows. A failure is only logged, because the batch is already committed."""
        try:
            sink.sweep(connection, forgotten_sink, is_guest=is_guest)
        except psycopg.Error:
            sentence = "could not delete the staged rows of old tasks on %s; a later sweep will"
            logger.warning(sentence, self.options.target, exc_info=True)


class Stage:
    """The stage of one broker for one attempt of a task."""

    def __init__(self, connection: Connection, is_guest: bool) -> None:
        self._connection = connection
        self._is_guest = is_guest

    def find_queues(self, topic: str) -> tuple[int, ...]:
        """The keys of the queues of a topic. Raises the errors of `sink.write_queue_keys`."""
        return sink.write_queue_keys(self._connection, topic)

    def add(self, rows: "Sequence[StageRow]") -> None:
        """Stage rows."""
        if self._is_guest:
            sink.stage_own(self._connection, rows)
            return
        with self._connection.cursor() as cursor, cursor.copy(statements.COPY_STAGE) as copy:
            copy.set_types(list(statements.STAGE_COLUMNS.values()))
            for row in rows:
                copy.write_row(row)


def _is_guest(connection: Connection) -> bool:
    """Whether the role of a connection does not own the broker."""
    row = connection.execute(statements.IS_GUEST).fetchone()
    return row is not None and bool(row[0])


def _refuse_schema(url: str) -> None:
    """Raise the reason why the url cannot be used."""
    from mqdb.store.engine import connected
    from mqdb.store.migrations import check_schema

    with connected(url, _APPLICATION) as connection:
        check_schema(connection)


def task_number() -> int:
    """The number of the task in its stage, as Spark shows it."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId() or 0
