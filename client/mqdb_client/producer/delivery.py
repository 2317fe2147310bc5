"""A delivery: one send from its call to its end, with what it has tried so far."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from mqdb.message import Message, MessageQueue, SendResult
from mqdb.unique_id import format_unique_id
from mqdb_client.producer_hooks import SendMode
from mqdb_client.queue_selector import MessageQueueSelector


class Target(NamedTuple):
    """Where the caller wants a message to go: to one queue, to the queue that a rule chooses, or wherever."""

    sharding_key: str | None = None
    queue: MessageQueue | None = None
    selector: MessageQueueSelector | None = None
    argument: object = None

    @property
    def is_free(self) -> bool:
        """Whether any queue will do."""
        return self.sharding_key is None and self.queue is None and self.selector is None


ANYWHERE = Target()


@dataclass(slots=True, eq=False)
class Delivery:
    """Messages of one topic that are stored together, and how far that has come. `deadline` is of time.monotonic."""

    messages: Sequence[Message]
    unique_ids: Sequence[UUID]
    born_time: datetime
    target: Target
    mode: SendMode
    timeout_seconds: float
    #: How often it may be tried.
    times: int
    began: float = field(default_factory=time.monotonic)
    deadline: float = field(init=False)
    #: The broker of each try so far.
    brokers_sent: list[str] = field(default_factory=list)
    #: The queue of a try whose outcome had to be found out; the next one goes there, too.
    queue: MessageQueue | None = None
    #: The broker that has failed last.
    avoid: str | None = None
    #: Stored, but not with the durability that was asked for; another try is under way.
    results: list[SendResult] | None = None
    #: A topic that is gone may have been made again: its route was asked for once more.
    has_asked_again: bool = False

    def __post_init__(self) -> None:
        self.deadline = self.began + self.timeout_seconds

    @property
    def topic(self) -> str:
        """The topic of all its messages."""
        return self.messages[0].topic

    @property
    def message_ids(self) -> tuple[str, ...]:
        """The unique ids as people read them."""
        return tuple(map(format_unique_id, self.unique_ids))

    @property
    def has_tries_left(self) -> bool:
        """Whether there are tries and time left."""
        return len(self.brokers_sent) < self.times and time.monotonic() < self.deadline

    @property
    def story(self) -> str:
        """What was tried, in words."""
        seconds = time.monotonic() - self.began
        return f"sent {len(self.brokers_sent)} times in {seconds:.2f} s, to {', '.join(self.brokers_sent)}"
