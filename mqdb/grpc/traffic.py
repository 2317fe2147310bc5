"""Traffic: plain counts of a front's calls and clients, and their metrics.

The event loop writes the counts; the metrics are rendered in another thread. A call is counted when it ends.
docs/metrics.md explains each metric.
"""

from collections import defaultdict
from typing import Final

from mqdb.grpc.wire.rocketmq_pb2 import Code
from mqdb.web.durations import Durations
from mqdb.web.families import Families, FamilyCollector
from mqdb_client.broker_metrics import BrokerMetrics

_NAMES: Final = {number: name for name, number in Code.items()}


class EndedCalls:
    """Completed calls with one name."""

    __slots__ = ("codes", "durations")

    def __init__(self) -> None:
        #: Number of calls by code.
        self.codes: dict[int, int] = {}
        #: Durations, including the time that a receive waited.
        self.durations = Durations()


class CallTraffic:
    """The counts of one front since its creation."""

    def __init__(self) -> None:
        #: Completed calls by name.
        self.calls: defaultdict[str, EndedCalls] = defaultdict(EndedCalls)
        #: Number of clients that have called recently, and of open streams.
        self.clients = 0
        self.streams = 0
        #: Receives that wait for messages.
        self.waiting = 0
        #: Messages of push consumers whose invisible time is prolonged.
        self.held = 0

    def ended(self, call: str, code: int, seconds: float) -> None:
        """Count a call by its name and the code of its answer."""
        calls = self.calls[call]
        calls.durations.add(seconds)
        calls.codes[code] = calls.codes.get(code, 0) + 1


class CallTrafficCollector(FamilyCollector):
    """Collects the metrics of one front. Any thread may collect them, without waiting."""

    def __init__(self, broker_name: str, cluster_name: str, traffic: CallTraffic, *, is_alone: bool = True) -> None:
        """If `is_alone` is true, nothing else in this process reports outages."""
        super().__init__(broker_name, cluster_name)
        self._traffic = traffic
        self._brokers = BrokerMetrics() if is_alone else None

    def collect(self) -> Families:
        """All metrics at this moment."""
        traffic = self._traffic
        calls = list(traffic.calls.items())
        ended = [((call, _NAMES[code]), number) for call, each in calls for code, number in list(each.codes.items())]
        yield self._counters("mqdb_grpc_calls", "Completed calls.", ("call", "code"), ended)
        words = "Durations of calls, including the time that receives waited."
        yield self._durations("mqdb_grpc_call_seconds", words, "call", [(call, each.durations) for call, each in calls])
        yield self._gauge("mqdb_grpc_clients", "Clients that have called recently.", traffic.clients)
        yield self._gauge("mqdb_grpc_streams", "Open telemetry streams.", traffic.streams)
        yield self._gauge("mqdb_grpc_waiting_receives", "Receives that wait for messages.", traffic.waiting)
        yield self._gauge("mqdb_grpc_prolonged_messages", "Messages whose invisible time is prolonged.", traffic.held)
        if self._brokers is not None:
            yield from self._brokers.collect()
