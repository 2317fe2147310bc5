"""What names a topic and does not go with its row: crons, messages that wait for their delivery, open half messages."""

from typing import NamedTuple

from sqlalchemy import Connection, Text, column, delete, func, select, table

from mqdb.store.tables import cron
from mqdb.store.topics import deleted_topics
from mqdb.store.transactions import half_messages

_scheduled = table("scheduled", column("topic", Text), schema="mqdb")


class TopicUses(NamedTuple):
    """What names a topic."""

    crons: tuple[str, ...]
    """Names of recurring sends."""
    scheduled: int
    """Messages that wait for their delivery to it, by a delay level or at a time of their own."""
    half_messages: int
    """Those in state PREPARED: neither ended nor given up."""


def find(connection: Connection, topic: str) -> TopicUses:
    """What names the topic, of what is dispatched. Costs a look at all messages that wait, whatever they are for."""
    crons = select(cron.c.name).where(cron.c.topic == topic).order_by(cron.c.name)
    scheduled = select(func.count()).select_from(_scheduled).where(_scheduled.c.topic == topic)
    return TopicUses(
        tuple(connection.scalars(crons)),
        connection.execute(scheduled).scalar_one(),
        half_messages.count_open(connection, topic),
    )


def end(connection: Connection, topic: str) -> None:
    """Remove the crons, roll the half messages back, and let nothing that waits be delivered, in one transaction."""
    connection.execute(delete(cron).where(cron.c.topic == topic))
    half_messages.roll_back(connection, topic)
    deleted_topics.add(connection, topic)
