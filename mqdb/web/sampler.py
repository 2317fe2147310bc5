"""The sampler: queries the database for the metrics of a broker, as long as this process leads the broker.

Scrapes and pages render the last sample, so they never wait for the database. The sampler queries the database every
5 s, regardless of the number of monitors and pages, and less often if a sample takes long.
"""

import time
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Connection, func, select

from mqdb.service.leadership import LeadershipConfig
from mqdb.service.run import Run
from mqdb.service.service import Context, LoopService
from mqdb.web.broker_sample import Sample, take
from mqdb.web.live_figures import LiveFigures

#: A statement that takes longer would hold back vacuum.
_STATEMENT_TIMEOUT = "30s"


@dataclass(frozen=True, slots=True)
class SamplerConfig:
    """The intervals of the sampler."""

    interval: timedelta = timedelta(seconds=5)
    longest_interval: timedelta = timedelta(seconds=15)
    """The limit of the interval, which grows to 20 times the duration of a sample."""
    first_interval: timedelta = timedelta(seconds=1)
    """The interval after the first sample, because rates need two samples."""
    storage_interval: timedelta = timedelta(seconds=60)
    """The interval for storage sizes, for which the size of each file is read."""
    per_queue: tuple[str, ...] = ()
    """Topics that are measured queue by queue."""
    service_set: str = LeadershipConfig().service_set


class Sampler(LoopService[Sample]):
    """Takes samples and keeps the last sample."""

    name = "sampler"

    def __init__(
        self, context: Context, config: SamplerConfig = SamplerConfig(), figures: LiveFigures | None = None
    ) -> None:
        """Each sample is also added to `figures`."""
        super().__init__(context)
        self._config = config
        self._figures = figures
        self._storage_until = 0.0
        self._is_warm = False
        self.latest: Sample | None = None
        """The last sample; None before the first sample, and while this process does not lead."""

    def prepare(self, connection: Connection) -> None:
        # A plan made while segments are empty would read them from end to end after they have filled.
        settings = {"enable_seqscan": "off", "enable_bitmapscan": "off", "statement_timeout": _STATEMENT_TIMEOUT}
        connection.execute(select(*(func.set_config(*setting, False) for setting in settings.items())))

    def run_once(self, connection: Connection) -> Sample:
        """Take a sample."""
        now = time.monotonic()
        last = self.latest if now < self._storage_until else None
        sizes = last.storage_bytes if last else None
        sample = take(connection, self._config.service_set, sizes, self._config.per_queue)
        if last is None:
            self._storage_until = now + self._config.storage_interval.total_seconds()
        self._is_warm = self.latest is not None
        self.latest = sample
        if self._figures is not None:
            self._figures.add(sample)
        return sample

    def pause_after(self, counts: Sample) -> timedelta:
        config, twenty = self._config, timedelta(seconds=20 * counts.seconds)
        interval = min(max(config.interval, twenty), config.longest_interval)
        return interval if self._is_warm else min(config.first_interval, interval)

    def _leave(self, run: Run) -> None:
        self.latest = None
        self._is_warm = False
        if self._figures is not None:
            self._figures.leave()
