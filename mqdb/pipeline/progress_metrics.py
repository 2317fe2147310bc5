"""Metrics of streaming queries: how far a query is behind the newest messages, and how many rows it left out.

Spark's Python data sources have no place for metrics: a `StreamingQueryProgress` has only their offsets, and names them
by a Java class. So a listener, which Spark calls for each batch, computes the metrics from these offsets in the user's
process.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple, TypeAlias

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    SourceProgress,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from mqdb.common.dsn import parse_brokers
from mqdb.errors import MqdbError
from mqdb.pipeline.errors import StreamUnreadable
from mqdb.pipeline.read.offsets import ClusterOffset

logger = logging.getLogger(__name__)

#: The next offset of each queue, by broker, topic and number.
_Offsets: TypeAlias = dict[tuple[str, str, int], int]

#: The number of queues of a source that are listed.
_WORST_QUEUES: Final = 10


class QueueBacklog(NamedTuple):
    """The number of messages of a queue that a query has not read yet."""

    broker: str
    topic: str
    queue_id: int
    messages: int


@dataclass(frozen=True)
class SourceMetrics:
    """The state of a `format("mqdb")` source of a query, after a batch.

    The backlog counts up to the newest message at the time when the batch was planned. `min_behind`, `max_behind` and
    `total_behind` cover all queues, and `worst_queues` are the ten largest backlogs, largest first. `rows_left_out` are
    messages in the batch for which Spark got no row: because of filters, onBadRow=skip or failOnDataLoss=false.
    `rows_left_out` is None if Spark does not report the start of the batch, as for the first batch of a query.
    """

    brokers: tuple[str, ...]
    topics: tuple[str, ...]
    rows: int
    rows_left_out: int | None
    min_behind: int
    max_behind: int
    total_behind: int
    worst_queues: tuple[QueueBacklog, ...]

    @property
    def description(self) -> str:
        """The brokers and topics, as shown to people."""
        noun = "broker" if len(self.brokers) == 1 else "brokers"
        return f"{noun} {', '.join(map(repr, self.brokers))}, topics {', '.join(self.topics)}"


@dataclass(frozen=True)
class SinkMetrics:
    """The state of a query's `format("mqdb")` sink, after a batch.

    `rows_left_out` are the bad rows with onBadRow=skip. With onBadRow=topic:NAME bad rows become messages, too.
    """

    rows: int
    messages: int

    @property
    def rows_left_out(self) -> int:
        """The number of rows that did not become messages."""
        return self.rows - self.messages


@dataclass(frozen=True)
class QueryMetrics:
    """One batch of a streaming query. `sink` is None unless the listener queries a ledger that has the batch."""

    query_id: str
    query_name: str | None
    batch_id: int
    sources: tuple[SourceMetrics, ...]
    sink: SinkMetrics | None = None


def query_metrics(progress: StreamingQueryProgress) -> QueryMetrics:
    """The metrics of a progress, such as `query.lastProgress`. Sources of other formats are left out."""
    found = (_source(source) for source in progress.sources)
    sources = tuple(source for source in found if source is not None)
    return QueryMetrics(str(progress.id), progress.name, progress.batchId, sources)


class QueryMetricsListener(StreamingQueryListener):
    """Reports the metrics of each batch that reads or writes `format("mqdb")`.

        spark.streams.addListener(QueryMetricsListener(report))

    `report` is called with `QueryMetrics`, in one of Spark's threads; without it the metrics are logged. `sink_url` is
    the url of the brokers to which the queries write: their ledgers contain how many rows became messages.
    """

    def __init__(self, report: Callable[[QueryMetrics], object] | None = None, *, sink_url: str | None = None) -> None:
        self._report = report if report is not None else _log
        self._sink_url = sink_url

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Called by Spark. There is nothing to report yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Called by Spark after each batch."""
        progress = event.progress
        metrics = query_metrics(progress)
        sink = self._sink(metrics, progress.sink.numOutputRows)
        if metrics.sources or sink is not None:
            self._report(QueryMetrics(metrics.query_id, metrics.query_name, metrics.batch_id, metrics.sources, sink))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Called by Spark. The last progress is still valid."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Called by Spark. The last progress was that of the last batch."""

    def _sink(self, metrics: QueryMetrics, rows: int) -> SinkMetrics | None:
        if self._sink_url is None:
            return None
        from mqdb.store.engine import connected
        from mqdb.store.log.sink_ledger import messages_of_batch

        found: list[int | None] = []
        try:
            for broker in parse_brokers(self._sink_url, ""):
                with connected(broker.dsn, "mqdb spark metrics") as connection:
                    found.append(messages_of_batch(connection, metrics.query_id, metrics.batch_id))
        except MqdbError as error:
            fields = {"query": metrics.query_id, "reason": str(error)}
            logger.warning("could not read the ledger of query %(query)s: %(reason)s", fields, extra=fields)
            return None
        messages = [count for count in found if count is not None]
        return SinkMetrics(rows, sum(messages)) if messages else None


def _source(progress: SourceProgress) -> SourceMetrics | None:
    end = _offset(progress.endOffset)
    if end is None:
        return None
    start, latest = _offset(progress.startOffset), _offset(progress.latestOffset) or end
    backlogs = sorted(
        (QueueBacklog(*place, max(past - end.get(place, 0), 0)) for place, past in latest.items()),
        key=lambda backlog: (-backlog.messages, backlog),
    )
    rows = progress.numInputRows
    messages = [backlog.messages for backlog in backlogs]
    return SourceMetrics(
        brokers=tuple(sorted({broker for broker, _, _ in end})),
        topics=tuple(sorted({topic for _, topic, _ in end})),
        rows=rows,
        rows_left_out=None if start is None else max(_between(start, end) - rows, 0),
        min_behind=min(messages, default=0),
        max_behind=max(messages, default=0),
        total_behind=sum(messages),
        worst_queues=tuple(backlog for backlog in backlogs[:_WORST_QUEUES] if backlog.messages),
    )


def _between(start: _Offsets, end: _Offsets) -> int:
    return sum(max(past - start.get(place, 0), 0) for place, past in end.items())


def _offset(text: str) -> _Offsets | None:
    """The offsets in a progress of `format("mqdb")`, or None for other text."""
    try:
        offset = ClusterOffset.from_dict(json.loads(text))
    except (ValueError, StreamUnreadable):
        return None
    brokers = offset.brokers.items()
    return {(name, *queue): past for name, of_broker in brokers for queue, past in of_broker.offsets.items()}


def _log(metrics: QueryMetrics) -> None:
    logger.info("batch of a streaming query", extra=asdict(metrics))
