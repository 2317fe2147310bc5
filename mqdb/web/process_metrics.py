"""One collector for the metrics of several processes, which write their metrics to files in one directory."""

from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector


class ProcessMetrics(Collector):
    """Sums over all processes with this directory as PROMETHEUS_MULTIPROC_DIR, including those that have exited."""

    def __init__(self, directory: str) -> None:
        self._collector = MultiProcessCollector(None, directory)  # type: ignore[no-untyped-call]

    def collect(self) -> Iterable[Metric]:
        """Read the metrics from the files."""
        metrics: Iterable[Metric] = self._collector.collect()  # type: ignore[no-untyped-call]
        return metrics


def forget_state(directory: str, pid: int) -> None:
    """Remove the gauges of a process that has exited. Its counters stay."""
    mark_process_dead(pid, directory)  # type: ignore[no-untyped-call]
