"""Metrics of streaming queries: how far a query is behind the newest messages, and how many rows it has left out.

Spark's Python data sources have no place for metrics: a `StreamingQueryProgress` has only their offsets, and names them
by a Java class. So the metrics are computed of these offsets, in the process of the user, by a listener. Spark tells
it of each batch.
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

#: So many queues of a source are named.
_WORST_QUEUES: Final = 10


class QueueBacklog(NamedTuple):
    """The number of messages of a queue that a query has not read yet."""

    broker: str
    topic: str
    queue_id: int
    messages: int


@dataclass(frozen=True)
class SourceMetrics:
    """One `format("mqdb")` that a query reads, after a batch.

    The backlog counts to the newest message that there was when the batch was planned. `min_behind`, `max_behind` and
    `total_behind` are those of all queues, and `worst_queues` are the ten largest, largest first. `rows_left_out` are
    messages between the offsets of the batch of which Spark got no row: by filters, by onBadRow=skip, or by
    failOnDataLoss=false. It is None if Spark does not tell the start of the batch, as for the first batch of a query.
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
        """The brokers and the topics, for people."""
        noun = "broker" if len(self.brokers) == 1 else "brokers"
        return f"{noun} {', '.join(map(repr, self.brokers))}, topics {', '.join(self.topics)}"


@dataclass(frozen=True)
class SinkMetrics:
    """The `format("mqdb")` that a query writes, after a batch.

    `rows_left_out` are bad rows with onBadRow=skip. With onBadRow=topic:NAME bad rows are messages, too.
    """

    rows: int
    messages: int

    @property
    def rows_left_out(self) -> int:
        """Rows that became no message."""
        return self.rows - self.messages


@dataclass(frozen=True)
class QueryMetrics:
    """One batch of a streaming query. `sink` is None unless the listener asks a ledger that has the batch."""

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

    `report` is called with `QueryMetrics`, in a thread of Spark's; without it the metrics go to the log. `sink_url` is
    the url of the brokers that the queries write to: their ledgers say how many rows became messages.
    """

    def __init__(self, report: Callable[[QueryMetrics], object] | None = None, *, sink_url: str | None = None) -> None:
        self._report = report if report is not None else _log
        self._sink_url = sink_url

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Spark calls it. There is nothing to report yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Spark calls it after each batch."""
        progress = event.progress
        metrics = query_metrics(progress)
        sink = self._sink(metrics, progress.sink.numOutputRows)
        if metrics.sources or sink is not None:
            self._report(QueryMetrics(metrics.query_id, metrics.query_name, metrics.batch_id, metrics.sources, sink))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Spark calls it. The last progress still holds."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Spark calls it. The last progress was that of the last batch."""

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
    """The offsets in a progress of `format("mqdb")`, or None if the text is not one."""
    try:
        offset = ClusterOffset.from_dict(json.loads(text))
    except (ValueError, StreamUnreadable):
        return None
    brokers = offset.brokers.items()
    return {(name, *queue): past for name, of_broker in brokers for queue, past in of_broker.offsets.items()}


def _log(metrics: QueryMetrics) -> None:
    logger.info("batch of a streaming query", extra=asdict(metrics))
