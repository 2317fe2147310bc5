"""The data source behind `stats`: one task per segment, which PostgreSQL counts; Spark adds up the results."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from mqdb.pipeline.errors import SegmentDropped
from mqdb.store.session_settings import SESSION_SETTINGS, startup_options

NAME: Final = "mqdb_statistics"

_SCHEMA: Final = "topic string, tag string, hour timestamp, ticks bigint, messages bigint, bytes bigint"
_TYPES: Final = ("text", "text", "timestamptz", "int8", "int8", "int8")

#: A whole segment is read; without statistics the planner might look up each record, or sort all records because it
#: expects few groups. Spark runs as many tasks as there are cores.
_SETTINGS: Final = {
    "enable_nestloop": "off",
    "enable_sort": "off",
    "work_mem": "64MB",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    "default_transaction_read_only": "on",
}


class _Segments(InputPartition):
    """Segments with their statements, for one task. An empty count also has a task, because Spark requests its rows."""

    def __init__(self, *counts: tuple[int, str]) -> None:
        super().__init__(counts)
        self.counts = counts


class StatisticsSource(DataSource):
    """Options: url, topics (JSON), since and until (ISO 8601 with a zone).

    Only `stats` sets these options, and it checks them.
    """

    @classmethod
    def name(cls) -> str:
        """The name for `spark.read.format`."""
        return NAME

    def schema(self) -> str:
        """The schema of the rows of mqdb.store.log.message_statistics.hourly."""
        return _SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader, which plans in a process beside the driver and reads in the executors' processes."""
        return _StatisticsReader(self.options)


class _StatisticsReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._url = options["url"]
        self._topics: list[str] = json.loads(options["topics"])
        self._since, self._until = (_time(options.get(name)) for name in ("since", "until"))

    def partitions(self) -> Sequence[InputPartition]:
        """One task per segment."""
        from mqdb.broker.log.message_statistics import count_by_segment
        from mqdb.store.engine import connected
        from mqdb.store.server_choice import ServerRole

        with connected(self._url, "mqdb stats", ServerRole.ANY) as connection:
            counts = count_by_segment(connection, self._topics, self._since, self._until)
            # As plain tuples, so that a worker need not import the code that makes them.
            return [_Segments((count.segment, count.statement)) for count in counts] or [_Segments()]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Read a partition, on a worker."""
        assert isinstance(partition, _Segments)
        for segment, statement in partition.counts:
            yield from self._rows(segment, statement)

    def _rows(self, segment: int, statement: str) -> Iterator[tuple[Any, ...]]:
        options = f"{conninfo_to_dict(self._url).get('options', '')} {startup_options(_SETTINGS, SESSION_SETTINGS)}"
        try:
            with (
                psycopg.connect(
                    self._url, application_name="mqdb stats", connect_timeout=5, options=options, autocommit=True
                ) as connection,
                connection.cursor() as cursor,
                # COPY, so that the rows of many distinct times need not be in memory at once.
                cursor.copy(f"COPY ({statement}) TO STDOUT".encode()) as copy,
            ):
                copy.set_types(_TYPES)
                yield from copy.rows()
        except pg.UndefinedTable as error:
            raise SegmentDropped(segment) from error


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
