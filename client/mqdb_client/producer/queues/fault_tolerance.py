"""Latency fault tolerance: for how long a broker that was slow, or failed, is left alone.

Each send tells how long it took. The longer that was, the longer its broker counts as unavailable; an error counts
as a very long send. Pure rules: time comes from a callable.
RocketMQ: LatencyFaultToleranceImpl, MQFaultStrategy.
"""

import random
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from mqdb_client.producer.queues.queue_selector import turns

#: From which latency on a broker is left alone, and for how long, in seconds; 0 below the first one.
#: Source: MQFaultStrategy.latencyMax, notAvailableDuration, from RocketMQ 5.1.4 on.
_LATENCIES: Final = (0.55, 1.8, 3.0, 5.0, 15.0)
_UNAVAILABLE: Final = (0.0, 2.0, 5.0, 6.0, 10.0, 30.0)

#: What an error counts as. Source: MQFaultStrategy.updateFaultItem.
_ERROR_LATENCY_SECONDS: Final = 10.0


def unavailable_seconds(latency_seconds: float) -> float:
    """The seconds for which a broker is avoided after a send with this latency."""
    return _UNAVAILABLE[bisect_right(_LATENCIES, latency_seconds)]


class _Fault(NamedTuple):
    """The outcome of the last send to a broker."""

    latency_seconds: float
    available_from: float


class LatencyFaultTolerance:
    """The latency and availability of brokers, from the sends to them.

    Any thread may use it; one entry for each broker.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds that never go back."""
        self._clock = clock
        # Entries are replaced as a whole, so that no lock is needed.
        self._faults: dict[str, _Fault] = {}
        self._turns = turns()

    def update(self, broker_name: str, latency_seconds: float, is_isolated: bool) -> None:
        """A send to the broker took so long; `is_isolated` when it ended with an error that is the broker's.

        Only the last send counts: a fast one makes the broker available at once. An error counts as ten
        seconds, also where `pick_one_at_least` compares, so that a broker that refuses quickly is not taken for a
        fast one. RocketMQ compares the time measured, and from 5.x on asks first whether the broker can be reached.
        """
        counted = _ERROR_LATENCY_SECONDS if is_isolated else latency_seconds
        self._faults[broker_name] = _Fault(counted, self._clock() + unavailable_seconds(counted))

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
