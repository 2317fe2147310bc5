"""Topics and their queues.

A queue_key is used once in a history of the log. So a record that arrives for a deleted topic has no topic, and never
gets into a newer topic with the same name. A database that was set back uses the same keys again
(`store/log/history.py`). In SQL: `mqdb/sql/acl/administer.sql`, `mqdb/sql/topics/make_topic.sql`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from sqlalchemy import Boolean, ColumnElement, Connection, Row, Select, Text, cast, delete, func, select
from sqlalchemy.dialects.postgresql import ARRAY, aggregate_order_by

from mqdb.common.topic import MessageType, Perm, TopicConfig
from mqdb.errors import TopicNotFound
from mqdb.store.engine import translates
from mqdb.store.fragments import full_topic
from mqdb.store.log.history import History
from mqdb.store.tables import queue, topic


@dataclass(frozen=True)
class TopicRoute:
    """A topic and the keys of its queues, queue 0 first: as many as the larger of its two counts.

    `history` is the history of the log in which the keys were found.
    """

    topic_id: int
    config: TopicConfig
    queue_keys: tuple[int, ...]
    history: History

    @cached_property
    def write_queue_keys(self) -> tuple[int, ...]:
        """The queues from which producers choose; empty without the W bit."""
        return self.queue_keys[: self.config.write_queue_nums] if self.config.perm & Perm.WRITE else ()

    @cached_property
    def read_queue_keys(self) -> tuple[int, ...]:
        """The queues that consumers read; empty without the R bit."""
        return self.queue_keys[: self.config.read_queue_nums] if self.config.perm & Perm.READ else ()


def find_topic(connection: Connection, name: str) -> TopicRoute | None:
    """The topic with its queues; None if there is no topic with this name."""
    return find_topics(connection, [name]).get(name)


def existing_topic(connection: Connection, name: str) -> TopicRoute:
    """The topic with its queues. Raises TopicNotFound."""
    route = find_topic(connection, name)
    if route is None:
        raise TopicNotFound(name)
    return route


@translates
def find_topics(connection: Connection, names: Iterable[str]) -> dict[str, TopicRoute]:
    """The existing topics among these, with their queues, by the given names; in one statement."""
    asked = func.unnest(cast(list(names), ARRAY(Text))).column_valued("asked")
    rows = connection.execute(_routes(asked).join(topic, topic.c.topic == full_topic(asked)))
    return {row.name: _route(row) for row in rows}


@translates
def list_topics(connection: Connection) -> list[TopicRoute]:
    """All topics, by name."""
    return [_route(row) for row in connection.execute(_routes(topic.c.topic).order_by(topic.c.topic))]


def _routes(name: ColumnElement[str]) -> Select[Any]:
    keys = func.array_agg(aggregate_order_by(queue.c.queue_key, queue.c.queue_id))
    of_topic = select(keys).where(queue.c.topic_id == topic.c.topic_id).scalar_subquery()
    settings = (topic.c[each] for each in ("topic_id", *_SETTINGS))
    return select(name.label("name"), *settings, of_topic.label("queue_keys"), func.mqdb.history().label("history"))


def _route(row: Row[tuple[object, ...]]) -> TopicRoute:
    config = TopicConfig(
        name=row.name,
        read_queue_nums=row.read_queue_nums,
        write_queue_nums=row.write_queue_nums,
        perm=Perm(row.perm),
        order=row.ordered,
        message_type=MessageType(row.message_type),
    )
    return TopicRoute(row.topic_id, config, tuple(row.queue_keys or ())[: _queue_nums(config)], row.history)


def create(connection: Connection, config: TopicConfig) -> bool:
    """Insert a topic and its queues, in the caller's transaction; False if the name is taken."""
    columns = _columns(config)
    return connection.scalar(select(func.mqdb.make_topic(config.name, *columns.values()))) is not None


def create_by_hand(connection: Connection, config: TopicConfig, actor: str | None) -> bool:
    """Create a topic for an operator, and record it; returns False if the name is taken. The role may administer it."""
    made = func.mqdb.create_topic(config.name, *_columns(config).values(), cast(actor, Text), type_=Boolean())
    return connection.scalars(select(made)).one()


def change(connection: Connection, name: str, changes: Mapping[str, object], actor: str | None) -> bool:
    """Change the given settings of a topic, by column name, and record it; False if the topic does not exist.

    Queues are added if the topic needs more than ever before, and never removed. Producers and consumers do not wait.
    """
    values = (cast(changes.get(name), topic.c[name].type) for name in _SETTINGS)
    changed = func.mqdb.change_topic(name, *values, cast(actor, Text), type_=Boolean())
    return connection.scalars(select(changed)).one()


def remove_deleted(connection: Connection, queues: int) -> int | None:
    """Remove up to `queues` queues of a topic that has lost its name (`mqdb.drop_topics`), and finally the topic.

    Returns the number of removed topics; None if no topic has lost its name. The topic is chosen at random, so that a
    session that commits offsets in one topic does not block all other topics.
    """
    is_deleted = func.starts_with(topic.c.topic, func.mqdb.deleted_prefix())
    topic_id = connection.scalar(select(topic.c.topic_id).where(is_deleted).order_by(func.random()).limit(1))
    if topic_id is None:
        return None
    some = select(queue.c.queue_key).where(queue.c.topic_id == topic_id).limit(queues)
    if connection.execute(delete(queue).where(queue.c.queue_key.in_(some.scalar_subquery()))).rowcount == queues:
        return 0
    return connection.execute(delete(topic).where(topic.c.topic_id == topic_id)).rowcount


#: As the functions of the schema take them.
_SETTINGS: Final = ("read_queue_nums", "write_queue_nums", "perm", "ordered", "message_type")


def _queue_nums(config: TopicConfig) -> int:
    return max(config.read_queue_nums, config.write_queue_nums)


def _columns(config: TopicConfig) -> dict[str, object]:
    return {
        "read_queue_nums": config.read_queue_nums,
        "write_queue_nums": config.write_queue_nums,
        "perm": int(config.perm),
        "ordered": config.order,
        "message_type": config.message_type.value,
    }
