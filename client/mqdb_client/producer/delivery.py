"""A delivery: one send from its call to its end, with what it has tried so far."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from mqdb.errors import ParameterInvalid
from mqdb.message import Message, MessageQueue, SendResult
from mqdb.unique_id import UniqueIdGenerator, format_unique_id
from mqdb_client.producer.placement import Placement
from mqdb_client.producer.queue_selector import MessageQueueSelector, check_sharding_key
from mqdb_client.producer.send_hooks import SendMode
from mqdb_client.queue_argument import check_queue


class Target(NamedTuple):
    """Where the caller wants a message to go: to one queue, or to the queue that a rule chooses."""

    sharding_key: str | None = None
    queue: MessageQueue | None = None
    selector: MessageQueueSelector | None = None
    argument: object = None


#: The only target that leaves the choice to the producer.
ANYWHERE: Final = Target()


def target_of(
    message: object,
    sharding_key: str | None = None,
    queue: MessageQueue | None = None,
    selector: MessageQueueSelector | None = None,
    argument: object = None,
) -> Target:
    """The target by what a caller gives.

    Raises ParameterInvalid unless at most one of the three chooses the queue, and for an argument without a selector.
    """
    if sharding_key is None and queue is None and selector is None and argument is None:
        return ANYWHERE
    if argument is not None and selector is None:
        reason = "there is no selector that would take it; give one, or leave it out"
        raise ParameterInvalid("selector_argument", argument, reason)
    check_sharding_key(sharding_key)
    if queue is not None:
        _check_queue(queue, message)
    if selector is not None and not callable(selector):
        raise ParameterInvalid("selector", selector, "give a callable that takes queues, message and argument")
    given = {"sharding_key": sharding_key, "queue": queue, "selector": selector}
    chosen = [name for name, value in given.items() if value is not None]
    if len(chosen) > 1:
        raise ParameterInvalid(chosen[1], given[chosen[1]], f"{chosen[0]} chooses the queue already; give one of them")
    return Target(sharding_key, queue, selector, argument)


def _check_queue(queue: MessageQueue, message: object) -> None:
    check_queue(queue)
    if isinstance(message, Message) and queue.topic != message.topic:
        raise ParameterInvalid("queue", str(queue), f"the message goes to topic {message.topic!r}")


@dataclass(slots=True, eq=False)
class Delivery:
    """Messages of one topic that are stored together, and how far that has come.

    `began` and `deadline` are of time.monotonic.
    """

    messages: Sequence[Message]
    id_generator: UniqueIdGenerator
    born_time: datetime
    target: Target
    mode: SendMode
    timeout_seconds: float
    began: float
    deadline: float
    #: Changes each record before it is stored.
    placement: Placement | None = None
    #: The broker of each try so far.
    brokers_sent: tuple[str, ...] = ()
    #: The queue of a try whose outcome had to be found out; the next one goes there, too.
    queue: MessageQueue | None = None
    #: The broker that has failed last.
    avoid: str | None = None
    #: Stored, but not with the durability that was asked for; another try is under way.
    results: list[SendResult] | None = None
    _unique_ids: list[UUID] | None = field(default=None, init=False)

    @property
    def topic(self) -> str:
        """The topic of all its messages."""
        return self.messages[0].topic

    @property
    def unique_ids(self) -> list[UUID]:
        """The ids of its messages, in their order; made when they are first asked for, the same over all tries."""
        if self._unique_ids is None:
            self._unique_ids = self.id_generator.take(len(self.messages), self.born_time)
        return self._unique_ids

    @property
    def message_ids(self) -> tuple[str, ...]:
        """The unique ids as people read them."""
        return tuple(map(format_unique_id, self.unique_ids))

    @property
    def story(self) -> str:
        """What was tried, in words."""
        seconds = time.monotonic() - self.began
        return f"sent {len(self.brokers_sent)} times in {seconds:.2f} s, to {', '.join(self.brokers_sent)}"
