"""Metrics of brokers as the clients of a process see them: outages, the server that answers, refused appends.

The metrics are counters and gauges rather than a collector, because the processes of `mqdb worker` share metrics
through files, where prometheus-client stores only counters and gauges. Each client instance updates the metrics every
0.5 s.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from mqdb_client.broker_counts import BrokerCounts, observe

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric


@dataclass(slots=True)
class _Seen:
    """The counts of one client instance that are already in the metrics."""

    outages: int = 0
    seconds: float = 0.0
    refused: dict[str, int] = field(default_factory=dict)
    is_away: bool = False
    #: Its labels in `mqdb_client_server_info`.
    server: tuple[str, ...] = ()


class BrokerMetrics:
    """Observes the counts of all client instances in the process, until it is garbage-collected."""

    def __init__(self, registry: "CollectorRegistry | None" = None) -> None:
        """Without a `registry`, the observer makes its own. Needs prometheus-client.

        Raises ValueError for a registry that already has these metrics.
        """
        from prometheus_client import CollectorRegistry, Counter, Gauge

        registry = self._registry = CollectorRegistry() if registry is None else registry
        broker = ("broker",)
        words = "Outages: how often clients of the process were without their broker."
        self._outages = Counter("mqdb_client_outages", words, broker, registry=registry)
        words = "Time that clients of the process were without their broker."
        self._seconds = Counter("mqdb_client_outage_seconds", words, broker, registry=registry)
        words = "Appends that PostgreSQL has refused."
        self._refused = Counter("mqdb_client_refused_appends", words, (*broker, "sqlstate"), registry=registry)
        words = "Whether a client of the process is without its broker."
        self._away = Gauge("mqdb_client_broker_away", words, broker, registry=registry, multiprocess_mode="livemax")
        words = "1 for the server that answered last, 0 for earlier servers."
        self._server = Gauge(
            "mqdb_client_server_info",
            words,
            (*broker, "server", "timeline"),
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._guard = threading.Lock()
        self._seen: WeakKeyDictionary[BrokerCounts, _Seen] = WeakKeyDictionary()
        observe(self)

    def collect(self) -> "Iterable[Metric]":
        """All metrics of the registry."""
        return self._registry.collect()

    def update(self, counts: BrokerCounts) -> None:
        """Update the metrics of the broker."""
        with self._guard:
            seen = self._seen.get(counts)
            if seen is None:
                seen = self._seen[counts] = _Seen()
                # A series that starts at 0, so that the first outage is an increase.
                for metric in (self._outages, self._seconds, self._away):
                    metric.labels(counts.broker_name)
            self._count(counts, seen)
            self._note_server(counts, seen)

    def _count(self, counts: BrokerCounts, seen: _Seen) -> None:
        name, outage = counts.broker_name, counts.outage
        outages, seconds, is_away = outage.count, outage.seconds, counts.is_away
        if outages > seen.outages:
            self._outages.labels(name).inc(outages - seen.outages)
        if seconds > seen.seconds:
            self._seconds.labels(name).inc(seconds - seen.seconds)
        seen.outages, seen.seconds = outages, seconds
        for sqlstate, number in counts.refused_appends.copy().items():
            if (more := number - seen.refused.get(sqlstate, 0)) > 0:
                self._refused.labels(name, sqlstate).inc(more)
                seen.refused[sqlstate] = number
        if is_away is not seen.is_away:
            seen.is_away = is_away
            self._away.labels(name).set(any(each.is_away for each in self._of(name)))

    def _note_server(self, counts: BrokerCounts, seen: _Seen) -> None:
        name, outage = counts.broker_name, counts.outage
        timeline = "" if outage.timeline is None else str(outage.timeline)
        server = (name, outage.server, timeline) if counts.is_open and outage.server else ()
        if server == seen.server:
            return
        before, seen.server = seen.server, server
        if before and all(each.server != before for each in self._of(name)):
            self._server.labels(*before).set(0)
        if server:
            self._server.labels(*server).set(1)

    def _of(self, broker_name: str) -> list[_Seen]:
        return [seen for counts, seen in self._seen.items() if counts.broker_name == broker_name]
