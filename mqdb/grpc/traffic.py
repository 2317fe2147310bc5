"""Traffic: the counts of a front's calls and clients, in plain numbers, and as metrics.

The loop writes; the metrics are rendered in another thread. A call counts when it ends. docs/metrics.md explains each
metric.
"""

from collections import defaultdict
from typing import Final

from mqdb.grpc.wire.rocketmq_pb2 import Code
from mqdb.web.durations import Durations
from mqdb.web.families import Families, FamilyCollector
from mqdb_client.broker_metrics import BrokerMetrics

_NAMES: Final = {number: name for name, number in Code.items()}


class EndedCalls:
    """The calls of one name that have ended."""

    __slots__ = ("codes", "durations")

    def __init__(self) -> None:
        #: The number of calls by code.
        self.codes: dict[int, int] = {}
        #: How long a receive has waited is a part of it.
        self.durations = Durations()


class CallTraffic:
    """The counts of one front since it was made."""

    def __init__(self) -> None:
        #: By their names.
        self.calls: defaultdict[str, EndedCalls] = defaultdict(EndedCalls)
        #: Clients that have called lately, and streams that are open.
        self.clients = 0
        self.streams = 0
        #: Receives that wait for messages.
        self.waiting = 0
        #: Messages that push consumers have, and whose time is prolonged.
        self.held = 0

    def ended(self, call: str, code: int, seconds: float) -> None:
        """Count a call by its name and the code of its answer."""
        calls = self.calls[call]
        calls.durations.add(seconds)
        calls.codes[code] = calls.codes.get(code, 0) + 1


class CallTrafficCollector(FamilyCollector):
    """Collects the metrics of one front. Any thread may scrape; none waits."""

    def __init__(self, broker_name: str, cluster_name: str, traffic: CallTraffic, *, is_alone: bool = True) -> None:
        """`is_alone`: nothing else in this process tells of outages."""
        super().__init__(broker_name, cluster_name)
        self._traffic = traffic
        self._brokers = BrokerMetrics() if is_alone else None

    def collect(self) -> Families:
        """All metrics of now."""
        traffic = self._traffic
        calls = list(traffic.calls.items())
        ended = [((call, _NAMES[code]), number) for call, each in calls for code, number in list(each.codes.items())]
        yield self._counters("mqdb_grpc_calls", "Calls that have ended.", ("call", "code"), ended)
        words = "Durations of calls, with the time that receives have waited."
        yield self._durations("mqdb_grpc_call_seconds", words, "call", [(call, each.durations) for call, each in calls])
        yield self._gauge("mqdb_grpc_clients", "Clients that have called lately.", traffic.clients)
        yield self._gauge("mqdb_grpc_streams", "Telemetry streams that are open.", traffic.streams)
        yield self._gauge("mqdb_grpc_waiting_receives", "Receives that wait for messages.", traffic.waiting)
        yield self._gauge("mqdb_grpc_prolonged_messages", "Messages whose time is prolonged.", traffic.held)
        if self._brokers is not None:
            yield from self._brokers.collect()
