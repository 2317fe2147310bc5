"""Proof: what a client keeps with a position, to find out later whether it still has the same log.

The proof of a position is the message before it. Entries of a queue are written in order and never changed, and a
database that is set back keeps everything written before that point. So if the same record is at the same offset and
log position, all earlier messages are equal, too. A newer message has another unique id, even if both numbers repeat.
A copy, such as a delayed message that is delivered again, has the id of its original but another store time. Kafka
compares the leader epoch of that entry (KIP-320).
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from mqdb.common.received_message import ReceivedMessage

#: The number of proofs that a client keeps for one queue.
MOST_PROOFS: Final = 16


class Proof(NamedTuple):
    """The message at an offset of a queue. The message proves the position after it."""

    queue_offset: int
    log_pos: int
    msg_id: UUID
    store_time: datetime


def place_of(message: ReceivedMessage) -> tuple[int, int, str, datetime]:
    """The values from which `proof` is made.

    The values cost less than the proof, and do not keep the message in memory.
    """
    return message.queue_offset, message.log_pos, message.message_id, message.store_time


def proof(queue_offset: int, log_pos: int, message_id: str, store_time: datetime) -> Proof:
    """The proof of the position after a message."""
    return Proof(queue_offset, log_pos, UUID(message_id), store_time)


class KeptPosition(NamedTuple):
    """The next offset of a queue, with proofs of it and of older offsets, ascending.

    The offset itself may lack a proof.
    """

    next_offset: int
    proofs: tuple[Proof, ...] = ()


def thinned(proofs: Sequence[Proof]) -> tuple[Proof, ...]:
    """At most MOST_PROOFS of these ascending proofs: the first, the last, and in between more of the newer proofs.

    So a client rereads little if its log was set back a little, and still has a proof if the log was set back far.
    """
    kept = list(proofs)
    while len(kept) > MOST_PROOFS:
        last = kept[-1].queue_offset
        offsets = [proof.queue_offset for proof in kept]
        # Remove the proof whose neighbours are nearest to each other, relative to how far back they are.
        shares = [(after - before) / (last - before) for before, after in zip(offsets, offsets[2:], strict=False)]
        del kept[shares.index(min(shares)) + 1]
    return tuple(kept)
