"""The functions of mqdb for Spark programs. The data source is called `mqdb`. Needs `mqdb[spark]`."""

from mqdb.pipeline import (
    Origin,
    QueryMetrics,
    QueryMetricsListener,
    archive,
    dlq_report,
    query_metrics,
    read_jdbc,
    register,
    replay,
    session,
    stats,
)

__all__ = [
    "session",
    "register",
    "read_jdbc",
    "QueryMetricsListener",
    "QueryMetrics",
    "query_metrics",
    "archive",
    "replay",
    "Origin",
    "dlq_report",
    "stats",
]
