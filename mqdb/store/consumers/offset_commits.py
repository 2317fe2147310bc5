"""Offset commits of consumers that commit often: one row per commit.

An exactly-once consumer commits a row in its listener's transaction, together with the listener's writes. A polling
consumer commits one row for each queue that has advanced (`poll_commits`). The owner of the queue merges the rows into
`consumer_offset` every few seconds, and the next owner merges the rest. So a group has consumed up to its row in
`consumer_offset` or the end of its newest row here, whichever is later.

Rows are appended instead of updating one row, because while any session of the database holds an old snapshot, each
update makes the next update slower.

Two transactions never consume the same message. An append takes a share lock on the row of `consumer_offset`, which
must have its owner and epoch; a session that takes the queue first updates this row. One of the two sessions waits for
the other, and under READ COMMITTED the waiting session sees the other's changes, so there is no write skew. In
addition, an append starts at or after the end of all stored commits, and no two appends start at the same message. In
SQL: `mqdb/sql/consumers/take_offset_commits.sql`.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.types.numeric import Int8
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    exists,
    func,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.selectable import TableValuedAlias

from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb.store.engine import text_of
from mqdb.store.fragments import OWNED_QUEUE, array_of, given, group_id
from mqdb.store.log.history import History, is_current
from mqdb.store.tables import consumer_offset, offset_commit


class OffsetCommit(NamedTuple):
    """Messages of one queue, under one epoch of its owner.

    They are all messages of the queue that pass the group's filter, from `from_offset`, the first of them, to before
    `next_offset`. `history` is the history of the log in which they were found; None means any history.
    """

    queue_key: int
    epoch: int
    from_offset: int
    next_offset: int
    segment: int
    history: History | None = None


#: A setting that marks the transaction given to a listener, and disappears when the listener ends it.
MARK: Final = "SET LOCAL mqdb.listener = 'on'"

_NO_FLOORS: Final[Mapping[int, int]] = {}

#: SQLSTATE of `mqdb/sql/consumers/refuse_commit.sql`.
NOT_OWNED: Final = "MQ402"


def append(
    connection: "psycopg.Connection[Any]", group: str, owner: str, commit: OffsetCommit, *, is_marked: bool
) -> None:
    """Commit in the open transaction, as its last statement: the lock lasts until the transaction ends.

    Uses subscription_group_group_name_key and consumer_offset_pkey.

    Raises psycopg's errors: NOT_OWNED if the owner does not have the queue under this epoch, messages from
    `from_offset` on are already consumed, or the log has another history; the error of TransactionEnded if the
    transaction should be marked but is not; UniqueViolation if another transaction has just consumed these messages.
    """
    connection.execute(_INDEXES_ONLY)
    # Int8: otherwise psycopg takes the smallest type for each number, and prepares a statement for each.
    values: dict[str, Any] = {name: Int8(value) for name, value in commit._asdict().items() if value is not None}
    values |= {"group": group, "owner": owner}
    values.setdefault("history", None)
    connection.execute(_append_text(is_marked=is_marked), values, prepare=True)


def lock(connection: Connection, group: str, owned: Sequence[OwnedQueue]) -> dict[int, int]:
    """Lock the `consumer_offset` rows of those queues whose epoch and history are unchanged, in preparation for `fold`.

    Returns their stored offsets by key. Waits for transactions that are being committed.
    """
    own = given(OWNED_QUEUE, owned)
    mine = (
        select(consumer_offset.c.queue_key, consumer_offset.c.next_offset)
        .join(own, _is_same(own))
        .where(consumer_offset.c.group_id == group_id(group), is_current(own.c.history))
        .order_by(consumer_offset.c.queue_key)
        .with_for_update(of=consumer_offset, key_share=True)
    )
    return {row.queue_key: row.next_offset for row in connection.execute(mine)}


def fold(
    connection: Connection, group: str, owned: Sequence[OwnedQueue], floors: Mapping[int, int] = _NO_FLOORS
) -> list[OwnedQueue]:
    """Move the group forward to the given offsets, or to later commits here; returns the new offsets.

    The caller has locked the rows in `consumer_offset` by an earlier statement, because this statement has to see all
    commits up to that lock. `floors` are the stored offsets by queue. The rows below them are already merged (and dead,
    while a session holds an old snapshot) or were passed by other consumers. Without queues the result is empty.
    """
    if not owned:
        return []
    new = given(OWNED_QUEUE, owned)
    taken = _taken(group, {queue.queue_key: floors.get(queue.queue_key, 0) for queue in owned}).cte("taken")
    newest = {
        name: select(taken.c[name]).where(taken.c.queue_key == new.c.queue_key).scalar_subquery()
        for name in ("next_offset", "segment")
    }
    stored = consumer_offset.c
    moved = (
        update(consumer_offset)
        .where(stored.group_id == group_id(group), _is_same(new))
        .values(
            next_offset=func.greatest(stored.next_offset, new.c.next_offset, newest["next_offset"]),
            segment=func.greatest(stored.segment, new.c.segment, newest["segment"]),
            updated_at=func.mqdb.now(),
        )
    )
    rows = connection.execute(moved.returning(stored.queue_key, stored.epoch, stored.next_offset, stored.segment))
    return sorted(OwnedQueue(*row) for row in rows)


def fold_taken(connection: Connection, group: str, taken: Sequence[OwnedQueue]) -> list[OwnedQueue]:
    """Merge the commits of queues that were taken in this transaction; most queues have no commits in this table.

    There is no floor: rows below the stored offset are from a killed member, and are deleted.
    """
    if not taken:
        return []
    wanted = given({"queue_key": Integer()}, [(queue.queue_key,) for queue in taken])
    its_rows = offset_commit.c.group_id == group_id(group), offset_commit.c.queue_key == wanted.c.queue_key
    has_some = set(connection.scalars(select(wanted.c.queue_key).where(exists().where(*its_rows))))
    folding = [queue for queue in taken if queue.queue_key in has_some]
    folded = {queue.queue_key: queue for queue in fold(connection, group, folding)}
    return [folded.get(queue.queue_key, queue) for queue in taken]


def take(connection: Connection, group: str, floors: Mapping[int, int]) -> None:
    """Delete the commits of queues, from the offsets in `floors` on."""
    connection.execute(_taken(group, floors))


def _taken(group: str, floors: Mapping[int, int]) -> Select[Any]:
    """Delete commits; returns queue_key, next_offset and segment of the last commit of each queue."""
    lowest = cast(list(floors.values()), ARRAY(BigInteger))
    call = func.mqdb.take_offset_commits(group, array_of(list(floors)), lowest)
    return select(call.table_valued("queue_key", "next_offset", "segment", name="gone"))


def _is_same(own: TableValuedAlias) -> ColumnElement[bool]:
    return and_(consumer_offset.c.queue_key == own.c.queue_key, consumer_offset.c.epoch == own.c.epoch)


@cache
def _append_text(*, is_marked: bool) -> str:
    """The statement that appends a commit.

    The statement raises an error for a queue that is not owned, and for a missing mark. An error is needed because
    COMMIT has already been sent, and must find a failed transaction.
    """
    *columns, history = OffsetCommit._fields
    commit = {name: cast(bindparam(name), offset_commit.c[name].type) for name in columns}
    owned = (
        select(consumer_offset.c.group_id)
        .where(
            consumer_offset.c.group_id == group_id(cast(bindparam("group"), Text)),
            consumer_offset.c.queue_key == commit["queue_key"],
            consumer_offset.c.owner == cast(bindparam("owner"), Text),
            consumer_offset.c.epoch == commit["epoch"],
            consumer_offset.c.next_offset <= commit["from_offset"],
            is_current(cast(bindparam(history), BigInteger)),
        )
        .with_for_update(read=True)
        .scalar_subquery()
    )
    named = cast(bindparam("group"), Text), commit["queue_key"], commit["epoch"]
    refused = func.mqdb.refuse_commit(*named, type_=Integer())
    values: dict[str, ColumnElement[Any]] = {"group_id": func.coalesce(owned, refused), **commit}
    if is_marked:
        mark = func.current_setting(literal_column("'mqdb.listener'"), literal_column("true"))
        unmarked = func.mqdb.refuse_unmarked_commit(type_=BigInteger())
        values["epoch"] = case((mark == literal_column("'on'"), commit["epoch"]), else_=unmarked)
    return text_of(insert(offset_commit).inline().values(values))


# In listeners' sessions the planner is not restricted. It would read all of `consumer_offset` while it is small, even
# when a held snapshot has filled it with dead rows. Costs are meaningless then, so nothing is compiled.
_INDEXES_ONLY: Final = "SELECT set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true)"
