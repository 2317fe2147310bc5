"""Sends without an answer: find their outcome, now or when the user asks later.

The backend that ran the statement has to end first; after that, it can no longer store messages.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from sqlalchemy import Connection

from mqdb.broker.log.outcome import Backend, StoredAt, end_backend, find_sent
from mqdb.errors import BrokerUnavailable, MqdbError
from mqdb_client.producer.append.append_plan import NoAnswer
from mqdb_client.producer.append.broker_link import BrokerLink

T = TypeVar("T")

_FIRST_LOOK_SECONDS: Final = 0.002
_LONGEST_LOOK_SECONDS: Final = 0.05

#: The maximum number of messages whose backends are remembered; beyond that, the oldest are forgotten.
MOST_UNKNOWN: Final = 10_000


def settle(
    link: BrokerLink, outcome: NoAnswer, unique_ids: Sequence[UUID], deadline: float, late: MqdbError
) -> dict[UUID, StoredAt]:
    """The messages with an unknown outcome that are stored.

    The result is final: the other messages will never be stored.

    Raises `late` if the broker does not answer in time; BrokerUnavailable and its subclasses; StorageRefused; NoAnswer
    if no message is stored so far and the backend is not known, because the backend may still store the messages.
    """
    # All messages of a statement were sent to the same backend, and a backend that is gone stays gone.
    if outcome.backend is not None and outcome.backend not in link.gone:
        _end(link, outcome.backend, deadline, late)
        link.gone.append(outcome.backend)
    find = partial(find_sent, unique_ids=unique_ids, after_pos=outcome.after_pos)
    found = _ask(link, find, deadline, late)
    if not found and outcome.backend is None:
        # A new object: the error is remembered, and raising it again would collect the traceback of each query.
        raise NoAnswer(outcome.reason, None, outcome.after_pos)
    return found


def _end(link: BrokerLink, backend: Backend, deadline: float, late: MqdbError) -> None:
    pause = _FIRST_LOOK_SECONDS
    while not _ask(link, partial(end_backend, backend=backend), deadline, late):
        if time.monotonic() + pause >= deadline:
            raise late
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_LOOK_SECONDS)


def _ask(link: BrokerLink, question: Callable[[Connection], T], deadline: float, late: MqdbError) -> T:
    """Query until there is an answer, because the cause that broke one connection has often broken the other, too."""
    while True:
        try:
            return link.ask(question, deadline, late)
        except BrokerUnavailable:
            if time.monotonic() >= deadline:
                raise


class UnknownSend(NamedTuple):
    """A send whose outcome was unknown when its time was up."""

    topic: str
    link: BrokerLink
    outcome: NoAnswer


class UnknownSends:
    """The sends of a producer with an unknown outcome, by the unique id of each message. Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._sends: OrderedDict[UUID, UnknownSend] = OrderedDict()

    def remember(self, topic: str, link: BrokerLink, outcome: NoAnswer, unique_ids: Sequence[UUID]) -> None:
        """Remember sends with an unknown outcome, for later queries by the user."""
        # Without the traceback, which would keep the message in memory.
        send = UnknownSend(topic, link, NoAnswer(outcome.reason, outcome.backend, outcome.after_pos))
        with self._guard:
            self._sends.update((unique_id, send) for unique_id in unique_ids)
            while len(self._sends) > MOST_UNKNOWN:
                self._sends.popitem(last=False)

    def find(self, unique_id: UUID) -> UnknownSend | None:
        """The unknown send of a message; None if the send ended otherwise, or if newer sends have replaced it."""
        with self._guard:
            return self._sends.get(unique_id)
