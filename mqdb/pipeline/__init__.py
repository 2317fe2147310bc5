"""Topics in Spark: reads and writes by PySpark, and jobs built on them.

The pipeline needs an extra: pip install "mqdb[spark]". This module imports each name on first use, so the command line
can import it without Spark. No submodule has the name of a function here, because importing it would replace the
function.

    source                 the data source `mqdb`, which Spark calls
    read, write, jobs      the subpackages
    local_session, java    a Spark session on this machine, and its Java
    progress_metrics       backlogs of streaming queries, and the messages that they left out
    packing                mqdb as a zip, for spark-submit
    broker_wait            waits while the broker is unavailable
    kafka_options          options of Kafka that have no meaning here
    broker_urls            a list of brokers in the option url
    errors                 errors of the pipeline
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mqdb.pipeline.jobs.archiving import archive
    from mqdb.pipeline.jobs.dead_letter_counting import dlq_report
    from mqdb.pipeline.jobs.mirroring import Mirror, mirror_from_kafka, mirror_to_kafka
    from mqdb.pipeline.jobs.parquet_appending import to_parquet
    from mqdb.pipeline.jobs.replaying import Origin, replay
    from mqdb.pipeline.jobs.statistics import stats
    from mqdb.pipeline.jobs.table_loading import TableLoad, to_table
    from mqdb.pipeline.local_session import register, session
    from mqdb.pipeline.progress_metrics import QueryMetrics, QueryMetricsListener, query_metrics
    from mqdb.pipeline.read.jdbc import read_jdbc

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
    "to_table",
    "TableLoad",
    "to_parquet",
    "mirror_from_kafka",
    "mirror_to_kafka",
    "Mirror",
]

_MODULES: Final = {
    "session": "local_session",
    "register": "local_session",
    "read_jdbc": "read.jdbc",
    "QueryMetricsListener": "progress_metrics",
    "QueryMetrics": "progress_metrics",
    "query_metrics": "progress_metrics",
    "archive": "jobs.archiving",
    "replay": "jobs.replaying",
    "Origin": "jobs.replaying",
    "dlq_report": "jobs.dead_letter_counting",
    "stats": "jobs.statistics",
    "to_table": "jobs.table_loading",
    "TableLoad": "jobs.table_loading",
    "to_parquet": "jobs.parquet_appending",
    "mirror_from_kafka": "jobs.mirroring",
    "mirror_to_kafka": "jobs.mirroring",
    "Mirror": "jobs.mirroring",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
