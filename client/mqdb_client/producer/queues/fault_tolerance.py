"""Latency fault tolerance: the time for which a slow or failed broker is avoided.

Each send reports its latency. The higher the latency, the longer the broker counts as unavailable; an error counts as a
very slow send. Pure rules: time comes from a callable. RocketMQ: LatencyFaultToleranceImpl, MQFaultStrategy.
"""

import random
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from mqdb_client.producer.queues.queue_selector import turns

#: Minimum latencies and for how long a broker is avoided from there on, in seconds; 0 below the first latency.
#: Source: MQFaultStrategy.latencyMax, notAvailableDuration, from RocketMQ 5.1.4 on.
_LATENCIES: Final = (0.55, 1.8, 3.0, 5.0, 15.0)
_UNAVAILABLE: Final = (0.0, 2.0, 5.0, 6.0, 10.0, 30.0)

#: The latency that an error counts as. Source: MQFaultStrategy.updateFaultItem.
_ERROR_LATENCY_SECONDS: Final = 10.0


def unavailable_seconds(latency_seconds: float) -> float:
    """The seconds for which a broker is avoided after a send with this latency."""
    return _UNAVAILABLE[bisect_right(_LATENCIES, latency_seconds)]


class _Fault(NamedTuple):
    """The outcome of the last send to a broker."""

    latency_seconds: float
    available_from: float


class LatencyFaultTolerance:
    """The latency and availability of brokers, measured by the sends to them.

    Thread-safe. Holds one entry per broker.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns monotonic seconds."""
        self._clock = clock
        # Entries are replaced as a whole, so no lock is needed.
        self._faults: dict[str, _Fault] = {}
        self._turns = turns()

    def update(self, broker_name: str, latency_seconds: float, is_isolated: bool) -> None:
        """Record the latency of a send; `is_isolated` means that it ended with an error caused by the broker.

        Only the last send counts: a fast send makes the broker available at once. An error counts as ten
        seconds, also in the comparison of `pick_one_at_least`, so that a broker that refuses quickly is not mistaken
        for a fast broker. RocketMQ compares the measured time, and since 5.x first checks whether the broker is
        reachable.
        """
        counted = _ERROR_LATENCY_SECONDS if is_isolated else latency_seconds
        self._faults[broker_name] = _Fault(counted, self._clock() + unavailable_seconds(counted))

    def is_available(self, broker_name: str) -> bool:
        """Whether the broker may be used: False while it should be avoided, True for an unknown broker."""
        fault = self._faults.get(broker_name)
        return fault is None or self._clock() >= fault.available_from

    def pick_one_at_least(self, broker_names: Iterable[str]) -> str | None:
        """One of these brokers, even if all are unavailable; None if all are unknown.

        Returns the brokers of the better half in turn: available brokers rank first, then faster brokers, then brokers
        that become available sooner; ties are in any order. RocketMQ chooses among all known brokers, and forgets the
        chosen broker if it has no queue of the topic.
        """
        known = [(name, fault) for name in broker_names if (fault := self._faults.get(name)) is not None]
        if not known:
            return None
        now = self._clock()
        random.shuffle(known)
        known.sort(key=lambda item: (item[1].available_from > now, item[1]))
        return known[next(self._turns) % max(len(known) // 2, 1)][0]

    def remove(self, broker_name: str) -> None:
        """Forget the broker, if it is known."""
        self._faults.pop(broker_name, None)
