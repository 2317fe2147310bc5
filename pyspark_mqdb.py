"""Spark looks for top-level modules named pyspark_*; thanks to this one, format("mqdb") needs no registration."""

from mqdb.pipeline.source import MqdbDataSource as DefaultSource

__all__ = ["DefaultSource"]
