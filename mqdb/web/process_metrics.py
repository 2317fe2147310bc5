"""The metrics of several processes as one collector: each keeps its own in files of one directory."""

from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector


class ProcessMetrics(Collector):
    """Sums over the processes that had this directory as PROMETHEUS_MULTIPROC_DIR, those that have ended included."""

    def __init__(self, directory: str) -> None:
        self._collector = MultiProcessCollector(None, directory)  # type: ignore[no-untyped-call]

    def collect(self) -> Iterable[Metric]:
        """Read the files."""
        metrics: Iterable[Metric] = self._collector.collect()  # type: ignore[no-untyped-call]
        return metrics


def forget_state(directory: str, pid: int) -> None:
    """A process has ended. Its counters stay, and what was true of it as long as it lived goes."""
    mark_process_dead(pid, directory)  # type: ignore[no-untyped-call]
