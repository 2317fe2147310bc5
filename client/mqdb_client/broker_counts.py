"""Broker counts: numbers about a client's broker for metrics, in addition to the sends and calls that hooks count.

    statement refused ──▶ BrokerCounts ── each look, and at the end ──▶ observers (`broker_metrics.py`)
    Outage            ──▶

Successful statements are not counted.
"""

import threading
from collections import Counter
from typing import Protocol
from weakref import WeakSet

from mqdb.errors import MqdbError
from mqdb_client.outage import Outage


class BrokerCounts:
    """The counts of one client instance. Thread-safe."""

    def __init__(self, broker_name: str, outage: Outage) -> None:
        self.broker_name = broker_name
        self.outage = outage
        #: Appends refused by PostgreSQL, by SQLSTATE.
        self.refused_appends: Counter[str] = Counter()
        self.is_open = False
        self._guard = threading.Lock()

    def open(self) -> None:
        """Note that the instance is about to connect."""
        self.is_open = True

    def close(self) -> None:
        """Note that the instance no longer connects or waits for its broker."""
        self.is_open = False
        self.look()

    def look(self) -> None:
        """Report the counts to all observers."""
        if _observers:
            with _guard:
                observers = list(_observers)
            for observer in observers:
                observer.update(self)

    @property
    def is_away(self) -> bool:
        """Whether the instance is open but its broker is unavailable."""
        return self.is_open and self.outage.is_under_way

    def note_refusal(self, error: MqdbError) -> None:
        """Count a failed append, if PostgreSQL gave the reason as a SQLSTATE."""
        cause = error.__cause__
        sqlstate = getattr(getattr(cause, "orig", cause), "sqlstate", None)
        if sqlstate is not None:
            with self._guard:
                self.refused_appends[sqlstate] += 1


class Observer(Protocol):
    """Receives the counts. The observer is called in the thread that checks all clients, so it must return quickly."""

    def update(self, counts: BrokerCounts) -> None:
        """Called when the counts may have changed."""


_guard = threading.Lock()
_observers: WeakSet[Observer] = WeakSet()


def observe(observer: Observer) -> None:
    """Report the counts of all client instances of the process to an observer, until it is garbage-collected."""
    with _guard:
        _observers.add(observer)
