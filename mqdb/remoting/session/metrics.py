"""Metrics of a front: its traffic, and its outages as for any client."""

from enum import IntEnum

from mqdb.errors import ResponseCode
from mqdb.remoting.session.traffic import OTHER, Traffic
from mqdb.remoting.wire.codes import RequestCode
from mqdb.web.families import Families, FamilyCollector
from mqdb_client.broker_metrics import BrokerMetrics


class TrafficCollector(FamilyCollector):
    """Collects the metrics of one front. Any thread may collect them, without waiting."""

    def __init__(self, broker_name: str, cluster_name: str, traffic: Traffic) -> None:
        super().__init__(broker_name, cluster_name)
        self._traffic = traffic
        self._brokers = BrokerMetrics()

    def collect(self) -> Families:
        """All metrics at this moment."""
        traffic = self._traffic
        requests = [(_name(RequestCode, code), each) for code, each in list(traffic.requests.items())]
        ended = [
            ((request, _name(ResponseCode, code)), number)
            for request, each in requests
            for code, number in list(each.responses.items())
        ]
        words = "Completed requests."
        yield self._counters("mqdb_remoting_requests", words, ("request", "response"), ended)
        took = [(request, each.durations) for request, each in requests]
        words = "Durations of requests, including the time that pulls were held."
        yield self._durations("mqdb_remoting_request_seconds", words, "request", took)
        for name, words, number in (
            ("mqdb_remoting_received_bytes", "Bytes received from clients.", traffic.received_bytes),
            ("mqdb_remoting_sent_bytes", "Bytes sent to clients.", traffic.sent_bytes),
        ):
            yield self._counters(name, words, (), [((), number)])
        yield self._gauge("mqdb_remoting_connections", "Open connections.", traffic.connections)
        events = [
            (("accepted",), traffic.accepted),
            (("refused",), traffic.refused),
            (("invalid",), traffic.invalid),
        ]
        words = "Connections accepted, refused, or closed because they did not use the protocol."
        yield self._counters("mqdb_remoting_connection_events", words, ("event",), events)
        yield self._gauge("mqdb_remoting_held_pulls", "Pulls that wait for messages.", traffic.held_pulls)
        yield self._gauge("mqdb_remoting_waiting_pops", "Pops that wait for messages.", traffic.waiting)
        yield from self._brokers.collect()


def _name(codes: type[IntEnum], code: int) -> str:
    return "OTHER" if code == OTHER else codes(code).name
