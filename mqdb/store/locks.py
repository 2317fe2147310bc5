"""The advisory locks of mqdb, all in one place, so that no two mean the same thing.

Locks of services are pairs (LOCK_CLASS, number); SQL writes the class as 1836147810. Dispatch and the key
index take theirs in `mqdb.begin_batch`, as (LOCK_CLASS, hashtext(service)), for one transaction each.
A redrive takes its own in `mqdb.dlq_redrive`, as (LOCK_CLASS, hashtext('redrive')).
The presence of a client is a lock of a session on one 64-bit number, `presence_key` of its client id.
"""

from typing import Final

from sqlalchemy import ColumnElement, bindparam, func

LOCK_CLASS: Final = int.from_bytes(b"mqdb")

#: Held by a transaction that migrates.
MIGRATION: Final = 0

#: Held by the session of the leader of the services.
LEADER: Final = 1

#: Held by a transaction that delivers delayed messages.
DELAY: Final = 2


def presence_key(client_id: ColumnElement[str] | str) -> ColumnElement[int]:
    """The number that stands for a client; two clients share one with a chance of 1 in 2^64."""
    return func.hashtextextended(func.concat("mqdb.client:", client_id), bindparam("presence_seed", 0))
