"""Consumer offsets: how far a group has read each queue, and which member owns the queue.

The committed offset is the next offset to read. Each new owner raises the epoch, and every write by an owner includes
its epoch, so late writes by an old owner match no row. Reading the epoch first and writing afterwards would allow write
skew, so each change is one UPDATE. RocketMQ: ConsumerOffsetManager, RebalanceLockManager. In SQL:
`mqdb/sql/consumers/next_epoch.sql`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    ScalarSelect,
    and_,
    case,
    cast,
    exists,
    func,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.sql import FromClause

from mqdb.common.group import ConsumeFromWhere, StartingPoint
from mqdb.store.dispatch.queues import max_offset
from mqdb.store.engine import translates
from mqdb.store.fragments import OWNED_QUEUE, array_of, given, group_id
from mqdb.store.log.history import History, is_current
from mqdb.store.log.time_search import offsets_of_time
from mqdb.store.tables import client, consumer_offset, offset_commit, queue, subscription_group


class OwnedQueue(NamedTuple):
    """A queue that a member owns under an epoch, and the offset at which to continue.

    `history` is the history of the log in which the offset was found; None means any history.
    """

    queue_key: int
    epoch: int
    next_offset: int
    segment: int
    history: History | None = None


def begin(
    connection: Connection,
    group: str,
    queue_keys: Sequence[int],
    start: StartingPoint,
) -> None:
    """Give the group an offset in each queue of the topics of these queues, unless it already has one there.

    Only a group that is new to the topic starts at `start`, in all queues at once. A queue that is added to the topic
    is read from its min offset: the group already existed, and messages that arrived before it noticed the queue must
    not be lost. Commits by readers that do not own their queues do not count: a group with only such commits is new.
    """
    sibling = queue.alias("sibling")
    wanted = queue.alias("wanted")
    knows_topic = exists(
        select(consumer_offset.c.queue_key)
        .join(sibling, sibling.c.queue_key == consumer_offset.c.queue_key)
        .where(
            consumer_offset.c.group_id == group_id(group),
            consumer_offset.c.begun,
            sibling.c.topic_id == queue.c.topic_id,
        )
    )
    is_of_topics = queue.c.topic_id.in_(
        select(wanted.c.topic_id).where(wanted.c.queue_key == func.any(array_of(queue_keys)))
    )
    offset: ColumnElement[int] = queue.c.base_offset
    if start.where is ConsumeFromWhere.LAST_OFFSET:
        offset = max_offset()
    elif start.where is None:
        where = select(subscription_group.c.consume_from_where).where(subscription_group.c.group_id == group_id(group))
        is_last = where.scalar_subquery() == ConsumeFromWhere.LAST_OFFSET
        offset = case((is_last, max_offset()), else_=offset)
    elif start.where is ConsumeFromWhere.TIMESTAMP and start.time is not None:
        new = connection.scalars(select(queue.c.queue_key).where(is_of_topics, ~knows_topic)).all()
        offset = func.coalesce(_one_of(offsets_of_time(connection, new, start.time)), offset)
    rows = (
        select(group_id(group), queue.c.queue_key, case((knows_topic, queue.c.base_offset), else_=offset))
        .where(is_of_topics)
        .order_by(queue.c.queue_key)  # concurrent members that do this wait for each other without a deadlock
    )
    connection.execute(
        insert(consumer_offset).from_select(["group_id", "queue_key", "next_offset"], rows).on_conflict_do_nothing()
    )


def begin_at(connection: Connection, group: str, offsets: Mapping[int, int]) -> None:
    """Give the group these offsets, by keys of existing queues, unless it already has offsets there."""
    wanted = given({"queue_key": Integer(), "next_offset": BigInteger()}, sorted(offsets.items()))
    rows = select(group_id(group), queue.c.queue_key, wanted.c.next_offset).join_from(
        wanted, queue, queue.c.queue_key == wanted.c.queue_key
    )
    columns = ["group_id", "queue_key", "next_offset"]
    ordered = rows.order_by(queue.c.queue_key)  # as in `begin`
    connection.execute(insert(consumer_offset).from_select(columns, ordered).on_conflict_do_nothing())


def _one_of(offsets: Mapping[int, int]) -> ScalarSelect[int]:
    """The offset given for the row's queue; NULL if no offset is given."""
    arrays = cast(list(offsets), ARRAY(Integer)), cast(list(offsets.values()), ARRAY(BigInteger))
    found = func.unnest(*arrays).table_valued("queue_key", "start", name="found").render_derived()
    its_start = select(cast(found.c.start, BigInteger)).where(cast(found.c.queue_key, Integer) == queue.c.queue_key)
    return its_start.correlate(queue).scalar_subquery()


