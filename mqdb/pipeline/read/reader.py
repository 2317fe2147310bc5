"""Reading on a worker: a task's statements become Arrow batches, or an error if anything is missing.

Rows below a queue's max offset never change, so tasks need no common snapshot. A statement names the partitions that it
reads, and locks them until the end of the task's transaction: retention either drops them before, which the task
notices, or waits.
"""

import logging
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from mqdb.pipeline.broker_wait import patiently
from mqdb.pipeline.errors import DataLoss, ReplicaBehind
from mqdb.pipeline.read.engines import ReadSession, UndefinedTable, give_back, take
from mqdb.pipeline.read.rows import finished
from mqdb.pipeline.read.source_options import ReadOptions
from mqdb.pipeline.read.tasks import OffsetCheck, Read, Task

if TYPE_CHECKING:
    import pyarrow as pa

    from mqdb.pipeline.read.body_columns import BodyDecoder

    _Batches = Generator[pa.RecordBatch, None, None]

logger = logging.getLogger(__name__)

#: The pause before a replica that is behind is queried again.
_REPLICA_POLL_SECONDS = 0.1


def read(task: Task, reading: ReadOptions, columns: tuple[str, ...]) -> "Iterator[pa.RecordBatch]":
    """The messages of a task, with exactly these columns of the row format.

    The task waits for the broker until it has returned messages. If the broker becomes unavailable later, the task
    fails, and Spark reruns it. Raises DataLoss, ReplicaBehind, BrokerUnavailable, StorageRefused, BodyNotDecoded, and
    the errors of decompression.
    """

    def begin() -> "tuple[_Batches, pa.RecordBatch | None]":
        batches = _attempt(task, reading, columns)
        return batches, next(batches, None)

    batches, first = patiently(begin, "read a part", reading.broker_wait_seconds)
    with closing(batches):
        if first is not None:
            yield first
            yield from batches


def _attempt(task: Task, reading: ReadOptions, columns: tuple[str, ...]) -> "_Batches":
    session = take(reading)
    is_over = False
    try:
        if reading.is_replica:
            _await_replica(session, task, reading.replica_wait_seconds)
        sources = reading.sources(columns)
        decoder = _decoder(reading)
        for each in task.reads:
            for batch in _read(session, each, reading, sources):
                yield from finished(batch, reading, columns, decoder)
        if decoder is not None:
            decoder.report()
        if reading.fail_on_data_loss:
            _check_kept(session, task)
        session.rollback()
        is_over = True
    finally:
        # Spark closes this generator in the middle of a COPY when it has enough rows.
        if is_over:
            give_back(reading, session)
        else:
            session.close()


def _decoder(reading: ReadOptions) -> "BodyDecoder | None":
    if reading.decoding is None:
        return None
    from mqdb.pipeline.read.body_columns import BodyDecoder

    return BodyDecoder(reading.decoding)


def _read(
    session: ReadSession, each: Read, reading: ReadOptions, sources: tuple[str, ...]
) -> "Iterator[pa.RecordBatch]":
    count = 0
    if each.is_slice:
        # The whole segment is wanted, but without statistics the planner might look up each record. The setting is for
        # the rest of the transaction, because a slice is a separate task.
        session.rows("SELECT set_config('enable_nestloop', 'off', true)")
    try:
        for batch in session.batches(each.statement, sources, reading.batch_size_bytes):
            count += batch.num_rows
            yield batch
    except UndefinedTable as error:
        if reading.fail_on_data_loss:
            raise DataLoss(each.what, "retention has dropped the segment") from error
        logger.warning("skipped %s: retention has dropped the segment", each.what)
        session.rollback()
        return
    if reading.fail_on_data_loss and each.count is not None and count != each.count:
        raise DataLoss(each.what, f"{each.count:,} messages were to be read, but {count:,} were found")


def _check_kept(session: ReadSession, task: Task) -> None:
    """Check, after the reads and in their transaction, that all messages were kept."""
    kept = dict(session.rows(task.min_offsets))
    for check in task.checks:
        if check.queue_key not in kept:
            raise DataLoss(_what(check), "the topic was deleted during the read")
        if kept[check.queue_key] > check.first:
            reason = f"retention dropped messages below {kept[check.queue_key]:,} during the read"
            raise DataLoss(_what(check), reason)


def _await_replica(session: ReadSession, task: Task, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        reached = dict(session.rows(task.max_offsets))
        # End the transaction: it has locked the consume queue's parent, and a new one sees more.
        session.rollback()
        behind = [check for check in task.checks if reached.get(check.queue_key, 0) < check.past]
        if not behind:
            return
        if time.monotonic() >= deadline:
            first = behind[0]
            raise ReplicaBehind(first.queue, first.past, reached.get(first.queue_key, 0), seconds)
        time.sleep(_REPLICA_POLL_SECONDS)


def _what(check: OffsetCheck) -> str:
    return f"{check.queue}, offsets {check.first:,} to before {check.past:,}"
