"""The advisory locks of mqdb, all in one place, so that no two mean the same thing.

Locks of services are pairs (LOCK_CLASS, number); SQL writes the class as 1836147810. Dispatch and the key
index take theirs in `mqdb.begin_batch`, as (LOCK_CLASS, hashtext(service)), for one transaction each.
A redrive takes its own in `mqdb.dlq_redrive`, as (LOCK_CLASS, hashtext('redrive')).
The presence of a client is a lock of a session on one 64-bit number, `presence_key` of its client id.
"""

from typing import Final

from sqlalchemy import ColumnElement, Connection, bindparam, case, func, select

LOCK_CLASS: Final = int.from_bytes(b"mqdb")

#: Held by a transaction that migrates.
MIGRATION: Final = 0

#: Held by the session of the leader of the services.
LEADER: Final = 1

#: Held by a transaction that delivers delayed messages.
DELAY: Final = 2

#: Held by a transaction that delivers timers, or takes one back: SQL writes 3.
TIMER: Final = 3

#: Held by a transaction that looks after half messages.
TRANSACTION: Final = 4

#: Held by the session that archives segments.
ARCHIVE: Final = 5


def take_durably(connection: Connection, number: int) -> bool:
    """Take a service's lock until the end of the transaction; False while another session has it.

    The transaction then commits durably, whatever the session has chosen: a step that is lost would be taken twice.
    """
    name = "synchronous_commit"
    is_lax = func.current_setting(name).in_(["off", "local", "remote_write"])
    durable = case((is_lax, func.set_config(name, "on", True)))
    is_mine = func.pg_try_advisory_xact_lock(LOCK_CLASS, number)
    return bool(connection.execute(select(is_mine, durable)).scalar_one())


def presence_key(client_id: ColumnElement[str] | str) -> ColumnElement[int]:
    """The number that stands for a client; two clients share one with a chance of 1 in 2^64."""
    return func.hashtextextended(func.concat("mqdb.client:", client_id), bindparam("presence_seed", 0))
