"""Clients as their heartbeats say, and each as a consumer of its groups, with its filters."""

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
    """A client as a consumer of a group, as its heartbeat says."""

    registration: Registration
    #: By topic; retry topics are not among them.
    filters: Mapping[str, MessageFilter]
    where: ConsumeFromWhere
    #: Whether it asks for messages by itself, and chooses where to begin: a lite pull consumer.
    is_active: bool
    #: Why the broker does not take it.
    refusal: MqdbError | None = None
    #: What is wrong with its subscriptions: until its client says others, the broker does not know it.
    fault: MqdbError | None = None
    #: Topics that were not there when it came: it has waited for all of their messages.
    awaited: set[str] = field(default_factory=set)

    @property
    def is_member(self) -> bool:
        """Whether it takes part in rebalance. One that subscribes to nothing reads queues that its user assigns."""
        return self.fault is None and (bool(self.filters) or not self.is_active)

    @property
    def why_not(self) -> MqdbError | None:
        """Why it may not consume."""
        return self.fault or self.refusal

    def check(self) -> None:
        """Raises why it may not consume."""
        if (error := self.why_not) is not None:
            raise error.with_traceback(None)  # which would grow each time, and keep what it leads to

    @property
    def shares(self) -> bool:
        """Whether it shares the messages with the other members of the group."""
        return self.registration.message_model is MessageModel.CLUSTERING

    def owns_queues(self, topic: str) -> bool:
        """Whether it has to own a queue of a topic to read it."""
        return self.shares and (topic in self.filters or topic == retry_topic(self.registration.group))

    def starting_point(self, topic: str) -> StartingPoint | None:
        """The start of its group in a topic that is new to it; None if the client decides that, for each queue.

        The start in the heartbeat of a lite pull consumer is not the one that its user wants, and a time is never sent.
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
    #: The address of its last connection.
    host: str
    language: str
    version: str
    consumers: dict[str, Consumer] = field(default_factory=dict)
    #: The groups it sends for; True for those that have sent half messages.
    producers: dict[str, bool] = field(default_factory=dict)
    heard_at: float = field(default_factory=time.monotonic)
    grace: asyncio.TimerHandle | None = None

    def group_of_halves(self, group: str) -> str:
        """The producer group by which the broker knows its half messages of a group."""
        return group_of_key(group, key_of(self.client_id))

    @property
    def has_row(self) -> bool:
        """Whether the database knows it: not for sending without transactions alone."""
        return any(each.is_member for each in self.consumers.values()) or any(self.producers.values())


def consumer_of(said: ConsumerData) -> Consumer:
    """The consumer. Wrong subscriptions are its own fault: the other groups of its client go on."""
    filters: dict[str, MessageFilter] = {}
    fault: MqdbError | None = None
    try:
        filters = {each.topic: filter_of(each.expression_type, each.expression) for each in said.subscriptions()}
    except MqdbError as error:
        fault = error
    # Without a version: a client's is when it has started, and one that has started earlier could not come back.
    subscriptions = tuple(sorted(stored_form(filters)))
    registration = Registration(
        "", ClientKind.CONSUMER, said.group, "", said.model, subscriptions=subscriptions, consume_mode=None
    )
    return Consumer(registration, filters, said.where, said.is_active, fault=fault)


def filter_of(expression_type: str, text: str) -> MessageFilter:
    """The filter of a subscription. Raises what reading it raises."""
    return compile_selector(text) if expression_type == ExpressionType.SQL92 else parse_tag_expression(text)


#: As `filter_of`: each pull and each pop may name its filter.
known_filter: Final = lru_cache(maxsize=1_024)(filter_of)
