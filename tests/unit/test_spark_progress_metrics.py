"""Metrics of a streaming query, computed from a progress report as Spark writes it."""

import json
import logging
from typing import Any

import pytest
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryProgress

from mqdb.pipeline.progress_metrics import QueryMetrics, QueryMetricsListener, QueueBacklog, query_metrics


def offset(topics: dict[str, dict[str, int]]) -> str:
    ids = dict.fromkeys(topics, 1)
    return json.dumps({"brokers": {"broker-a": {"topic_ids": ids, "topics": topics, "proofs": {}}}})


def source(start: str | None, end: str, latest: str | None, rows: int) -> dict[str, Any]:
    rates = {"inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0}
    offsets = {"startOffset": start, "endOffset": end, "latestOffset": latest}
    return {"description": "org.apache.spark...@5068b7af", **offsets, "numInputRows": rows, **rates}


def progress(*sources: dict[str, Any]) -> StreamingQueryProgress:
    """A progress report in the form of `query.lastProgress`."""
    ids = {"id": "e7006432-13a7-4f07-af0b-63961f352bbe", "runId": "e29234a4-2021-4175-87cb-f2833643bfa2"}
    rest = {
        "name": "mirror",
        "timestamp": "2026-11-30T15:46:50.277Z",
        "batchId": 7,
        "batchDuration": 5,
        "durationMs": {},
    }
    numbers = {"numInputRows": 1, "inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.2, "stateOperators": []}
    sink = {"sink": {"description": "x", "numOutputRows": 1}, "eventTime": {}, "observedMetrics": {}}
    whole: StreamingQueryProgress = StreamingQueryProgress.fromJson(
        {**ids, **rest, **numbers, "sources": list(sources), **sink}
    )
    return whole


def test_the_backlog_counts_from_the_end_of_the_batch_to_the_newest_message() -> None:
    start = offset({"orders": {"0": 5, "1": 5}, "payments": {"0": 0}})
    end = offset({"orders": {"0": 10, "1": 5}, "payments": {"0": 2}})
    latest = offset({"orders": {"0": 10, "1": 105}, "payments": {"0": 22}})

    metrics = query_metrics(progress(source(start, end, latest, rows=6)))

    assert (metrics.query_name, metrics.batch_id) == ("mirror", 7)
    [of_source] = metrics.sources
    assert of_source.description == "broker 'broker-a', topics orders, payments"
    assert (of_source.rows, of_source.rows_left_out) == (6, 1)
    assert (of_source.min_behind, of_source.max_behind, of_source.total_behind) == (0, 100, 120)
    assert of_source.worst_queues == (
        QueueBacklog("broker-a", "orders", 1, 100),
        QueueBacklog("broker-a", "payments", 0, 20),
    )


def test_ten_queues_are_named() -> None:
    end = offset({"orders": {str(queue_id): 0 for queue_id in range(12)}})
    latest = offset({"orders": {str(queue_id): queue_id for queue_id in range(12)}})

    [of_source] = query_metrics(progress(source(end, end, latest, rows=0))).sources

    assert [backlog.queue_id for backlog in of_source.worst_queues] == list(range(11, 1, -1))
    assert of_source.total_behind == sum(range(12))


def test_a_first_batch_has_no_start_and_another_source_no_metrics() -> None:
    end = offset({"orders": {"0": 3}})
    kafka = source(None, '{"orders":{"0":7}}', None, rows=7)

    [of_source] = query_metrics(progress(kafka, source(None, end, None, rows=3))).sources

    assert (of_source.brokers, of_source.rows_left_out, of_source.total_behind) == (("broker-a",), None, 0)


def test_a_ledger_that_cannot_be_reached_is_a_warning_and_the_rest_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reports: list[QueryMetrics] = []
    listener = QueryMetricsListener(reports.append, sink_url="postgresql://nobody@127.0.0.1:1/none")
    end = offset({"orders": {"0": 3}})

    listener.onQueryProgress(QueryProgressEvent(progress(source(None, end, end, rows=3))))

    assert [(len(metrics.sources), metrics.sink) for metrics in reports] == [(1, None)]
    [line] = caplog.messages
    assert line.startswith("could not read the ledger of query ")


def test_metrics_go_to_the_log_and_queries_of_other_formats_do_not(caplog: pytest.LogCaptureFixture) -> None:
    end, kafka = offset({"orders": {"0": 3}}), source(None, '{"orders":{"0":7}}', None, rows=7)

    with caplog.at_level(logging.INFO):
        QueryMetricsListener().onQueryProgress(QueryProgressEvent(progress(kafka)))
        QueryMetricsListener().onQueryProgress(QueryProgressEvent(progress(source(None, end, end, rows=3))))

    assert [getattr(record, "query_name", "") for record in caplog.records] == ["mirror"]
