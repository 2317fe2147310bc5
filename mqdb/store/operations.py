"""Operations: what people and tools have changed, and who they are. Rows are added, and go with their retention.

A verb that changes something notes it in its own transaction. What services and clients do by themselves is none: an
automatic topic, a commit, the firing of a cron. RocketMQ: the audit log of ACL 2.0.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple

from sqlalchemy import BigInteger, Connection, Text, any_, bindparam, cast, delete, func, or_, select
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.types import TypeEngine

from mqdb.store.engine import translates
from mqdb.store.fragments import full_group, full_topic
from mqdb.store.tables import operation


class Verb(StrEnum):
    """What was done."""

    TOPIC_CREATE = "topic.create"
    TOPIC_UPDATE = "topic.update"
    TOPIC_DELETE = "topic.delete"
    GROUP_UPDATE = "group.update"
    GROUP_DELETE = "group.delete"
    OFFSET_RESET = "offset.reset"
    OFFSET_CLONE = "offset.clone"
    ACL_GRANT = "acl.grant"
    ACL_REVOKE = "acl.revoke"
    CONSUMER_CONSUME = "consumer.consume"
    DELAY_SKIP = "delay.skip"
    CRON_ADD = "cron.add"
    CRON_PAUSE = "cron.pause"
    CRON_RESUME = "cron.resume"
    CRON_REMOVE = "cron.remove"
    TRANSACTION_RESOLVE = "transaction.resolve"
    #: By mqdb/sql/recall.sql.
    TIMER_RECALL = "timer.recall"
    #: By mqdb/sql/dlq_redrive.sql.
    DLQ_REDRIVE = "dlq.redrive"


class Operation(NamedTuple):
    """A change, and who has made it: a row of mqdb.operation."""

    operation_id: int
    occurred_at: datetime
    principal: str
    """The role that was logged in."""
    actor: str | None
    """The person or program behind it, as the caller has said."""
    verb: str
    topics: list[str]
    groups: list[str]
    object: str | None
    """What else it was about: the name of a cron, the id of a message, a delay level."""
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    records: int
    """How many messages, or rows of settings and offsets, it has changed."""
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
    """Note a change in the caller's transaction. Raises ParameterInvalid for an `actor` above 255 characters."""
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
    actor: str | None = None,
    since: datetime | timedelta | None = None,
    before: int | None = None,
    limit: int = 100,
) -> list[Operation]:
    """The youngest first, `limit` at most: those about a topic and a group, of an actor or a role, since a moment.

    A timedelta is how long ago by the broker's clock. With `before` those with a lower id.
    """
    columns = operation.c
    wanted = select(*(columns[name] for name in Operation._fields))
    if topic is not None:
        wanted = wanted.where(full_topic(topic) == any_(columns.topics))
    if group is not None:
        wanted = wanted.where(full_group(group) == any_(columns.groups))
    if actor is not None:
        wanted = wanted.where(or_(columns.actor == actor, columns.principal == actor))
    if since is not None:
        first = since if isinstance(since, datetime) else select(func.mqdb.now() - since).scalar_subquery()
        wanted = wanted.where(columns.occurred_at >= first)
    if before is not None:
        wanted = wanted.where(columns.operation_id < before)
    rows = connection.execute(wanted.order_by(columns.operation_id.desc()).limit(limit))
    return [Operation(*row) for row in rows]


def prune(connection: Connection, kept: timedelta) -> int:
    """Forget what is older; returns how many there were. Uses operation_occurred_at."""
    return connection.execute(delete(operation).where(operation.c.occurred_at < func.mqdb.now() - kept)).rowcount
