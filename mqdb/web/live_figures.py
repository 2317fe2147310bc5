"""The figures of a broker from its samples, for the pages of the process that takes the samples."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from typing import Final

from mqdb.common.topic import DLQ_PREFIX, RETRY_PREFIX, is_group_topic, is_system_topic
from mqdb.store.clients.clients import ClientKind
from mqdb.web.broker_sample import Sample
from mqdb.web.time_series import TOTAL, BrokerFigure, Key, TimeSeries


class LiveFigures:
    """The last sample, earlier samples as series, and callbacks for the next sample. Any thread may use the object."""

    def __init__(self) -> None:
        self.series: Final = TimeSeries()
        self._guard = threading.Lock()
        self._latest: Sample | None = None
        self._number = 0
        self._wakes: set[Callable[[], None]] = set()

    @property
    def latest(self) -> tuple[int, Sample | None]:
        """The number of the last sample, and the sample; None as the sample while this process does not lead."""
        with self._guard:
            return self._number, self._latest

    def add(self, sample: Sample) -> None:
        """Store a sample, and call the callbacks."""
        self.series.add(sample.taken_at, _counters(sample), _levels(sample))
        self._set(sample)

    def leave(self) -> None:
        """Drop the last sample, because this process no longer leads. The series stay, and have a gap."""
        self.series.interrupt()
        self._set(None)

    @contextmanager
    def watching(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call `wake` after each sample, in the thread that took it, until the end of the block."""
        with self._guard:
            self._wakes.add(wake)
        try:
            yield
        finally:
            with self._guard:
                self._wakes.discard(wake)

    def _set(self, sample: Sample | None) -> None:
        with self._guard:
            self._latest, self._number = sample, self._number + 1
            wakes = tuple(self._wakes)
        for wake in wakes:
            wake()


def _counters(sample: Sample) -> dict[Key, float]:
    counts: dict[Key, float] = {(BrokerFigure.WAL, TOTAL): sample.server.wal_bytes}
    for topic, messages in sample.messages_in.items():
        if topic.startswith(RETRY_PREFIX):
            counts[BrokerFigure.RETRIED, topic.removeprefix(RETRY_PREFIX)] = messages
        elif topic.startswith(DLQ_PREFIX):
            counts[BrokerFigure.DEAD, topic.removeprefix(DLQ_PREFIX)] = messages
        elif not is_system_topic(topic):
            counts[BrokerFigure.STORED, topic] = messages
    for each in sample.lags:
        keys = [(BrokerFigure.DELIVERED, each.group)]
        if not is_group_topic(each.topic):
            keys.append((BrokerFigure.CONSUMED, each.topic))
        for key in keys:
            counts[key] = counts.get(key, 0) + each.committed
    return counts


def _levels(sample: Sample) -> dict[Key, float]:
    levels: dict[Key, float] = {
        (BrokerFigure.TIMERS, TOTAL): sample.timers_waiting + sum(level.waiting for level in sample.delays),
        (BrokerFigure.HALVES, TOTAL): sample.halves.prepared,
        (BrokerFigure.DISK, TOTAL): sum(sample.storage_bytes.values()),
    }
    for count in sample.clients:
        if count.kind == ClientKind.CONSUMER:
            key = BrokerFigure.MEMBERS, count.group
            levels[key] = levels.get(key, 0) + count.clients
    for topic, messages in sample.messages_in.items():
        if topic.startswith(DLQ_PREFIX):
            levels[BrokerFigure.LETTERS, topic.removeprefix(DLQ_PREFIX)] = messages
    if ages := sorted(sample.dispatch_ages):
        levels[BrokerFigure.DISPATCH_P50, TOTAL] = ages[ceil(len(ages) * 0.5) - 1]
        levels[BrokerFigure.DISPATCH_P99, TOTAL] = ages[ceil(len(ages) * 0.99) - 1]
    for each in sample.lags:
        levels.setdefault((BrokerFigure.MEMBERS, each.group), 0)
        lag, age = (BrokerFigure.LAG, each.group), (BrokerFigure.LAG_SECONDS, each.group)
        levels[lag] = levels.get(lag, 0) + each.lag
        levels[age] = max(levels.get(age, 0), each.lag_seconds)
    return levels
