"""The expected outcome of a Spark batch for several brokers: all brokers are queried before any of them is written to.

A batch is appended to one broker after the other, in a transaction on each. If it is rerun after a crash between two of
these transactions, some brokers already have it, and their part must be the same rows as the first time.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from mqdb.broker.log.sink import AppendOutcome, Connection, SinkBatch
from mqdb.store.log import sink as statements

#: The ledger has room for smaller numbers.
_CHECKSUMS: Final = 1 << 63


def sum_of_checksums(checksums: Iterable[int]) -> int:
    """The combined checksum of rows with these checksums, whatever their order."""
    return sum(checksums) % _CHECKSUMS


class SinkOutlook(NamedTuple):
    """The result that an append would have now. `newest` is the batch in the ledger that decides it, if there is one.

    `messages`, `checksum` and `brokers` are those of this batch; the last two are None if it went to only one broker.
    """

    broker_name: str
    outcome: AppendOutcome
    newest: int | None
    messages: int
    checksum: int | None
    brokers: tuple[str, ...] | None


def outlook(connection: Connection, batch: SinkBatch) -> SinkOutlook:
    """The outcome that `append_batch` would have now, unless the rows are bad."""
    named = {"sink_id": batch.sink_id, "query_id": batch.query_id}
    row = connection.execute(statements.OUTLOOK, named).fetchone()
    assert row is not None, "mqdb.broker has one row"
    broker_name, query_id, newest, messages, checksum, brokers = row
    outcome = AppendOutcome.APPENDED
    if newest is None:
        outcome = AppendOutcome.GAP if batch.batch_id else outcome
    elif query_id != batch.query_id:
        outcome = AppendOutcome.TAKEN
    elif newest == batch.batch_id:
        outcome = AppendOutcome.REPEATED
    elif newest != batch.batch_id - 1:
        outcome = AppendOutcome.PASSED if newest > batch.batch_id else AppendOutcome.GAP
    return SinkOutlook(
        broker_name, outcome, newest, messages or 0, checksum, None if brokers is None else tuple(brokers)
    )


def broker_name(connection: Connection) -> str:
    """The name of the broker."""
    row = connection.execute(statements.BROKER_NAME).fetchone()
    assert row is not None, "mqdb.broker has one row"
    return str(row[0])
