"""The functions of mqdb for Spark programs. The data source is called `mqdb`. Needs `mqdb[spark]`."""

from mqdb.pipeline import Origin, archive, dlq_report, read_jdbc, register, replay, session, stats

__all__ = ["session", "register", "read_jdbc", "archive", "replay", "Origin", "dlq_report", "stats"]