def take(
    connection: Connection, group: str, client_id: str, queue_keys: Sequence[int], force: bool
) -> list[OwnedQueue]:
    """Claim the queues that have no owner or whose owner is no longer a member; with `force`, all queues.

    The result is sorted by key.

    Rows that another session is changing, and queues of a popping group, are left out.
    """
    # The consume mode does not change until the transaction ends.
    its_row = select(subscription_group.c.group_id).where(subscription_group.c.group_name == group)
    connection.execute(its_row.with_for_update(read=True))
    is_member = exists().where(
        client.c.client_id == consumer_offset.c.owner, client.c.group_name == group, client.c.kind == "CONSUMER"
    )
    is_free: ColumnElement[bool] = or_(
        consumer_offset.c.owner.is_(None), consumer_offset.c.owner == client_id, ~is_member
    )
    wanted = and_(
        consumer_offset.c.group_id == group_id(group),
        consumer_offset.c.queue_key == func.any(array_of(queue_keys)),
        exists().where(
            subscription_group.c.group_id == consumer_offset.c.group_id, subscription_group.c.consume_mode == "PULL"
        ),
    )
    chosen = select(consumer_offset.c.queue_key).where(wanted if force else and_(wanted, is_free))
    rows = connection.execute(
        update(consumer_offset)
        .where(
            consumer_offset.c.group_id == group_id(group),
            consumer_offset.c.queue_key.in_(chosen.with_for_update(skip_locked=True)),
        )
        .values(
            owner=client_id,
            epoch=func.mqdb.next_epoch(consumer_offset.c.epoch),
            begun=true(),
            updated_at=func.mqdb.now(),
        )
        .returning(
            consumer_offset.c.queue_key,
            consumer_offset.c.epoch,
            consumer_offset.c.next_offset,
            consumer_offset.c.segment,
        )
    )
    return sorted(OwnedQueue(*row) for row in rows)


def commit(
    connection: Connection, group: str, owned: Sequence[OwnedQueue], *, may_go_back: bool = False
) -> list[OwnedQueue]:
    """Move the group forward in queues that the caller owns; a smaller offset is ignored unless it may move back.

    Returns the queues that were lost: they have a newer epoch, or the log has another history.
    """
    own = given(OWNED_QUEUE, owned)
    stored = consumer_offset.c
    changed = (
        update(consumer_offset)
        .where(_is_owned(group, own))
        .values(
            next_offset=own.c.next_offset if may_go_back else func.greatest(stored.next_offset, own.c.next_offset),
            segment=own.c.segment if may_go_back else func.greatest(stored.segment, own.c.segment),
            updated_at=func.mqdb.now(),
        )
    )
    # Also by the epoch: a queue may be lost under one epoch and be the caller's again under the next. A database that
    # was set back uses the same epoch again.
    done = {tuple(row) for row in connection.execute(changed.returning(stored.queue_key, stored.epoch, own.c.history))}
    return [queue for queue in owned if (queue.queue_key, queue.epoch, queue.history) not in done]


def release(connection: Connection, group: str, owned: Sequence[OwnedQueue]) -> set[int]:
    """Give back the queues that the caller still owns; returns their keys."""
    own = given(OWNED_QUEUE, owned)
    changed = update(consumer_offset).where(_is_owned(group, own)).values(owner=None, updated_at=func.mqdb.now())
    return set(connection.scalars(changed.returning(consumer_offset.c.queue_key)))


def _is_owned(group: str, own: FromClause) -> ColumnElement[bool]:
    """Whether a row still has the epoch of `own`, in the same history of the log."""
    return and_(
        consumer_offset.c.group_id == group_id(group),
        consumer_offset.c.queue_key == own.c.queue_key,
        consumer_offset.c.epoch == own.c.epoch,
        is_current(own.c.history),
    )


@translates
def owned_epochs(connection: Connection, group: str, client_id: str) -> dict[int, int]:
    """The queues that a member owns, with their epochs."""
    # One row, because there may be thousands of queues.
    columns = func.array_agg(consumer_offset.c.queue_key), func.array_agg(consumer_offset.c.epoch)
    keys, epochs = connection.execute(
        select(*columns).where(consumer_offset.c.group_id == group_id(group), consumer_offset.c.owner == client_id)
    ).one()
    return dict(zip(keys or (), epochs or (), strict=True))


@translates
def owners(connection: Connection, group: str, queue_keys: Sequence[int]) -> dict[int, tuple[str | None, int]]:
    """The owner and the epoch of each of the queues in which the group has an offset."""
    columns = consumer_offset.c.queue_key, consumer_offset.c.owner, consumer_offset.c.epoch
    rows = connection.execute(
        select(*columns).where(
            consumer_offset.c.group_id == group_id(group), consumer_offset.c.queue_key == func.any(array_of(queue_keys))
        )
    )
    return {row.queue_key: (row.owner, row.epoch) for row in rows}


@translates
def committed_offsets(connection: Connection, group: str, queue_keys: Sequence[int]) -> dict[int, int]:
    """The next offset of a group in each of the queues that it has read."""
    rows = connection.execute(
        select(consumer_offset.c.queue_key, effective_offset().label("next_offset")).where(
            consumer_offset.c.group_id == group_id(group), consumer_offset.c.queue_key == func.any(array_of(queue_keys))
        )
    )
    return {row.queue_key: row.next_offset for row in rows}


def effective_offset() -> ColumnElement[int]:
    """The offset up to which the group has consumed, for a select from `consumer_offset`. Uses offset_commit_pkey.

    This is the offset of the row, or that of a later commit not yet merged into the row.
    """
    newest = (
        select(offset_commit.c.next_offset)
        .where(
            offset_commit.c.group_id == consumer_offset.c.group_id,
            offset_commit.c.queue_key == consumer_offset.c.queue_key,
            # Rows from here on are not merged yet; merged rows below may still be in the index.
            offset_commit.c.from_offset >= consumer_offset.c.next_offset,
        )
        .order_by(offset_commit.c.from_offset.desc())
        .limit(1)
        .correlate(consumer_offset)
        .scalar_subquery()
    )
    return func.greatest(consumer_offset.c.next_offset, newest)
