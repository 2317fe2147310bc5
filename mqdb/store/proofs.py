"""Proofs: what a client keeps with a position, to find out later whether the log is still the one that it was found in.

The proof of a position is the message before it. Entries of a queue are written in order and never changed, and a
database that goes back keeps what was written before. So if the same message stands at the same offset and log
position, everything before it is the same too. A newer message has another unique id, even if both numbers repeat.
Kafka compares the leader epoch of that entry (KIP-320).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import BigInteger, Connection, Integer, select, true

from mqdb.store.fragments import given
from mqdb.store.tables import commit_log, consume_queue


class Proof(NamedTuple):
    """The message at an offset of a queue. It proves the position behind it."""

    queue_offset: int
    log_pos: int
    msg_id: UUID


def find(connection: Connection, positions: Mapping[int, int]) -> dict[int, Proof]:
    """The proofs of positions, which are next offsets by the keys of their queues.

    A queue is left out if no message stands before its position: it is the first one, or retention dropped it.
    """
    entries = _entries(connection, [(key, next_offset - 1) for key, next_offset in positions.items()])
    return {key: proof for (key, _), proof in entries.items()}


def holding(connection: Connection, claims: Sequence[tuple[int, Proof]]) -> list[bool]:
    """Whether the log holds what each claim says: the key of a queue, and a proof of a position there."""
    entries = _entries(connection, [(key, proof.queue_offset) for key, proof in claims])
    return [entries.get((key, proof.queue_offset)) == proof for key, proof in claims]


def _entries(connection: Connection, places: Iterable[tuple[int, int]]) -> dict[tuple[int, int], Proof]:
    """What stands at offsets of queues. Uses consume_queue_offset and commit_log_pkey."""
    wanted = given({"queue_key": Integer(), "queue_offset": BigInteger()}, places)
    entry = (
        select(consume_queue.c.log_pos)
        .where(consume_queue.c.queue_key == wanted.c.queue_key, consume_queue.c.queue_offset == wanted.c.queue_offset)
        .limit(1)
        .lateral("entry")
    )
    record = select(commit_log.c.msg_id).where(commit_log.c.log_pos == entry.c.log_pos).limit(1).lateral("record")
    rows = connection.execute(
        select(wanted, entry.c.log_pos, record.c.msg_id).select_from(wanted.join(entry, true()).join(record, true()))
    )
    return {(row.queue_key, row.queue_offset): Proof(row.queue_offset, row.log_pos, row.msg_id) for row in rows}
