"""What programs use of mqdb on Spark, beside the data source `mqdb`. Needs `mqdb[spark]`."""

from mqdb.pipeline import Origin, archive, dlq_report, read_jdbc, register, replay, session, stats

__all__ = ["session", "register", "read_jdbc", "archive", "replay", "Origin", "dlq_report", "stats"]
