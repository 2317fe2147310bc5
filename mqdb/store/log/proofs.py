"""Proofs of positions, read from the consume queues and the log. `mqdb.common.proof` explains what they prove."""

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import BigInteger, Connection, Integer, func, select, true

from mqdb.common.proof import Proof
from mqdb.store.dispatch.entries import LAST_OFFSET, entries
from mqdb.store.fragments import given
from mqdb.store.tables import commit_log


def find(connection: Connection, positions: Mapping[int, int]) -> dict[int, Proof]:
    """The proofs of positions. A position is the next offset to read, by queue key.

    A queue is left out if there is no message before its position, because it is the first position, or because
    retention dropped the message.
    """
    entries = _entries(connection, [(key, next_offset - 1) for key, next_offset in positions.items()])
    return {key: proof for (key, _), proof in entries.items()}


def holding(connection: Connection, claims: Sequence[tuple[int, Proof]]) -> list[bool]:
    """Whether the log matches each claim. A claim is the key of a queue, and a proof of a position in it."""
    entries = _entries(connection, [(key, proof.queue_offset) for key, proof in claims])
    return [entries.get((key, proof.queue_offset)) == proof for key, proof in claims]


def _entries(connection: Connection, places: Iterable[tuple[int, int]]) -> dict[tuple[int, int], Proof]:
    """The records at offsets of queues, as proofs. Uses queue_run_offset and commit_log_pkey."""
    wanted = given({"queue_key": Integer(), "queue_offset": BigInteger()}, places)
    past = func.least(wanted.c.queue_offset, LAST_OFFSET - 1) + 1
    entry = entries(wanted.c.queue_key, wanted.c.queue_offset, past)
    columns = commit_log.c.msg_id, commit_log.c.store_time
    record = select(*columns).where(commit_log.c.log_pos == entry.c.log_pos).limit(1).lateral("record")
    rows = connection.execute(
        select(wanted, entry.c.log_pos, *record.c).select_from(wanted.join(entry, true()).join(record, true()))
    )
    return {(queue_key, offset): Proof(offset, *proof) for queue_key, offset, *proof in rows}
