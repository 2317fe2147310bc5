"""Poll commits: offsets of a polling consumer, appended to `offset_commit` by each commit that moves forward.

A commit is one statement and one round trip. The commit takes a share lock on the rows of `consumer_offset`, which must
have its epochs: a session that takes a queue or sets its offset first updates that row. A commit that moves back is
rare, and sets the row itself, as merging does.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from sqlalchemy import BigInteger, Connection, Integer, Text, and_, bindparam, cast, func, select, update
from sqlalchemy.dialects.postgresql import ARRAY, insert

from mqdb.store.consumers import offset_commits
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb.store.consumers.offset_commits import OffsetCommit
from mqdb.store.engine import driver
from mqdb.store.fragments import OWNED_QUEUE, given, group_id
from mqdb.store.log.history import is_current
from mqdb.store.prepared import PreparedStatement
from mqdb.store.tables import consumer_offset, offset_commit

_BIG: Final = BigInteger()
#: The fields of OffsetCommit.
_COMMIT: Final = {
    "queue_key": Integer(),
    "epoch": _BIG,
    "from_offset": _BIG,
    "next_offset": _BIG,
    "segment": Integer(),
    "history": _BIG,
}
_KEPT: Final = ("queue_key", "epoch", "from_offset", "next_offset", "segment")


def append(connection: Connection, group: str, commits: Sequence[OffsetCommit]) -> set[int]:
    """Commit on queues that the caller owns, each from the end of its last commit; returns their keys.

    Queues with a newer epoch, or from another history of the log, are left out. Uses subscription_group_group_name_key
    and consumer_offset_pkey.
    """
    columns = map(list, zip(*commits, strict=True))
    return {key for (key,) in append_statement().run(driver(connection), [group, *columns])}


@cache
def append_statement() -> PreparedStatement:
    arrays = (bindparam(name, type_=ARRAY(type_)) for name, type_ in _COMMIT.items())
    new = func.unnest(*arrays).table_valued(*_COMMIT, name="new").render_derived("new")
    mine = (
        select(consumer_offset.c.group_id, *(cast(new.c[name], _COMMIT[name]).label(name) for name in _KEPT))
        .join_from(new, consumer_offset, consumer_offset.c.queue_key == cast(new.c.queue_key, Integer))
        .where(
            consumer_offset.c.group_id == group_id(bindparam("group", type_=Text)),
            consumer_offset.c.epoch == cast(new.c.epoch, BigInteger),
            is_current(cast(new.c.history, BigInteger)),
        )
        .order_by(consumer_offset.c.queue_key)
        .with_for_update(read=True, of=consumer_offset)
        .cte("mine")
    )
    rows = insert(offset_commit).from_select(["group_id", *_KEPT], select(mine.c.group_id, *(mine.c[n] for n in _KEPT)))
    appended = rows.on_conflict_do_nothing().returning(offset_commit.c.queue_key)
    return PreparedStatement(appended, ["group", *OffsetCommit._fields])


def settle(
    connection: Connection, group: str, owned: Sequence[OwnedQueue], floors: Mapping[int, int]
) -> list[OwnedQueue]:
    """Set the offsets of queues that the caller owns, forward or back, replacing all appended commits.

    This is one transaction. `floors` are the stored offsets by queue, if known: no valid commit is below them.
    Returns the queues that were lost: they have a newer epoch, or the log has another history.
    """
    own = given(OWNED_QUEUE, owned)
    stored = consumer_offset.c
    is_mine = and_(
        stored.group_id == group_id(group),
        stored.queue_key == own.c.queue_key,
        stored.epoch == own.c.epoch,
        is_current(own.c.history),
    )
    moved = (
        update(consumer_offset)
        .where(is_mine)
        .values(next_offset=own.c.next_offset, segment=own.c.segment, updated_at=func.mqdb.now())
        .returning(stored.queue_key, stored.epoch, own.c.history)
    )
    done = {tuple(row) for row in connection.execute(moved)}
    offset_commits.take(connection, group, {key: floors.get(key, 0) for key, _, _ in done})
    return [queue for queue in owned if (queue.queue_key, queue.epoch, queue.history) not in done]
