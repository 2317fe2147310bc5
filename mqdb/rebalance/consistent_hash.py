"""A consistent hash: when a member joins or leaves, only the queues that it gets or had are moved."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from hashlib import md5
from typing import Final

from mqdb.rebalance.strategy import T

#: Number of positions of each member on the ring; more positions make the shares more even.
#: Source: AllocateMessageQueueConsistentHash.
VIRTUAL_NODES: Final = 10


def allocate_by_consistent_hash(group: str, client_id: str, queues: Sequence[T], client_ids: Sequence[str]) -> list[T]:
    """The queues whose text, `str(queue)`, hashes to a position on the ring just before one of the member's positions.

    Shares are uneven, and some may be empty. Source: AllocateMessageQueueConsistentHash, ConsistentHashRouter.
    """
    if client_id not in client_ids:
        return []
    ring = _ring(client_ids)
    places = sorted(ring)
    return [queue for queue in sorted(queues) if ring[_first_at_or_after(_hash(str(queue)), places)] == client_id]


def _ring(client_ids: Iterable[str]) -> dict[int, str]:
    """The member at each position.

    If two members have the same position, it goes to the last of them in order, so that all members see the same ring.
    """
    return {_hash(f"{member}-{number}"): member for member in sorted(client_ids) for number in range(VIRTUAL_NODES)}


def _first_at_or_after(place: int, places: Sequence[int]) -> int:
    return places[bisect_left(places, place) % len(places)]


def _hash(key: str) -> int:
    """Source: ConsistentHashRouter.MD5Hash."""
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest()[:4], "big")
