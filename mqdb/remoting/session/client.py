"""Clients and their consumers, with filters, as described by their heartbeats."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from mqdb.common.group import FROM_FIRST_OFFSET, ConsumeFromWhere, MessageModel, StartingPoint
from mqdb.common.topic import retry_topic
from mqdb.errors import MqdbError
from mqdb.fronts.known_names import group_of_key, key_of
from mqdb.remoting.session.connection import Connection
from mqdb.remoting.wire.heartbeat import ConsumerData
from mqdb.selector.selector import compile_selector
from mqdb.selector.subscription import ExpressionType, MessageFilter, stored_form
from mqdb.selector.tags import parse_tag_expression
from mqdb.store.clients.clients import ClientKind, Registration


@dataclass(slots=True)
class Consumer:
    """A client as a consumer of a group, as described by its heartbeat."""

    registration: Registration
    #: Filters by topic; retry topics are not included.
    filters: Mapping[str, MessageFilter]
    where: ConsumeFromWhere
    #: Whether the client pulls messages when it wants to, and chooses the starting offset: a lite pull consumer.
    is_active: bool
    #: The reason why the broker refuses the consumer, or None.
    refusal: MqdbError | None = None
    #: An error in the subscriptions, or None; until the client sends others, the broker does not register the consumer.
    fault: MqdbError | None = None
    #: Topics that did not exist at registration: all of their messages are for this consumer.
    awaited: set[str] = field(default_factory=set)

    @property
    def is_member(self) -> bool:
        """Whether the consumer takes part in rebalance.

        A lite pull consumer without subscriptions reads queues that its user assigns.
        """
        return self.fault is None and (bool(self.filters) or not self.is_active)

    @property
    def why_not(self) -> MqdbError | None:
        """The reason why it may not consume, or None."""
        return self.fault or self.refusal

    def check(self) -> None:
        """Raise the reason why it may not consume, if any."""
        if (error := self.why_not) is not None:
            raise error.with_traceback(None)  # a traceback would grow with each raise, and keep its frames alive

    @property
    def shares(self) -> bool:
        """Whether it shares the messages with other members of the group."""
        return self.registration.message_model is MessageModel.CLUSTERING

    def owns_queues(self, topic: str) -> bool:
        """Whether it has to own a queue of a topic in order to read the queue."""
        return self.shares and (topic in self.filters or topic == retry_topic(self.registration.group))

    def starting_point(self, topic: str) -> StartingPoint | None:
        """The start of its group in a topic that is new to the group; None if the client chooses each offset.

        The start in a lite pull consumer's heartbeat is not the one that its user chose, and a start by time is never
        sent.
        """
        if topic == retry_topic(self.registration.group) or topic in self.awaited:
            return FROM_FIRST_OFFSET
        if self.is_active or self.where is ConsumeFromWhere.TIMESTAMP:
            return None
        return StartingPoint(self.where)


@dataclass(slots=True, eq=False)
class Client:
    """A client that has sent a heartbeat."""

    client_id: str
    connection: Connection | None
    #: Host of its last connection.
    host: str
    language: str
    version: str
    consumers: dict[str, Consumer] = field(default_factory=dict)
    #: The producer groups of the client; the value is True for groups that have sent half messages.
    producers: dict[str, bool] = field(default_factory=dict)
    heard_at: float = field(default_factory=time.monotonic)
    grace: asyncio.TimerHandle | None = None

    def group_of_halves(self, group: str) -> str:
        """The broker's name for the producer group of its half messages."""
        return group_of_key(group, key_of(self.client_id))

    @property
    def has_row(self) -> bool:
        """Whether the database has a row for the client: not if it only sends, without transactions."""
        return any(each.is_member for each in self.consumers.values()) or any(self.producers.values())


def consumer_of(said: ConsumerData) -> Consumer:
    """The consumer described by a heartbeat.

    Invalid subscriptions affect only this consumer: the client's other groups are not affected.
    """
    filters: dict[str, MessageFilter] = {}
    fault: MqdbError | None = None
    try:
        filters = {each.topic: filter_of(each.expression_type, each.expression) for each in said.subscriptions()}
    except MqdbError as error:
        fault = error
    # No version: a client uses its start time, and a client that started earlier could not come back.
    subscriptions = tuple(sorted(stored_form(filters)))
    registration = Registration(
        "", ClientKind.CONSUMER, said.group, "", said.model, subscriptions=subscriptions, consume_mode=None
    )
    return Consumer(registration, filters, said.where, said.is_active, fault=fault)


def filter_of(expression_type: str, text: str) -> MessageFilter:
    """The filter of a subscription. Raises the errors of parsing it."""
    return compile_selector(text) if expression_type == ExpressionType.SQL92 else parse_tag_expression(text)


#: Cached `filter_of`, because each pull and each pop may name its filter.
known_filter: Final = lru_cache(maxsize=1_024)(filter_of)
