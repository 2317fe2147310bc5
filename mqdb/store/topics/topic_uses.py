"""Uses of a topic that are not deleted with its row: crons, waiting messages, open half messages.

In SQL: `mqdb/sql/acl/administer.sql`.
"""

from typing import NamedTuple

from sqlalchemy import BigInteger, Boolean, Connection, Text, cast, column, func, select
from sqlalchemy.dialects.postgresql import ARRAY


class TopicUses(NamedTuple):
    """The things that name a topic."""

    crons: tuple[str, ...]
    """Names of recurring sends."""
    scheduled: int
    """Messages that wait for their delivery to it, by a delay level or at a time of their own."""
    half_messages: int
    """Those in state PREPARED: neither ended nor given up."""


def find(connection: Connection, topic: str) -> TopicUses:
    """The dispatched uses of the topic. It reads all waiting messages, of all topics."""
    columns = column("crons", ARRAY(Text)), column("scheduled", BigInteger), column("half_messages", BigInteger)
    uses = func.mqdb.topic_uses(cast(topic, Text)).table_valued(*columns).render_derived("uses")
    crons, *counts = connection.execute(select(uses)).one()
    return TopicUses(tuple(crons), *counts)


def delete_topic(connection: Connection, topic: str, force: bool, actor: str | None) -> tuple[bool, TopicUses] | None:
    """Delete a topic, and record it; returns whether that was done, and its uses; None if the topic does not exist.

    It is not done while something names the topic, unless with `force`: then crons are removed, half messages rolled
    back, and waiting messages never delivered.
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
