"""Families of metrics whose series all have the labels `broker` and `cluster`."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from mqdb.web.bounds import Count
from mqdb.web.durations import BOUNDS, Durations

Families: TypeAlias = Iterable[Metric]

_BROKER_LABELS: Final = ("broker", "cluster")


class FamilyCollector(Collector):
    """The base class of collectors for the metrics of one broker."""

    def __init__(self, broker_name: str, cluster_name: str) -> None:
        self._broker = [broker_name, cluster_name]

    def _gauge(self, name: str, words: str, number: float) -> Metric:
        return self._gauges(name, words, (), [((), number)])

    def _gauges(self, name: str, words: str, labels: Sequence[str], numbers: Iterable[Count]) -> Metric:
        return self._filled(GaugeMetricFamily(name, words, labels=(*_BROKER_LABELS, *labels)), numbers)

    def _counters(self, name: str, words: str, labels: Sequence[str], numbers: Iterable[Count]) -> Metric:
        return self._filled(CounterMetricFamily(name, words, labels=(*_BROKER_LABELS, *labels)), numbers)

    def _durations(self, name: str, words: str, label: str, durations: Iterable[tuple[str, Durations]]) -> Metric:
        family = HistogramMetricFamily(name, words, labels=(*_BROKER_LABELS, label))
        bounds = [*map(str, BOUNDS), "+Inf"]
        for value, each in durations:
            counts = map(float, accumulate(each.counts))
            family.add_metric([*self._broker, value], list(zip(bounds, counts, strict=True)), each.seconds)
        return family

    def _filled(self, family: GaugeMetricFamily | CounterMetricFamily, numbers: Iterable[Count]) -> Metric:
        for names, number in numbers:
            family.add_metric([*self._broker, *names], number)
        return family
