"""Uses of a topic that are not deleted with its row: crons, waiting messages, open half messages.

In SQL: `mqdb/sql/acl/administer.sql`.
"""

from typing import NamedTuple

from sqlalchemy import BigInteger, Boolean, Connection, Text, cast, column, func, select
from sqlalchemy.dialects.postgresql import ARRAY


class TopicUses(NamedTuple):
    """The uses of a topic."""

    crons: tuple[str, ...]
    """The names of recurring sends."""
    scheduled: int
    """The number of messages waiting for delivery to the topic, by a delay level or at their own time."""
    half_messages: int
    """The number of half messages in state PREPARED: neither ended nor given up."""


def find(connection: Connection, topic: str) -> TopicUses:
    """The dispatched uses of the topic. This reads all waiting messages of all topics."""
    columns = column("crons", ARRAY(Text)), column("scheduled", BigInteger), column("half_messages", BigInteger)
    uses = func.mqdb.topic_uses(cast(topic, Text)).table_valued(*columns).render_derived("uses")
    crons, *counts = connection.execute(select(uses)).one()
    return TopicUses(tuple(crons), *counts)


def delete_topic(connection: Connection, topic: str, force: bool, actor: str | None) -> tuple[bool, TopicUses] | None:
    """Delete a topic and record it; returns whether it was deleted, and its uses; None if the topic does not exist.

    The topic is not deleted while it is in use, except with `force`: then crons are removed, half messages rolled back,
    and waiting messages never delivered.
    """
    arguments = cast(topic, Text), force, cast(actor, Text)
    columns = (
        column("was_deleted", Boolean),
        column("crons", ARRAY(Text)),
        column("scheduled", BigInteger),
        column("half_messages", BigInteger),
    )
    deleted = func.mqdb.delete_topic(*arguments).table_valued(*columns).render_derived("deleted")
    was_deleted, crons, *counts = connection.execute(select(deleted)).one()
    return None if was_deleted is None else (was_deleted, TopicUses(tuple(crons), *counts))
