"""Operations: changes by people and tools, with their authors.

Rows are only added, and removed when their retention time has passed.

A verb that changes something records it in its own transaction. Changes that services and clients make by themselves
are not operations: an automatic topic, a commit, the firing of a cron. RocketMQ: the audit log of ACL 2.0.
In SQL: `mqdb/sql/schedule/record_operation.sql`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Text,
    bindparam,
    cast,
    delete,
    func,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, array
from sqlalchemy.types import TypeEngine

from mqdb.common.unique_id import parse_unique_id
from mqdb.errors import ParameterInvalid
from mqdb.store.engine import translates
from mqdb.store.fragments import full_group, full_topic
from mqdb.store.tables import operation, redrive_result


class Verb(StrEnum):
    """The kinds of operations."""

    TOPIC_CREATE = "topic.create"
    TOPIC_UPDATE = "topic.update"
    TOPIC_DELETE = "topic.delete"
    GROUP_UPDATE = "group.update"
    GROUP_DELETE = "group.delete"
    OFFSET_RESET = "offset.reset"
    OFFSET_CLONE = "offset.clone"
    ACL_GRANT = "acl.grant"
    ACL_REVOKE = "acl.revoke"
    ACL_SECRET = "acl.secret"
    CONSUMER_CONSUME = "consumer.consume"
    DELAY_SKIP = "delay.skip"
    CRON_ADD = "cron.add"
    CRON_CHANGE = "cron.change"
    CRON_PAUSE = "cron.pause"
    CRON_RESUME = "cron.resume"
    CRON_REMOVE = "cron.remove"
    TRANSACTION_RESOLVE = "transaction.resolve"
    #: Recorded by mqdb/sql/schedule/recall.sql.
    TIMER_RECALL = "timer.recall"
    #: Recorded by mqdb/sql/dead_letters/dlq_redrive.sql.
    DLQ_REDRIVE = "dlq.redrive"


class Operation(NamedTuple):
    """A change and its author: a row of mqdb.operation."""

    operation_id: int
    occurred_at: datetime
    principal: str
    """The role that was logged in."""
    actor: str | None
    """The person or program behind it, as given by the caller."""
    verb: str
    topics: list[str]
    groups: list[str]
    object: str | None
    """Another object that the operation changed: the name of a cron, the id of a message, a delay level."""
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    records: int
    """The number of messages, or rows of settings and offsets, that it changed."""
    reason: str | None


_GIVEN: Final[dict[str, TypeEngine[Any]]] = {
    "verb": Text(),
    "topics": ARRAY(Text),
    "groups": ARRAY(Text),
    "object": Text(),
    "before": JSONB(none_as_null=True),
    "after": JSONB(none_as_null=True),
    "records": BigInteger(),
    "reason": Text(),
    "actor": Text(),
}
_RECORD: Final = select(
    func.mqdb.record_operation(*(cast(bindparam(name, type_=type_), type_) for name, type_ in _GIVEN.items()))
)


def record(
    connection: Connection,
    verb: Verb,
    actor: str | None,
    *,
    topics: Sequence[str] = (),
    groups: Sequence[str] = (),
    object: str | None = None,
    before: Mapping[str, object] | None = None,
    after: Mapping[str, object] | None = None,
    records: int = 1,
    reason: str = "",
) -> None:
    """Record a change in the caller's transaction.

    Raises ParameterInvalid for an `actor` longer than 255 characters.
    """
    connection.execute(
        _RECORD,
        {
            "verb": verb,
            "topics": list(topics),
            "groups": list(groups),
            "object": object,
            "before": before,
            "after": after,
            "records": records,
            "reason": reason,
            "actor": actor,
        },
    )


@translates
def list_operations(
    connection: Connection,
    *,
    topic: str | None = None,
    group: str | None = None,
    object: str | None = None,
    actor: str | None = None,
    since: datetime | timedelta | None = None,
    before: int | None = None,
    limit: int = 100,
) -> list[Operation]:
    """At most `limit` operations, newest first: those on a topic, group or object, by an actor or role, since a moment.

    A timedelta means how long ago by the broker's clock. With `before` only operations with a lower id. Uses
    operation_names for a topic and a group, operation_object and redrive_result_msg_id for an object.
    """
    columns = operation.c
    wanted = select(*(columns[name] for name in Operation._fields))
    age: ColumnElement[int] = columns.operation_id
    if topic is not None:
        wanted = wanted.where(columns.topics.contains(_array(full_topic(topic))))
    if group is not None:
        wanted = wanted.where(columns.groups.contains(_array(full_group(group))))
    if object is not None:
        wanted = wanted.where(columns.operation_id == func.any(_about(object)))
    if topic is not None or group is not None or object is not None:
        # No index has this order: for a rare name, PostgreSQL would read all operations to find the newest.
        age = age + 0
    if actor is not None:
        wanted = wanted.where(or_(columns.actor == actor, columns.principal == actor))
    if since is not None:
        first = since if isinstance(since, datetime) else select(func.mqdb.now() - since).scalar_subquery()
        wanted = wanted.where(columns.occurred_at >= first)
    if before is not None:
        wanted = wanted.where(columns.operation_id < before)
    rows = connection.execute(wanted.order_by(age.desc()).limit(limit))
    return [Operation(*row) for row in rows]


def _about(object: str) -> ColumnElement[Any]:
    """The ids of the operations on an object, including redrives if the object is the id of a message.

    The ids are an array, because the planner could reverse a join and read all operations.
    """
    named = operation.alias("named").c
    ids = select(named.operation_id).where(named.object == object)
    try:
        unique_id = parse_unique_id(object)
    except ParameterInvalid:
        return func.array(ids.scalar_subquery())
    redriven = select(redrive_result.c.operation_id).where(redrive_result.c.msg_id == unique_id)
    return func.array(ids.union_all(redriven).scalar_subquery())


def _array(name: ColumnElement[str]) -> ColumnElement[Any]:
    return cast(array([name]), ARRAY(Text))


def prune(connection: Connection, kept: timedelta) -> int:
    """Remove operations older than `kept`; returns their number. Uses operation_occurred_at."""
    return connection.execute(delete(operation).where(operation.c.occurred_at < func.mqdb.now() - kept)).rowcount
