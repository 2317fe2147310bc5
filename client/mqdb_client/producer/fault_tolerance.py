"""Latency fault tolerance: for how long a broker that was slow, or failed, is left alone.

Each send tells how long it took. The longer that was, the longer its broker counts as unavailable; an error counts
as a very long send. Pure rules: time comes from a callable.
RocketMQ: LatencyFaultToleranceImpl, MQFaultStrategy.
"""

import random
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple

from mqdb_client.producer.queue_selector import turns


class LatencyFaultTable(Enum):
    """From the latency of a send to the time for which its broker is left alone, as RocketMQ's clients have it.

    A value is pairs of seconds (latency from which on it holds, time unavailable), and the latency that stands for
    an error. Source: MQFaultStrategy.latencyMax, notAvailableDuration, updateFaultItem.
    """

    #: RocketMQ 4.x to 5.1.3: an error keeps a broker away for ten minutes.
    V4 = (((0.05, 0), (0.1, 0), (0.55, 30), (1, 60), (2, 120), (3, 180), (15, 600)), 30)
    #: RocketMQ from 5.1.4 on: an error keeps a broker away for ten seconds.
    V5 = (((0.05, 0), (0.1, 0), (0.55, 2), (1.8, 5), (3, 6), (5, 10), (15, 30)), 10)

    def __init__(self, steps: tuple[tuple[float, float], ...], error_latency_seconds: float) -> None:
        self.error_latency_seconds = error_latency_seconds
        self._latencies = [latency for latency, _ in steps]
        self._unavailable = [0.0, *(seconds for _, seconds in steps)]

    def unavailable_seconds(self, latency_seconds: float) -> float:
        """What the largest latency of the table says that is not above this one; 0 below the smallest."""
        return self._unavailable[bisect_right(self._latencies, latency_seconds)]


class _Fault(NamedTuple):
    """What the last send to a broker says about it."""

    latency_seconds: float
    available_from: float


class LatencyFaultTolerance:
    """What is known about brokers from the sends to them. Any thread may use it; it holds one entry for each broker."""

    def __init__(self, table: LatencyFaultTable, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds that never go back."""
        self._table = table
        self._clock = clock
        # Entries are replaced as a whole, so that no lock is needed.
        self._faults: dict[str, _Fault] = {}
        self._turns = turns()

    def update(self, broker_name: str, latency_seconds: float, is_isolated: bool) -> None:
        """A send to the broker took so long; `is_isolated` when it ended with an error that is the broker's.

        Only the last send counts: a fast one makes the broker available at once. An error counts with the latency of
        the table, also where `pick_one_at_least` compares, so that a broker that refuses quickly is not taken for a
        fast one. RocketMQ compares the time measured, and from 5.x on asks first whether the broker can be reached.
        """
        counted = self._table.error_latency_seconds if is_isolated else latency_seconds
        self._faults[broker_name] = _Fault(counted, self._clock() + self._table.unavailable_seconds(counted))

    def is_available(self, broker_name: str) -> bool:
        """False while the broker is to be left alone; True for one that nothing is known of."""
        fault = self._faults.get(broker_name)
        return fault is None or self._clock() >= fault.available_from

    def pick_one_at_least(self, broker_names: Iterable[str]) -> str | None:
        """One of these brokers although all may be unavailable; None when nothing is known of any.

        In turn one of the better half: the available before the others, then the faster, then those that are
        available sooner, and equal ones in any order. RocketMQ chooses among all brokers that it knows, and forgets
        the chosen one if it has no queue of the topic.
        """
        known = [(name, fault) for name in broker_names if (fault := self._faults.get(name)) is not None]
        if not known:
            return None
        now = self._clock()
        random.shuffle(known)
        known.sort(key=lambda item: (item[1].available_from > now, item[1]))
        return known[next(self._turns) % max(len(known) // 2, 1)][0]

    def remove(self, broker_name: str) -> None:
        """Forget the broker; it may be unknown already."""
        self._faults.pop(broker_name, None)
