"""Proofs: whether a client may continue at a position that it keeps itself, and if not, the position to continue from.

RocketMQ has no counterpart. Kafka: OffsetsForLeaderEpoch (KIP-320).
"""

from collections.abc import Mapping

from sqlalchemy import Connection

from mqdb.common.proof import KeptPosition, Proof
from mqdb.store.dispatch import queues
from mqdb.store.engine import translates
from mqdb.store.log import history as histories
from mqdb.store.log import proofs
from mqdb.store.log.history import History


@translates
def prove(connection: Connection, positions: Mapping[int, int], history: History | None) -> dict[int, Proof] | None:
    """The proofs of positions, by the keys of their queues. Returns None if the log has another history by now."""
    found = proofs.find(connection, positions)
    # Checked afterwards: if the history is the same then, it was the same before.
    return found if histories.find(connection) == history else None


@translates
def proven(connection: Connection, claims: Mapping[int, Proof]) -> set[int]:
    """The keys of the queues whose proof matches the log."""
    hold = proofs.holding(connection, list(claims.items()))
    return {key for key, holds in zip(claims, hold, strict=True) if holds}


@translates
def last_proven(connection: Connection, kept: Mapping[int, KeptPosition]) -> dict[int, KeptPosition]:
    """The last position that the log proves, for each queue by key, with the proofs that match the log.

    A position at the min offset of its queue, or below it, needs no proof. If the log proves nothing about a queue, the
    position is the min offset: every message in the log may be new. Queues that do not exist are left out.
    """
    claims = [(key, proof) for key, position in kept.items() for proof in position.proofs]
    ends = queues.ends(connection, list(kept))
    hold = proofs.holding(connection, claims)
    held = {key: [p for (k, p), holds in zip(claims, hold, strict=True) if holds and k == key] for key in ends}
    return {key: _go_on(kept[key].next_offset, tuple(held[key]), end.min_offset) for key, end in ends.items()}


def _go_on(next_offset: int, held: tuple[Proof, ...], min_offset: int) -> KeptPosition:
    if next_offset <= min_offset or not held:
        return KeptPosition(min(next_offset, min_offset), held)
    return KeptPosition(held[-1].queue_offset + 1, held)
